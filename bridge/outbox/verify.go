package outbox

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// verify reads a whole file before bbolt relies on it: bbolt checks a page only when it reads it, so damage would show
// when it is too late. It follows a damaged page wherever that leads, in a circle or far beyond the end of the file, which
// may end the program.
func verify(path string, answers func()) error {
	db, fd, err := openBolt(path, true)
	if err != nil {
		return err
	}
	defer db.Close()
	return guard(func() error {
		return db.View(func(tx *bolt.Tx) error { return newPageWalk(tx, fd, answers).run(tx) })
	})
}

// A pageWalk reads the pages of a bbolt file, each once, and knows all that bbolt expects of them.
type pageWalk struct {
	file    *os.File
	size    int64  // of a page
	used    []bool // by the number of a page; its length is the number of pages
	first   []byte // pages with smaller keys only are left out
	answers func() // is called again and again
}

// What bbolt's pages are made of.
const (
	pageHeader  = 16 // number 8, type 2, count 2, overflow 4
	elementSize = 16 // of a branch: position 4, length of the key 4, page 8; of a leaf: type 4, position 4, lengths 4 and 4
	bucketSize  = 16 // what the value of a bucket begins with: root page 8, sequence 8
	freelistAt  = 48 // where a meta page has the number of the page of free ones

	branchPage, leafPage, freelistPage = 1, 2, 16
	bucketElement                      = 1

	maxPageBytes = 64 << 20 // no record is larger
)

var native = binary.NativeEndian

func newPageWalk(tx *bolt.Tx, file *os.File, answers func()) *pageWalk {
	size := int64(tx.DB().Info().PageSize)
	return &pageWalk{file: file, size: size, used: make([]bool, tx.Size()/size), answers: answers}
}

func damaged(format string, a ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrDamaged}, a...)...)
}

// run walks all pages: each belongs to the tree of a bucket, or is free.
func (w *pageWalk) run(tx *bolt.Tx) error {
	info, err := w.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() < tx.Size() {
		return damaged("it was cut, it has %d of %d bytes", info.Size(), tx.Size())
	}
	// The walk asks for one page after the other, which a cold disk answers slowly.
	for at, buffer := int64(0), make([]byte, 256<<10); at < tx.Size(); at += int64(len(buffer)) {
		_, err := w.file.ReadAt(buffer, at)
		if err != nil && err != io.EOF {
			return err
		}
		w.answers()
	}
	meta := make([]byte, w.size)
	_, err = w.file.ReadAt(meta, int64(tx.ID()%2)*w.size) // bbolt has verified it
	if err != nil {
		return err
	}
	w.used[0], w.used[1] = true, true // the meta pages
	err = w.tree(uint64(tx.Cursor().Bucket().Root()), nil, nil, w.bucketsOf)
	if err != nil {
		return err
	}
	err = w.free(native.Uint64(meta[freelistAt:]))
	if err != nil {
		return err
	}
	lost := slices.Index(w.used, false)
	if lost >= 0 {
		return damaged("page %d is neither used nor free", lost)
	}
	return nil
}

// read returns the bytes of a page with all that it overflows to.
func (w *pageWalk) read(id uint64) ([]byte, error) {
	w.answers()
	if id >= uint64(len(w.used)) {
		return nil, damaged("there is no page %d", id)
	}
	data, err := w.readAt(id, 1)
	if err != nil {
		return nil, err
	}
	n := uint64(native.Uint32(data[12:])) + 1
	if native.Uint64(data) != id || n > uint64(len(w.used))-id || n > uint64(maxPageBytes/w.size) {
		return nil, damaged("page %d isn't one, or has no end", id)
	}
	for i := id; i < id+n; i++ {
		err := w.use(i)
		if err != nil {
			return nil, err
		}
	}
	if n > 1 {
		data, err = w.readAt(id, n)
	}
	return data, err
}

// readAt returns the bytes of n pages.
func (w *pageWalk) readAt(id, n uint64) ([]byte, error) {
	data := make([]byte, int64(n)*w.size)
	_, err := w.file.ReadAt(data, int64(id)*w.size)
	if err == io.EOF {
		err = damaged("it is cut, page %d isn't there", id)
	}
	return data, err
}

// use notes that a page is used, or free. Neither is it twice, so no walk goes in a circle.
func (w *pageWalk) use(id uint64) error {
	if id >= uint64(len(w.used)) || w.used[id] {
		return damaged("page %d is used twice, or there is none", id)
	}
	w.used[id] = true
	return nil
}

// tree walks a page and those below it, and calls leaf with each element of a leaf. Their keys are at least from and below
// to, which is nil for no bound.
func (w *pageWalk) tree(id uint64, from, to []byte, leaf func(element) error) error {
	data, err := w.read(id)
	if err != nil {
		return err
	}
	elements, err := elementsOf(data, from, to)
	if err != nil {
		return fmt.Errorf("%w in page %d", err, id)
	}
	for i, e := range elements {
		switch {
		case e.isBranch:
			below := to
			if i+1 < len(elements) {
				below = elements[i+1].key
			}
			if below == nil || bytes.Compare(below, w.first) > 0 {
				err = w.tree(e.page, e.key, below, leaf)
			}
		default:
			err = leaf(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucketsOf walks the bucket that an element may be.
func (w *pageWalk) bucketsOf(e element) error {
	if !e.isBucket {
		return nil
	}
	return w.bucket(e.value, w.bucketsOf)
}

// bucket walks the pages of a bucket. A small one has no page, but all its elements in its value.
func (w *pageWalk) bucket(value []byte, leaf func(element) error) error {
	if len(value) < bucketSize {
		return damaged("a bucket is too short")
	}
	root := native.Uint64(value)
	if root != 0 {
		return w.tree(root, nil, nil, leaf)
	}
	elements, err := elementsOf(value[bucketSize:], nil, nil)
	if err == nil && slices.ContainsFunc(elements, func(e element) bool { return e.isBranch || e.isBucket }) {
		err = damaged("a small bucket has others in it")
	}
	for i := 0; i < len(elements) && err == nil; i++ {
		err = leaf(elements[i])
	}
	return err
}

// An element is an entry of a branch or a leaf.
type element struct {
	isBranch, isBucket bool
	key, value         []byte
	page               uint64 // of a branch: with the keys from this one on
}

// elementsOf returns the elements of a branch or a leaf, whose keys must be in order, at least from and below to.
func elementsOf(data, from, to []byte) ([]element, error) {
	if len(data) < pageHeader {
		return nil, damaged("a page is too short")
	}
	kind, count := native.Uint16(data[8:]), int(native.Uint16(data[10:]))
	if kind != branchPage && kind != leafPage || kind == branchPage && count == 0 {
		return nil, damaged("no keys")
	}
	if len(data) < pageHeader+count*elementSize {
		return nil, damaged("too many keys")
	}
	elements := make([]element, count)
	for i := range elements {
		e, at := &elements[i], data[pageHeader+i*elementSize:]
		var position, keyLength, valueLength uint32
		if kind == branchPage {
			e.isBranch, e.page = true, native.Uint64(at[8:])
			position, keyLength = native.Uint32(at), native.Uint32(at[4:])
		} else {
			e.isBucket = native.Uint32(at)&bucketElement != 0
			position, keyLength, valueLength = native.Uint32(at[4:]), native.Uint32(at[8:]), native.Uint32(at[12:])
		}
		begin := uint64(position)
		middle := begin + uint64(keyLength)
		end := middle + uint64(valueLength)
		if keyLength == 0 || end > uint64(len(at)) {
			return nil, damaged("a key or value isn't there")
		}
		e.key, e.value = at[begin:middle], at[middle:end]
		ordered := i == 0 && bytes.Compare(e.key, from) >= 0 || i > 0 && bytes.Compare(e.key, elements[i-1].key) > 0
		if !ordered || to != nil && bytes.Compare(e.key, to) >= 0 {
			return nil, damaged("keys out of order")
		}
	}
	return elements, nil
}

// free walks the list of the free pages.
func (w *pageWalk) free(id uint64) error {
	data, err := w.read(id)
	if err != nil {
		return err
	}
	count, list := uint64(native.Uint16(data[10:])), data[pageHeader:]
	if count == 0xffff { // it is larger, and stands before the list
		count, list = native.Uint64(list), list[8:]
	}
	if native.Uint16(data[8:]) != freelistPage || count > uint64(len(list)/8) {
		return damaged("the list of free pages isn't one")
	}
	for i := range count {
		err := w.use(native.Uint64(list[i*8:]))
		if err != nil {
			return err
		}
	}
	return nil
}

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

// A salvage reads a file that may be damaged. bbolt would follow a damaged page wherever that leads.
type salvage struct{ *file }

// Walk is file.Walk, up to the damage.
func (s salvage) Walk(bucket, from string, do func(key string, value []byte) error) error {
	return s.transact((*bolt.DB).View, func(tx *bolt.Tx) error {
		w := newPageWalk(tx, s.fd, s.answers)
		root := uint64(tx.Cursor().Bucket().Root())
		return w.tree(root, nil, nil, func(e element) error {
			if !e.isBucket || string(e.key) != bucket {
				return nil
			}
			w.first = []byte(from)
			return w.bucket(e.value, func(e element) error {
				if string(e.key) < from {
					return nil
				}
				return do(string(e.key), e.value)
			})
		})
	})
}
