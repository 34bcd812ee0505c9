package outbox

// An ordered set gives its first element, and takes another, in O(log n). Elements leave it by being gone, which it
// notices later.
type ordered[T any] struct {
	before func(a, b T) bool
	gone   func(T) bool

	heap  []T
	clean int // how many it may hold before those that are gone are cleared out
}

func (o *ordered[T]) add(x T) {
	if len(o.heap) >= o.clean {
		o.clear()
	}
	o.heap = append(o.heap, x)
	for i := len(o.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !o.before(o.heap[i], o.heap[parent]) {
			break
		}
		o.heap[i], o.heap[parent] = o.heap[parent], o.heap[i]
		i = parent
	}
}

// first is the first that isn't gone; ok is false when there is none.
func (o *ordered[T]) first() (x T, ok bool) {
	for len(o.heap) > 0 {
		if !o.gone(o.heap[0]) {
			return o.heap[0], true
		}
		last := len(o.heap) - 1
		o.heap[0] = o.heap[last]
		clear(o.heap[last:])
		o.heap = o.heap[:last]
		o.down(0)
	}
	return x, false
}

func (o *ordered[T]) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(o.heap); child++ {
			if o.before(o.heap[child], o.heap[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		o.heap[i], o.heap[least] = o.heap[least], o.heap[i]
		i = least
	}
}

// clear lets go of all that are gone.
func (o *ordered[T]) clear() {
	kept := o.heap[:0]
	for _, x := range o.heap {
		if !o.gone(x) {
			kept = append(kept, x)
		}
	}
	clear(o.heap[len(kept):])
	o.heap = kept
	for i := len(kept)/2 - 1; i >= 0; i-- {
		o.down(i)
	}
	o.clean = 2*len(kept) + 64
}
