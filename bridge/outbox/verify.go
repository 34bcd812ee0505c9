package outbox

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unsafe"

	bolt "go.etcd.io/bbolt"
)

// marker is what the name of the marker of verify ends in.
const marker = ".opening"

// verify reads the whole file: bbolt checks a page only when it reads it, so damage would show when it is too late.
//
// Some damage ends the program. A marker beside the file, which exists only during verify, counts how often: after
// several ends in a row the file is to blame. One is no proof, because a power cut leaves a marker beside a sound file.
func (f *file) verify(db *bolt.DB, fd *os.File, readOnly bool) error {
	if readOnly {
		return guard(func() error { return readAll(db, fd, f.answers) })
	}
	marker := f.path + marker
	openings, _ := os.ReadFile(marker)
	defer os.Remove(marker)
	if len(openings) >= maxOpenings {
		return fmt.Errorf("%w: the program ended %d times while the file was being verified", ErrDamaged, len(openings))
	}
	_ = os.WriteFile(marker, append(openings, '.'), 0o600) // a sound file doesn't need it
	err := guard(func() error { return readAll(db, fd, f.answers) })
	if err != nil {
		return err
	}
	// The list of free pages must be right too, or the next write destroys something. bbolt checks it in a goroutine of
	// its own, where a fault would end the program; so readAll went through the same pages first.
	return guard(func() error {
		return db.View(func(tx *bolt.Tx) error {
			var first error
			f.answers()
			for err := range tx.Check() {
				if first == nil {
					first = fmt.Errorf("%w: %v", ErrDamaged, err)
				}
			}
			return first
		})
	})
}

// abandon removes the marker, because the program ends while the file is verified and the file is not to blame. It waits
// a second at most: the disk may hang.
func (f *file) abandon() {
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		os.Remove(f.path + marker)
	}()
	select {
	case <-removed:
	case <-time.After(time.Second):
	}
}

// elementSize is how many bytes a page has at least for each key: bbolt's own number.
const elementSize = 16

// readAll reads every key and value and looks each key up again, so that every part of every page is used. It calls
// answers again and again meanwhile.
func readAll(db *bolt.DB, fd *os.File, answers func()) error {
	return db.View(func(tx *bolt.Tx) error {
		info, err := fd.Stat()
		if err != nil {
			return err
		}
		if info.Size() < tx.Size() {
			return fmt.Errorf("%w: it was cut, it has %d of %d bytes", ErrDamaged, info.Size(), tx.Size())
		}
		// bbolt asks for one page after the other, and for no more than that, which a cold disk answers slowly.
		for at, buffer := int64(0), make([]byte, 256<<10); at < info.Size(); at += int64(len(buffer)) {
			if _, err := fd.ReadAt(buffer, at); err != nil && err != io.EOF {
				return err
			}
			answers()
		}
		// bbolt would read on behind a page that says too much of itself, far beyond the end of the file. What it finds
		// there ends the program on Windows if it is the guard page of a thread's stack.
		for id, end := 2, int(tx.Size())/db.Info().PageSize; id < end; id++ {
			page, err := tx.Page(id)
			switch {
			case err != nil:
				return err
			case page.Type == "free":
			case page.OverflowCount >= end-id:
				return fmt.Errorf("%w: page %d has no end", ErrDamaged, id)
			case page.Count > (page.OverflowCount+1)*db.Info().PageSize/elementSize && page.Type != "freelist":
				return fmt.Errorf("%w: page %d counts more than it can hold", ErrDamaged, id)
			default:
				id += page.OverflowCount
			}
		}
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			var sum byte
			var before []byte
			c := b.Cursor()
			for k, v := c.First(); k != nil; k, v = c.Next() {
				inline := b.Root() == 0 // a small bucket, which bbolt may have copied out of the file
				if !inline && !(within(db, tx, k) && within(db, tx, v)) {
					return fmt.Errorf("%w: a key or value of %q isn't in the file", ErrDamaged, name)
				}
				for _, x := range v {
					sum ^= x
				}
				if before != nil && string(k) <= string(before) {
					return fmt.Errorf("%w: the keys of %q are out of order", ErrDamaged, name)
				}
				if found := b.Get(k); v != nil && len(found) != len(v) {
					return fmt.Errorf("%w: %q isn't found in %q", ErrDamaged, k, name)
				}
				before = k
				answers()
			}
			used.Store(uint32(sum))
			return nil
		})
	})
}

// within reports whether the bytes lie in the mapped file: bbolt follows a position in a damaged page wherever it
// leads.
func within(db *bolt.DB, tx *bolt.Tx, b []byte) bool {
	begin := db.Info().Data
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return len(b) == 0 || at >= begin && at-begin <= uintptr(tx.Size()) && uintptr(len(b)) <= uintptr(tx.Size())-(at-begin)
}

// used keeps the compiler from removing readAll's reads.
var used atomic.Uint32

// guard turns a panic, or a fault in the mapped file, into an ErrDamaged: bbolt panics on damaged pages.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		_, fault := r.(runtime.Error)
		switch {
		case fault: // Go's words for it say nothing to an operator
			err = fmt.Errorf("%w: a part of it can't be read", ErrDamaged)
		case r != nil:
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	return f()
}
