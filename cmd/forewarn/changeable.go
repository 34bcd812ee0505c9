package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// changeableNotes says how every user of this machine could change a settings file, and with it what forewarn does:
// they may write to the file, or to a directory on the way to it, where they can put another file in its place. For the
// built-in settings, path is "".
func changeableNotes(path string) (notes []string) {
	info, err := os.Stat(path)
	if err != nil || runtime.GOOS == "windows" { // Windows has access lists instead of modes
		return nil
	}
	if mode := info.Mode().Perm(); mode&0o002 != 0 {
		notes = append(notes,
			fmt.Sprintf("every user of this machine can change %s (mode %04o), and with it what forewarn does; "+
				"run chmod o-w on it", path, mode))
	}
	if dir, mode, found := openDirectory(path); found {
		notes = append(notes,
			fmt.Sprintf("every user of this machine can put another file in the place of %s, because %s is open to them "+
				"(mode %04o); run chmod o-w on that directory", path, dir, mode.Perm()))
	}
	return notes
}

// openDirectory returns the first directory above a file, or above what its links lead to, in which every user may
// rename what others made. In a directory with the sticky bit, such as /tmp, nobody may.
func openDirectory(path string) (dir string, mode fs.FileMode, found bool) {
	full, err := filepath.Abs(path)
	if err != nil {
		return "", 0, false
	}
	ways := []string{full}
	if real, err := filepath.EvalSymlinks(full); err == nil && real != full {
		ways = append(ways, real)
	}
	for _, way := range ways {
		for dir := filepath.Dir(way); ; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err == nil && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
				return dir, info.Mode(), true
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", 0, false
}
