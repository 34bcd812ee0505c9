package main

import (
	"os"

	"golang.org/x/sys/windows"
)

// supportsControls reports whether f is a console that obeys control sequences. It switches them on first, because they
// may be off by default.
func supportsControls(f *os.File) bool {
	console := windows.Handle(f.Fd())
	var mode uint32
	if err := windows.GetConsoleMode(console, &mode); err != nil {
		return false
	}
	return windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
