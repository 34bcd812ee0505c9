package bridge_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A disk is the seam through which all that the outbox writes reaches its file. It can be full, hang, write and lose
// the answer, and keep what a crash would leave.
type disk struct {
	w       *world
	content func() any       // all that is in the file
	damage  func(how string) // see damage

	mu     sync.Mutex // held during a transaction, so that no image is taken in its middle
	lifted chan struct{}
	crash  int         // batches from now after which the machine crashes; 0 for none, below 0 now
	sooner bool        // the crash comes just before the last of them
	large  bool        // only those of many writes count: what changes rather than what became of it
	kept   bool        // the machine crashed
	image  any         // the file at that moment
	late   bool        // the file comes late
	opened atomic.Bool // until then its trouble keeps no record from being read
	again  int         // batches that are written again, because the answer was lost
	lies   bool        // in a broken variant
	before any         // what a crash leaves in a broken variant
}

// diskTrouble makes the disk fail for a while.
type diskTrouble struct {
	how string // full, hangs, loses the answer
	end time.Duration
}

func (x diskTrouble) do(w *world) {
	if w.diskTrouble.how != "hangs" { // it takes the place of any other, but a write that hangs goes on to
		w.endIlls(max(w.now(), w.late))
	}
	w.diskTrouble = x
	w.ills = append(w.ills, interval{w.now(), x.end})
}

// endIlls ends all trouble that the disk has. mu is held.
func (w *world) endIlls(at time.Duration) {
	for i := range w.ills {
		w.ills[i].to = min(w.ills[i].to, at)
	}
	for i := range w.unread {
		w.unread[i].to = min(w.unread[i].to, at)
	}
}

func (x diskTrouble) String() string { return fmt.Sprintf("disk %s until %s", x.how, short(x.end)) }

// errIO is what a disk says that lost its answer.
var errIO = errors.New("input/output error")

// transaction makes one transaction of the outbox, of batches of so many writes. A crash in its middle leaves the first
// n of them, which is what write is asked for.
func (d *disk) transaction(sizes []int, write func(n int) error) error {
	w := d.w
	w.mu.Lock()
	began := w.next()
	how, left := "", w.diskTrouble.end-w.now()
	if left > 0 && !w.dead {
		how = w.diskTrouble.how
	}
	w.mu.Unlock()
	switch how {
	case "full":
		return syscall.ENOSPC
	case "hangs":
		select {
		case <-time.After(left):
		case <-d.lifted:
			return errIO
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kept {
		return errDead
	}
	n := d.left(sizes)
	if n < len(sizes) {
		if err := write(n); err != nil {
			return err
		}
		d.keep()
		return errDead
	}
	if err := w.variant.write(d, func() error { return write(n) }); err != nil {
		return err
	}
	w.mu.Lock()
	w.writes = append(w.writes, written{w.fact(), began})
	w.mu.Unlock()
	d.again = 0
	if d.crash < 0 {
		d.keep()
	}
	if how != "loses the answer" {
		return nil
	}
	d.again = len(sizes)
	return errIO
}

// reads is what becomes of the read of a CloudEvent: on a disk that hangs it does too, and one that loses answers has
// none.
func (d *disk) reads() error {
	w := d.w
	w.mu.Lock()
	how, now, end := w.diskTrouble.how, w.now(), w.diskTrouble.end
	fails := end > now && !w.dead && how != "full"
	if fails {
		w.unread = append(w.unread, interval{now, end})
	}
	w.mu.Unlock()
	switch {
	case !fails:
		return nil
	case how == "hangs":
		select {
		case <-time.After(end - now):
			return nil
		case <-d.lifted:
		}
	}
	return errIO
}

// left returns how many batches of a transaction are written before the machine crashes; all of them if it does not, or
// does then. What is in the file already is not undone. mu is held.
func (d *disk) left(sizes []int) int {
	n := max(d.upTo(sizes), min(d.again, len(sizes)))
	if d.late && n < len(sizes) {
		return 0 // what was seen before the file came is one transaction with it
	}
	return n
}

func (d *disk) upTo(sizes []int) int {
	for i, size := range sizes {
		if d.crash <= 0 || d.large && size < 5 {
			continue
		}
		if d.crash--; d.crash > 0 {
			continue
		}
		if d.crash = -1; d.sooner {
			return i
		}
		return i + 1
	}
	return len(sizes)
}

// there reports whether the file can be read: it may come late. lifted says that this is the first time that it can.
func (d *disk) there() (lifted bool, err error) {
	w := d.w
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.boots[len(w.boots)-1]
	if w.late > w.now() {
		return false, errIO
	}
	return b.late > 0 && b.loaded.seq == 0 && !w.dead, nil
}

// keep notes what a crash at this moment leaves. From now on the machine is dead. mu is held.
func (d *disk) keep() {
	if d.kept {
		return
	}
	d.kept = true
	if d.image = d.before; d.image == nil {
		d.image = d.content()
	}
	d.w.die()
}

// diskSteps make up what goes wrong with the disk.
func diskSteps(r *rand.Rand, length time.Duration) (steps []step) {
	for range r.IntN(3) {
		at := during(r, length)
		steps = append(steps, step{at, diskTrouble{
			how: pick(r, "full", "hangs", "loses the answer"), end: at + pick(r, 3*time.Second, time.Minute, 8*time.Minute),
		}})
	}
	return steps
}
