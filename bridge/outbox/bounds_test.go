package outbox_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// Above its bounds the outbox gives up the oldest delivery of the route with the most, and no more than needed. Muted
// deliveries count like others.
func TestBoundsDropTheOldestOfTheLargestQueue(t *testing.T) {
	size := len(body("E00-scheduled"))
	for claim, bounds := range map[string]outbox.Bounds{"deliveries": {Pending: 10}, "bytes": {PendingBytes: 10 * size}} {
		inBubble(t, bounds, func(t *testing.T, o *box) {
			var died []outbox.Delivery
			o.SetCallbacks(outbox.Callbacks{Dead: func(list []outbox.Delivery) { died = append(died, list...) }})
			o.mute(delivery.Mute{ID: "m", Since: time.Now(), Until: time.Now().Add(time.Hour)})
			o.add("E00", "scheduled", "few")
			many := o.reader("many")
			for i := 1; i <= 12; i++ {
				o.add(fmt.Sprintf("E%02d", i), "scheduled", "many")
				if i == 4 {
					many.items()
				}
				time.Sleep(time.Second)
			}
			want(t, claim+": few", o.pending("few"), "E00-scheduled")
			kept := o.pending("many")
			equal(t, claim+": the fullest keeps", len(kept), 9)
			equal(t, claim+": from", kept[0], "E04-scheduled")
			want(t, claim+": dead", ids(died), "E01-scheduled", "E02-scheduled", "E03-scheduled")
			equal(t, claim+": the reason", died[0].Reason, delivery.ReasonOverflow)
			equal(t, claim+": attempts", died[0].Attempts, 0)
			c := many.Changes()
			equal(t, claim+": the reader hears of", len(c.Pending), 8)
			equal(t, claim+": and that they are gone, of", len(c.Gone), 3)
		})
	}
}

// One change of more than fits keeps what fits, of all routes alike.
func TestOneChangeOfMoreThanFitsKeepsWhatFits(t *testing.T) {
	inBubble(t, outbox.Bounds{Pending: 100}, func(t *testing.T, o *box) {
		o.apply(wave(o, 1000, "a", "b"))
		equal(t, "pending for a", o.Stats()["a"].Pending, 50)
		equal(t, "pending for b", o.Stats()["b"].Pending, 50)
		equal(t, "dead", o.Totals().Dead, 900)
	})
}

// The bounds hold for what belongs to no group too.
func TestBoundsDropWhatBelongsToNoGroup(t *testing.T) {
	inBubble(t, outbox.Bounds{Pending: 2}, func(t *testing.T, o *box) {
		for _, change := range []string{"one", "two", "three"} {
			o.add("", change, "a")
		}
		want(t, "pending", o.pending("a"), "two", "three")
	})
}

// What the bounds give up goes to no fallback, so that it makes room.
func TestWhatTheBoundsGiveUpGoesToNoFallback(t *testing.T) {
	for claim, bounds := range map[string]outbox.Bounds{"pending": {Pending: 10}, "in memory": {InMemory: 10}} {
		inBubble(t, bounds, func(t *testing.T, o *box) {
			o.setRoutes(outbox.Route{Name: "a", Fallback: "b"}, outbox.Route{Name: "b"})
			if bounds.InMemory > 0 {
				o.disk.fails("write", errFull)
			}
			for i := range 11 {
				_, _ = o.tryAdd(fmt.Sprintf("E%02d", i), "scheduled", "a")
				time.Sleep(time.Second)
			}
			want(t, claim+": dead", o.dead("a"), "E00-scheduled")
			want(t, claim+": the fallback's", o.pending("b"))
			equal(t, claim+": pending", len(o.pending("a")), 10)
		})
	}
}

// While the disk fails, deliveries that are only in memory are bounded, those on disk stay, and everything is written
// once the disk works again.
func TestAFailingDiskStopsNothing(t *testing.T) {
	inBubble(t, outbox.Bounds{InMemory: 5}, func(t *testing.T, o *box) {
		var died []string
		o.SetCallbacks(outbox.Callbacks{Dead: func(list []outbox.Delivery) { died = append(died, ids(list)...) }})
		o.add("", "ON-DISK", "down")
		o.disk.fails("write", errFull)
		a, down := o.reader("a"), o.reader("down")
		for i := range 8 {
			o.addInMemory(fmt.Sprint("E", i), "scheduled", "a", "down")
			items := a.items()
			if len(items) != 1 {
				t.Fatalf("%d are to be delivered, want 1", len(items))
			}
			a.accept(items...)
			time.Sleep(time.Second)
		}
		lost := []string{"E0-scheduled", "E1-scheduled", "E2-scheduled", "E3-scheduled"}
		kept := []string{"ON-DISK", "E4-scheduled", "E5-scheduled", "E6-scheduled", "E7-scheduled"}
		want(t, "pending", o.pending("down"), kept...)
		want(t, "dead", o.dead("down"), lost...)
		want(t, "told of", died, lost...)
		for _, when := range []string{"at first", "after an attempt"} {
			equal(t, "in memory only "+when, o.InMemory(), 4) // with a fifth, for a, it was full
			down.Report(delivery.Report{Now: time.Now(), Failed: down.items(), Error: "down"})
		}
		o.diskRecovers()
		o.wantDurable()
		for i := range 8 { // memory has room again
			o.add(fmt.Sprint("F", i), "scheduled", "down")
		}
		o.restart()
		want(t, "pending after a restart", o.pending("down")[:5], kept...)
		want(t, "dead after a restart", o.dead("down"), lost...)
		equal(t, "all that is pending after a restart", len(o.pending("")), 13)
	})
}

// A change that is given up because memory is full takes with it what is older of its event, on disk, where only the
// newest counts: people would be told what no longer holds. Elsewhere the older ones stay, as what they are.
func TestWhatIsOlderOfAnEventGoesWithTheChangeThatMemoryHasNoRoomFor(t *testing.T) {
	for late, stays := range map[delivery.Late][]string{
		delivery.LateSend:   {"A-vanished", "B-scheduled"},
		delivery.LateLatest: {"B-scheduled"},
		delivery.LateDrop:   {"B-scheduled"},
	} {
		inBubble(t, outbox.Bounds{InMemory: 1}, func(t *testing.T, o *box) {
			o.setRoutes(outbox.Route{Name: "chat", Late: late})
			o.add("A", "vanished", "chat")
			o.add("B", "scheduled", "chat")
			o.disk.fails("write", errFull)
			o.addInMemory("A", "scheduled-r2", "chat")
			o.addInMemory("C", "scheduled", "chat")
			want(t, "pending of a route with late: "+string(late), o.pending("chat"), append(stays, "C-scheduled")...)
		})
	}
}

// While the disk fails, dead letters and history are bounded too. Pending deliveries keep their CloudEvents, and open
// events their latest change and what became of it.
func TestMemoryIsBoundedWhileTheDiskFails(t *testing.T) {
	inBubble(t, outbox.Bounds{InMemory: 10}, func(t *testing.T, o *box) {
		forgot := map[string]int{}
		o.SetCallbacks(outbox.Callbacks{Forgot: func(what string, n int) { forgot[what] += n }})
		told := o.add("TOLD", "scheduled", "a")
		o.disk.fails("write", errFull)
		o.accept("a")
		latest := o.addInMemory("OPEN", "scheduled")
		first := o.addInMemory("FIRST", "vanished", "a")
		o.accept("a")
		for i := range 100 {
			o.addInMemory(fmt.Sprint("DEAD", i), "vanished", "a")
			o.reject("a")
			o.addInMemory(fmt.Sprint("ACCEPTED", i), "vanished", "a")
			o.accept("a")
		}
		equal(t, "dead letters", len(o.dead("a")), 10)
		equal(t, "forgotten dead letters", forgot[outbox.ForgotDeadLetter], 90)
		if n := len(o.history()); n > 10+2*10+40 || forgot[outbox.ForgotHistory] == 0 {
			t.Errorf("%d CloudEvents are in memory, %d records of history were forgotten", n, forgot[outbox.ForgotHistory])
		}
		equal(t, "it holds what is open", o.holds(latest), true)
		equal(t, "it holds what is over and old", o.holds(first), false)
		for _, key := range o.keys(outbox.Selection{}) {
			if _, _, err := o.Show(key); err != nil {
				t.Errorf("%s: %v", key, err)
			}
		}
		o.diskRecovers()
		o.restart()
		equal(t, "dead letters after a restart", len(o.dead("a")), 10)
		equal(t, "the outcome of what is open", o.Delivery("a", told.Seq).State, outbox.StateAccepted)
	})
}

// What waits for a disk that hangs is bounded as soon as the disk fails, without another change.
func TestDeliveriesAreBoundedAsSoonAsTheDiskFails(t *testing.T) {
	inBubble(t, outbox.Bounds{InMemory: 2}, func(t *testing.T, o *box) {
		hang := make(chan struct{})
		o.disk.on("write", func() error {
			<-hang
			return errFull
		})
		var b outbox.Batch
		for _, group := range []string{"A", "B", "C"} {
			b.Add = append(b.Add, o.addition(group, "scheduled", "a"))
		}
		_ = o.submit(b)()
		want(t, "pending while the disk hangs", o.pending("a"), "A-scheduled", "B-scheduled", "C-scheduled")
		close(hang)
		synctest.Wait()
		want(t, "pending when it has failed", o.pending("a"), "B-scheduled", "C-scheduled")
	})
}

// Records being written when the disk begins to hang are bounded as soon as the write has failed, without another
// change.
func TestHistoryInFlightIsBoundedWhenTheDiskHangs(t *testing.T) {
	inBubble(t, outbox.Bounds{InMemory: 10}, func(t *testing.T, o *box) {
		var b outbox.Batch
		for i := range 200 {
			b.Add = append(b.Add, o.addition("", fmt.Sprint("E", i)))
		}
		hang := make(chan struct{})
		o.disk.on("write", func() error {
			<-hang
			return errFull
		})
		if err := o.submit(b)(); err == nil {
			t.Error("it is said to be on disk")
		}
		equal(t, "CloudEvents while the disk may still take them", len(o.history()), 200)
		close(hang)
		time.Sleep(time.Millisecond)
		equal(t, "CloudEvents when it has failed", len(o.history()), 20) // twice what memory may hold
		o.diskRecovers()
		o.wantDurable()
		equal(t, "CloudEvents on disk", o.disk.count("events"), 20)
	})
}

// What comes and goes while the file cannot be opened leaves nothing, so that a service without a state directory that
// sends heartbeats doesn't grow. Nobody waits for it to be written.
func TestWhatComesAndGoesWithoutAFileLeavesNothing(t *testing.T) {
	for claim, atMost := range map[string]int{"a new file": 21, "one that was there": 1} { // 1: the sequence number
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			o.add("A", "scheduled", "b")
			d := o.disk
			if claim == "a new file" {
				d = newDisk()
			}
			o.restartLate(d)
			before := len(o.disk.recorded())
			a := o.reader("a")
			for range 1000 {
				beat := o.addition("", "heartbeat", "a")
				beat.Transient = true
				_ = o.submit(outbox.Batch{Add: []outbox.Addition{beat}})()
				a.Report(delivery.Report{Now: time.Now(), Accepted: a.items()})
			}
			o.diskRecovers()
			o.join()
			o.wantDurable()
			records := slices.Concat(o.disk.recorded()[before:]...)
			if n := len(records); n > atMost {
				t.Errorf("%s: %d records were kept to be written, want at most %d", claim, n, atMost)
			}
			o.apply(outbox.Batch{})
		})
	}
}

// The default bounds are exactly the documented ones. Each CloudEvent counts once per delivery.
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
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			dropped := 0
			o.SetCallbacks(outbox.Callbacks{Forgot: func(_ string, n int) { dropped += n }})
			a := o.addition("A", "scheduled")
			a.Body = append(a.Body, make([]byte, max(0, tt.bytes-len(a.Body)))...)
			for i := range tt.routes {
				a.To = append(a.To, fmt.Sprint(i))
			}
			if tt.fails {
				o.disk.fails("write", errFull)
				o.addInMemory("", "first")
			}
			_ = o.submit(outbox.Batch{Add: []outbox.Addition{a}})()
			if tt.dies {
				_ = o.submit(outbox.Batch{Routes: named([]string{"other"})})()
				o.Maintain(time.Now().Add(25 * time.Hour))
			}
			equal(t, tt.what+": pending", o.Totals().Pending, tt.pending)
			equal(t, tt.what+": dead", o.Totals().Dead, tt.dead)
			equal(t, tt.what+": dropped", dropped, tt.routes-tt.pending-tt.dead)
		})
	}
}

// The default bounds of the history are the documented ones.
func TestDefaultBoundsOfTheHistory(t *testing.T) {
	for _, tt := range []struct{ n, bytes int }{{100_000, 1}, {128, 1 << 20}} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			forgot := 0
			o.SetCallbacks(outbox.Callbacks{Forgot: func(_ string, n int) { forgot += n }})
			one := outbox.Write{Bucket: "events", Value: make([]byte, tt.bytes)}
			var writes []outbox.Write
			for i := range tt.n + 1 {
				one.Key = fmt.Sprintf("%016d", time.Now().UnixMicro()+int64(i))
				writes = append(writes, one)
			}
			must(t, o.disk.Write(writes))
			o.maintain()
			equal(t, fmt.Sprintf("dropped of %d of %d bytes", tt.n+1, tt.bytes), forgot, 1)
		})
	}
}
