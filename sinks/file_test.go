package sinks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"forewarn/bridge/delivery"
)

func fileAccepts(t *testing.T) (string, func() []string) {
	path := filepath.Join(t.TempDir(), "new", "audit.jsonl")
	return "path: " + path, func() []string {
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		return idsIn(t, text)
	}
}

// A batch is one CloudEvent a line, even if its data has lines, in order, in files and directories that others cannot
// read.
func TestFileHoldsOneCloudEventALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "audit.jsonl")
	s := mustOpen(t, "file", "path: "+path, testHost(t))
	batch := deliveries(t)
	for range 2 {
		if _, err := s.Deliver(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	var lines bytes.Buffer
	if err := json.Indent(&lines, batch[0].Event.Data(), "\r", "\n"); err != nil {
		t.Fatal(err)
	}
	batch[0].Event.DataEncoded = lines.Bytes()
	if _, err := s.Deliver(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if got, want := string(read(t, path)), strings.Repeat(string(read(t, "testdata/events.jsonl")), 3); got != want {
		t.Errorf("the file holds\n%s\nwant\n%s", got, want)
	}
	if runtime.GOOS == "windows" {
		return
	}
	for name, want := range map[string]fs.FileMode{path: 0o640, filepath.Dir(path): 0o750} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm()&^want != 0 {
			t.Errorf("%s: %v, %v; want at most %v", name, info.Mode().Perm(), err, want)
		}
	}
}

// Half a line, left by a crash or another program, does not swallow the next CloudEvent.
func TestFileBeginsANewLineAfterHalfOne(t *testing.T) {
	path := writeFile(t, "audit.jsonl", `{"half":`)
	s := mustOpen(t, "file", "path: "+path, testHost(t))
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
		t.Fatal(err)
	}
	half, rest, _ := bytes.Cut(read(t, path), []byte("\n"))
	if got := idsIn(t, rest); string(half) != `{"half":` || len(got) != 1 {
		t.Errorf("the file holds %q and then %q, want the half line and one CloudEvent", half, got)
	}
}

// A write that fails, short or at the last byte, leaves nothing of itself, and the next attempt writes all.
func TestFileTakesBackWhatItCouldNotWriteWhole(t *testing.T) {
	for name, write := range map[string]func(*os.File, []byte) (int, error){
		"full": func(f *os.File, p []byte) (int, error) {
			n, _ := f.Write(p[:len(p)/2])
			return n, &fs.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
		},
		"broken": func(f *os.File, p []byte) (int, error) {
			n, _ := f.Write(p)
			return n, &fs.PathError{Op: "write", Path: f.Name(), Err: syscall.EIO}
		},
		"nothing": func(f *os.File, p []byte) (int, error) { return 0, syscall.ENOSPC },
	} {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		s := mustOpen(t, "file", "path: "+path, testHost(t)).(*file)
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Fatal(err)
		}
		before := read(t, path)
		s.write = write
		_, err := s.Deliver(t.Context(), deliveries(t)[1:])
		if err == nil || errors.Is(err, delivery.ErrBlocked) || errors.Is(err, delivery.ErrRejected) {
			t.Errorf("%s: Deliver = %v, want an error to try again", name, err)
		}
		if after := read(t, path); !bytes.Equal(after, before) {
			t.Errorf("%s: the file holds %d bytes, want the %d from before", name, len(after), len(before))
		}
		s.write = (*os.File).Write
		if _, err := s.Deliver(t.Context(), deliveries(t)[1:]); err != nil {
			t.Errorf("%s: the next attempt: %v", name, err)
		}
		if got := idsIn(t, read(t, path)); len(got) != len(deliveries(t)) {
			t.Errorf("%s: the file holds %q, want all", name, got)
		}
	}
}

// What another program appended meanwhile is not taken back with a failed write.
func TestFileTakesBackNothingOfOthers(t *testing.T) {
	path := writeFile(t, "audit.jsonl", "")
	s := mustOpen(t, "file", "path: "+path, testHost(t)).(*file)
	s.write = func(f *os.File, p []byte) (int, error) {
		n, _ := f.Write(p[:10])
		f.WriteString("\nother\n")
		return n, syscall.ENOSPC
	}
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err == nil {
		t.Fatal("Deliver gave no error")
	}
	if got := string(read(t, path)); !strings.HasSuffix(got, "\nother\n") {
		t.Errorf("the file holds %q, want the other's line in it", got)
	}
}

// A file that logrotate renames between two deliveries is followed by a new one at once.
func TestFileFollowsARename(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	s := mustOpen(t, "file", "path: "+path, testHost(t))
	for i := range 2 {
		if _, err := s.Deliver(t.Context(), deliveries(t)[i:i+1]); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path, fmt.Sprint(path, ".", i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		got, want := idsIn(t, read(t, fmt.Sprint(path, ".", i))), deliveries(t)[i].Event.ID()
		if !slices.Equal(got, []string{want}) {
			t.Errorf("file %d holds %q, want %q", i, got, want)
		}
	}
}

// Two routes may share a file: their lines do not mix. An empty one may stand between them, when one route looked at
// the end of the file while the other was writing.
func TestFileIsSharedWithoutMixing(t *testing.T) {
	if underWine() {
		t.Skip("wine looks for the end of a file and then writes there, so that two programs may write at the same place")
	}
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	var both sync.WaitGroup
	for range 2 {
		s := mustOpen(t, "file", "path: "+path, testHost(t))
		both.Go(func() {
			for range 20 {
				if _, err := s.Deliver(t.Context(), deliveries(t)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	both.Wait()
	lines := bytes.ReplaceAll(read(t, path), []byte("\n\n"), []byte("\n"))
	if got, want := len(idsIn(t, lines)), 2*20*len(deliveries(t)); got != want {
		t.Errorf("the file holds %d lines, want %d", got, want)
	}
}

// A path where nothing can be written until somebody acts blocks the route, and the error says what to do.
func TestFileIsBlockedWhereItCannotBe(t *testing.T) {
	dir := t.TempDir()
	regular := writeFile(t, "regular", "x\n")
	for name, path := range map[string]string{
		"a directory":           dir,
		"below a regular file":  filepath.Join(regular, "audit.jsonl"),
		"far below one":         filepath.Join(regular, "a", "b", "audit.jsonl"),
		"a device":              os.DevNull,
		"no permission to read": filepath.Join(dir, "locked", "audit.jsonl"),
	} {
		t.Run(name, func(t *testing.T) {
			if name == "no permission to read" {
				if os.Geteuid() == 0 || runtime.GOOS == "windows" {
					t.Skip("this user may write everywhere")
				}
				if err := os.Mkdir(filepath.Dir(path), 0o500); err != nil {
					t.Fatal(err)
				}
			}
			s := mustOpen(t, "file", "path: "+path, testHost(t))
			_, err := s.Deliver(t.Context(), deliveries(t)[:1])
			if !errors.Is(err, delivery.ErrBlocked) || !strings.Contains(err.Error(), ": ") ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("Deliver = %v, want it blocked, in one line", err)
			}
		})
	}
	if got := string(read(t, regular)); got != "x\n" {
		t.Errorf("the regular file holds %q, want it untouched", got)
	}
}

// A failure that somebody has to end is blocked; a full or broken disk is tried again.
func TestFileFailuresHaveClasses(t *testing.T) {
	for _, tt := range []struct {
		err     error
		blocked bool
	}{
		{syscall.EACCES, true},
		{syscall.EPERM, true},
		{syscall.EROFS, true},
		{syscall.EISDIR, true},
		{syscall.ENOTDIR, true},
		{syscall.ENOSPC, false},
		{syscall.EIO, false},
		{syscall.EMFILE, false},
		{io.ErrShortWrite, false},
	} {
		err := classOfFile(&fs.PathError{Op: "open", Path: "/x/audit.jsonl", Err: tt.err})
		if got := errors.Is(err, delivery.ErrBlocked); got != tt.blocked || !errors.Is(err, tt.err) ||
			!strings.Contains(err.Error(), "/x/audit.jsonl") {
			t.Errorf("classOfFile(%v) = %v, blocked %v; want %v, and the path", tt.err, err, got, tt.blocked)
		}
	}
}

func fileFails(t *testing.T) map[string]string {
	return map[string]string{blocked: "path: " + t.TempDir()}
}

// Path - is standard output; a line that was torn there is not continued by the next.
func TestFileWritesToStandardOutput(t *testing.T) {
	var out tornWriter
	h := testHost(t)
	h.Stdout = &out
	s := mustOpen(t, "file", `path: "-"`, h)
	if _, err := s.Deliver(t.Context(), deliveries(t)[:2]); err != nil {
		t.Fatal(err)
	}
	if got := idsIn(t, out.Bytes()); len(got) != 2 {
		t.Fatalf("standard output has %q, want two", got)
	}
	out.Reset()
	out.left = 10
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); !errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, delivery.ErrBlocked) {
		t.Fatalf("Deliver = %v, want %v and to be tried again", err, io.ErrClosedPipe)
	}
	out.left = 0
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
		t.Fatal(err)
	}
	torn, rest, _ := bytes.Cut(out.Bytes(), []byte("\n"))
	if got := idsIn(t, rest); len(torn) != 10 || len(got) != 1 {
		t.Errorf("standard output has %q and then %q, want the torn line and one CloudEvent", torn, got)
	}
}

// A full device behind standard output is an error to try again.
func TestFullStandardOutputIsTriedAgain(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil || runtime.GOOS == "windows" { // wine lets it be opened
		t.Skip("there is no /dev/full here")
	}
	defer full.Close()
	h := testHost(t)
	h.Stdout = full
	s := mustOpen(t, "file", `path: "-"`, h)
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); !errors.Is(err, syscall.ENOSPC) ||
		errors.Is(err, delivery.ErrBlocked) {
		t.Errorf("Deliver = %v, want %v and to be tried again", err, syscall.ENOSPC)
	}
}

// Settings that cannot mean anything are refused at their key.
func TestFileSettingsAreChecked(t *testing.T) {
	for _, tt := range []struct{ settings, key, reason string }{
		{`keep: 1`, "path", "missing"},
		{`path: /var/log/`, "path", "is a directory"},
		{`{path: a, keep: 1}`, "keep", "max_size or rotate_every"},
		{`{path: a, max_size: 1, keep: -1}`, "keep", "or 0 for all"},
		{`{path: a, rotate_every: 1s}`, "rotate_every", "at least 1m"},
		{`{path: a, rotate_every: -1h}`, "rotate_every", "at least 1m"},
		{`{path: "-", max_size: 1MB}`, "max_size", "standard output"},
		{`{path: "-", rotate_every: 1h}`, "rotate_every", "standard output"},
		{`{path: "-", keep: 3}`, "keep", "max_size or rotate_every"},
	} {
		wrongKey(t, "file", tt.settings, tt.key, tt.reason)
	}
	if _, err := open("file", `{path: a, max_size: 1 parsec}`, testHost(t)); err == nil {
		t.Error("max_size of a parsec gave no error")
	}
}

// A tornWriter fails after left bytes, if left is set.
type tornWriter struct {
	bytes.Buffer
	left int
}

func (w *tornWriter) Write(p []byte) (int, error) {
	if w.left > 0 {
		w.Buffer.Write(p[:w.left])
		return w.left, io.ErrClosedPipe
	}
	return w.Buffer.Write(p)
}

// logTo returns a host whose log can be read.
func logTo(t *testing.T, b *bytes.Buffer) Host {
	h := testHost(t)
	h.Log = slog.New(slog.NewTextHandler(b, nil))
	return h
}
