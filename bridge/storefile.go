package bridge

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const (
	lockWait     = time.Second // for another process to let go of the file
	compactAbove = 16 << 20    // bytes; a smaller file is left as it is
	compactTx    = 4 << 20     // bytes in one transaction of the copy
)

// usable makes the file one that can be written, if it is not, and says why when that cannot be. file is held.
func (s *store) usable() error {
	s.mu.Lock()
	db, fd, err := s.db, s.fd, s.dbErr
	s.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case fd != nil && errors.Is(err, errDamaged): // met while it was in use
		s.rescue()
		_ = s.closeFile()
		if err := s.setAside("damaged", err); err != nil {
			return err
		}
	case db != nil && errors.Is(err, errReadOnly):
		f, err := os.OpenFile(s.path, os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("%w: %w", errReadOnly, err) // it can be read, so it is not let go of
		}
		f.Close()
	}
	_ = s.closeFile() // the error of opening it again says what is wrong
	return s.open()
}

// open makes db usable if it can: a damaged file, or another VM's, is set aside; one that can only be read is read. file
// is held.
func (s *store) open() error {
	err := s.openFile(s.readOnly)
	var why string
	switch {
	case s.readOnly:
	case errors.Is(err, errDamaged):
		why = "damaged"
	case errors.Is(err, errForeign):
		why = "foreign"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		if s.openFile(true) == nil {
			err = fmt.Errorf("%w: %w", errReadOnly, err)
		}
	}
	if why != "" {
		if err = s.setAside(why, err); err == nil {
			err = s.openFile(false)
		}
	}
	s.mu.Lock()
	s.dbErr = err
	s.mu.Unlock()
	return err
}

// openFile opens, verifies and reads the file as it is. file is held.
func (s *store) openFile(readOnly bool) error {
	if !s.readOnly {
		if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
			return fmt.Errorf("open outbox: %w", err)
		}
	}
	info, err := os.Stat(s.path)
	fresh := err != nil || info.Mode().IsRegular() && info.Size() == 0
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%w: it is a directory", errDamaged)
	case err == nil && fresh && !readOnly:
		s.log.Warn("the outbox is an empty file and is begun anew", "file", s.path)
	}
	db, fd, err := openBolt(s.path, readOnly)
	if err != nil {
		if fresh && !readOnly && !errors.Is(err, ErrLocked) {
			os.Remove(s.path) // what a full disk left of it would look like damage
		}
		return err
	}
	err = guard(func() error { return verify(db, fd) })
	if err == nil {
		err = guard(func() error { return s.admit(db) })
	}
	s.mu.Lock()
	s.db, s.fd, s.dbErr = db, fd, err
	s.mu.Unlock()
	if err == nil {
		err = s.opened()
	}
	if err != nil {
		s.mu.Lock()
		s.dbErr = err
		s.mu.Unlock()
		_ = s.closeFile()
	}
	return err
}

// openBolt opens the file with bbolt. fd is what bbolt has open.
func openBolt(path string, readOnly bool) (db *bolt.DB, fd *os.File, err error) {
	err = guard(func() (err error) {
		db, err = bolt.Open(path, 0o600, &bolt.Options{
			Timeout: lockWait, ReadOnly: readOnly, PreLoadFreelist: true,
			OpenFile: func(name string, flag int, mode os.FileMode) (_ *os.File, err error) {
				fd, err = os.OpenFile(name, flag, mode)
				return fd, err
			},
		})
		return err
	})
	switch {
	case err == nil:
		return db, fd, nil
	case errors.Is(err, berrors.ErrTimeout):
		return nil, nil, fmt.Errorf("%w: %s", ErrLocked, path)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch),
		errors.Is(err, errDamaged), fd != nil && tooSmall(path):
		if fd != nil {
			fd.Close() // a panic left it open, and locked
		}
		return nil, nil, fmt.Errorf("%w: %v", errDamaged, err)
	}
	return nil, nil, fmt.Errorf("open outbox: %w", err)
}

// tooSmall says that a file holds something, but less than the two pages every bbolt file begins with.
func tooSmall(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() > 0 && info.Size() < 2*int64(os.Getpagesize())
}

// closeFile lets go of the file. One that is damaged is not closed in bbolt's way, which could hang or fail over what
// cannot be read; its mapping stays, and with it the lock, which is that of a file about to be set aside. file is held.
func (s *store) closeFile() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	db, fd, damaged := s.db, s.fd, errors.Is(s.dbErr, errDamaged)
	s.db, s.fd = nil, nil
	if s.dbErr == nil {
		s.dbErr = errClosed
	}
	switch {
	case fd == nil:
		return nil
	case damaged:
		return fd.Close()
	}
	return guard(db.Close)
}

// guard turns a panic, or a fault in the mapped file, into an error: bbolt panics over damaged pages.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errDamaged, r)
		}
	}()
	return f()
}

// verify walks the whole file. bbolt checks a page only when it reads it, so damage would show when it is too late.
func verify(db *bolt.DB, fd *os.File) error {
	return db.View(func(tx *bolt.Tx) error {
		info, err := fd.Stat()
		if err != nil {
			return err
		}
		if info.Size() < tx.Size() {
			return fmt.Errorf("%w: it was cut, it has %d of %d bytes", errDamaged, info.Size(), tx.Size())
		}
		// First what bbolt's own check takes for granted: a fault in its goroutine could not be caught.
		if err := checkPages(tx, fd); err != nil {
			return fmt.Errorf("%w: %v", errDamaged, err)
		}
		var first error
		for err := range tx.Check() {
			if first == nil {
				first = fmt.Errorf("%w: %v", errDamaged, err)
			}
		}
		return first
	})
}

// setAside renames the file so that it says when and why, and can be looked at. file is held, and the file closed.
func (s *store) setAside(why string, cause error) error {
	aside := fmt.Sprintf("%s.%s-%s", s.path, why, time.Now().UTC().Format("20060102T150405.000000Z"))
	s.log.Error("the outbox cannot be used: it is set aside, and begun anew", "file", s.path, "kept", aside, "err", cause)
	return os.Rename(s.path, aside)
}

// anew lets forget drop what is known, drops what is not written, and opens the file again: admit may think otherwise of
// it now.
func (s *store) anew(forget func()) error {
	s.file.Lock()
	defer s.file.Unlock()
	forget()
	s.mu.Lock()
	s.ahead = layer{}
	s.mu.Unlock()
	_ = s.closeFile()
	return s.open()
}

// compact rewrites a file of more than 16 MiB of which less than half is in use: bbolt's files never shrink.
func (s *store) compact() error {
	s.file.Lock()
	defer s.file.Unlock()
	s.mu.Lock()
	db, err := s.db, s.dbErr
	s.mu.Unlock()
	if err != nil {
		return err
	}
	// The end of what bbolt has ever used counts, not the size of the file: on Windows that is a power of two above it.
	stats, end := db.Stats(), int64(0)
	if err := guard(func() error { return db.View(func(tx *bolt.Tx) error { end = tx.Size(); return nil }) }); err != nil {
		return err
	}
	used := end - int64(stats.FreePageN+stats.PendingPageN)*int64(db.Info().PageSize)
	if end < compactAbove || used*2 > end {
		return nil
	}
	small := s.path + ".compact"
	if err := copyDB(small, db); err != nil {
		os.Remove(small)
		return fmt.Errorf("compact outbox: %w", err)
	}
	// No read is under way while mu is held, so closing does not wait; and none sees the file missing.
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := guard(db.Close); err != nil {
		s.log.Warn("the outbox was not closed properly", "err", err)
	}
	if err = os.Rename(small, s.path); err != nil { // on Windows because another program, such as a backup, reads it
		os.Remove(small)
	}
	s.db, s.fd, s.dbErr = openBolt(s.path, false)
	return errors.Join(err, s.dbErr)
}

// copyDB writes what is in src to a new file.
func copyDB(path string, src *bolt.DB) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dst, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, NoSync: true})
	if err != nil {
		return err
	}
	err = guard(func() error { return bolt.Compact(dst, src, compactTx) })
	if err == nil {
		err = dst.Sync()
	}
	return errors.Join(err, dst.Close())
}

// size is that of the file, 0 if there is none.
func (s *store) size() int64 {
	info, err := os.Stat(s.path)
	if err != nil {
		return 0
	}
	return info.Size()
}
