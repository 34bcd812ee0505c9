package outbox

import (
	"cmp"
	"slices"
)

// ordered holds deliveries of one route by their sequence numbers. The first is the oldest.
type ordered []*entry

func (o ordered) index(seq uint64) (at int, found bool) {
	return slices.BinarySearchFunc(o, seq, func(e *entry, seq uint64) int { return cmp.Compare(e.Seq, seq) })
}

// find returns the delivery with the sequence number, nil if there is none.
func (o ordered) find(seq uint64) *entry {
	at, found := o.index(seq)
	if !found {
		return nil
	}
	return o[at]
}

// put adds a delivery, or replaces the one with its sequence number.
func (o *ordered) put(e *entry) {
	at, found := o.index(e.Seq)
	if found {
		(*o)[at] = e
		return
	}
	*o = slices.Insert(*o, at, e)
}

// remove removes the delivery with the sequence number, which must be there. It moves the fewer of the others: what is
// delivered is mostly one of the oldest.
func (o *ordered) remove(seq uint64) {
	at, _ := o.index(seq)
	if at >= len(*o)/2 {
		*o = slices.Delete(*o, at, at+1)
		return
	}
	copy((*o)[1:], (*o)[:at])
	(*o)[0] = nil
	*o = (*o)[1:]
}
