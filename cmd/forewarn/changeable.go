package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// changeableNotes says how other users could change a settings file, and with it what forewarn does: they may write to the
// file, or to a directory on the way to it, where they can put another file in its place, or they own one of these. For
// the built-in settings, path is "".
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
	if o, at, found := otherOwner(path); found {
		notes = append(notes,
			fmt.Sprintf("user %s can change %s, and with it what forewarn does, because %s belongs to them; run chown root on it",
				strings.TrimPrefix(o.String(), "user "), path, at))
	}
	return notes
}

// openDirectory returns the first directory above a file, or above what its links lead to, in which every user may
// rename what others made. In a directory with the sticky bit, such as /tmp, nobody may.
func openDirectory(path string) (dir string, mode fs.FileMode, found bool) {
	for _, way := range waysTo(path) {
		for _, dir := range way[1:] {
			info, err := os.Stat(dir)
			if err == nil && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
				return dir, info.Mode(), true
			}
		}
	}
	return "", 0, false
}

// startUser is the user who started this process. Root may act as another user since.
var startUser = os.Geteuid()

// otherOwner returns a user who controls a file and is neither root nor the user who started this process: the owner of
// the file, of a link to it or of a directory above, which is at.
func otherOwner(path string) (o owner, at string, found bool) {
	for _, way := range waysTo(path) {
		for _, at := range way {
			info, err := os.Lstat(at)
			if err != nil {
				continue
			}
			o := ownerOf(info)
			if o.uid != 0 && o.uid != startUser && isUser(o.uid) {
				return o, at, true
			}
		}
	}
	return o, "", false
}

// waysTo returns a file with the directories above it, from the last to the first, and if links lead to another file, the
// same for that one.
func waysTo(path string) (ways [][]string) {
	full, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	files := []string{full}
	if real, err := filepath.EvalSymlinks(full); err == nil && real != full {
		files = append(files, real)
	}
	for _, file := range files {
		way := []string{file}
		for at := file; at != filepath.Dir(at); {
			at = filepath.Dir(at)
			way = append(way, at)
		}
		ways = append(ways, way)
	}
	return ways
}
