package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
)

const sector = 512

// The names of directories whose making is a command to the disk.
const (
	aheadName = "power-loss-ahead" // from some write or sync on, soon, nothing is done any more
	lossName  = "power-loss"
)

// soon bounds how many writes and syncs are done yet before a power loss that is ahead.
const soon = 60

// A disk is all files, as programs see them and as they would be after a power loss.
type disk struct {
	mu     sync.Mutex // guards all nodes too
	random *rand.Rand
	root   *node
	moves  []move // that are not synced, in order
	ahead  bool   // a power loss is
	left   int    // writes and syncs that are done yet then

	losses, lostWrites, keptWrites, lostMoves int
}

func newDisk(random *rand.Rand) *disk {
	d := &disk{random: random}
	d.root = &node{disk: d, mode: 0o700, synced: map[string]*node{}, now: map[string]*node{}}
	return d
}

func (d *disk) String() string {
	return fmt.Sprintf("%d power losses; of what was not synced %d writes were lost and %d not, and %d names",
		d.losses, d.lostWrites, d.keptWrites, d.lostMoves)
}

// A node is a file, or a directory if it has names.
type node struct {
	fs.Inode
	disk *disk
	mode uint32

	content []byte // as programs see it
	durable []byte // without the writes
	writes  []write

	now    map[string]*node // as programs see it
	synced map[string]*node
}

// A write is one to a file; with data nil it gives the file a size.
type write struct {
	at   int64
	data []byte
}

func (w write) apply(content []byte) []byte {
	end := w.at + int64(len(w.data))
	if grow := end - int64(len(content)); grow > 0 {
		content = append(content, make([]byte, grow)...)
	}
	if w.data == nil {
		return content[:w.at]
	}
	copy(content[w.at:], w.data)
	return content
}

// A move is a change of names that a journal keeps whole: each gets a node, nil for none.
type move []naming

type naming struct {
	in   *node
	name string
	of   *node
}

func (m move) apply() {
	for _, n := range m {
		if n.of == nil {
			delete(n.in.synced, n.name)
		} else {
			n.in.synced[n.name] = n.of
		}
	}
}

// act does a write or a sync. If the power is gone, nobody gets an answer, until its program is killed.
func (n *node) act(ctx context.Context, f func()) syscall.Errno {
	d := n.disk
	d.mu.Lock()
	if !d.ahead || d.left > 0 {
		defer d.mu.Unlock()
		d.left--
		f()
		return 0
	}
	d.mu.Unlock()
	<-ctx.Done()
	return syscall.EINTR
}

// put writes to a file.
func (n *node) put(w write) {
	n.content = w.apply(n.content)
	n.writes = append(n.writes, w)
}

// sync makes a file durable, with its names, or the names in a directory.
func (n *node) sync() {
	for _, w := range n.writes {
		n.durable = w.apply(n.durable)
	}
	n.writes = nil
	n.disk.moves = slices.DeleteFunc(n.disk.moves, func(m move) bool {
		mine := slices.ContainsFunc(m, func(x naming) bool { return x.of == n || x.in == n })
		if mine {
			m.apply()
		}
		return mine
	})
}

// lose makes the power fail.
func (d *disk) lose() {
	d.losses++
	d.ahead = false
	kept := 0
	if d.random.IntN(2) == 0 {
		kept = d.random.IntN(len(d.moves) + 1)
	}
	for _, m := range d.moves[:kept] {
		m.apply()
	}
	d.lostMoves += len(d.moves) - kept
	d.moves = nil
	d.recover(d.root)
}

// recover gives a node, and all in it, the state after a power loss.
func (d *disk) recover(n *node) {
	if n.now != nil {
		n.now = maps.Clone(n.synced)
		for name := range n.Children() {
			n.RmChild(name)
		}
		for _, name := range slices.Sorted(maps.Keys(n.now)) {
			n.AddChild(name, &n.now[name].Inode, true)
			d.recover(n.now[name])
		}
		return
	}
	for _, w := range d.survivors(n.writes) {
		n.durable = w.apply(n.durable)
	}
	n.content, n.writes = slices.Clone(n.durable), nil
	n.NotifyContent(0, 0) // the kernel forgets what it has of it
}

// survivors are the writes, or parts of them, that a power loss leaves.
func (d *disk) survivors(writes []write) (kept []write) {
	how := d.random.IntN(3)
	until := d.random.IntN(len(writes) + 1)
	for n, w := range writes {
		switch {
		case how == 0, how == 1 && n >= until:
			d.lostWrites++
		case how == 1, w.data == nil:
			d.keptWrites++
			kept = append(kept, w)
		default:
			d.torn(w, &kept)
		}
	}
	return kept
}

// torn leaves any of the sectors of a write.
func (d *disk) torn(w write, kept *[]write) {
	whole := true
	for from := int64(0); from < int64(len(w.data)); {
		to := min(from+sector-(w.at+from)%sector, int64(len(w.data)))
		if d.random.IntN(2) == 0 {
			*kept = append(*kept, write{w.at + from, w.data[from:to]})
		} else {
			whole = false
		}
		from = to
	}
	if whole {
		d.keptWrites++
	} else {
		d.lostWrites++
	}
}
