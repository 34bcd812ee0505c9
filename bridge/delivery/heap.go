package delivery

import "container/heap"

// A laneHeap is a heap of lanes, ordered by less. slot returns where a lane stores its index in the heap, so that a
// lane can be in several heaps.
type laneHeap struct {
	lanes []*lane
	less  func(a, b *lane) bool
	slot  func(*lane) *int32 // 0 when the lane is not in this heap, else its index plus one
}

func (h *laneHeap) Len() int           { return len(h.lanes) }
func (h *laneHeap) Less(i, j int) bool { return h.less(h.lanes[i], h.lanes[j]) }

func (h *laneHeap) Swap(i, j int) {
	h.lanes[i], h.lanes[j] = h.lanes[j], h.lanes[i]
	*h.slot(h.lanes[i]), *h.slot(h.lanes[j]) = int32(i+1), int32(j+1)
}

func (h *laneHeap) Push(x any) {
	l := x.(*lane)
	h.lanes = append(h.lanes, l)
	*h.slot(l) = int32(len(h.lanes))
}

func (h *laneHeap) Pop() any {
	last := len(h.lanes) - 1
	l := h.lanes[last]
	h.lanes[last] = nil
	h.lanes = h.lanes[:last]
	*h.slot(l) = 0
	return l
}

// top returns the first lane, nil if there is none.
func (h *laneHeap) top() *lane {
	if len(h.lanes) == 0 {
		return nil
	}
	return h.lanes[0]
}

// update puts the lane into the heap, moves it to its right place, or removes it.
func (h *laneHeap) update(l *lane, in bool) {
	switch at := int(*h.slot(l)); {
	case in && at == 0:
		heap.Push(h, l)
	case in:
		heap.Fix(h, at-1)
	case at != 0:
		heap.Remove(h, at-1)
	}
}
