package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// A reader gets all pending deliveries, once and in order, and is woken for them: for those that are there already, and
// for new ones once they are on disk. Only the latest reader of a route gets later changes.
func TestAReaderGetsPendingDeliveriesOnceAndInOrder(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.add("A", "scheduled", "a")
		o.add("B", "scheduled", "a")
		first := o.reader("a")
		equal(t, "the first reader is woken", first.isWoken(), true)
		want(t, "the first reader hears", first.hears(), "A-scheduled", "B-scheduled")
		o.add("A", "started", "a")
		equal(t, "the first reader is woken again", first.isWoken(), true)
		want(t, "then", first.hears(), "A-started")
		want(t, "and then", first.hears())

		release := o.disk.hangs("write")
		onDisk := o.submit(changeOf(o.addition("A", "vanished", "a")))
		second := o.reader("a") // it begins while the disk works
		equal(t, "the second reader is woken", second.isWoken(), true)
		want(t, "the second reader hears", second.hears(), "A-scheduled", "B-scheduled", "A-started")
		release()
		must(t, onDisk())
		equal(t, "the second reader is woken again", second.isWoken(), true)
		want(t, "the second reader hears then", second.hears(), "A-vanished")
		want(t, "the first reader hears then", first.hears())
	})
}

// A worker may be 32 reported deliveries or 50 ms ahead of the disk; one with Durable never is.
func TestReportsAreGrouped(t *testing.T) {
	for durable, atMost := range map[bool]int{false: 31, true: 0} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			for i := range 100 {
				o.add(fmt.Sprint("E", i), "scheduled", "a")
			}
			a := o.reader("a")
			before, ahead := o.disk.called("write"), 0
			for i, item := range a.items() {
				a.Report(delivery.Report{Now: time.Now(), Accepted: []*delivery.Item{item}, Durable: durable})
				ahead = max(ahead, i+1-o.disk.count("settled"))
			}
			equal(t, fmt.Sprintf("not on disk, durable %v,", durable), ahead, atMost)
			if n := o.disk.called("write") - before; !durable && n != 3 {
				t.Errorf("%d transactions, want 3", n)
			}
			time.Sleep(50 * time.Millisecond)
			synctest.Wait()
			equal(t, "on disk after 50 ms", o.disk.count("settled"), 100)
		})
	}
}

// The owner can supersede a delivery even if its reader has it already. Nothing is left of what is transient.
func TestTheOwnerSupersedesWhatAReaderHas(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		change, beat := o.add("A", "scheduled", "a", "b"), o.heartbeat("a")
		for _, a := range []struct {
			route string
			outbox.Addition
		}{{"a", beat}, {"b", change}} {
			r := o.reader(a.route)
			r.hears()
			o.supersede(refTo(a.route, a.Seq))
			equal(t, "gone, as its reader hears,", fmt.Sprint(r.Changes().Gone), fmt.Sprint([]uint64{a.Seq}))
		}
		want(t, "pending", o.pending(""), "A-scheduled")
		want(t, "results", o.results(), "a pending", "b superseded")
		equal(t, "the heartbeat is still there", o.holds(beat), false)
	})
}

// A change of a delivery that is no longer pending, or never was, has no effect; nor has adding a CloudEvent again for
// a route that has it.
func TestOnlyPendingDeliveriesChange(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		a := o.add("A", "scheduled", "a", "b")
		r := o.reader("a")
		r.Report(delivery.Report{Now: time.Now(), Failed: r.items(), Error: "down", Next: time.Now().Add(time.Hour)})
		before := shown(o)
		again := a
		again.Body, again.To = nil, []string{"a"}
		o.supersede(refTo("c", a.Seq), refTo("a", a.Seq+1))
		o.apply(outbox.Batch{Add: []outbox.Addition{again}})
		equal(t, "it shows", shown(o), before)
		equal(t, "outcomes on disk", o.disk.count("settled"), 0)
	})
}

// A delivery that was given up, dropped or superseded during its attempt, but was accepted, counts as accepted: it is
// no dead letter, and the history says so.
func TestWhatIsAcceptedAfterAllCountsAsAccepted(t *testing.T) {
	for how, ends := range map[string]func(o *box, r reader, i *delivery.Item){
		"given up": func(_ *box, r reader, i *delivery.Item) {
			r.Report(delivery.Report{Now: time.Now(), Dead: []*delivery.Item{i}, Reason: delivery.ReasonLate})
		},
		"dropped":    func(o *box, _ reader, _ *delivery.Item) { _, _ = o.drop(o.keys(outbox.Selection{})...) },
		"superseded": func(o *box, _ reader, i *delivery.Item) { o.supersede(refTo("a", i.Seq)) },
	} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			o.routesAre("a")
			o.add("A", "vanished", "a")
			r := o.reader("a")
			items := r.items()
			ends(o, r, items[0])
			r.Report(delivery.Report{Now: time.Now(), Failed: items, Error: "down"}) // changes nothing
			want(t, how+": pending", o.pending("a"))
			r.accept(items...)
			want(t, how+": pending or dead", ids(o.List(outbox.Selection{})))
			want(t, how+": results", o.results(), "a accepted")
			equal(t, how+": delivered", o.Stats()["a"].Delivered, 1)
			equal(t, how+": stored results", o.disk.count("settled"), 1)
		})
	}
}

// An attempt that came to nothing, because the sink put it off or the CloudEvent could not be read, doesn't count when a
// newer change takes the delivery's place later.
func TestAnAttemptThatWasNotMadeDoesNotCountLater(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		a := o.add("A", "scheduled", "a")
		sink := sinkFunc(func() error { return &delivery.NotYet{Until: time.Now().Add(time.Minute)} })
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			delivery.NewWorker(delivery.Config{Route: "a", Sink: sink, Queue: o.Queue("a")}).Run(t.Context(), stop, nil)
		}()
		time.Sleep(time.Second)
		o.supersede(refTo("a", a.Seq))
		r := o.history()[0].Deliveries[0]
		equal(t, "its state", r.State, outbox.StateSuperseded)
		equal(t, "its attempts", r.Attempts, 0)
		close(stop)
		<-done
	})
}

// A sinkFunc answers with an error.
type sinkFunc func() error

func (f sinkFunc) Deliver(context.Context, []delivery.Delivery) (delivery.Answer, error) {
	return delivery.Answer{}, f()
}
