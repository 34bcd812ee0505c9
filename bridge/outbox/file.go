package outbox

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const (
	lockWait     = time.Second // how long to wait for another process to release the file
	compactAbove = 16 << 20    // bytes; a smaller file is left as it is
	compactTx    = 4 << 20     // bytes in one transaction of the copy
)

// initialMapSize returns how many bytes bbolt maps at first. When the file outgrows the mapping, bbolt makes a larger
// one, and first copies every page that the open transaction has touched. On Windows the file itself would get this
// size.
func initialMapSize() int {
	if runtime.GOOS == "windows" {
		return 0
	}
	return 256 << 20
}

// fillPercent is how full bbolt leaves a page that it splits: nearly full, because most keys are written in order and
// few are inserted later.
const fillPercent = 0.9

// growBy is how many bytes the file grows by at a time: bbolt's default of 16 MiB is too much for a small disk.
const growBy = 256 << 10

// file is the Storage on disk: one bbolt file.
type file struct {
	path     string
	readOnly bool // the file must never be written
	log      *slog.Logger
	size     atomic.Int64

	mu      sync.RWMutex // held for reading while db is used, for writing while it is replaced
	db      *bolt.DB     // nil while none is open, or after bbolt panicked with its locks held
	fd      *os.File     // the file that db has open
	damaged atomic.Bool  // db is damaged and must not be closed by bbolt
	last    int          // number of the last transaction that Write made; 0: not known; only Write, Open and Compact use it

	syncDir func(dir string) error // the function syncDir; tests replace it
	answers func()                 // is called while the file is read and the disk answers
}

// File returns the Storage that Open uses by default: the bbolt file outbox.db in dir.
func File(dir string, log *slog.Logger) Storage {
	return newFile(filepath.Join(dir, fileName), false, log)
}

func newFile(path string, readOnly bool, log *slog.Logger) *file {
	return &file{path: path, readOnly: readOnly, log: log, syncDir: syncDir, answers: func() {}}
}

func (f *file) Open() (opened bool, err error) {
	f.mu.RLock()
	usable := f.db != nil && !f.damaged.Load()
	readOnly := usable && f.db.IsReadOnly()
	f.mu.RUnlock()
	switch {
	case usable && !readOnly && f.isOpen(f.measure()):
		return false, nil
	case usable && !readOnly:
		return false, f.taken()
	case readOnly:
		probe, err := os.OpenFile(f.path, os.O_RDWR, 0)
		if err != nil {
			return false, fmt.Errorf("%w: %w", ErrReadOnly, err) // it can still be read, so it stays open
		}
		probe.Close()
	}
	_ = f.Close() // if something is wrong, opening it again returns the error
	err = f.open(f.readOnly)
	if !f.readOnly && (errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)) && f.open(true) == nil {
		err = fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	return true, err
}

// target returns the path of the file itself: f.path may be a link to it, perhaps on another disk.
func (f *file) target() string {
	if _, err := os.Readlink(f.path); err != nil {
		return f.path
	}
	path, err := filepath.EvalSymlinks(f.path)
	if err != nil { // it leads nowhere yet
		return f.path
	}
	return path
}

// taken returns the error about a path that no longer names the open file, or its content.
func (f *file) taken() error {
	return fmt.Errorf("%w: another program has removed or replaced %s", ErrDamaged, f.path)
}

// isOpen reports whether info, which may be nil, is of the open file.
func (f *file) isOpen(info os.FileInfo) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	open, err := f.fd.Stat()
	return err == nil && info != nil && os.SameFile(open, info)
}

// open opens and verifies the file.
func (f *file) open(readOnly bool) error {
	if !f.readOnly {
		if err := f.makeDir(filepath.Dir(f.path)); err != nil {
			return fmt.Errorf("open outbox: %w", err)
		}
	}
	_, unnamed := os.Lstat(f.path)
	info, err := os.Stat(f.path)
	missing := errors.Is(err, fs.ErrNotExist)
	fresh := missing || err == nil && info.Mode().IsRegular() && info.Size() == 0
	switch {
	case err != nil && !missing: // there may be a file
		return fmt.Errorf("open outbox: %w", err)
	case err == nil && info.IsDir():
		return fmt.Errorf("%w: it is a directory", ErrDamaged)
	case err == nil && fresh && !readOnly:
		f.log.Warn("the outbox file is empty; starting with an empty outbox", "file", f.path)
	}
	f.last = 0
	if !fresh {
		err := verify(f.path, f.answers)
		if err != nil {
			return err
		}
	}
	db, fd, err := openBolt(f.path, readOnly)
	if err != nil {
		// A full disk leaves part of a file, which would look damaged. What was there before stays, such as a link to a disk
		// that isn't mounted yet.
		if missing && errors.Is(unnamed, fs.ErrNotExist) && !readOnly && !errors.Is(err, ErrLocked) {
			os.Remove(f.path)
		}
		return err
	}
	if !readOnly { // also if the file isn't new: its creator may have ended before this
		err = f.syncDir(filepath.Dir(f.target()))
	}
	f.mu.Lock()
	f.db, f.fd = db, fd
	f.mu.Unlock()
	f.measure()
	if err != nil {
		_ = f.Close()
	}
	return err
}

// makeDir makes a directory and its parents where they are missing, and makes their names durable.
func (f *file) makeDir(dir string) error {
	parent := filepath.Dir(dir)
	if _, err := os.Stat(dir); err == nil || parent == dir {
		return nil // any other problem shows when the file is opened
	}
	if err := f.makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return f.syncDir(parent)
}

// syncDir makes the names in a directory durable where the system can: a power loss may remove the name of a file that
// was itself synced. Windows doesn't need it.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil // the directory may be writable but not readable
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}

// openBolt opens the file with bbolt. fd is the file that bbolt has open.
func openBolt(path string, readOnly bool) (db *bolt.DB, fd *os.File, err error) {
	err = guard(func() (err error) {
		db, err = bolt.Open(path, 0o600, &bolt.Options{
			Timeout: lockWait, ReadOnly: readOnly, InitialMmapSize: initialMapSize(),
			OpenFile: func(name string, flag int, mode os.FileMode) (_ *os.File, err error) {
				fd, err = os.OpenFile(name, flag, mode)
				return fd, err
			},
		})
		return err
	})
	switch {
	case err == nil:
		db.AllocSize = growBy
		return db, fd, nil
	case errors.Is(err, berrors.ErrTimeout):
		return nil, nil, fmt.Errorf("%w: %s", ErrLocked, path)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum),
		errors.Is(err, berrors.ErrVersionMismatch), errors.Is(err, ErrDamaged), fd != nil && tooSmall(path):
		if fd != nil {
			fd.Close() // a panic left it open, and locked
		}
		return nil, nil, fmt.Errorf("%w: %v", ErrDamaged, err)
	}
	return nil, nil, fmt.Errorf("open outbox: %w", err)
}

// tooSmall reports whether a file isn't empty, but smaller than the two pages that every bbolt file begins with.
func tooSmall(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() > 0 && info.Size() < 2*int64(os.Getpagesize())
}

// Close closes the file. bbolt doesn't close a damaged one, because it could hang or fail on an unreadable page.
func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	db, fd := f.db, f.fd
	f.db, f.fd = nil, nil
	switch {
	case fd == nil:
		return nil
	case f.damaged.Swap(false) || db == nil:
		letGo(db, fd)
		return fd.Close()
	}
	return guard(db.Close)
}

// transact runs do in a transaction: (*bolt.DB).View or (*bolt.DB).Update. If bbolt panics before the transaction has
// begun, it keeps its locks, so that db can't be used again.
func (f *file) transact(transaction func(*bolt.DB, func(*bolt.Tx) error) error, do func(*bolt.Tx) error) error {
	f.mu.RLock()
	db := f.db
	if db == nil {
		f.mu.RUnlock()
		return errors.New("the outbox's file is not open")
	}
	begun := false
	err := guard(func() error {
		return transaction(db, func(tx *bolt.Tx) error {
			begun = true
			return do(tx)
		})
	})
	damaged := errors.Is(err, ErrDamaged)
	if damaged {
		f.damaged.Store(true) // while db can't be replaced
	}
	f.mu.RUnlock()
	if damaged && !begun {
		f.mu.Lock()
		if f.db == db {
			f.db = nil
		}
		f.mu.Unlock()
	}
	return err
}

func (f *file) Write(writes []Write) error {
	number := 0
	err := f.transact((*bolt.DB).Update, func(tx *bolt.Tx) error {
		number = tx.ID()
		if f.last > 0 && number != f.last+1 {
			return f.taken() // an older copy was written over it
		}
		for _, w := range writes { // in this order: bbolt would need quadratic time for unsorted keys
			err := put(tx, w)
			if errors.Is(err, berrors.ErrKeyTooLarge) || errors.Is(err, berrors.ErrKeyRequired) {
				f.log.Error("cannot store a record: unusable key", "bucket", w.Bucket, "bytes", len(w.Key), "err", err)
				continue // an error here would keep all later records from being written
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	f.last = number
	if err != nil {
		f.last = 0
	}
	if info := f.measure(); err == nil && !f.isOpen(info) {
		err = f.taken()
	}
	return err
}

func put(tx *bolt.Tx, w Write) error {
	if w.Value == nil {
		b := tx.Bucket([]byte(w.Bucket))
		if b == nil {
			return nil
		}
		return b.Delete([]byte(w.Key))
	}
	b, err := tx.CreateBucketIfNotExists([]byte(w.Bucket))
	if err != nil {
		return err
	}
	b.FillPercent = fillPercent
	return b.Put([]byte(w.Key), w.Value)
}

func (f *file) Read(bucket, key string) (value []byte, err error) {
	err = f.transact((*bolt.DB).View, func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		if b != nil {
			value = bytes.Clone(b.Get([]byte(key)))
		}
		return nil
	})
	return value, err
}

func (f *file) Walk(bucket, from string, do func(key string, value []byte) error) error {
	return f.transact((*bolt.DB).View, func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			return nil
		}
		c := b.Cursor()
		for k, v := c.Seek([]byte(from)); k != nil; k, v = c.Next() {
			if err := do(string(k), v); err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *file) SetAside(why string, cause error) error {
	_ = f.Close()
	path := f.target()
	name := fmt.Sprintf("%s.%s-%s", fileName, why, time.Now().UTC().Format("20060102T150405.000000Z"))
	aside := filepath.Join(filepath.Dir(path), name)
	err := os.Rename(path, aside)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.log.Error("the outbox's file is gone; a new one is started", "file", f.path, "err", cause)
		return nil
	case err != nil:
		return fmt.Errorf("cannot use the outbox (%v), and cannot set it aside: %w", cause, err)
	}
	f.log.Error("the outbox cannot be used; it is set aside and a new one started", "file", f.path, "kept", aside,
		"err", cause)
	return nil
}

func (f *file) Size() int64 { return f.size.Load() }

// measure records the size of the file that the path names, and returns what it is; nil if there is none.
func (f *file) measure() os.FileInfo {
	info, err := os.Stat(f.path)
	if err != nil {
		return nil
	}
	f.size.Store(info.Size())
	return info
}

// Compact rewrites a file that is larger than 16 MiB and less than half used. bbolt never shrinks a file.
func (f *file) Compact() error {
	var end, used int64
	err := f.transact((*bolt.DB).View, func(tx *bolt.Tx) error {
		// What counts is the end of the pages that bbolt has ever used. The file may be longer: on Windows it is the next
		// power of two.
		stats := tx.DB().Stats()
		end = tx.Size()
		used = end - int64(stats.FreePageN+stats.PendingPageN)*int64(tx.DB().Info().PageSize)
		return nil
	})
	if err != nil || end < compactAbove || used*2 > end {
		return err
	}
	path := f.target()
	small := path + ".compact"
	if err := f.transact((*bolt.DB).View, func(tx *bolt.Tx) error { return copyDB(small, tx.DB()) }); err != nil {
		os.Remove(small)
		return fmt.Errorf("compact outbox: %w", err)
	}
	f.mu.Lock() // waits for all reads: closing then doesn't wait, and no read finds the file closed
	defer f.mu.Unlock()
	if f.damaged.Load() {
		os.Remove(small)
		return fmt.Errorf("compact outbox: %w: a read has found that", ErrDamaged)
	}
	if err := guard(f.db.Close); err != nil {
		f.log.Warn("cannot close the outbox", "err", err)
	}
	if err = os.Rename(small, path); err != nil { // on Windows, when another program such as a backup has it open
		os.Remove(small)
	} else { // without it, a power loss could remove the new file's name, and later writes with it
		err = f.syncDir(filepath.Dir(path))
	}
	f.last = 0
	var openErr error
	f.db, f.fd, openErr = openBolt(f.path, false)
	f.measure()
	return errors.Join(err, openErr)
}

// copyDB copies the content of src to a new file.
func copyDB(path string, src *bolt.DB) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dst, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, NoSync: true})
	if err != nil {
		return err
	}
	err = bolt.Compact(dst, src, compactTx)
	if err == nil {
		err = dst.Sync()
	}
	return errors.Join(err, dst.Close())
}
