package sinks

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/cloudevent/chain"
)

// openChained opens a file with a chain, as after a start.
func openChained(t *testing.T, settings string) *chainedFile {
	t.Helper()
	return mustOpen(t, "file", "{chain: true, "+settings+"}", testHost(t)).(*chainedFile)
}

// verify returns the report about the files in this order.
func verify(t *testing.T, files ...string) chain.Report {
	t.Helper()
	var v chain.Verifier
	for _, name := range files {
		intact, err := v.Read(filepath.Base(name), bytes.NewReader(read(t, name)))
		if err != nil {
			t.Fatal(err)
		}
		if !intact {
			break
		}
	}
	return v.Report()
}

// wantIntact checks that files are one chain from its start, with so many lines.
func wantIntact(t *testing.T, lines int, files ...string) {
	t.Helper()
	r := verify(t, files...)
	if !r.Intact || r.Lines != lines || r.From != chain.Start {
		t.Errorf("verification: %+v, want %d intact lines from the start", r, lines)
	}
}

// The chain goes on across rotations and restarts, also when a restart finds the file just rotated away.
func TestChainGoesOnAcrossRotationsAndRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	settings := "path: " + path + ", max_size: 4kB"
	var want []string
	now := monday
	for round := range 12 {
		s := openChained(t, settings) // a restart each time
		s.now = func() time.Time { now = now.Add(time.Second); return now }
		batch := deliveries(t)[round%3 : round%3+2]
		for range 2 {
			if _, err := s.Deliver(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			for _, d := range batch {
				want = append(want, d.Event.ID())
			}
		}
		if round == 5 { // killed between the rename and the first line of the new file
			if err := setAside(folderOf(t, path), filepath.Base(path), now.Add(time.Millisecond)); err != nil {
				t.Fatal(err)
			}
		}
	}
	old := oldFilesOf(t, path)
	if len(old) < 3 {
		t.Fatalf("%d old files, want several", len(old))
	}
	files := append(old, path)
	wantIntact(t, len(want), files...)
	var got []string
	for _, name := range files {
		got = append(got, idsIn(t, read(t, name))...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the files hold %q, want %q", got, want)
	}
	slices.Reverse(files)
	if r := verify(t, files...); r.Intact || r.Line != 1 || r.File != filepath.Base(files[1]) {
		t.Errorf("in the wrong order: %+v, want the first line of the second file", r)
	}
}

// A restart that finds the file just rotated away continues from the file rotated last, also when the clock was set back
// before that rotation.
func TestChainGoesOnAfterTheClockWasSetBack(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.jsonl")
	s := openChained(t, "path: "+path+", max_size: 1")
	for i, now := range []time.Time{monday, monday, monday.Add(-2 * time.Hour)} {
		s.now = func() time.Time { return now }
		if _, err := s.Deliver(t.Context(), deliveries(t)[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(path); err != nil { // as if the last line had not been written
		t.Fatal(err)
	}
	if _, err := openChained(t, "path: "+path).Deliver(t.Context(), deliveries(t)[3:4]); err != nil {
		t.Fatal(err)
	}
	wantIntact(t, 3, filepath.Join(dir, "audit-20261123T120000Z.jsonl"), filepath.Join(dir,
		"audit-20261123T120001Z.jsonl"), path)
}

// Wherever a kill ends a write, the chain is intact after the next start, and holds what was delivered.
func TestChainSurvivesAKillAtAnyByte(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.jsonl")
	s := openChained(t, "path: "+path)
	batch := deliveries(t)[:2]
	if _, err := s.Deliver(t.Context(), batch[:1]); err != nil {
		t.Fatal(err)
	}
	before := read(t, path)
	if _, err := s.Deliver(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	after := read(t, path)
	for n := len(before); n <= len(after); n++ {
		if line := bytes.IndexByte(after[n:], '\n'); n%97 != 0 && n > len(before)+1 && line > 1 && after[n-1] != '\n' {
			continue // not near an end of a line
		}
		if err := os.WriteFile(path, after[:n], 0o640); err != nil {
			t.Fatal(err)
		}
		if _, err := openChained(t, "path: "+path).Deliver(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		got := read(t, path)
		wantIntact(t, 3+bytes.Count(after[len(before):n], []byte("\n")), path)
		if !bytes.HasPrefix(got, before) || t.Failed() {
			t.Fatalf("killed after %d bytes, the file holds\n%s", n, got)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files, %v; want one", len(entries), err)
	}
}

// So is it when the kill leaves only a part of the first line of a new file: the chain goes on from the file rotated last,
// and nothing is set aside that would break it.
func TestChainSurvivesAKillInTheFirstLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.jsonl")
	s := openChained(t, "path: "+path+", max_size: 1")
	for i := range 2 {
		if _, err := s.Deliver(t.Context(), deliveries(t)[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	line := read(t, path)
	for _, rotated := range []bool{true, false} {
		for n := 0; n < len(line); n++ {
			if n%97 != 0 && n > 30 && n < len(line)-3 {
				continue // not near an end of the line
			}
			if err := os.WriteFile(path, line[:n], 0o640); err != nil {
				t.Fatal(err)
			}
			if _, err := openChained(t, "path: "+path).Deliver(t.Context(), deliveries(t)[1:2]); err != nil {
				t.Fatal(err)
			}
			old := oldFilesOf(t, path)
			if want := map[bool]int{true: 1}[rotated]; len(old) != want {
				t.Fatalf("killed after %d bytes, %d rotated files, want %d", n, len(old), want)
			}
			if rotated {
				wantIntact(t, 2, old[0], path)
			} else {
				wantIntact(t, 1, path)
			}
			if t.Failed() {
				t.Fatalf("killed after %d bytes, the file holds\n%s", n, read(t, path))
			}
		}
		for _, old := range oldFilesOf(t, path) {
			os.Remove(old)
		}
	}
}

// After a write that failed, in part or as a whole, the chain goes on from what is in the file.
func TestChainGoesOnAfterAFailedWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	s := openChained(t, "path: "+path)
	for _, part := range []float64{1, 0.5, 0} {
		if _, err := s.Deliver(t.Context(), deliveries(t)[:2]); err != nil {
			t.Fatal(err)
		}
		s.write = func(f *os.File, p []byte) (int, error) {
			n, _ := f.Write(p[:int(part*float64(len(p)))])
			other, err := os.OpenFile(f.Name(), os.O_WRONLY|os.O_APPEND, 0) // so that it is not taken back
			if err != nil {
				return 0, err
			}
			defer other.Close()
			fmt.Fprint(other, "{")
			return n, errors.New("no space left on device")
		}
		if _, err := s.Deliver(t.Context(), deliveries(t)[:2]); err == nil || s.Head() != "" {
			t.Fatalf("a failing disk: %v, head %q", err, s.Head())
		}
		s.write = (*os.File).Write
	}
	if _, err := s.Deliver(t.Context(), deliveries(t)[:2]); err != nil {
		t.Fatal(err)
	}
	lines := bytes.Count(read(t, path), []byte("\n"))
	wantIntact(t, lines, path)
	if lines < 8 {
		t.Errorf("%d lines, want at least what was delivered", lines)
	}
}

// Lines that somebody cuts off, adds or replaces while forewarn runs are missed by the next line.
func TestChainMissesWhatIsCutWhileItRuns(t *testing.T) {
	for name, attack := range map[string]func(lines []string) string{
		"cut":      func(lines []string) string { return strings.Join(lines[:2], "") },
		"emptied":  func([]string) string { return "" },
		"repeated": func(lines []string) string { return strings.Join(append(lines, lines[2]), "") },
	} {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		s := openChained(t, "path: "+path)
		if _, err := s.Deliver(t.Context(), deliveries(t)[:3]); err != nil {
			t.Fatal(err)
		}
		head := s.Head()
		lines := slices.Collect(strings.Lines(string(read(t, path))))
		if !strings.Contains(lines[2], `"chainhash":"`+head+`"`) {
			t.Errorf("Head is %s, the last line %s", head, lines[2])
		}
		if err := os.WriteFile(path, []byte(attack(lines)), 0o640); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Deliver(t.Context(), deliveries(t)[3:4]); err != nil {
			t.Fatal(err)
		}
		r := verify(t, path)
		if name == "emptied" && r.From != head || name != "emptied" && r.Intact {
			t.Errorf("%s: %+v, want it named", name, r)
		}
	}
}

// A file that has lines without a chain is set aside, whole, and a chain begins in a new one.
func TestFileWithoutAChainIsSetAside(t *testing.T) {
	events := string(read(t, "testdata/events.jsonl"))
	whole, _, _ := strings.Cut(events, "\n")
	for _, old := range []string{events, whole, "no newline", "lines\nand half"} {
		path := writeFile(t, "audit.jsonl", old)
		if _, err := openChained(t, "path: "+path).Deliver(t.Context(), deliveries(t)[:2]); err != nil {
			t.Fatal(err)
		}
		wantIntact(t, 2, path)
		aside := oldFilesOf(t, path)
		if len(aside) != 1 || string(read(t, aside[0])) != old {
			t.Errorf("set aside: %q, want the old file as it was", aside)
		}
	}
}
