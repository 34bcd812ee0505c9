package sinks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"forewarn/templates"
)

// A Path is a setting that names a file or directory of this machine. A relative one is relative to the directory of
// the settings file: whoever writes the file stands there, while a service has another working directory.
type Path string

// RelativeTo makes a relative path absolute, below dir. "" stays empty, and - stays standard output.
func (p *Path) RelativeTo(dir string) {
	text := string(*p)
	if text == "" || text == "-" || isRooted(text) {
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

// check returns the *KeyError of a command whose first item can't be a program; key is that of the command.
func (p Program) check(key string) error {
	if len(p) == 0 {
		return nil
	}
	name, want := p[0], ""
	switch {
	case hasArguments(name):
		want, name = "%q is a program with arguments; expected an item of the list for each, such as "+
			"[/usr/local/bin/drain, --now]", programIn(name)
	case name == "" || !filepath.IsAbs(name) && filepath.Base(name) != name:
		want = "%q is no program; expected an absolute path, or a name that is found in PATH"
	default:
		return nil
	}
	return &KeyError{key + ".0", fmt.Errorf(want, templates.HideKeys(name, name))}
}

// programIn returns the program in a text that hasArguments: they may be secret.
func programIn(text string) string {
	program, _, _ := strings.Cut(text, " ")
	for i, r := range text {
		if (r == ' ' || r == '\t') && isProgram(text[:i]) {
			return text[:i]
		}
	}
	return program
}

// hasArguments reports whether a text is rather a program and its arguments than the name of a program. The path of a
// program may hold spaces. In any other path what stands before a space must be a program, or an option must follow.
func hasArguments(name string) bool {
	switch {
	case !strings.ContainsFunc(name, isSeparator):
		return strings.ContainsAny(name, " \t")
	case isProgram(name):
		return false
	case strings.Contains(name, " -"):
		return true
	}
	for i, r := range name {
		if (r == ' ' || r == '\t') && isProgram(name[:i]) {
			return true
		}
	}
	return false
}

// isProgram reports whether there is a file at path. On Windows a program is also found without its .exe.
func isProgram(path string) bool {
	info, err := os.Stat(path)
	if err == nil {
		return info.Mode().IsRegular()
	}
	_, err = exec.LookPath(path)
	return err == nil
}

func isSeparator(r rune) bool { return r < 0x80 && os.IsPathSeparator(uint8(r)) }

// MayBeShown reports whether an error may show the path, which the settings have as text: something is there, or may
// not be looked at, or its directory is there, or it is an absolute path made of words. Any other text may be what
// belongs into the file, such as a token.
func (p Path) MayBeShown(text string) bool {
	_, err := os.Stat(string(p))
	return err == nil || errors.Is(err, fs.ErrPermission) || isRooted(text) && isWords(text) ||
		strings.ContainsFunc(text, isSeparator) && isPath(string(p))
}

// isRooted reports whether a path does not begin in a directory that it leaves open.
func isRooted(path string) bool {
	return filepath.IsAbs(path) || path != "" && os.IsPathSeparator(path[0])
}

// isPath reports whether a text is the absolute path of something in a directory that exists on this machine. Such a
// text is no secret.
func isPath(text string) bool {
	dir := filepath.Dir(text)
	if !filepath.IsAbs(text) || filepath.Clean(text) != text || filepath.Dir(dir) == dir {
		return false
	}
	info, err := os.Stat(dir)
	return err == nil && info.IsDir()
}

// isPathList reports whether a text is a list of directories like PATH, of which one is on this machine.
func isPathList(text string) bool {
	list := filepath.SplitList(text)
	for _, dir := range list {
		if !filepath.IsAbs(dir) {
			return false
		}
	}
	return len(list) > 1 && slices.ContainsFunc(list, func(dir string) bool {
		info, err := os.Stat(dir)
		return err == nil && info.IsDir()
	})
}
