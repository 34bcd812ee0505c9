//go:build unix

package sinks

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// What root sends to a file that is not there yet does not lock out the service, whose directory it is: the file is the
// directory's owner's. A file that is there already, and what a link leads to, keep their owner.
func TestFileThatRootMakesIsTheDirectoryOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to others")
	}
	const service, operators = 65532, 65533
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	path, old, link := filepath.Join(dir, "new"), filepath.Join(dir, "old"), filepath.Join(dir, "link")
	if err := os.WriteFile(old, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, service, operators); err != nil {
		t.Fatal(err)
	}
	for sentTo, lies := range map[string]string{path: path, old: old, link: outside} {
		s := mustOpen(t, "file", "path: "+sentTo, testHost(t))
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(lies)
		if err != nil {
			t.Fatal(err)
		}
		wantUID, wantGID := uint32(0), uint32(os.Getegid())
		if lies == path {
			wantUID, wantGID = service, operators
		}
		if got := info.Sys().(*syscall.Stat_t); got.Uid != wantUID || got.Gid != wantGID {
			t.Errorf("%s belongs to %d:%d, want %d:%d", lies, got.Uid, got.Gid, wantUID, wantGID)
		}
	}
}
