package bridge

import (
	"encoding/binary"
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
)

// What stands in a page of a bbolt file, in the machine's byte order.
const (
	pageHeader  = 16 // id, flags, count, overflow
	pageElement = 16 // of a branch: position, key size, page; of a leaf: flags, position, key size, value size
	branchPage  = 0x01
	leafPage    = 0x02
	bucketValue = 0x01 // flag of a leaf's element
	metaRoot    = 32   // where in a meta page the root's number stands
	metaFree    = 48   // and that of the list of free pages
)

// pages walks the pages of a bbolt file from the root and checks what makes it safe to let bbolt walk them: that each is
// the one it should be, that nothing in it points out of it or out of the file, and that no two hold the same page,
// which could be a circle. It reads the file itself, because to read bbolt's mapping of a damaged one may be a fault.
type pages struct {
	fd    *os.File
	size  int64
	end   uint64          // the first number that is none
	taken map[uint64]bool // pages seen, with all that overflow from them
	todo  []uint64
}

func checkPages(tx *bolt.Tx, fd *os.File) error {
	p := pages{fd: fd, size: int64(tx.DB().Info().PageSize), taken: map[uint64]bool{0: true, 1: true}}
	p.end = uint64(tx.Size() / p.size)
	var meta [metaFree + 8]byte
	if _, err := fd.ReadAt(meta[:], p.size*int64(tx.ID()%2)); err != nil {
		return err
	}
	if _, err := p.read(binary.NativeEndian.Uint64(meta[metaFree:])); err != nil {
		return err // what stands in it was checked when it was opened
	}
	for p.todo = []uint64{binary.NativeEndian.Uint64(meta[metaRoot:])}; len(p.todo) > 0; {
		id := p.todo[len(p.todo)-1]
		p.todo = p.todo[:len(p.todo)-1]
		page, err := p.read(id)
		if err != nil {
			return err
		}
		if err := p.check(id, page); err != nil {
			return err
		}
	}
	return nil
}

// read gives a page with all that overflows from it.
func (p *pages) read(id uint64) ([]byte, error) {
	var header [pageHeader]byte
	if id >= p.end {
		return nil, fmt.Errorf("page %d is not in the file", id)
	}
	if _, err := p.fd.ReadAt(header[:], int64(id)*p.size); err != nil {
		return nil, err
	}
	n := uint64(binary.NativeEndian.Uint32(header[12:])) + 1
	if n > p.end-id {
		return nil, fmt.Errorf("page %d has no end", id)
	}
	for i := id; i < id+n; i++ {
		if p.taken[i] {
			return nil, fmt.Errorf("page %d is in two places", i)
		}
		p.taken[i] = true
	}
	page := make([]byte, int64(n)*p.size)
	_, err := p.fd.ReadAt(page, int64(id)*p.size)
	return page, err
}

// check looks at what stands in a page, and notes the pages that it points to.
func (p *pages) check(id uint64, page []byte) error {
	order := binary.NativeEndian
	flags, count := order.Uint16(page[8:]), int(order.Uint16(page[10:]))
	if got := order.Uint64(page); got != id {
		return fmt.Errorf("page %d says that it is page %d", id, got)
	}
	if flags != branchPage && flags != leafPage || pageHeader+count*pageElement > len(page) {
		return fmt.Errorf("page %d has flags %#x and %d elements", id, flags, count)
	}
	for i := range count {
		at := pageHeader + i*pageElement
		e := page[at:]
		if flags == branchPage {
			if uint64(at)+uint64(order.Uint32(e))+uint64(order.Uint32(e[4:])) > uint64(len(page)) {
				return fmt.Errorf("element %d of page %d is not in it", i, id)
			}
			p.todo = append(p.todo, order.Uint64(e[8:]))
			continue
		}
		value := uint64(at) + uint64(order.Uint32(e[4:])) + uint64(order.Uint32(e[8:]))
		size := uint64(order.Uint32(e[12:]))
		if value+size > uint64(len(page)) {
			return fmt.Errorf("element %d of page %d is not in it", i, id)
		}
		if order.Uint32(e)&bucketValue == 0 {
			continue
		}
		if size < 16 {
			return fmt.Errorf("element %d of page %d is no bucket", i, id)
		}
		if root := order.Uint64(page[value:]); root != 0 { // else the bucket is in the value
			p.todo = append(p.todo, root)
		}
	}
	return nil
}
