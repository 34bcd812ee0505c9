package outbox

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// What is written to a new file survives a power loss: every name on the path to the file is durable by then, also
// after Compact replaced the file, or after it was set aside and a new one started.
func TestNamesAreDurable(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no sync of a directory, and journals names")
	}
	root := t.TempDir()
	path := filepath.Join(root, "var", "state", fileName)
	f := newFile(path, false, slog.New(slog.DiscardHandler))
	durable := map[string]os.FileInfo{} // what a power loss leaves of the names, by path
	f.syncDir = func(dir string) error {
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			durable[filepath.Join(dir, e.Name())], _ = e.Info()
		}
		return err
	}
	defer f.Close()
	check := func(when string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for at := path; at != root; at = filepath.Dir(at) {
			now, err := os.Stat(at)
			if err != nil {
				t.Fatal(err)
			}
			if was := durable[at]; was == nil || !os.SameFile(was, now) {
				t.Errorf("%s a power loss takes the name %s", when, at)
			}
		}
	}
	_, err := f.Open()
	check("once it is open,", err)
	var writes, deletes []Write
	for i := range 40 {
		key := fmt.Sprintf("%03d", i)
		writes = append(writes, Write{bucketEvents, key, make([]byte, 1<<20)})
		deletes = append(deletes, Write{bucketEvents, key, nil})
	}
	if err := f.Write(writes); err != nil {
		t.Fatal(err)
	}
	if err := f.Write(deletes); err != nil {
		t.Fatal(err)
	}
	before := f.Size()
	check("once it is compact,", f.Compact())
	if f.Size() >= before {
		t.Errorf("it has %d bytes after it was made compact, and had %d", f.Size(), before)
	}
	if err := f.SetAside("damaged", ErrDamaged); err != nil {
		t.Fatal(err)
	}
	_, err = f.Open()
	check("once it was set aside and is open,", err)
}

// syncDir returns an error if the directory can't be synced, except on Windows.
func TestSyncDirOfAMissingDirectoryFails(t *testing.T) {
	err := syncDir(filepath.Join(t.TempDir(), "gone"))
	if said := err != nil; said != (runtime.GOOS != "windows") {
		t.Errorf("syncDir = %v", err)
	}
	if err := syncDir(t.TempDir()); err != nil {
		t.Errorf("of a directory that is there syncDir = %v, want nil", err)
	}
}
