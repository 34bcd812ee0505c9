package bridge

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

// A store is keys and values in buckets, on bbolt. Writes gather in a layer above the file and go to the disk in one
// transaction; reads see them at once. A disk that cannot take them leaves them in the layer, to be tried again: the
// program goes on from memory, and catches up.
type store struct {
	path     string
	readOnly bool // never to be written by us
	log      *slog.Logger

	admit  func(*bolt.DB) error           // looks at a file before it counts: may it be used, in which format is it
	opened func() error                   // called after a file was admitted: reads what is there
	rescue func()                         // called before a damaged file is given up: writes again all that is known
	synced func(write uint64)             // called after each write that succeeded, with its number, without mu
	disk   func(write func() error) error // makes a write; tests make it hang and fail

	file sync.Mutex // held while the file is opened, closed or written; taken before any other lock

	mu      sync.Mutex
	db      *bolt.DB // nil while the file cannot be used at all
	fd      *os.File // of db
	dbErr   error    // why db is nil or cannot be written
	ahead   layer    // not yet given to the disk
	under   layer    // in the write under way
	number  uint64   // of the write that ahead will be part of
	err     error    // of the last try to write; nil = everything but ahead is on disk
	waiters []chan error
	timer   *time.Timer // a write that may wait a little
	closed  bool

	kick chan struct{}
	done chan struct{} // closed when the writer has ended
}

// layer is what to write, by bucket and key; a nil value deletes.
type layer map[string]map[string][]byte

// The timing of the store.
const (
	groupWait    = 50 * time.Millisecond // how long a write may wait for others
	diskPatience = 5 * time.Second       // how long a commit waits for the disk before it goes on from memory
	diskRetry    = 5 * time.Second
	newerRetry   = time.Minute // of a file that will stay as it is until somebody acts
)

// ErrLocked is wrapped by the error of opening an outbox that another process holds.
var ErrLocked = errors.New("locked by another forewarn")

var (
	errDamaged  = errors.New("damaged")
	errForeign  = errors.New("another VM's")
	errReadOnly = errors.New("read-only")
	errNewer    = errors.New("written by a newer forewarn")
	errSlowDisk = errors.New("the disk takes too long")
	errClosed   = errors.New("outbox closed")
)

// start opens the file and begins to write. Only a lock is an error; everything else makes it a store in memory, which
// tries again. A store that is only read has to be there.
func (s *store) start() error {
	s.ahead, s.number, s.kick, s.done = layer{}, 1, make(chan struct{}, 1), make(chan struct{})
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

// write notes what is to be written; the next sync does it. It returns the number of the write it will be part of, if
// that succeeds.
func (s *store) write(bucket, key string, value []byte) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead.put(bucket, key, value)
	return s.number
}

func (l layer) put(bucket, key string, value []byte) {
	if l[bucket] == nil {
		l[bucket] = map[string][]byte{}
	}
	l[bucket][key] = value
}

// get reads a value, nil if there is none. While there is no file to read it fails for what is not in memory.
func (s *store) get(bucket, key string) (value []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range []layer{s.ahead, s.under} {
		if v, ok := l[bucket][key]; ok {
			return v, nil
		}
	}
	if s.db == nil {
		return nil, s.dbErr
	}
	err = s.view(func(tx *bolt.Tx) error {
		if b := tx.Bucket([]byte(bucket)); b != nil {
			value = slices.Clone(b.Get([]byte(key)))
		}
		return nil
	})
	return value, err
}

// walk calls f for every key of the bucket as reads see it, in order, until it fails. f must not use the store, nor
// keep value.
func (s *store) walk(bucket string, f func(key string, value []byte) error) error {
	return s.walkFrom(bucket, "", f)
}

// walkFrom is walk without the keys before from.
func (s *store) walkFrom(bucket, from string, f func(key string, value []byte) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	above := s.unwritten(bucket)
	fresh := slices.DeleteFunc(slices.Sorted(maps.Keys(above)), func(key string) bool { return key < from })
	// upTo gives f the keys of the layers below key, or all that are left.
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
		err := s.view(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			if b == nil {
				return nil
			}
			c := b.Cursor()
			for k, v := c.Seek([]byte(from)); k != nil; k, v = c.Next() {
				key := string(k)
				if err := upTo(key, false); err != nil {
					return err
				}
				if _, ok := above[key]; ok {
					continue
				}
				if err := f(key, v); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return upTo("", true)
}

// unwritten is what is not yet in the file of a bucket, or no longer to be there. mu is held.
func (s *store) unwritten(bucket string) map[string][]byte {
	above := map[string][]byte{}
	maps.Copy(above, s.under[bucket])
	maps.Copy(above, s.ahead[bucket])
	return above
}

// fromEnd finds the n-th last key of the bucket whose value counts, and whether another that counts stands before it.
// With fewer of them it is "".
func (s *store) fromEnd(bucket string, n int, counts func(value []byte) bool) (from string, more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	above := s.unwritten(bucket)
	newest := slices.DeleteFunc(slices.Collect(maps.Keys(above)), func(key string) bool {
		return above[key] == nil || !counts(above[key])
	})
	if s.db != nil {
		err = s.view(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			if b == nil {
				return nil
			}
			c := b.Cursor()
			for k, v := c.Last(); k != nil && len(newest) <= n+len(above); k, v = c.Prev() {
				if _, ok := above[string(k)]; !ok && counts(v) {
					newest = append(newest, string(k))
				}
			}
			return nil
		})
	}
	slices.Sort(newest)
	if len(newest) <= n {
		return "", false, err
	}
	return newest[len(newest)-n], true, err
}

// lastKey is the bucket's last, "" if it has none.
func (s *store) lastKey(bucket string) (last string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db != nil {
		err = s.view(func(tx *bolt.Tx) error {
			if b := tx.Bucket([]byte(bucket)); b != nil {
				k, _ := b.Cursor().Last()
				last = string(k)
			}
			return nil
		})
	}
	for _, l := range []layer{s.under, s.ahead} {
		for key := range l[bucket] {
			last = max(last, key)
		}
	}
	return last, err
}

// view reads the file. mu is held, and db is there.
func (s *store) view(f func(*bolt.Tx) error) error {
	began := false
	err := guard(func() error {
		return s.db.View(func(tx *bolt.Tx) error { began = true; return f(tx) })
	})
	s.met(err, began)
	return err
}

// met notes damage that was met while using the file; the writer deals with it at once. A bbolt that panics before a
// transaction has begun leaves its locks held and cannot be asked again. mu is held.
func (s *store) met(err error, began bool) {
	if !errors.Is(err, errDamaged) {
		return
	}
	if !began {
		s.db = nil
	}
	if s.dbErr == nil {
		s.dbErr = err
		s.wake()
	}
}

// sync puts everything written so far on the disk. It returns nil only when it is there; otherwise the store goes on
// from memory and keeps trying.
func (s *store) sync() error {
	w := make(chan error, 1)
	s.mu.Lock()
	hangs := errors.Is(s.err, errSlowDisk) // nobody waits for it again before it has come back
	switch {
	case s.closed:
		s.mu.Unlock()
		return errClosed
	case !hangs:
		s.waiters = append(s.waiters, w)
	}
	s.mu.Unlock()
	s.wake()
	if hangs {
		return errSlowDisk
	}
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

// diskHint is what an operator can do about a file that cannot be written.
func diskHint(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "let the user that forewarn runs as write there, or name another directory with the key state"
	case errors.Is(err, syscall.ENOSPC):
		return "make room on the disk; it is tried again by itself"
	case errors.Is(err, syscall.EROFS):
		return "mount it writable, or name another directory with the key state"
	}
	return "it is tried again by itself"
}

// failed notes how the last try to write ended, and says so when that is news. mu is held.
func (s *store) failed(err error) {
	switch {
	case err != nil && s.err == nil:
		s.log.Error("the outbox cannot be written: going on from memory, which a crash would lose", "file", s.path, "err", err, "hint", diskHint(err))
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
		switch {
		case errors.Is(err, errNewer):
			retry.Reset(newerRetry)
		case err != nil:
			retry.Reset(diskRetry)
		}
	}
}

// flush makes one try to write what is ahead; last says that none follows.
func (s *store) flush() (err error, last bool) {
	s.file.Lock()
	defer s.file.Unlock()
	err = s.usable()

	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	waiters, number := s.waiters, s.number
	s.waiters = nil
	s.under, s.ahead = s.ahead, layer{}
	s.number++
	db, under := s.db, s.under
	s.mu.Unlock()

	began := false // and so bbolt can be read, if the rest fails
	if err == nil && len(under) > 0 {
		err = guard(func() error {
			return s.disk(func() error {
				return db.Update(func(tx *bolt.Tx) error { began = true; return under.store(tx) })
			})
		})
	}

	s.mu.Lock()
	if err != nil {
		for bucket, keys := range s.ahead {
			for key, value := range keys {
				under.put(bucket, key, value)
			}
		}
		s.ahead = under
		s.met(err, began)
	}
	s.under = nil
	s.failed(err)
	last = s.closed
	s.mu.Unlock()

	if err == nil {
		s.synced(number)
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

// discard forgets writes to the bucket that no disk has, where there are more than limit, and says how many.
func (s *store) discard(bucket string, limit int, drop func(key string) bool) (n int) {
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
			return errSlowDisk // closing the file would hang too
		}
	}
	s.file.Lock()
	defer s.file.Unlock()
	return errors.Join(err, s.closeFile())
}
