package sinks

import (
	"io/fs"
	"log/slog"
	"os"
)

// openAt opens a file as os.OpenFile does. On Windows a file has the access list of its directory.
func openAt(path string, flag int, mode fs.FileMode, _ *slog.Logger) (*os.File, error) {
	return os.OpenFile(path, flag, mode)
}
