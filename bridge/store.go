package bridge

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// A store is keys and values in buckets, on bbolt. Writes gather in a layer above the file and go to the disk in one
// transaction; reads see them at once. A disk that cannot take them leaves them in the layer, to be tried again: the
// program goes on from memory, and catches up.
type store struct {
	path     string
	readOnly bool // never to be written by us
	log      *slog.Logger

	file sync.Mutex // held while the file is opened, closed or written; taken before any other lock

	mu      sync.Mutex
	db      *bolt.DB // nil while the file cannot be used at all
	dbErr   error    // why db is nil or cannot be written
	ahead   layer    // not yet given to the disk
	under   layer    // in the transaction under way
	err     error    // of the last try to write; nil = everything but ahead is on disk
	waiters []chan error
	timer   *time.Timer // a write that may wait a little
	closed  bool

	kick   chan struct{}
	done   chan struct{} // closed when the writer has ended
	opened func() error  // called after the file was opened: reads what is there
	rescue func()        // called before a damaged file is closed: writes again all that is known
	synced func()        // called after each write that succeeded, without mu
}

// layer is what to write, by bucket and key; a nil value deletes.
type layer map[string]map[string][]byte

// The timing of the store.
const (
	lockWait     = time.Second           // for another process to let go of the file
	groupWait    = 50 * time.Millisecond // how long a write may wait for others
	diskPatience = 5 * time.Second       // how long a commit waits for the disk before it goes on from memory
	diskRetry    = 5 * time.Second
)

// ErrLocked is wrapped by the error of opening an outbox that another process holds.
var ErrLocked = errors.New("locked by another forewarn")

var (
	errDamaged  = errors.New("damaged")
	errReadOnly = errors.New("read-only")
	errNewer    = errors.New("written by a newer forewarn")
	errSlowDisk = errors.New("the disk takes too long")
)

// start opens the file and begins to write. Only a lock is an error; everything else makes it a store in memory, which
// tries again. A store that is only read has to be there.
func (s *store) start() error {
	s.ahead, s.kick, s.done = layer{}, make(chan struct{}, 1), make(chan struct{})
	s.file.Lock()
	defer s.file.Unlock()
	err := s.open()
	if errors.Is(err, ErrLocked) || s.readOnly {
		close(s.done)
		return err
	}
	s.mu.Lock()
	s.failed(err)
	s.mu.Unlock()
	go s.writer()
	s.wake()
	return nil
}

// open makes db usable if it can: a damaged file is set aside, one that can only be read is read. file is held.
func (s *store) open() error {
	err := s.openFile(s.readOnly)
	switch {
	case errors.Is(err, errDamaged) && !s.readOnly:
		s.log.Error("the outbox is damaged; what it still held is lost", "file", s.path, "err", err)
		if err = s.setAside("damaged"); err == nil {
			err = s.openFile(false)
		}
	case !s.readOnly && (errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)):
		if s.openFile(true) == nil {
			err = fmt.Errorf("open %s: %w", s.path, errReadOnly)
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
			return err
		}
	}
	var file *os.File
	var db *bolt.DB
	err := guard(func() (err error) {
		db, err = bolt.Open(s.path, 0o600, &bolt.Options{
			Timeout: lockWait, ReadOnly: readOnly,
			OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
				file, err = os.OpenFile(name, flag, mode)
				return file, err
			},
		})
		return err
	})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("%w: %s", ErrLocked, s.path)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch),
		errors.Is(err, errDamaged), err != nil && file != nil && fileTooSmall(file.Name()):
		if file != nil {
			file.Close() // a panic left it open, and locked
		}
		return fmt.Errorf("%w: %v", errDamaged, err)
	case err != nil:
		return fmt.Errorf("open outbox: %w", err)
	}
	if err = guard(func() error { return verify(db) }); err == nil && !readOnly {
		err = guard(func() error { return migrate(db) })
	}
	s.mu.Lock()
	s.db = db
	s.mu.Unlock()
	if err == nil {
		err = s.opened()
	}
	if err != nil {
		s.closeFile()
	}
	return err
}

// closeFile lets go of the file. file is held.
func (s *store) closeFile() error {
	s.mu.Lock()
	db := s.db
	s.db = nil
	s.mu.Unlock()
	if db == nil {
		return nil
	}
	return guard(db.Close)
}

// fileTooSmall says that a file holds something, but less than the two pages every bbolt file begins with.
func fileTooSmall(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() > 0 && info.Size() < 2*int64(os.Getpagesize())
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
func verify(db *bolt.DB) error {
	return db.View(func(tx *bolt.Tx) error {
		if info, err := os.Stat(db.Path()); err == nil && info.Size() < tx.Size() {
			return fmt.Errorf("%w: the file was cut, it has %d of %d bytes", errDamaged, info.Size(), tx.Size())
		}
		// First by reading everything, because a fault in the goroutine of Check could not be caught.
		err := tx.ForEach(func(_ []byte, b *bolt.Bucket) error {
			return b.ForEach(func(_, v []byte) error {
				for i := 0; i < len(v); i += os.Getpagesize() {
					_ = v[i]
				}
				return nil
			})
		})
		if err != nil {
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

// setAside renames the file so that it says when and why, and can be looked at. file is held.
func (s *store) setAside(why string) error {
	s.closeFile()
	aside := fmt.Sprintf("%s.%s-%s", s.path, why, time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Rename(s.path, aside); err != nil {
		return err
	}
	s.log.Error("the outbox was set aside and is started anew", "why", why, "kept", aside)
	return nil
}

// write notes what is to be written; the next sync does it.
func (s *store) write(bucket, key string, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead.put(bucket, key, value)
}

func (l layer) put(bucket, key string, value []byte) {
	if l[bucket] == nil {
		l[bucket] = map[string][]byte{}
	}
	l[bucket][key] = value
}

// get reads a value, nil if there is none. The error is one of the disk.
func (s *store) get(bucket, key string) (value []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range []layer{s.ahead, s.under} {
		if v, ok := l[bucket][key]; ok {
			return v, nil
		}
	}
	if s.db == nil {
		return nil, nil
	}
	err = guard(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			if b := tx.Bucket([]byte(bucket)); b != nil {
				value = slices.Clone(b.Get([]byte(key)))
			}
			return nil
		})
	})
	return value, err
}

// walk calls f for every key of the bucket as reads see it, in order, until it fails. f must not use the store, nor
// keep value.
func (s *store) walk(bucket string, f func(key string, value []byte) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	above := map[string][]byte{}
	maps.Copy(above, s.under[bucket])
	maps.Copy(above, s.ahead[bucket])
	fresh := slices.Sorted(maps.Keys(above))
	// upTo gives f the keys of the layers below key.
	upTo := func(key string, all bool) error {
		for len(fresh) > 0 && (all || fresh[0] < key) {
			next := fresh[0]
			fresh = fresh[1:]
			if v := above[next]; v != nil {
				if err := f(next, v); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if s.db != nil {
		err := guard(func() error {
			return s.db.View(func(tx *bolt.Tx) error {
				b := tx.Bucket([]byte(bucket))
				if b == nil {
					return nil
				}
				return b.ForEach(func(k, v []byte) error {
					key := string(k)
					if err := upTo(key, false); err != nil {
						return err
					}
					if _, ok := above[key]; ok {
						return nil
					}
					return f(key, v)
				})
			})
		})
		if err != nil {
			return err
		}
	}
	return upTo("", true)
}

// sync puts everything written so far on the disk. It returns nil only when it is there; otherwise the store goes on
// from memory and keeps trying.
func (s *store) sync() error {
	w := make(chan error, 1)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errors.New("outbox closed")
	}
	s.waiters = append(s.waiters, w)
	s.mu.Unlock()
	s.wake()
	patience := time.NewTimer(diskPatience)
	defer patience.Stop()
	select {
	case err := <-w:
		return err
	case <-patience.C:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed(errSlowDisk)
		return errSlowDisk
	}
}

// syncSoon does so within groupWait, together with what comes until then.
func (s *store) syncSoon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil && !s.closed {
		s.timer = time.AfterFunc(groupWait, s.wake)
	}
}

func (s *store) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// failed notes how the last try to write ended, and says so when that is news. mu is held.
func (s *store) failed(err error) {
	switch {
	case err != nil && s.err == nil:
		s.log.Error("the outbox cannot be written: going on from memory, which a crash would lose", "file", s.path, "err", err)
	case err == nil && s.err != nil:
		s.log.Info("the outbox is written again, nothing is missing", "file", s.path)
	}
	s.err = err
}

// durable says why what was written is not all on disk, nil if it is (but for the last groupWait).
func (s *store) durable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// writer owns the writing of the file.
func (s *store) writer() {
	defer close(s.done)
	retry := time.NewTimer(0)
	defer retry.Stop()
	<-retry.C
	for {
		select {
		case <-s.kick:
		case <-retry.C:
		}
		err, last := s.flush()
		if last {
			return
		}
		retry.Stop()
		if err != nil {
			retry.Reset(diskRetry)
		}
	}
}

// flush makes one try to write what is ahead.
func (s *store) flush() (err error, last bool) {
	s.file.Lock()
	defer s.file.Unlock()
	s.mu.Lock()
	usable, damaged := s.db != nil && s.dbErr == nil, s.db != nil && errors.Is(s.dbErr, errDamaged)
	s.mu.Unlock()
	if damaged {
		s.rescue()
	}
	if !usable {
		s.closeFile()
		err = s.open()
	}

	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	waiters := s.waiters
	s.waiters = nil
	s.under, s.ahead = s.ahead, layer{}
	db, under := s.db, s.under
	s.mu.Unlock()

	if err == nil && len(under) > 0 {
		err = guard(func() error { return db.Update(func(tx *bolt.Tx) error { return under.store(tx) }) })
	}

	s.mu.Lock()
	if err != nil {
		for bucket, keys := range s.ahead {
			for key, value := range keys {
				under.put(bucket, key, value)
			}
		}
		s.ahead = under
		if errors.Is(err, errDamaged) && s.dbErr == nil {
			s.dbErr = err // opened anew, and looked at, by the next try
		}
	}
	s.under = nil
	s.failed(err)
	last = s.closed
	s.mu.Unlock()

	if err == nil {
		s.synced()
	}
	for _, w := range waiters {
		w <- err
	}
	return err, last
}

// store writes the layer in tx.
func (l layer) store(tx *bolt.Tx) error {
	for bucket, keys := range l {
		b, err := tx.CreateBucketIfNotExists([]byte(bucket))
		if err != nil {
			return err
		}
		for key, value := range keys {
			if value == nil {
				err = b.Delete([]byte(key))
			} else {
				err = b.Put([]byte(key), value)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// startAnew sets the file aside and begins with an empty one, forgetting what was not written yet.
func (s *store) startAnew(why string) error {
	s.file.Lock()
	defer s.file.Unlock()
	s.mu.Lock()
	s.ahead = layer{}
	s.mu.Unlock()
	if err := s.setAside(why); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.open()
}

// Sizes that compacting looks at.
const (
	compactAbove = 16 << 20
	compactTx    = 4 << 20 // bytes in one transaction of the copy
)

// compact rewrites the file when more than half of it, and of 16 MiB, is free: bbolt's files never shrink.
func (s *store) compact() error {
	s.file.Lock()
	defer s.file.Unlock()
	s.mu.Lock()
	db, err := s.db, s.dbErr
	s.mu.Unlock()
	if db == nil || err != nil {
		return err
	}
	info, err := os.Stat(s.path)
	if err != nil || info.Size() < compactAbove {
		return err
	}
	if free := int64(db.Stats().FreePageN) * int64(db.Info().PageSize); free*2 < info.Size() {
		return nil
	}
	small := s.path + ".compact"
	if err := os.Remove(small); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dst, err := bolt.Open(small, 0o600, &bolt.Options{Timeout: lockWait, NoSync: true})
	if err != nil {
		return err
	}
	err = guard(func() error { return bolt.Compact(dst, db, compactTx) })
	if err == nil {
		err = dst.Sync()
	}
	if err = errors.Join(err, dst.Close()); err != nil {
		os.Remove(small)
		return err
	}
	if err := s.closeFile(); err != nil {
		return err
	}
	return errors.Join(os.Rename(small, s.path), s.open())
}

// forget drops writes to the bucket that no disk has, where there are more than limit, and says how many.
func (s *store) forget(bucket string, limit int, drop func(key string) bool) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ahead[bucket]) <= limit {
		return 0
	}
	for key, value := range s.ahead[bucket] {
		if value != nil && drop(key) {
			delete(s.ahead[bucket], key)
			n++
		}
	}
	return n
}

// size is that of the file, 0 if there is none.
func (s *store) size() int64 {
	info, err := os.Stat(s.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// close writes what is left, as far as the disk lets it, and closes the file.
func (s *store) close() error {
	var err error
	if !s.readOnly {
		err = s.sync()
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.wake()
		select {
		case <-s.done:
		case <-time.After(diskPatience):
			return errSlowDisk // it hangs; closing the file would hang too
		}
	}
	s.file.Lock()
	defer s.file.Unlock()
	return errors.Join(err, s.closeFile())
}
