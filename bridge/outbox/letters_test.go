package outbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// Dead letters are bounded: the oldest is dropped, and the log says so.
func TestDeadLettersAreBounded(t *testing.T) {
	size := len(body("E0-scheduled"))
	for claim, bounds := range map[string]outbox.Bounds{"letters": {Dead: 5}, "bytes": {DeadBytes: 5 * size}} {
		log, forgot := &lines{}, 0
		inBubble(t, outbox.Options{Log: log.logger(), Bounds: bounds}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
			o.SetCallbacks(outbox.Callbacks{Forgot: func(_ string, n int) { forgot += n }})
			for i := range 8 {
				mustAdd(t, o, fmt.Sprint("E", i), "scheduled", "a")
			}
			q := o.Queue("a")
			for _, i := range q.Changes().Pending {
				q.Report(delivery.Report{Now: time.Now(), Dead: []*delivery.Item{i}, Reason: delivery.ReasonRejected})
			}
			want(t, claim, deadLetters(o, "a"), "E3-scheduled", "E4-scheduled", "E5-scheduled", "E6-scheduled", "E7-scheduled")
			if n := strings.Count(log.String(), "oldest dead letters dropped"); n != 3 || forgot != 3 {
				t.Errorf("%s: the log says so %d times, %d are counted, want 3", claim, n, forgot)
			}
		})
	}
}

// The receipt of a dead letter that is replayed long after its group has ended is kept for 30 days too, also when a
// restart comes between.
func TestReceiptOfALateReplayIsNotKeptForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, dir, month := diskOf(nil), t.TempDir(), 31*24*time.Hour
		o := open(t, dir, outbox.Options{Storage: d})
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "vanished", "a")
		q := o.Queue("a")
		q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
		time.Sleep(month)
		if err := <-o.Maintain(time.Now()); err != nil {
			t.Fatal(err)
		}
		if _, err := replay(o, []string{o.List(outbox.Selection{})[0].Key}, "", "root"); err != nil {
			t.Fatal(err)
		}
		q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending, Answer: delivery.Answer{Receipt: []byte("r")}})
		for _, left := range []int{1, 0} {
			o.Close()
			o = open(t, dir, outbox.Options{Storage: d})
			if err := <-o.Maintain(time.Now()); err != nil || d.count("receipts") != left || d.count("ended") != left {
				t.Errorf("Maintain = %v, %d receipts are kept, want %d", err, d.count("receipts"), left)
			}
			time.Sleep(month)
		}
		o.Close()
	})
}

// A delivery that was given up during its attempt, but then accepted, is neither a dead letter nor counted as dropped.
func TestAcceptedDeliveryIsNoDeadLetter(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		one, two := mustAdd(t, o, "A", "scheduled", "a"), mustAdd(t, o, "B", "scheduled", "a")
		q := o.Queue("a")
		items := q.Changes().Pending
		q.Report(delivery.Report{Now: time.Now(), Dead: items[:1], Reason: delivery.ReasonLate})
		if _, err := drop(o, []string{o.List(outbox.Selection{Group: "B"})[0].Key}, "x"); err != nil {
			t.Fatal(err)
		}
		q.Report(delivery.Report{Now: time.Now(), Failed: items, Error: "down"}) // changes nothing
		want(t, "dead", deadLetters(o, "a"), "A-scheduled")
		q.Report(delivery.Report{Now: time.Now(), Accepted: items, Answer: delivery.Answer{Status: "204"}})
		if list := o.List(outbox.Selection{}); len(list) != 0 {
			t.Errorf("there are %v, want that they were delivered", list)
		}
		for _, a := range []outbox.Addition{one, two} {
			if got := o.Delivery("a", a.Seq).State; got != outbox.StateAccepted {
				t.Errorf("%s is %s", a.ID, got)
			}
		}
		err := o.Walk(0, func(r outbox.Record) error {
			if len(r.Deliveries) != 1 || r.Deliveries[0].State != outbox.StateAccepted || r.Deliveries[0].Answer != "204" {
				t.Errorf("the history says %+v", r.Deliveries)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A delivery that became pending again beside its dead letter, and is given up again, is one dead letter.
func TestDeliveryHasOneDeadLetter(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		a := mustAdd(t, o, "A", "scheduled", "a")
		q := o.Queue("a")
		for i := range 3 {
			q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
			if n := o.Totals().Dead; n != 1 || o.Stats()["a"].Dead != 1 {
				t.Errorf("%d dead letters, want 1", n)
			}
			if i == 2 {
				break
			}
			again := a
			again.Body = nil
			if err := apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{again}}); err != nil {
				t.Fatal(err)
			}
			if got := o.Delivery("a", a.Seq).State; got != outbox.StatePending {
				t.Errorf("it is %q", got)
			}
		}
		if _, err := drop(o, []string{o.List(outbox.Selection{})[0].Key}, "x"); err != nil || o.Totals().Dead != 0 {
			t.Errorf("Drop = %v, and %d are dead", err, o.Totals().Dead)
		}
		mustAdd(t, o, "A", "vanished")
	})
}

// Replay and Drop change all deliveries or none, and each key once.
func TestReplayAndDropAreAtomic(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		if _, _, err := setRoutes(o, time.Now(), []outbox.Route{{Name: "a"}, {Name: "b"}}...); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "scheduled", "a")
		mustAdd(t, o, "B", "scheduled", "a")
		mustAdd(t, o, "C", "scheduled", "a")
		q := o.Queue("a")
		items := q.Changes().Pending
		q.Report(delivery.Report{Now: time.Now(), Failed: items[:2], Error: "half",
			Answer: delivery.Answer{Progress: []byte("p")}, Batch: 3})
		q.Report(delivery.Report{Now: time.Now(), Dead: items[:2], Reason: delivery.ReasonRejected, Error: "no"})
		q.Changes()
		list := o.List(outbox.Selection{})
		alive, dead := list[0].Key, []string{list[1].Key, list[2].Key}
		for _, keys := range [][]string{{dead[0], "a/1"}, {dead[0], "odd"}, {dead[0], alive}} {
			if got, err := replay(o, keys, "", "root"); err == nil || got != nil {
				t.Errorf("Replay(%v) = %v, %v", keys, got, err)
			}
		}
		if _, err := drop(o, []string{alive, "a/1"}, "x"); !errors.Is(err, outbox.ErrUnknownKey) {
			t.Errorf("Drop = %v, want ErrUnknownKey", err)
		}
		if _, err := replay(o, dead, "nobody", "root"); err == nil || !strings.Contains(err.Error(), "no sink nobody") {
			t.Errorf("Replay to nobody = %v", err)
		}
		if got := o.List(outbox.Selection{}); len(got) != 3 || got[0].State != outbox.StatePending ||
			got[1].State != outbox.StateDead {
			t.Errorf("something was done: %v", got)
		}
		time.Sleep(time.Hour)
		got, err := replay(o, []string{dead[0], dead[0]}, "", "root")
		if err != nil || len(got) != 1 || got[0].Attempts != 0 || got[0].Error != "" || !got[0].PendingSince.Equal(time.Now()) ||
			string(got[0].Progress) != "p" || got[0].Batch != 3 {
			t.Errorf("Replay = %+v, %v", got, err)
		}
		if i := q.Changes().Pending; len(i) != 1 || i[0].ID != "A-scheduled" || i[0].Attempts != 0 {
			t.Errorf("the reader hears %+v", i)
		}
		got, err = replay(o, dead[1:], "b", "root")
		if err != nil || len(got) != 1 || got[0].Route != "b" || got[0].Progress != nil || got[0].Batch != 0 {
			t.Errorf("Replay to b = %+v, %v", got, err)
		}
		want(t, "dead", deadLetters(o, ""))
		if got, err := drop(o, []string{alive, alive}, "somebody"); err != nil || len(got) != 1 {
			t.Errorf("Drop = %v, %v", got, err)
		}
		var dropped []string
		err = o.Walk(0, func(r outbox.Record) error {
			for _, d := range r.Deliveries {
				if d.State == outbox.StateDropped {
					dropped = append(dropped, d.Route+" "+d.Answer)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		want(t, "dropped", dropped, "a by somebody")
	})
}

// Who replayed a delivery stays with it, also after a restart: while it is pending, when it has failed, when it is a dead
// letter again, and with its result in the history.
func TestWhoReplayedADeliveryStaysOnRecord(t *testing.T) {
	ends := map[string]func(o *outbox.Outbox, q delivery.Queue, i []*delivery.Item) error{
		outbox.StateAccepted: func(_ *outbox.Outbox, q delivery.Queue, i []*delivery.Item) error {
			q.Report(delivery.Report{Now: time.Now(), Accepted: i, Durable: true})
			return nil
		},
		outbox.StateSuperseded: func(_ *outbox.Outbox, q delivery.Queue, i []*delivery.Item) error {
			q.Report(delivery.Report{Now: time.Now(), Superseded: i, Durable: true})
			return nil
		},
		outbox.StateDead: func(_ *outbox.Outbox, q delivery.Queue, i []*delivery.Item) error {
			q.Report(delivery.Report{Now: time.Now(), Dead: i, Reason: delivery.ReasonRejected, Durable: true})
			return nil
		},
		outbox.StateDropped: func(o *outbox.Outbox, _ delivery.Queue, _ []*delivery.Item) error {
			_, err := drop(o, []string{o.List(outbox.Selection{})[0].Key}, "somebody")
			return err
		},
	}
	for how, end := range ends {
		dir := t.TempDir()
		o := open(t, dir, outbox.Options{})
		reopen := func() {
			t.Helper()
			if err := o.Close(); err != nil {
				t.Fatal(err)
			}
			o = open(t, dir, outbox.Options{})
		}
		check := func(what string) {
			t.Helper()
			var got []string
			err := o.Walk(0, func(r outbox.Record) error {
				for _, d := range r.Deliveries {
					got = append(got, d.State+" "+d.ReplayedBy)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			want(t, how+": "+what, got, what+" alice")
			for _, d := range o.List(outbox.Selection{}) {
				if shown, _, err := o.Show(d.Key); err != nil || shown.ReplayedBy != "alice" {
					t.Errorf("%s: %s: shown is %q, %v; want that alice replayed it", how, what, shown.ReplayedBy, err)
				}
			}
		}
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "scheduled", "a")
		q := o.Queue("a")
		q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected, Durable: true})
		if _, err := replay(o, []string{o.List(outbox.Selection{})[0].Key}, "", "alice"); err != nil {
			t.Fatal(err)
		}
		check(outbox.StatePending)
		q.Report(delivery.Report{Now: time.Now(), Failed: q.Changes().Pending, Error: "no", Durable: true})
		reopen()
		check(outbox.StatePending)
		q = o.Queue("a")
		if err := end(o, q, q.Changes().Pending); err != nil {
			t.Fatal(err)
		}
		reopen()
		check(how)
	}
}

// A dead letter is unreported until its owner says otherwise, also after a restart. One about no group never is, and
// none that became pending again.
func TestDeadLettersAreUnreportedUntilTheirOwnerReportsThem(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"A", "B", "C", ""} {
		mustAdd(t, o, group, "scheduled", "a")
	}
	q := o.Queue("a")
	q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected, Durable: true})
	check := func(what string, unreported ...string) {
		t.Helper()
		want(t, what, ids(unreportedOf(o, "a")), unreported...)
		if n, of := o.Totals().Unreported, o.Stats()["a"].Unreported; n != len(unreported) || of != n {
			t.Errorf("%s: %d and of the route %d, want %d", what, n, of, len(unreported))
		}
	}
	check("new", "A-scheduled", "B-scheduled", "C-scheduled")
	first := unreportedOf(o, "a")[0]
	err := o.Update(time.Now(), func(tx *outbox.Tx) {
		for _, d := range []outbox.Delivery{first, first, refTo("b", 1)} {
			tx.SetReported(d)
		}
	})()
	if err != nil {
		t.Fatal(err)
	}
	check("one is reported", "B-scheduled", "C-scheduled")
	want(t, "dead", deadLetters(o, ""), "A-scheduled", "B-scheduled", "C-scheduled", "scheduled")
	for range 2 {
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
		o = open(t, dir, outbox.Options{})
		check("after a restart", "B-scheduled", "C-scheduled")
	}
	if _, err := replay(o, []string{unreportedOf(o, "a")[0].Key}, "", "root"); err != nil {
		t.Fatal(err)
	}
	check("one is replayed", "C-scheduled")
	if _, err := drop(o, []string{unreportedOf(o, "a")[0].Key}, "x"); err != nil {
		t.Fatal(err)
	}
	check("one is dropped")
}

// The oldest pending delivery is the one that waits for longest, whatever its number: what is replayed waits from then on.
func TestTheOldestIsWhatWaitsForLongest(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "hook"}); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "scheduled", "hook")
		q := o.Queue("hook")
		q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
		time.Sleep(time.Hour)
		since := time.Now()
		mustAdd(t, o, "B", "scheduled", "hook")
		time.Sleep(time.Hour)
		if _, err := replay(o, []string{o.List(outbox.Selection{State: outbox.StateDead})[0].Key}, "", "root"); err != nil {
			t.Fatal(err)
		}
		if _, _, err := setRoutes(o, time.Now()); err != nil {
			t.Fatal(err)
		}
		if got := o.Stats()["hook"].Oldest; !got.Equal(since) {
			t.Errorf("the oldest is pending since %v, want %v", got, since)
		}
	})
}
