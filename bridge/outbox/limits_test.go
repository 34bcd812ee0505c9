package outbox_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// By default the outbox holds 256 MiB of pending deliveries and 64 MiB of dead letters. Each CloudEvent counts once per
// delivery.
func TestDefaultBoundsInBytes(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		var routes []string
		for i := range 64 {
			routes = append(routes, fmt.Sprintf("route-%02d", i))
		}
		big := addition(o, "A", "scheduled", routes...)
		big.Body = bytes.Replace(big.Body, []byte("{}"), []byte(`"`+strings.Repeat("x", 4<<20-len(big.Body))+`"`), 1)
		big.Body = append(big.Body, bytes.Repeat([]byte(" "), 4<<20-len(big.Body))...)
		if err := apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{big}}); err != nil {
			t.Fatal(err)
		}
		for more, wantDead := range []int{0, 1, 16, 16} {
			if more > 0 {
				n := []int{0, 1, 15, 1}[more]
				another := addition(o, fmt.Sprint("B", more), "scheduled", routes[:n]...)
				another.Body = big.Body
				if err := apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{another}}); err != nil {
					t.Fatal(err)
				}
			}
			if got := o.Totals(); got.Pending != 64 || o.PendingBytes() != 256<<20 || got.Dead != wantDead {
				t.Errorf("%+v and %d bytes, want 64 pending and %d dead", got, o.PendingBytes(), wantDead)
			}
		}
	})
}

// Of too many dead letters those go that have been dead for longest, however old their deliveries are: what has just
// become one stays, to be reported.
func TestTheLongestDeadLettersGoFirst(t *testing.T) {
	options := outbox.Options{Bounds: outbox.Bounds{Dead: 2}}
	inBubble(t, options, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		a, b := o.Queue("a"), o.Queue("b")
		mustAdd(t, o, "OLD", "scheduled", "b")
		time.Sleep(time.Hour)
		for _, group := range []string{"A", "B"} {
			mustAdd(t, o, group, "scheduled", "a")
			a.Report(delivery.Report{Now: time.Now(), Dead: a.Changes().Pending, Reason: delivery.ReasonRejected})
			time.Sleep(time.Hour)
		}
		b.Report(delivery.Report{Now: time.Now(), Dead: b.Changes().Pending, Reason: delivery.ReasonExpired})
		want(t, "dead", deadLetters(o, ""), "OLD-scheduled", "B-scheduled")
		if list := unreportedOf(o, "b"); len(list) != 1 {
			t.Errorf("to be reported of b are %v", list)
		}
	})
}

// While the disk fails, new dead letters replace the oldest of those that are only in memory. Those on disk stay, and
// those that were deleted don't count.
func TestDeadLettersOnDiskAreKeptWhileTheDiskFails(t *testing.T) {
	options := outbox.Options{Bounds: outbox.Bounds{InMemory: 3}}
	inBubble(t, options, func(t *testing.T, o *outbox.Outbox, d *disk) {
		q := o.Queue("a")
		giveUp := func(groups ...string) {
			t.Helper()
			for _, g := range groups {
				_, _ = add(o, g, "scheduled", "a")
				q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
			}
			time.Sleep(time.Second)
		}
		giveUp("A", "B", "C", "D", "E", "F", "G")
		var keys []string
		for _, dead := range o.List(outbox.Selection{State: outbox.StateDead})[2:] {
			keys = append(keys, dead.Key)
		}
		if _, err := drop(o, keys, "somebody"); err != nil {
			t.Fatal(err)
		}
		d.set(func() { d.fail = errFull })
		giveUp("H", "I", "J", "K", "L")
		want(t, "dead", deadLetters(o, "a"), "A-scheduled", "B-scheduled", "J-scheduled", "K-scheduled", "L-scheduled")
	})
}

// A replay to a removed route is refused. An error says whether a delivery is unknown or only not dead.
func TestReplayNeedsARouteAndADeadLetter(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		q := o.Queue("a")
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}, outbox.Route{Name: "b"}); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "scheduled", "a")
		q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		dead := o.List(outbox.Selection{State: outbox.StateDead})[0].Key
		if _, err := replay(o, []string{dead}, "b", "root"); err == nil || !strings.Contains(err.Error(), "no sink b") {
			t.Errorf("Replay to a route that is gone = %v", err)
		}
		alive := mustAdd(t, o, "B", "scheduled", "a")
		for key, unknown := range map[string]bool{fmt.Sprintf("a/%016d", alive.Seq): false, "a/0000000000000001": true} {
			if _, err := replay(o, []string{key}, "", "root"); err == nil || errors.Is(err, outbox.ErrUnknownKey) != unknown {
				t.Errorf("Replay(%s) = %v", key, err)
			}
		}
	})
}

// A dead letter of a removed sink is replayed only to another: nobody would deliver it. If one of several can't be
// replayed, nothing is changed, and the error names the sink.
func TestADeadLetterOfARemovedRouteIsReplayedToAnother(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}, outbox.Route{Name: "gone"}); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "scheduled", "a", "gone")
		q := o.Queue("a")
		q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(25 * time.Hour)
		o.Maintain(time.Now())
		var keys []string
		for _, d := range o.List(outbox.Selection{State: outbox.StateDead}) {
			keys = append(keys, d.Key)
		}
		got, err := replay(o, keys, "", "root")
		if err == nil || got != nil || !strings.Contains(err.Error(), "no sink gone; name another with --to") {
			t.Errorf("Replay = %v, %v; want an error that names the sink and the remedy", got, err)
		}
		want(t, "dead", deadLetters(o, ""), "A-scheduled", "A-scheduled")
		if got, err := replay(o, keys[1:], "a", "root"); err != nil || len(got) != 1 || got[0].Route != "a" {
			t.Errorf("Replay to a = %v, %v", got, err)
		}
		want(t, "pending for the removed one", pending(o, "gone"))
	})
}

// Only its owner can read the file. A small one is not compacted, however little of it is used. A value with an
// unusable name doesn't keep others from being written.
func TestFileIsPrivateAndASmallOneIsNotCompacted(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	values := map[string][]byte{"": []byte("nameless"), "big": make([]byte, 8<<20), "kept": []byte("x"),
		strings.Repeat("long", 10_000): []byte("unusable")}
	for _, v := range []map[string][]byte{values, {"big": nil}} {
		if err := apply(o, time.Now(), outbox.Batch{Values: v}); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.Stat(o.Path())
	if err != nil {
		t.Fatal(err)
	}
	if mode := before.Mode().Perm(); mode != 0o600 && filepath.Separator == '/' {
		t.Errorf("the file's mode is %o", mode)
	}
	if err := <-o.Maintain(time.Now()); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(o.Path()); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was rewritten, or is gone: %v", err)
	}
	o.Close()
	o = open(t, dir, outbox.Options{})
	if got := string(o.Value("kept")); got != "x" {
		t.Errorf("the value beside the one without a name is %q", got)
	}
}

// A disk that begins to hang during Maintain delays nobody for longer than one that hangs at a write.
func TestDiskThatHangsDuringMaintainDelaysOneChange(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		q := o.Queue("a")
		mustAdd(t, o, "", "once", "a")
		q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending})
		time.Sleep(outbox.KeepHistory + time.Hour)
		hang := make(chan struct{})
		d.set(func() { d.hang = hang })
		tidied := o.Maintain(time.Now()) // what is so old is to be dropped
		time.Sleep(time.Second)
		began := time.Now()
		if _, err := add(o, "A", "scheduled", "a"); err == nil {
			t.Error("it is said to be on disk")
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("a change waited %v", took)
		}
		if _, err := add(o, "B", "scheduled", "a"); err == nil || time.Since(began) > 6*time.Second {
			t.Errorf("the next waited too, until %v: %v", time.Since(began), err)
		}
		time.Sleep(time.Minute)
		d.set(func() { d.hang = nil })
		close(hang)
		if err := <-tidied; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := o.Durable(); err != nil {
			t.Errorf("Durable = %v when the disk is back", err)
		}
		if n := o.InMemory(); n != 0 {
			t.Errorf("%d are in memory only", n)
		}
	})
}

// The default bounds are exactly the documented ones.
func TestDefaultBounds(t *testing.T) {
	systemtest.Alone(t)
	const mib = 1 << 20
	for _, tt := range []struct {
		what          string
		bytes, routes int  // of one CloudEvent, and to how many routes it goes
		dies          bool // all of it
		fails         bool // the disk
		pending, dead int  // that are left
	}{
		{"100,000 deliveries", 0, 100_001, false, false, 100_000, 1},
		{"256 MiB of deliveries", mib, 257, false, false, 256, 1},
		{"1,000 deliveries in memory", 0, 1_001, false, true, 1_000, 1},
		{"1,000 dead letters in memory", 0, 1_000, true, true, 0, 1_000},
		{"10,000 dead letters", 0, 10_001, true, false, 0, 10_000},
		{"64 MiB of dead letters", mib, 65, true, false, 0, 64},
	} {
		lost := 0
		inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
			o.SetCallbacks(outbox.Callbacks{Forgot: func(_ string, n int) { lost += n }})
			a := addition(o, "A", "scheduled")
			a.Body = append(a.Body, make([]byte, max(0, tt.bytes-len(a.Body)))...)
			for i := range tt.routes {
				a.To = append(a.To, fmt.Sprint(i))
			}
			if tt.fails {
				d.set(func() { d.fail = errFull })
				_ = apply(o, time.Now(), outbox.Batch{Values: map[string][]byte{"x": nil}})
			}
			_ = apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{a}})
			if tt.dies {
				_, _, _ = setRoutes(o, time.Now(), outbox.Route{Name: "other"})
				o.Maintain(time.Now().Add(25 * time.Hour))
			}
			total := o.Totals()
			if total.Pending != tt.pending || total.Dead != tt.dead || lost != tt.routes-tt.pending-tt.dead {
				t.Errorf("%s: %d are pending, %d dead and %d dropped; want %d, %d and the rest", tt.what, total.Pending, total.Dead,
					lost, tt.pending, tt.dead)
			}
		})
	}
}

// The default bounds of the history are the documented ones.
func TestDefaultBoundsOfTheFile(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		what      string
		n, bytes  int // CloudEvents of so many bytes each
		forgotten int
	}{
		{"100,000 CloudEvents", 100_001, 1, 1},
		{"128 MiB of CloudEvents", 129, mib, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			forgot := 0
			s := &longHistory{Storage: diskOf(nil), n: tt.n, value: make([]byte, tt.bytes)}
			o := open(t, t.TempDir(), outbox.Options{Storage: s})
			o.SetCallbacks(outbox.Callbacks{Forgot: func(_ string, n int) { forgot += n }})
			if err := <-o.Maintain(time.Now()); err != nil || forgot != tt.forgotten {
				t.Errorf("%s: Maintain dropped %d of %d, want %d: %v", tt.what, forgot, tt.n, tt.forgotten, err)
			}
			o.Close()
		})
	}
}

// longHistory is a storage that holds many CloudEvents of now.
type longHistory struct {
	outbox.Storage
	n     int
	value []byte
}

func (s *longHistory) Walk(bucket, from string, f func(key string, value []byte) error) error {
	if bucket != "events" {
		return s.Storage.Walk(bucket, from, f)
	}
	for i := range s.n {
		if err := f(fmt.Sprintf("%016d", time.Now().UnixMicro()+int64(i)), s.value); err != nil {
			return err
		}
	}
	return nil
}

// Upkeep that becomes due while the disk hangs doesn't pile up: the history is walked through once for it, not once for
// each second of the hang.
func TestUpkeepDoesNotPileUpWhileTheDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &walkedDisk{disk: diskOf(nil)}
		o := open(t, t.TempDir(), outbox.Options{Storage: d, Bounds: outbox.Bounds{History: 160}})
		<-o.Maintain(time.Now())
		for range 11 { // as many as make the next upkeep due
			mustAdd(t, o, "", "test")
		}
		hang := make(chan struct{})
		d.set(func() { d.hang = hang })
		wait := submit(o, time.Now(), outbox.Batch{Add: []outbox.Addition{addition(o, "", "test")}})
		_ = wait() // the disk takes too long
		d.walks.Store(0)
		for range 9 * 60 {
			time.Sleep(time.Second)
			o.Maintain(time.Now())
		}
		d.set(func() { d.hang = nil })
		close(hang)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := d.walks.Load(); n > 8 { // two buckets, each twice, and what the last minute may add
			t.Errorf("after a hang of nine minutes the history is walked through %d times", n)
		}
		o.Close()
	})
}

// A walkedDisk counts the walks through its history.
type walkedDisk struct {
	*disk
	walks atomic.Int32
}

func (d *walkedDisk) Walk(bucket, from string, f func(key string, value []byte) error) error {
	d.walks.Add(1)
	return d.disk.Walk(bucket, from, f)
}

// That an event is over stays known for as long as something about it is pending, or can become that again: a relay behind
// the sink would begin something because of it.
func TestTheEndOfAnEventIsKnownForAsLongAsSomethingAboutItIs(t *testing.T) {
	for claim, letter := range map[string]bool{"what is pending": false, "a dead letter that is replayed": true} {
		inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
			if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "hook", Late: delivery.LateSend}); err != nil {
				t.Fatal(err)
			}
			mustAdd(t, o, "A", "started", "hook")
			q := o.Queue("hook")
			i := q.Changes().Pending[0]
			if letter {
				q.Report(delivery.Report{Now: time.Now(), Dead: []*delivery.Item{i}, Reason: delivery.ReasonRejected})
			}
			end(t, o, "A")
			time.Sleep(31 * 24 * time.Hour)
			if err := <-o.Maintain(time.Now()); err != nil {
				t.Fatal(err)
			}
			if letter {
				if _, err := replay(o, []string{o.List(outbox.Selection{})[0].Key}, "", "root"); err != nil {
					t.Fatal(err)
				}
			}
			d, err := q.Read(i)
			if err != nil || !d.EventOver {
				t.Errorf("%s is read a month after the end as one whose event is over: %v, %v", claim, d.EventOver, err)
			}
		})
	}
}
