package sinks

import (
	"os"
	"path/filepath"
	"strings"
)

// A Path is a setting that names a file or directory of this machine. A relative one is relative to the directory of the
// settings file: whoever writes the file stands there, while a service has another working directory.
type Path string

// RelativeTo makes a relative path absolute, below dir. "" stays empty, and - stays standard output.
func (p *Path) RelativeTo(dir string) {
	text := string(*p)
	if text == "" || text == "-" || filepath.IsAbs(text) || os.IsPathSeparator(text[0]) {
		return
	}
	*p = Path(filepath.Join(dir, text))
	if os.IsPathSeparator(text[len(text)-1]) { // a directory, which Join would hide
		*p += Path(filepath.Separator)
	}
}

// A Program is a setting that names a program and its arguments. The program is an absolute path, a path that is
// relative as a Path is, such as ./drain.sh, or a bare name that is looked up in PATH.
type Program []string

// RelativeTo makes a relative path of the program absolute, below dir.
func (p *Program) RelativeTo(dir string) {
	if len(*p) == 0 || !strings.ContainsFunc((*p)[0], isSeparator) {
		return
	}
	path := Path((*p)[0])
	path.RelativeTo(dir)
	(*p)[0] = string(path)
}

func isSeparator(r rune) bool { return r < 0x80 && os.IsPathSeparator(uint8(r)) }
