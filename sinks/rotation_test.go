package sinks

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A file is rotated before it would grow over its limit, or when its last line is of an earlier period, and never when
// it is empty.
func TestRotationIsDue(t *testing.T) {
	day := 24 * time.Hour
	for _, tt := range []struct {
		rotation   rotation
		size, more int64
		last, now  time.Time
		want       bool
	}{
		{rotation{}, 1 << 40, 1, monday, monday.Add(day), false},
		{rotation{max: 100}, 50, 50, monday, monday, false},
		{rotation{max: 100}, 50, 51, monday, monday, true},
		{rotation{max: 100}, 0, 200, monday, monday, false}, // it has to go somewhere
		{rotation{every: day}, 1, 1, monday, monday.Add(11*time.Hour + 59*time.Minute), false},
		{rotation{every: day}, 1, 1, monday, monday.Add(12 * time.Hour), true},                                   // midnight
		{rotation{every: day}, 1, 1, monday.In(time.FixedZone("", 9*3600)), monday.Add(12*time.Hour - 1), false}, // in UTC
		{rotation{every: day}, 0, 1, monday, monday.Add(day), false},                                             // empty
		// the clock went back
		{rotation{every: day}, 1, 1, monday.Add(day), monday, false},
		{rotation{every: 7 * day}, 1, 1, monday.Add(6 * day), monday.Add(6*day + 11*time.Hour), false},       // Sunday
		{rotation{every: 7 * day}, 1, 1, monday.Add(6 * day), monday.Add(6*day + 12*time.Hour), true},        // Monday
		{rotation{every: time.Hour}, 1, 1, monday.Add(59 * time.Minute), monday.Add(60 * time.Minute), true}, //
		{rotation{max: 100, every: time.Hour}, 50, 60, monday, monday, true},                                 //
		{rotation{max: 100, every: time.Hour}, 1, 1, monday, monday.Add(time.Hour), true},                    //
	} {
		if got := tt.rotation.due(tt.size, tt.more, tt.last, tt.now); got != tt.want {
			t.Errorf("%+v due(%d, %d, %v, %v) = %v, want %v", tt.rotation, tt.size, tt.more, tt.last, tt.now, got, tt.want)
		}
	}
}

// Rotation by size keeps every line, in files named after the time; of two in one second, the later has the second after.
func TestFileRotatesBySize(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, "file", "path: "+filepath.Join(dir, "audit.jsonl")+"\nmax_size: 2KB", testHost(t)).(*file)
	s.now = func() time.Time { return monday }
	for i := range 4 {
		if _, err := s.Deliver(t.Context(), deliveries(t)[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, name := range []string{"audit-20261123T120000Z.jsonl", "audit-20261123T120001Z.jsonl",
		"audit-20261123T120002Z.jsonl", "audit.jsonl"} {
		got = append(got, idsIn(t, read(t, filepath.Join(dir, name)))...)
	}
	var want []string
	for _, d := range deliveries(t)[:4] {
		want = append(want, d.Event.ID())
	}
	if !slices.Equal(got, want) {
		t.Errorf("the files hold %q, want %q", got, want)
	}
}

// Rotation by time looks at when the last line was written, also by an earlier run.
func TestFileRotatesByTime(t *testing.T) {
	path := writeFile(t, "audit", "{}\n")
	if err := os.Chtimes(path, monday, monday); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, "file", "path: "+path+"\nrotate_every: 24h", testHost(t)).(*file)
	for _, tt := range []struct {
		now   time.Time
		files int
	}{
		{monday.Add(time.Hour), 1},
		{monday.Add(24 * time.Hour), 2},
	} {
		s.now = func() time.Time { return tt.now }
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, tt.now, tt.now); err != nil {
			t.Fatal(err)
		}
		if names := list(t, filepath.Dir(path)); len(names) != tt.files {
			t.Errorf("at %v there are %q, want %d files", tt.now, names, tt.files)
		}
	}
	if got := len(bytes.Split(read(t, filepath.Join(filepath.Dir(path), "audit-20261124T120000Z")),
		[]byte("\n"))) - 1; got != 2 {
		t.Errorf("the rotated file holds %d lines, want 2", got)
	}
}

// Only the newest rotated files stay; what has another name is nobody's to delete.
func TestFileKeepsTheNewest(t *testing.T) {
	dir := t.TempDir()
	rotated := []string{
		"audit-20260101T000000Z.jsonl", "audit-20260101T000001Z.jsonl", "audit-20260101T000010Z.jsonl",
		"audit-20251231T235959Z.jsonl", "audit-20260102T000000Z.jsonl",
	}
	others := []string{
		"audit-20260101T000000Z.jsonl.gz", "audit-20260101T000000Z-1.jsonl", "audit-20260101T000000.5Z.jsonl",
		"audit-20261301T000000Z.jsonl", "audit-old.jsonl", "auditor-20260101T000000Z.jsonl", "audit-2026-01-01.jsonl",
	}
	for _, name := range slices.Concat(rotated, others) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "audit-20250101T000000Z.jsonl"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, "file", "path: "+filepath.Join(dir, "audit.jsonl")+"\nmax_size: 1\nkeep: 3", testHost(t)).(*file)
	s.now = func() time.Time { return monday }
	for range 2 {
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Fatal(err)
		}
	}
	want := slices.Concat(others, []string{
		"audit.jsonl", "audit-20250101T000000Z.jsonl",
		"audit-20260101T000010Z.jsonl", "audit-20260102T000000Z.jsonl", "audit-20261123T120000Z.jsonl",
	})
	slices.Sort(want)
	if got := list(t, dir); !slices.Equal(got, want) {
		t.Errorf("there are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The file rotated last is the one that stays, however many rotations there are in one second, and also after the clock
// was set back.
func TestFileKeepsTheOneRotatedLast(t *testing.T) {
	back := monday.Add(-2 * time.Hour)
	for name, clock := range map[string][]time.Time{
		"all in one second":  {monday, monday, monday, monday},
		"the clock set back": {monday, monday, back, back},
		"set back later":     {monday, monday.Add(time.Second), back, back.Add(time.Minute)},
	} {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		s := mustOpen(t, "file", "path: "+path+"\nmax_size: 1\nkeep: 1", testHost(t)).(*file)
		for i, now := range clock {
			s.now = func() time.Time { return now }
			if _, err := s.Deliver(t.Context(), deliveries(t)[i:i+1]); err != nil {
				t.Fatal(err)
			}
		}
		rotated := oldFilesOf(t, path)
		if len(rotated) != 1 {
			t.Fatalf("%s: %q are rotated, want one file", name, rotated)
		}
		if got, want := idsIn(t, read(t, rotated[0])), deliveries(t)[2].Event.ID(); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %s holds %q, want %s", name, rotated[0], got, want)
		}
	}
}

// A rotation that fails keeps no CloudEvent out of the file, and is said once.
func TestFileGrowsWhenItCannotRotate(t *testing.T) {
	var log bytes.Buffer
	path := filepath.Join(t.TempDir(), strings.Repeat("long", 62)+".jsonl") // no room for a time in the name
	s := mustOpen(t, "file", "path: "+path+"\nmax_size: 1", logTo(t, &log))
	for range 3 {
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Fatal(err)
		}
	}
	if got := idsIn(t, read(t, path)); len(got) != 3 {
		t.Errorf("the file holds %q, want three", got)
	}
	if got := strings.Count(log.String(), "file not rotated"); got != 1 || !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("said %d times, want once:\n%s", got, &log)
	}
}

// Sizes are read in bytes, decimal and binary units.
func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{
		"1": 1, "1048576": 1 << 20, "100MB": 100e6, "64MiB": 64 << 20, "1kB": 1000, "2 GiB": 2 << 30, "3gb": 3e9, "7B": 7,
		"1TiB": 1 << 40,
	} {
		var got Size
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%s = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "MB", "1.5MB", "1XB", "9999999999TB", "99999999999999999999", "1 M B",
		"1e3"} {
		var got Size
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q = %d, want it refused", text, got)
		}
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A heldFolder renames nothing.
type heldFolder struct {
	folder
	err error
}

func (h heldFolder) rename(name, to string) error {
	return &os.LinkError{Op: "rename", Old: name, New: to, Err: h.err}
}

// folderOf returns the folder of a file.
func folderOf(t *testing.T, path string) folder {
	t.Helper()
	dir, err := openFolder(filepath.Dir(path), false, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

// oldFilesOf returns the paths of the rotated files of a file, oldest first.
func oldFilesOf(t *testing.T, path string) []string {
	t.Helper()
	old, err := oldFiles(folderOf(t, path), filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, r := range old {
		paths = append(paths, filepath.Join(filepath.Dir(path), r))
	}
	return paths
}

// A file that cannot be renamed, which on Windows is one that another program has open, goes on to take the lines: that
// is said once, however often it is tried, and the file is rotated as soon as it can be.
func TestFileThatIsHeldOpenGoesOnAndIsRotatedLater(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	h := testHost(t)
	h.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := mustOpen(t, "file", "path: "+filepath.Join(dir, "audit.jsonl")+"\nmax_size: 10", h).(*file)
	held := errors.New("the file is being used by another process")
	free, now := false, monday
	s.now = func() time.Time { return now }
	s.openFolder = func(path string, missing bool, log *slog.Logger) (folder, error) {
		dir, err := openFolder(path, missing, log)
		if free {
			return dir, err
		}
		return heldFolder{dir, held}, err
	}
	for i := range 5 {
		free = i == 4
		if _, err := s.Deliver(t.Context(), deliveries(t)[i:i+1]); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Hour)
	}
	if got := list(t, dir); !slices.Equal(got, []string{"audit-20261123T160000Z.jsonl", "audit.jsonl"}) {
		t.Errorf("there are %q, want one rotated file", got)
	}
	if n := len(idsIn(t, read(t, filepath.Join(dir, "audit-20261123T160000Z.jsonl")))); n != 4 {
		t.Errorf("the rotated file has %d lines, want the 4 of the time when it could not be renamed", n)
	}
	if text := log.String(); strings.Count(text, "file not rotated") != 1 ||
		strings.Count(text, "file rotated again") != 1 {
		t.Errorf("the log is\n%s\nwant the failure and its end, once each", text)
	}
}

// A name that is taken is never given again, nor is anything made when there is nothing to rename.
func TestRenamingReplacesNothing(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken")
	for _, name := range []string{"old", "taken"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, in := range []folder{folderOf(t, taken), plainFolder(dir)} {
		err := in.rename("old", "taken")
		if !errors.Is(err, fs.ErrExist) || string(read(t, taken)) != "taken" {
			t.Errorf("rename to a name that is taken = %v, and it holds %q", err, read(t, taken))
		}
		if err := in.rename("none", "new"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("rename of nothing = %v", err)
		}
	}
	if err := folderOf(t, taken).rename("old", "new"); err != nil {
		t.Errorf("rename = %v", err)
	}
	if got := list(t, dir); !slices.Equal(got, []string{"new", "taken"}) {
		t.Errorf("there are %q, want new and taken", got)
	}
}
