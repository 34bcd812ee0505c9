//go:build unix

package sinks

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"forewarn/bridge/delivery"
)

// Root in a directory of the service's user: the file that it makes is that user's, so that the service can append. One
// that is there already keeps its owner.
func TestFileThatRootMakesIsTheDirectoryOwners(t *testing.T) {
	dir := serviceDirectory(t)
	old := filepath.Join(dir, "old")
	if err := os.WriteFile(old, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	roots := [2]uint32{0, uint32(os.Getegid())}
	for name, want := range map[string][2]uint32{"new": {service, operators}, "old": roots} {
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
		"a link within the directory": func(_, path string) error {
			return errors.Join(os.WriteFile(path+".other", nil, 0o640), os.Symlink(filepath.Base(path)+".other", path))
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

// Where others may write, a link in place of a directory leads root nowhere, whatever it leads to and whatever root has
// to do there: append, make, rename, cut off or delete. That blocks the sink, and what is root's stays as it is.
func TestRootFollowsNoLinkWhereOthersMayWrite(t *testing.T) {
	shared := map[string]func(dir string) error{
		"another user's": func(dir string) error { return os.Chown(dir, service, operators) },
		"everybody's":    func(dir string) error { return os.Chmod(dir, 0o777|os.ModeSticky) },
		"another group's": func(dir string) error {
			return errors.Join(os.Chown(dir, 0, operators), os.Chmod(dir, 0o775))
		},
		"root's below another's": nil,
	}
	attacks := map[string]func(dir, roots string) (path string, err error){
		"in place of the directory": func(dir, roots string) (string, error) {
			return filepath.Join(dir, "logs"), os.Symlink(roots, filepath.Join(dir, "logs"))
		},
		"far above the file": func(dir, roots string) (string, error) {
			return filepath.Join(dir, "a", filepath.Base(roots)), os.Symlink(filepath.Dir(roots), filepath.Join(dir, "a"))
		},
		"within the directory": func(dir, _ string) (string, error) {
			own := filepath.Join(dir, "own")
			logs := filepath.Join(dir, "logs")
			return logs, errors.Join(os.Mkdir(own, 0o700), fill(own), os.Symlink("own", logs))
		},
		"up and away": func(dir, roots string) (string, error) {
			rel, err := filepath.Rel(dir, roots)
			return filepath.Join(dir, "logs"), errors.Join(err, os.Symlink(rel, filepath.Join(dir, "logs")))
		},
		"to what is not there": func(dir, roots string) (string, error) {
			return filepath.Join(dir, "logs", "deep"), os.Symlink(filepath.Join(roots, "new"), filepath.Join(dir, "logs"))
		},
	}
	for whose, share := range shared {
		for attack, lay := range attacks {
			for _, keys := range []string{"", "\nmax_size: 1\nkeep: 1", "\nchain: true"} {
				dir, roots := serviceDirectory(t), t.TempDir()
				if share == nil {
					dir = filepath.Join(dir, "roots")
					if err := os.Mkdir(dir, 0o755); err != nil {
						t.Fatal(err)
					}
				} else if err := errors.Join(os.Chown(dir, 0, 0), share(dir)); err != nil {
					t.Fatal(err)
				}
				path, err := lay(dir, roots)
				if err := errors.Join(err, fill(roots)); err != nil {
					t.Fatal(err)
				}
				s := mustOpen(t, "file", "path: "+filepath.Join(path, "audit.jsonl")+keys, testHost(t))
				_, err = s.Deliver(t.Context(), deliveries(t)[:1])
				_, connect := s.(delivery.Connecter).Connect(t.Context())
				for _, err := range []error{err, connect} {
					if !errors.Is(err, delivery.ErrBlocked) || !errors.Is(err, errForeign) ||
						!strings.Contains(err.Error(), "it is a link") {
						t.Errorf("%s, %s, %q: %v, want it blocked, because there is a link", whose, attack, keys, err)
					}
				}
				wantFilled(t, roots)
				if attack == "within the directory" {
					wantFilled(t, filepath.Join(dir, "own"))
				}
			}
		}
	}
}

// fill puts files into a directory that a sink with a file audit.jsonl would append to, cut off, rename or delete.
func fill(dir string) error {
	var errs []error
	for name, text := range filled {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return errors.Join(errs...)
}

var filled = map[string]string{
	"audit.jsonl":                  `{"specversion":"1.0","half":`,
	"audit-20200101T000000Z.jsonl": "{}\n",
	"audit-20210101T000000Z.jsonl": "{}\n",
}

// wantFilled checks that a directory is as fill has left it.
func wantFilled(t *testing.T, dir string) {
	t.Helper()
	if got := list(t, dir); len(got) != len(filled) {
		t.Errorf("%s has %q", dir, got)
	}
	for name, want := range filled {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(text) != want {
			t.Errorf("%s of root's holds %q (%v), want %q", name, text, err, want)
		}
	}
}

// Root works in a directory of another user's as in its own: it makes what is missing, rotates and deletes.
func TestRootRotatesInAnotherUsersDirectory(t *testing.T) {
	dir := serviceDirectory(t)
	path := filepath.Join(dir, "deep", "down", "audit.jsonl")
	s := mustOpen(t, "file", "path: "+path+"\nmax_size: 1\nkeep: 2", testHost(t)).(*file)
	now := monday
	s.now = func() time.Time { return now }
	for i := range 5 {
		if _, err := s.Deliver(t.Context(), deliveries(t)[i:i+1]); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Hour)
	}
	if got := list(t, filepath.Dir(path)); len(got) != 3 {
		t.Errorf("there are %q, want the file and two rotated ones", got)
	}
	if got, want := idsIn(t, read(t, path)), deliveries(t)[4].Event.ID(); !slices.Equal(got, []string{want}) {
		t.Errorf("the file holds %q, want the newest, %s", got, want)
	}
}

// Root follows its own links, where nobody else may write.
func TestRootFollowsItsOwnLinks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root's part; CI runs this as root")
	}
	for _, path := range []string{"/bin", "/lib", "/var/run", "/etc", "/"} {
		want, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue // not every system has all of them
		}
		w, err := walkTo(path, false)
		if err != nil || w.path != want || w.shared {
			t.Errorf("the walk to %s is at %+v, %v; want it at %s, where only root may write", path, w, err, want)
		}
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
