package sinks

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A rotation holds the settings for when a file is renamed, and for how many renamed files are kept.
type rotation struct {
	max   int64         // bytes of the file; 0 means no limit
	every time.Duration // the length of a period; 0 means one without end
	keep  int           // renamed files; 0 means all
}

// due reports whether a file of size bytes, last written at last, has to be rotated before more bytes are added. An
// empty file never has to be, so that a line longer than the limit can be written at all. Periods are counted in UTC from
// a Monday, so that days begin at midnight and weeks on Monday.
func (r rotation) due(size, more int64, last, now time.Time) bool {
	tooLarge := r.max > 0 && size+more > r.max
	tooOld := r.every > 0 && last.Truncate(r.every).Before(now.Truncate(r.every))
	return size > 0 && (tooLarge || tooOld)
}

// rotate renames the file and deletes rotated files beyond those to keep. If it fails, which on Windows another program
// that has the file open can cause, the caller continues with the same file, and the next delivery tries again: a file
// that is too large is better than none. It logs the first of equal failures, and the success after them.
func (f *file) rotate(dir folder) {
	err := setAside(dir, f.name, f.now())
	if err == nil && f.rotation.keep > 0 {
		err = deleteOldest(dir, f.name, f.rotation.keep)
	}
	switch {
	case err != nil && err.Error() != f.rotateErr:
		f.rotateErr = err.Error()
		f.log.Warn("file not rotated", "path", f.path, "err", err)
	case err == nil && f.rotateErr != "":
		f.rotateErr = ""
		f.log.Info("file rotated again", "path", f.path)
	}
}

// rotatedAt is the layout of the time, in UTC, in the name of a rotated file.
const rotatedAt = "20060102T150405Z"

// setAside renames a file to a name with the time in it: audit.jsonl becomes audit-20261121T041000Z.jsonl. That name
// sorts after those of all older rotated files: if the newest has this second or, because the clock was set back, a later
// one, it gets the second after. If the file does not exist, setAside returns nil. Its errors do not name the new file,
// whose name differs each time, so that equal failures have equal texts.
func setAside(dir folder, file string, now time.Time) error {
	at := now.UTC().Truncate(time.Second)
	old, _ := oldFiles(dir, file) // if the directory cannot be listed, the file can be renamed all the same
	if len(old) > 0 {
		newest, _ := rotatedTime(old[len(old)-1], file)
		if !at.After(newest) {
			at = newest.Add(time.Second)
		}
	}
	stem, ext := splitName(file)
	err := dir.rename(file, stem+"-"+at.Format(rotatedAt)+ext)
	if errors.Is(err, fs.ErrNotExist) && !isThere(dir, file) { // on Windows also for too long a name
		return nil
	}
	return cmp.Or(errors.Unwrap(err), err)
}

// isThere reports whether a folder has that file. It returns true if that cannot be found out.
func isThere(dir folder, file string) bool {
	_, err := dir.stat(file)
	return !errors.Is(err, fs.ErrNotExist)
}

// deleteOldest deletes the rotated files of file, except for the newest keep. It tries all of them.
func deleteOldest(dir folder, file string, keep int) error {
	old, err := oldFiles(dir, file)
	for _, name := range old[:max(0, len(old)-keep)] {
		err = errors.Join(err, dir.remove(name))
	}
	return err
}

// oldFiles returns the names of the rotated files of file, oldest first.
func oldFiles(dir folder, file string) ([]string, error) {
	entries, err := dir.list()
	var all []string
	for _, e := range entries {
		if _, ok := rotatedTime(e.Name(), file); ok && e.Type().IsRegular() {
			all = append(all, e.Name())
		}
	}
	slices.Sort(all)
	return all, err
}

// rotatedTime returns the time in a name that setAside gives to a file. ok is false for any other name.
func rotatedTime(name, file string) (at time.Time, ok bool) {
	stem, ext := splitName(file)
	text, begins := strings.CutPrefix(name, stem+"-")
	text, ends := strings.CutSuffix(text, ext)
	at, err := time.Parse(rotatedAt, text)
	return at, begins && ends && err == nil && at.Format(rotatedAt) == text
}

// splitName splits a name before its extension. In one that is all extension, such as .audit, there is none.
func splitName(name string) (stem, ext string) {
	ext = filepath.Ext(name)
	if ext == name {
		return name, ""
	}
	return strings.TrimSuffix(name, ext), ext
}

// A Size is a number of bytes. In the settings it is written as 1048576, 100MB (decimal) or 64MiB (binary).
type Size int64

var units = map[string]int64{
	"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30,
	"TIB": 1 << 40,
}

// UnmarshalText reads a size. It returns an error for one that is not positive, or more than 2^62 bytes.
func (s *Size) UnmarshalText(text []byte) error {
	digits := strings.TrimRight(string(text), letters+" ")
	unit, known := units[strings.ToUpper(strings.TrimSpace(string(text[len(digits):])))]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !known || n <= 0 || n > (1<<62)/unit {
		return fmt.Errorf("%q is not a size; expected one such as 100MB, 64MiB or a number of bytes", text)
	}
	*s = Size(n * unit)
	return nil
}
