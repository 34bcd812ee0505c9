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

// A rotation says when a file is renamed, and how many renamed files are kept.
type rotation struct {
	max   int64         // bytes; 0 means no limit
	every time.Duration // 0 means never
	keep  int           // 0 means all
}

// due reports whether a file of size bytes, last written at last, is rotated before more bytes are added. An empty one
// is not: a line longer than the limit has to go somewhere.
func (r rotation) due(size, more int64, last, now time.Time) bool {
	if size == 0 {
		return false
	}
	return r.max > 0 && size+more > r.max || r.every > 0 && period(last, r.every).Before(period(now, r.every))
}

// period returns when the period of t began. Periods are counted in UTC from a Monday, so that days begin at midnight.
func period(t time.Time, every time.Duration) time.Time { return t.UTC().Truncate(every) }

// rotate renames the file and deletes the oldest of the old ones. If it cannot, lines go on into the same file, and the
// next delivery tries again: a file that is too large is better than none. On Windows another program that has the file
// open can prevent it.
func (f *file) rotate() {
	err := setAside(f.path, f.now(), f.rename)
	if err == nil && f.rotation.keep > 0 {
		err = deleteOldest(f.path, f.rotation.keep)
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

const rotatedAt = "20060102T150405Z"

// setAside renames the file to one that does not exist yet: audit.jsonl to audit-20261121T041000Z.jsonl, or to
// audit-20261121T041000Z-2.jsonl. A file that is gone already needs no rotation. The error is without the new name,
// which is another one each time.
func setAside(path string, now time.Time, rename func(path, name string) error) error {
	stem, ext := splitName(path)
	base := stem + "-" + now.UTC().Format(rotatedAt)
	name := base + ext
	for n := 2; ; n++ {
		switch err := rename(path, name); {
		case err == nil, errors.Is(err, fs.ErrNotExist) && missing(path): // Windows says so of a name that is too long, too
			return nil
		case !errors.Is(err, fs.ErrExist):
			return cmp.Or(errors.Unwrap(err), err)
		}
		name = base + "-" + strconv.Itoa(n) + ext
	}
}

func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// deleteOldest deletes old files of path, but for the newest keep.
func deleteOldest(path string, keep int) error {
	old, err := oldFiles(path)
	for _, name := range old[:max(0, len(old)-keep)] {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// oldFiles returns the names that setAside gave to path in the past, oldest first. A directory that is missing has
// none.
func oldFiles(path string) ([]string, error) {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	stem, ext := splitName(filepath.Base(path))
	type aside struct {
		name, at string
		n        int
	}
	var all []aside
	for _, e := range entries {
		if at, n, ok := rotatedName(e.Name(), stem, ext); ok && e.Type().IsRegular() {
			all = append(all, aside{filepath.Join(dir, e.Name()), at, n})
		}
	}
	slices.SortFunc(all, func(a, b aside) int { return cmp.Or(strings.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) })
	var names []string
	for _, a := range all {
		names = append(names, a.name)
	}
	return names, err
}

// rotatedName returns the time in a name that setAside gave, and its number in that second.
func rotatedName(name, stem, ext string) (at string, n int, ok bool) {
	rest, begins := strings.CutPrefix(name, stem+"-")
	rest, ends := strings.CutSuffix(rest, ext)
	at, number, numbered := strings.Cut(rest, "-")
	if n = 1; numbered {
		n, _ = strconv.Atoi(number)
	}
	t, err := time.Parse(rotatedAt, at)
	return at, n, begins && ends && err == nil && t.Format(rotatedAt) == at &&
		(!numbered || n > 1 && strconv.Itoa(n) == number)
}

// splitName splits a path before its extension. A name that is all extension, such as .audit, has none.
func splitName(path string) (stem, ext string) {
	ext = filepath.Ext(path)
	if stem = strings.TrimSuffix(path, ext); stem == "" || os.IsPathSeparator(stem[len(stem)-1]) {
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

// UnmarshalText reads a size. It refuses one that is not positive.
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
