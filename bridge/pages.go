package bridge

import (
	"encoding/binary"
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
)

// What stands in a page of a bbolt file, in the machine's byte order.
const (
	pageHeader   = 16 // id, flags, count, overflow
	pageElement  = 16 // of a branch: position, key size, page; of a leaf: flags, position, key size, value size
	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10
	bucketValue  = 0x01 // flag of a leaf's element
)

// checkPages reads every page in use and checks what makes walking them safe: that each is where it says, that nothing
// in it points out of it or out of the file, and that no two point to the same page, which could be a circle. It reads
// the file itself, because reading bbolt's mapping of a damaged one may be a fault.
func checkPages(tx *bolt.Tx, fd *os.File) error {
	order := binary.NativeEndian
	size := int64(tx.DB().Info().PageSize)
	end := uint64(tx.Size() / size)
	meta := make([]byte, 24)
	if _, err := fd.ReadAt(meta, size*int64(tx.ID()%2)+pageHeader); err != nil {
		return err
	}
	pointed := map[uint64]bool{order.Uint64(meta[16:]): true} // the root
	point := func(from, to uint64) error {
		if to < 2 || to >= end || pointed[to] {
			return fmt.Errorf("page %d points to page %d", from, to)
		}
		pointed[to] = true
		return nil
	}
	for id := uint64(2); id < end; {
		info, err := tx.Page(int(id))
		if err != nil {
			return err
		}
		if info.Type == "free" {
			id++
			continue
		}
		run := uint64(info.OverflowCount) + 1
		if run > end-id {
			return fmt.Errorf("page %d has no end", id)
		}
		page := make([]byte, int64(run)*size)
		if _, err := fd.ReadAt(page, int64(id)*size); err != nil {
			return err
		}
		if err := checkPage(page, id, order, point); err != nil {
			return err
		}
		id += run
	}
	return nil
}

// checkPage checks one page, with all that overflows from it.
func checkPage(page []byte, id uint64, order binary.ByteOrder, point func(from, to uint64) error) error {
	flags, count := order.Uint16(page[8:]), int(order.Uint16(page[10:]))
	if got := order.Uint64(page); got != id {
		return fmt.Errorf("page %d says that it is page %d", id, got)
	}
	if flags == freelistPage {
		return nil // read and checked when the file was opened
	}
	if flags != branchPage && flags != leafPage || pageHeader+count*pageElement > len(page) {
		return fmt.Errorf("page %d has flags %#x and %d elements", id, flags, count)
	}
	for i := range count {
		at := pageHeader + i*pageElement
		e := page[at:]
		from, keySize := uint64(order.Uint32(e)), uint64(order.Uint32(e[4:]))
		valueSize := uint64(0)
		if flags == leafPage {
			from, keySize, valueSize = uint64(order.Uint32(e[4:])), uint64(order.Uint32(e[8:])), uint64(order.Uint32(e[12:]))
		}
		if uint64(at)+from+keySize+valueSize > uint64(len(page)) {
			return fmt.Errorf("element %d of page %d is not in it", i, id)
		}
		switch {
		case flags == branchPage:
			if err := point(id, order.Uint64(e[8:])); err != nil {
				return err
			}
		case order.Uint32(e)&bucketValue != 0:
			value := e[from+keySize:][:valueSize]
			if len(value) < 16 {
				return fmt.Errorf("element %d of page %d is no bucket", i, id)
			}
			if root := order.Uint64(value); root != 0 { // else the bucket is in the value
				if err := point(id, root); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
