package outbox

import (
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
	lockWait     = time.Second // for another process to let go of the file
	compactAbove = 16 << 20    // bytes; a smaller file is left as it is
	compactTx    = 4 << 20     // bytes in one transaction of the copy
	maxOpenings  = 3           // how often the program may end while a file is being verified
)

// mapAhead is how many bytes of address space the file gets at first. Whenever it outgrows them bbolt copies all that
// the transaction under way has touched. On Windows the file would get that size.
func mapAhead() int {
	if runtime.GOOS == "windows" {
		return 0
	}
	return 256 << 20
}

// fillPages is how full pages are made: most keys come in order, so that little comes between them later.
const fillPages = 0.9

// growth is how many bytes the file grows by at a time: bbolt's own 16 MiB would be too much for a small disk.
const growth = 256 << 10

// A file is the Storage on disk, on bbolt.
type file struct {
	path     string
	readOnly bool // never to be written
	log      *slog.Logger
	size     atomic.Int64

	mu      sync.RWMutex // held for reading while db is used, for writing while it is replaced
	db      *bolt.DB     // nil while there is none, or it can't be asked any more
	fd      *os.File     // what db has open
	damaged atomic.Bool  // db is, so it must not be closed in the usual way
}

// File is the Storage that Open makes when it is given none: a bbolt file, outbox.db in dir.
func File(dir string, log *slog.Logger) Storage {
	return newFile(filepath.Join(dir, fileName), false, log)
}

func newFile(path string, readOnly bool, log *slog.Logger) *file {
	return &file{path: path, readOnly: readOnly, log: log}
}

func (f *file) Open() (opened bool, err error) {
	f.mu.RLock()
	usable := f.db != nil && !f.damaged.Load()
	readOnly := usable && f.db.IsReadOnly()
	f.mu.RUnlock()
	switch {
	case usable && !readOnly && f.there():
		return false, nil
	case readOnly:
		probe, err := os.OpenFile(f.path, os.O_RDWR, 0)
		if err != nil {
			return false, fmt.Errorf("%w: %w", ErrReadOnly, err) // it can be read, so it isn't let go of
		}
		probe.Close()
	}
	_ = f.Close() // the error of opening it again says what is wrong
	err = f.open(f.readOnly)
	if !f.readOnly && (errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)) && f.open(true) == nil {
		err = fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	return true, err
}

// there reports whether the path still names the open file.
func (f *file) there() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	open, err := f.fd.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(f.path)
	return err == nil && os.SameFile(open, named)
}

// open opens and verifies the file.
func (f *file) open(readOnly bool) error {
	if !f.readOnly {
		if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
			return fmt.Errorf("open outbox: %w", err)
		}
	}
	info, err := os.Stat(f.path)
	fresh := err != nil || info.Mode().IsRegular() && info.Size() == 0
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%w: it is a directory", ErrDamaged)
	case err == nil && fresh && !readOnly:
		f.log.Warn("the outbox file is empty; starting with an empty outbox", "file", f.path)
	}
	db, fd, err := openBolt(f.path, readOnly)
	if err != nil {
		if fresh && !readOnly && !errors.Is(err, ErrLocked) {
			os.Remove(f.path) // what a full disk left of it would look like damage
		}
		return err
	}
	err = f.verify(db, fd, readOnly)
	f.mu.Lock()
	f.db, f.fd = db, fd
	f.damaged.Store(errors.Is(err, ErrDamaged))
	f.mu.Unlock()
	f.measure()
	if err != nil {
		_ = f.Close()
	}
	return err
}

// openBolt opens the file with bbolt. fd is what bbolt has open.
func openBolt(path string, readOnly bool) (db *bolt.DB, fd *os.File, err error) {
	err = guard(func() (err error) {
		db, err = bolt.Open(path, 0o600, &bolt.Options{
			Timeout: lockWait, ReadOnly: readOnly, PreLoadFreelist: true, InitialMmapSize: mapAhead(),
			OpenFile: func(name string, flag int, mode os.FileMode) (_ *os.File, err error) {
				fd, err = os.OpenFile(name, flag, mode)
				return fd, err
			},
		})
		return err
	})
	switch {
	case err == nil:
		db.AllocSize = growth
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

// tooSmall says that a file holds something, but less than the two pages that every bbolt file begins with.
func tooSmall(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() > 0 && info.Size() < 2*int64(os.Getpagesize())
}

// Close lets go of the file. One that is damaged isn't closed in bbolt's way, which could hang or fail over what can't
// be read; its mapping stays, and with it the lock, which is that of a file about to be set aside.
func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	db, fd := f.db, f.fd
	f.db, f.fd = nil, nil
	switch {
	case fd == nil:
		return nil
	case f.damaged.Swap(false) || db == nil:
		return fd.Close()
	}
	return guard(db.Close)
}

// use makes a transaction, to read or to write. A bbolt that panics before that has begun leaves its locks held and
// can't be asked again.
func (f *file) use(transaction func(*bolt.DB, func(*bolt.Tx) error) error, do func(*bolt.Tx) error) error {
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
	f.mu.RUnlock()
	if errors.Is(err, ErrDamaged) {
		f.damaged.Store(true)
		if !begun {
			f.mu.Lock()
			if f.db == db {
				f.db = nil
			}
			f.mu.Unlock()
		}
	}
	return err
}

func (f *file) Write(writes []Write) error {
	err := f.use((*bolt.DB).Update, func(tx *bolt.Tx) error {
		for _, w := range writes { // in order, or it takes bbolt the square of the time
			err := put(tx, w)
			if errors.Is(err, berrors.ErrKeyTooLarge) || errors.Is(err, berrors.ErrKeyRequired) {
				f.log.Error("cannot store a record: unusable key", "bucket", w.Bucket, "bytes", len(w.Key), "err", err)
				continue // or nothing could be written any more
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	f.measure()
	return err
}

func put(tx *bolt.Tx, w Write) error {
	if w.Value == nil {
		if b := tx.Bucket([]byte(w.Bucket)); b != nil {
			return b.Delete([]byte(w.Key))
		}
		return nil
	}
	b, err := tx.CreateBucketIfNotExists([]byte(w.Bucket))
	if err != nil {
		return err
	}
	b.FillPercent = fillPages
	return b.Put([]byte(w.Key), w.Value)
}

func (f *file) Read(bucket, key string) (value []byte, err error) {
	err = f.use((*bolt.DB).View, func(tx *bolt.Tx) error {
		if b := tx.Bucket([]byte(bucket)); b != nil {
			if v := b.Get([]byte(key)); v != nil {
				value = append([]byte{}, v...)
			}
		}
		return nil
	})
	return value, err
}

func (f *file) Walk(bucket, from string, do func(key string, value []byte) error) error {
	return f.use((*bolt.DB).View, func(tx *bolt.Tx) error {
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
	aside := fmt.Sprintf("%s.%s-%s", f.path, why, time.Now().UTC().Format("20060102T150405.000000Z"))
	f.log.Error("the outbox cannot be used; it is set aside and a new one started", "file", f.path, "kept", aside,
		"err", cause)
	return os.Rename(f.path, aside)
}

func (f *file) Size() int64 { return f.size.Load() }

// measure records the size of the file.
func (f *file) measure() {
	if info, err := os.Stat(f.path); err == nil {
		f.size.Store(info.Size())
	}
}

// Compact rewrites a file of more than 16 MiB of which less than half is in use: bbolt's files never shrink.
func (f *file) Compact() error {
	var end, used int64
	err := f.use((*bolt.DB).View, func(tx *bolt.Tx) error {
		// The end of what bbolt has ever used counts, not the size of the file: on Windows that is a power of two above it.
		stats := tx.DB().Stats()
		end = tx.Size()
		used = end - int64(stats.FreePageN+stats.PendingPageN)*int64(tx.DB().Info().PageSize)
		return nil
	})
	if err != nil || end < compactAbove || used*2 > end {
		return err
	}
	small := f.path + ".compact"
	if err := f.use((*bolt.DB).View, func(tx *bolt.Tx) error { return copyDB(small, tx.DB()) }); err != nil {
		os.Remove(small)
		return fmt.Errorf("compact outbox: %w", err)
	}
	f.mu.Lock() // no read is under way, so closing doesn't wait, and none sees the file missing
	defer f.mu.Unlock()
	if err := guard(f.db.Close); err != nil {
		f.log.Warn("cannot close the outbox", "err", err)
	}
	if err = os.Rename(small, f.path); err != nil { // on Windows because another program, such as a backup, reads it
		os.Remove(small)
	}
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
