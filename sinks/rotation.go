package sinks

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
// empty file never has to be, so that a line longer than the limit can be written at all.
func (r rotation) due(size, more int64, last, now time.Time) bool {
	if size == 0 {
		return false
	}
	return r.max > 0 && size+more > r.max || r.every > 0 && period(last, r.every).Before(period(now, r.every))
}

// period returns the beginning of the period that t is in. Periods are counted in UTC from a Monday, so that days begin
// at midnight and weeks on Monday.
func period(t time.Time, every time.Duration) time.Time { return t.UTC().Truncate(every) }

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

// setAside renames a file to a name with the time in it: audit.jsonl becomes audit-20261121T041000Z.jsonl or, if that
// exists, audit-20261121T041000Z-2.jsonl. The new name sorts after every older rotated file's: if the clock was set back,
// it has the time of the newest. If the file does not exist, setAside returns nil. Its errors do not name the new file,
// whose name differs each time, so that equal failures have equal texts.
func setAside(dir folder, file string, now time.Time) error {
	stem, ext := splitName(file)
	at, n := now.UTC().Format(rotatedAt), 1
	old, _ := oldFiles(dir, file) // if the directory cannot be listed, the file can be renamed all the same
	if len(old) > 0 && old[len(old)-1].at >= at {
		newest := old[len(old)-1]
		at, n = newest.at, newest.n+1
	}
	for ; ; n++ {
		name := stem + "-" + at + ext
		if n > 1 {
			name = stem + "-" + at + "-" + strconv.Itoa(n) + ext
		}
		err := dir.rename(file, name)
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist) && !isThere(dir, file): // on Windows also for too long a name
			return nil
		case !errors.Is(err, fs.ErrExist):
			return cmp.Or(errors.Unwrap(err), err)
		}
	}
}

// notExist reports whether nothing has that name, not even a broken link. It returns false if that cannot be found out.
func notExist(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// isThere reports whether a folder has that file. It returns true if that cannot be found out.
func isThere(dir folder, file string) bool {
	_, err := dir.stat(file)
	return !errors.Is(err, fs.ErrNotExist)
}

// deleteOldest deletes the rotated files of file, except for the newest keep. It tries all of them.
func deleteOldest(dir folder, file string, keep int) error {
	old, err := oldFiles(dir, file)
	for _, r := range old[:max(0, len(old)-keep)] {
		err = errors.Join(err, dir.remove(r.name))
	}
	return err
}

// A rotatedFile is a file that setAside renamed.
type rotatedFile struct {
	name string
	at   string // the time in it
	n    int    // the number within that second, counted from 1
}

// oldFiles returns the rotated files of file, oldest first.
func oldFiles(dir folder, file string) ([]*rotatedFile, error) {
	entries, err := dir.list()
	stem, ext := splitName(file)
	var all []*rotatedFile
	for _, e := range entries {
		if at, n, ok := rotatedName(e.Name(), stem, ext); ok && e.Type().IsRegular() {
			all = append(all, &rotatedFile{e.Name(), at, n})
		}
	}
	slices.SortFunc(all, func(a, b *rotatedFile) int { return cmp.Or(strings.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) })
	return all, err
}

// rotatedName reads a file name that setAside made from stem and ext: the time in it, and its number within that
// second, counted from 1. ok is false for any other name, also one with a number that is so large that somebody else must
// have made it.
func rotatedName(name, stem, ext string) (at string, n int, ok bool) {
	rest, begins := strings.CutPrefix(name, stem+"-")
	rest, ends := strings.CutSuffix(rest, ext)
	at, number, numbered := strings.Cut(rest, "-")
	n = 1
	if numbered {
		n, _ = strconv.Atoi(number)
	}
	t, err := time.Parse(rotatedAt, at)
	return at, n, begins && ends && err == nil && t.Format(rotatedAt) == at &&
		(!numbered || n > 1 && n < 1e9 && strconv.Itoa(n) == number)
}

// splitName splits a path before its extension. In a name that is all extension, such as .audit, there is none, and ext
// is "".
func splitName(path string) (stem, ext string) {
	ext = filepath.Ext(path)
	stem = strings.TrimSuffix(path, ext)
	if stem == "" || os.IsPathSeparator(stem[len(stem)-1]) {
		return path, ""
	}
	return stem, ext
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
