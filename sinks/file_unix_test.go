//go:build unix

package sinks

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"forewarn/bridge/delivery"
)

// Root in a directory of the service's user: the file that it makes is that user's, so that the service can append. One
// that is there already keeps its owner, and a link inside the directory is followed.
func TestFileThatRootMakesIsTheDirectoryOwners(t *testing.T) {
	dir := serviceDirectory(t)
	old := filepath.Join(dir, "old")
	if err := errors.Join(os.WriteFile(old, nil, 0o640), os.Symlink("old", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	roots := [2]uint32{0, uint32(os.Getegid())}
	for name, want := range map[string][2]uint32{"new": {service, operators}, "old": roots, "link": roots} {
		s := mustOpen(t, "file", "path: "+filepath.Join(dir, name), testHost(t))
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Sys().(*syscall.Stat_t); got.Uid != want[0] || got.Gid != want[1] {
			t.Errorf("%s belongs to %d:%d, want %d", name, got.Uid, got.Gid, want)
		}
	}
}

// What the service's user puts in place of the file leads root nowhere else: not a link out of the directory, whether
// its end is there or not, nor a second name of somebody's file. That blocks the sink, and nothing is written.
func TestRootWritesOnlyWhatTheDirectoryOwnerMay(t *testing.T) {
	for name, lay := range map[string]func(outside, path string) error{
		"a link": os.Symlink,
		"a link to what is not there": func(outside, path string) error {
			return errors.Join(os.Remove(outside), os.Symlink(outside, path))
		},
		"a relative link": func(outside, path string) error {
			rel, err := filepath.Rel(filepath.Dir(path), outside)
			return errors.Join(err, os.Symlink(rel, path))
		},
		"a second name": os.Link,
		"a third user's file": func(_, path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, service+2, operators))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, outside := serviceDirectory(t), writeFile(t, "outside", "root's\n")
			path := filepath.Join(dir, "audit.jsonl")
			if err := lay(outside, path); err != nil {
				t.Fatal(err)
			}
			s := mustOpen(t, "file", "path: "+path, testHost(t))
			_, err := s.Deliver(t.Context(), deliveries(t)[:1])
			if !errors.Is(err, delivery.ErrBlocked) || !errors.Is(err, errForeign) {
				t.Errorf("Deliver = %v, want it blocked, because the file is not the directory owner's", err)
			}
			if text, err := os.ReadFile(outside); err == nil && string(text) != "root's\n" {
				t.Errorf("root wrote to %s: %q", outside, text)
			} else if _, err := os.Stat(outside); err == nil && strings.HasSuffix(name, "not there") {
				t.Errorf("root made %s", outside)
			}
		})
	}
}

const service, operators = 65532, 65533 // a user and a group

// serviceDirectory returns a directory of the service's user.
func serviceDirectory(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to others; CI runs this as root")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, service, operators); err != nil {
		t.Fatal(err)
	}
	return dir
}
