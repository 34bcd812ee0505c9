package bridge_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"forewarn/bridge/outbox"
)

// A disk is the seam through which all that the outbox writes reaches its file. It can be full, hang, write and lose
// the answer, and keep what a crash would leave.
type disk struct {
	w    *world
	file *file

	mu     sync.Mutex // held during a transaction, so that no image is taken in its middle
	lifted chan struct{}
	crash  int         // batches from now after which the machine crashes; 0 for none, below 0 now
	sooner bool        // the crash comes just before the last of them
	large  bool        // only those of many writes count: what changes rather than what became of it
	kept   bool        // the machine crashed
	image  buckets     // the file at that moment
	late   bool        // the file comes late
	opened atomic.Bool // until then its trouble keeps no record from being read
	again  int         // batches that are written again, because the answer was lost
	lies   bool        // in a broken variant
	before buckets     // what a crash leaves in a broken variant
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
		d.crash--
		if d.crash > 0 {
			continue
		}
		d.crash = -1
		if d.sooner {
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
	d.image = d.before
	if d.image == nil {
		d.image = d.file.content()
	}
	d.w.die()
}

// crashNow notes what a crash leaves, if there was none before.
func (d *disk) crashNow() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keep()
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

// A damage is what somebody does to the outbox's file while the program runs.
type damage struct{ how string }

// What somebody does to the file.
const (
	fileCut   = "cut, or filled with zeros"
	fileOlder = "overwritten with its copy"
	fileSaved = "copied" // which is no damage yet
)

func (x damage) do(w *world) {
	w.disk.file.damage(x.how)
	if x.how != fileSaved {
		w.damages = append(w.damages, w.fact())
	}
}

// damageSteps damages the file in some simulations, if nothing else takes what is on the disk away: then memory is all
// that is left.
func damageSteps(seed uint64, p plan) []step {
	r := rand.New(rand.NewPCG(seed, 7))
	also := slices.ContainsFunc(p.steps, func(s step) bool {
		how, restarts := s.act.(restart)
		_, troubled := s.act.(diskTrouble)
		return troubled || restarts && (how.crash || how.late > 0 || how.clone)
	})
	if r.IntN(4) > 0 || also || p.bounds != (bounds{}) {
		return nil
	}
	saved := during(r, p.length/2)
	steps := []step{{saved, damage{fileSaved}}}
	for range 1 + r.IntN(2) {
		steps = append(steps, step{saved + during(r, p.length/2), damage{pick(r, fileCut, fileOlder)}})
	}
	return steps
}

// damage does something to the file.
func (f *file) damage(how string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch how {
	case fileSaved:
		f.saved = f.buckets.clone()
	case fileOlder: // which the program reads, until it writes
		f.buckets, f.damaged = f.saved.clone(), true
	case fileCut:
		f.buckets, f.damaged, f.unreadable = buckets{}, true, true
	}
}

// damaged reports whether the file was damaged in a time.
func (o *oracle) damaged(from, to time.Duration) bool {
	return slices.ContainsFunc(o.damages, func(d fact) bool { return from <= d.at && d.at <= to })
}

// replacedByLatest reports whether the file lost a change that was pending for a route, and the route was told a later one
// of the event instead, or had that as a dead letter.
func (o *oracle) replacedByLatest(b belief, i int, route string, told []taken) bool {
	later := b.changes[i+1:]
	isTold := slices.ContainsFunc(told, func(t taken) bool {
		isLater := slices.ContainsFunc(later, func(c change) bool { return c.id == t.id })
		return isLater && o.damaged(b.changes[i].at, t.at)
	})
	wasDead := slices.ContainsFunc(later, func(c change) bool {
		return o.isLeft(route, c.id) || o.hand("drop", route, c.id) || o.hand("take away", route, c.id)
	})
	return isTold || wasDead && o.damaged(b.changes[i].at, forever)
}

// mayLose reports whether a delivery may be a dead letter because its CloudEvent is lost: its event is over, its
// destination acts, or somebody gave up the latest change that it would be told instead. What is about no event is never
// lost.
func (o *oracle) mayLose(e outbox.Delivery) bool {
	acts := slices.ContainsFunc(o.ways(e.Route, 0, forever), func(r routePlan) bool { return r.late == "drop" })
	over := o.anyChange(e.Group, func(c change) bool { return c.kind == "vanished" })
	return len(o.damages) > 0 && e.Group != "" && (acts || over || len(o.hands) > 0)
}

// A file is the outbox's storage in memory, with the disk of the simulation before it. What a crash leaves of it is a
// copy: buckets of keys and values.
type file struct {
	disk *disk

	mu         sync.Mutex
	open       bool
	buckets    buckets
	saved      buckets // see damage
	damaged    bool    // the next write notices that
	unreadable bool
	fresh      bool // it was begun in place of another
}

var errDamaged = fmt.Errorf("%w: somebody did that", outbox.ErrDamaged)

type buckets map[string]map[string][]byte

func (b buckets) clone() buckets {
	c := buckets{}
	for name, keys := range b {
		c[name] = maps.Clone(keys)
	}
	return c
}

// content returns a copy of all that is in the file.
func (f *file) content() buckets {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.buckets.clone()
}

func (f *file) Open() (opened bool, err error) {
	first, err := f.disk.there()
	if err != nil {
		return false, err
	}
	if first {
		if err := f.disk.reads(); err != nil { // who opens it reads it
			return false, err
		}
		time.Sleep(30 * time.Millisecond) // not when a poll is made too, so that it is clear which came first
		f.disk.w.loaded()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if first && f.disk.w.variant.blank {
		f.buckets = buckets{}
	}
	opened, f.open = !f.open, true
	return opened, nil
}

func (f *file) Write(all []outbox.Write) error {
	return f.disk.transaction([]int{len(all)}, func(n int) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.damaged {
			return errDamaged
		}
		writes := all
		if n == 0 && f.disk.w.variant.splits {
			writes = all[:len(all)/2]
		} else if n == 0 {
			writes = nil
		}
		if f.fresh && f.disk.w.variant.empty {
			writes = nil
		}
		f.fresh = false
		for _, w := range f.disk.w.variant.writesOf(writes) {
			if f.buckets[w.Bucket] == nil {
				f.buckets[w.Bucket] = map[string][]byte{}
			}
			if w.Value == nil {
				delete(f.buckets[w.Bucket], w.Key)
			} else {
				f.buckets[w.Bucket][w.Key] = slices.Clone(w.Value)
			}
		}
		return nil
	})
}

func (f *file) Read(bucket, key string) ([]byte, error) {
	if _, err := f.disk.there(); err != nil {
		return nil, err
	}
	if bucket == "events" && f.disk.opened.Load() {
		if err := f.disk.reads(); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unreadable {
		return nil, errDamaged
	}
	return slices.Clone(f.buckets[bucket][key]), nil
}

func (f *file) Walk(bucket, from string, visit func(key string, value []byte) error) error {
	if _, err := f.disk.there(); err != nil {
		return err
	}
	f.mu.Lock()
	keys, unreadable := maps.Clone(f.buckets[bucket]), f.unreadable
	f.mu.Unlock()
	if unreadable {
		return errDamaged
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key < from {
			continue
		}
		if err := visit(key, keys[key]); err != nil {
			return err
		}
	}
	return nil
}

func (f *file) SetAside(string, error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open, f.buckets, f.damaged, f.unreadable, f.fresh = false, buckets{}, false, false, true
	return nil
}

func (f *file) Compact() error { return nil }
func (f *file) Size() int64    { return 0 }

func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open = false
	return nil
}
