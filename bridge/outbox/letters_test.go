package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// A dead letter has the time of its last attempt, their number, and since when and why it is dead.
func TestDeadLetterHasItsAttempts(t *testing.T) {
	for _, tt := range []struct {
		reason   string
		failed   bool // the report tells of the attempt by itself
		attempts int
	}{
		{delivery.ReasonRejected, false, 1},
		{delivery.ReasonRejected, true, 1},
		{delivery.ReasonExpired, false, 1},
		{delivery.ReasonExpired, true, 1},
		{delivery.ReasonLate, false, 0},
	} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			o.add("A", "scheduled", "a")
			time.Sleep(time.Hour)
			a, now := o.reader("a"), time.Now()
			r := delivery.Report{Now: now, Dead: a.items(), Reason: tt.reason, Error: "gone away"}
			if tt.failed {
				r.Failed = r.Dead
			}
			a.Report(r)
			for _, when := range []string{"at once", "after a restart"} {
				when = fmt.Sprintf("%s, told of by itself %v, %s: ", tt.reason, tt.failed, when)
				d := o.List(outbox.Selection{State: outbox.StateDead})[0]
				equal(t, when+"attempts", d.Attempts, tt.attempts)
				equal(t, when+"the last was now", d.LastAttempt.Equal(now), tt.attempts > 0)
				equal(t, when+"it is dead since now", d.DeadSince.Equal(now), true)
				equal(t, when+"there is no next attempt", d.Next.IsZero(), true)
				equal(t, when+"the reason", d.Reason, tt.reason)
				equal(t, when+"the error", d.Error, "gone away")
				time.Sleep(time.Hour)
				o.restart()
			}
		})
	}
}

// The receipt of a dead letter that is replayed long after its group has ended is kept for 30 days too, also when a
// restart comes between.
func TestReceiptOfALateReplayIsNotKeptForEver(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		const month = 31 * 24 * time.Hour
		o.routesAre("a")
		o.add("A", "vanished", "a")
		o.reject("a")
		time.Sleep(month)
		o.maintain()
		o.replayAll()
		a := o.reader("a")
		a.Report(delivery.Report{Now: time.Now(), Accepted: a.items(), Answer: delivery.Answer{Receipt: []byte("r")}})
		for _, left := range []int{1, 0} {
			o.restart()
			o.maintain()
			equal(t, "receipts", o.disk.count("receipts"), left)
			equal(t, "groups that have ended", o.disk.count("ended"), left)
			time.Sleep(month)
		}
	})
}

// A delivery that became pending again beside its dead letter, and is given up again, is one dead letter.
func TestDeliveryHasOneDeadLetter(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		again := o.add("A", "scheduled", "a")
		again.Body = nil
		o.reject("a")
		for range 2 {
			o.apply(outbox.Batch{Add: []outbox.Addition{again}})
			equal(t, "its state", o.Delivery("a", again.Seq).State, outbox.StatePending)
			o.reject("a")
			equal(t, "dead letters", o.Totals().Dead, 1)
			equal(t, "dead letters of a", o.Stats()["a"].Dead, 1)
		}
		_, err := o.drop(o.keys(outbox.Selection{})...)
		must(t, err)
		want(t, "dead", o.dead(""))
	})
}

// Replay and Drop change all deliveries or none, and each key once. The error says what is wrong with a key. A dead
// letter of a removed sink is replayed only to another: nobody would deliver it.
func TestReplayAndDropAreAtomic(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.routesAre("a", "b", "removed")
		o.add("A", "scheduled", "a")
		o.add("B", "scheduled", "removed")
		o.add("C", "scheduled", "a")
		for _, name := range []string{"a", "removed"} {
			r := o.reader(name)
			items := r.items()[:1]
			r.Report(delivery.Report{
				Now: time.Now(), Failed: items, Error: "half", Answer: delivery.Answer{Progress: []byte("p")}, Batch: 3,
			})
			r.reject(items...)
		}
		o.routesAre("a", "b")
		alive := o.keys(outbox.Selection{State: outbox.StatePending})[0]
		dead := o.keys(outbox.Selection{State: outbox.StateDead})
		for _, tt := range []struct{ to, key, want string }{
			{"", "a/1", "a/1: no such delivery"},
			{"", "odd", "odd: no such delivery"},
			{"", alive, alive + ": is still pending and will be tried again by itself"},
			{"", dead[1], "no sink removed; name another with --to"},
			{"removed", dead[1], "no sink removed; name another with --to"},
			{"nobody", dead[1], "no sink nobody; name another with --to"},
		} {
			got, err := o.replay(tt.to, dead[0], tt.key)
			if err == nil || got != nil || !strings.HasSuffix(err.Error(), tt.want) {
				t.Errorf("Replay of %s to %q = %v, %v; want an error that ends with %q", tt.key, tt.to, got, err, tt.want)
			}
		}
		_, err := o.drop(alive, "a/1")
		wantError(t, "Drop", err, outbox.ErrUnknownKey)
		want(t, "pending, as nothing was done,", o.pending(""), "C-scheduled")
		want(t, "dead, as nothing was done,", o.dead(""), "A-scheduled", "B-scheduled")

		time.Sleep(time.Hour)
		a := o.reader("a")
		a.items()
		got, err := o.replay("", dead[0], dead[0])
		must(t, err)
		if len(got) != 1 || got[0].Attempts != 0 || got[0].Error != "" || !got[0].PendingSince.Equal(time.Now()) ||
			string(got[0].Progress) != "p" || got[0].Batch != 3 {
			t.Errorf("Replay = %+v, want one that goes on from its progress", got)
		}
		if i := a.items(); len(i) != 1 || i[0].ID != "A-scheduled" || i[0].Attempts != 0 {
			t.Errorf("the reader hears %+v", i)
		}
		got, err = o.replay("b", dead[1])
		must(t, err)
		if len(got) != 1 || got[0].Route != "b" || got[0].Progress != nil || got[0].Batch != 0 {
			t.Errorf("Replay to b = %+v, want one that starts from the beginning", got)
		}
		want(t, "dead", o.dead(""))
		got, err = o.drop(alive, alive)
		must(t, err)
		want(t, "dropped", ids(got), "C-scheduled")
		r := o.history()[2].Deliveries[0]
		if r.State != outbox.StateDropped || r.Answer != "by somebody" {
			t.Errorf("the result is %+v, want that somebody dropped it", r)
		}
	})
}

// Who drops the end of an event leaves nothing behind that says it is still to come, or going on, unless every change is to
// be told.
func TestADroppedEndTakesWhatItWouldHaveReplaced(t *testing.T) {
	for late, left := range map[delivery.Late][]string{
		delivery.LateLatest: nil,
		delivery.LateSend:   {"E-started"},
	} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			o.setRoutes(outbox.Route{Name: "a", Late: late})
			o.add("E", "started", "a")
			o.add("E", "vanished", "a")
			want(t, "pending", o.pending("a"), "E-started", "E-vanished")
			_, err := o.drop(o.keys(outbox.Selection{State: outbox.StatePending})[1])
			must(t, err)
			want(t, fmt.Sprintf("pending with late: %s", late), o.pending("a"), left...)
		})
	}
}

// Who replayed a delivery stays with it, also after a restart: while it is pending, when it has failed, when it is a
// dead letter again, and with its result in the history.
func TestWhoReplayedADeliveryStaysOnRecord(t *testing.T) {
	for how, ends := range map[string]func(o *box){
		outbox.StateAccepted: func(o *box) { o.accept("a") },
		outbox.StateDead:     func(o *box) { o.reject("a") },
		outbox.StateDropped:  func(o *box) { _, _ = o.drop(o.keys(outbox.Selection{})...) },
		outbox.StateSuperseded: func(o *box) {
			a := o.reader("a")
			a.Report(delivery.Report{Now: time.Now(), Superseded: a.items()})
		},
	} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			check := func(state string) {
				t.Helper()
				o.restart()
				if r := o.history()[0].Deliveries[0]; r.State != state || r.ReplayedBy != "root" {
					t.Errorf("the history says %+v, want %s, replayed by root", r, state)
				}
				for _, d := range o.List(outbox.Selection{}) {
					equal(t, how+": who is listed to have replayed what is "+state, d.ReplayedBy, "root")
				}
			}
			o.routesAre("a")
			o.add("A", "scheduled", "a")
			o.reject("a")
			o.replayAll()
			check(outbox.StatePending)
			a := o.reader("a")
			a.Report(delivery.Report{Now: time.Now(), Failed: a.items(), Error: "no"})
			check(outbox.StatePending)
			ends(o)
			check(how)
		})
	}
}

// A dead letter is unreported until its owner says otherwise, also after a restart. One about no group never is, and
// none that became pending again.
func TestDeadLettersAreUnreportedUntilTheirOwnerReportsThem(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		check := func(when string, unreported ...string) {
			t.Helper()
			want(t, when, ids(o.unreported("a")), unreported...)
			equal(t, when+": all", o.Totals().Unreported, len(unreported))
			equal(t, when+": of the route", o.Stats()["a"].Unreported, len(unreported))
		}
		o.routesAre("a")
		for _, group := range []string{"A", "B", "C", ""} {
			o.add(group, "scheduled", "a")
		}
		o.reject("a")
		check("new", "A-scheduled", "B-scheduled", "C-scheduled")
		first := o.unreported("a")[0]
		must(t, o.Update(time.Now(), func(tx *outbox.Tx) {
			for _, d := range []outbox.Delivery{first, first, refTo("b", 1)} {
				tx.SetReported(d)
			}
		})())
		for _, when := range []string{"one is reported", "after a restart", "after another one"} {
			check(when, "B-scheduled", "C-scheduled")
			o.restart()
		}
		want(t, "dead", o.dead(""), "A-scheduled", "B-scheduled", "C-scheduled", "scheduled")
		_, err := o.replay("", o.unreported("a")[0].Key)
		must(t, err)
		check("one is replayed", "C-scheduled")
		_, err = o.drop(o.unreported("a")[0].Key)
		must(t, err)
		check("one is dropped")
	})
}

// Dead letters are bounded: the oldest is dropped, and the log says so.
func TestDeadLettersAreBounded(t *testing.T) {
	size := len(body("E0-scheduled"))
	for claim, bounds := range map[string]outbox.Bounds{"letters": {Dead: 5}, "bytes": {DeadBytes: 5 * size}} {
		inBubble(t, bounds, func(t *testing.T, o *box) {
			forgot := 0
			o.SetCallbacks(outbox.Callbacks{Forgot: func(_ string, n int) { forgot += n }})
			for i := range 8 {
				o.add(fmt.Sprint("E", i), "scheduled", "a")
				o.reject("a")
			}
			want(t, claim, o.dead("a"), "E3-scheduled", "E4-scheduled", "E5-scheduled", "E6-scheduled", "E7-scheduled")
			equal(t, claim+": lines in the log", o.log.Count("oldest dead letters dropped"), 3)
			equal(t, claim+": counted", forgot, 3)
		})
	}
}

// Of too many dead letters those go that have been dead for longest, however old their deliveries are: what has just
// become one stays, to be reported.
func TestTheLongestDeadLettersGoFirst(t *testing.T) {
	inBubble(t, outbox.Bounds{Dead: 2}, func(t *testing.T, o *box) {
		o.add("OLD", "scheduled", "b")
		for _, group := range []string{"A", "B"} {
			time.Sleep(time.Hour)
			o.add(group, "scheduled", "a")
			o.reject("a")
		}
		time.Sleep(time.Hour)
		o.reject("b")
		want(t, "dead", o.dead(""), "OLD-scheduled", "B-scheduled")
		want(t, "to be reported of b", ids(o.unreported("b")), "OLD-scheduled")
	})
}

// While the disk fails, new dead letters replace the oldest of those that are only in memory. Those on disk stay, and
// those that were deleted don't count.
func TestDeadLettersOnDiskAreKeptWhileTheDiskFails(t *testing.T) {
	inBubble(t, outbox.Bounds{InMemory: 3}, func(t *testing.T, o *box) {
		for _, group := range []string{"A", "B", "C", "D", "E", "F", "G"} {
			o.add(group, "scheduled", "a")
			o.reject("a")
		}
		_, err := o.drop(o.keys(outbox.Selection{})[2:]...)
		must(t, err)
		time.Sleep(time.Second)
		o.disk.fails("write", errFull)
		for _, group := range []string{"H", "I", "J", "K", "L"} {
			o.addInMemory(group, "scheduled", "a")
			o.reject("a")
		}
		want(t, "dead", o.dead("a"), "A-scheduled", "B-scheduled", "J-scheduled", "K-scheduled", "L-scheduled")
	})
}

// A destination that refuses every heartbeat keeps one of them as a dead letter, the last. They push out no other.
func TestRefusedHeartbeatsPushOutNoDeadLetter(t *testing.T) {
	inBubble(t, outbox.Bounds{Dead: 5}, func(t *testing.T, o *box) {
		o.add("A", "scheduled", "a")
		o.reject("a")
		var last outbox.Addition
		for range 20 {
			time.Sleep(time.Minute)
			last = o.heartbeat("a")
			o.reject("a")
		}
		want(t, "dead", o.dead("a"), "A-scheduled", "heartbeat")
		equal(t, "the heartbeat", o.List(outbox.Selection{})[1].Seq, last.Seq)
		synctest.Wait()
		equal(t, "CloudEvents kept", o.disk.count("events"), 2)
	})
}

// half is a sink with two recipients, of whom the second takes nothing while it is down.
type half struct {
	down   bool
	answer error
	first  int // how often the first got it
}

func (h *half) Deliver(_ context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	if string(batch[0].Progress) != "first" {
		h.first++
	}
	if h.down {
		return delivery.Answer{Progress: []byte("first")}, h.answer
	}
	return delivery.Answer{}, nil
}

// A dead letter that is replayed goes on from what its last attempt has reached.
func TestAReplayGoesOnFromTheLastAttempt(t *testing.T) {
	for reason, answer := range map[string]error{delivery.ReasonExpired: errIO, delivery.ReasonRejected: delivery.ErrRejected} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			o.routesAre("a")
			o.add("A", "scheduled", "a")
			time.Sleep(2 * time.Hour) // as when the VM was stopped
			sink := &half{down: true, answer: answer}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := delivery.NewWorker(delivery.Config{
				Route: "a", Sink: sink, Queue: o.Queue("a"), Terms: delivery.Terms{MaxAge: time.Hour},
			})
			go w.Run(ctx, nil, nil)
			time.Sleep(time.Second)
			dead := o.List(outbox.Selection{State: outbox.StateDead})
			if len(dead) != 1 || dead[0].Reason != reason || dead[0].Attempts != 1 {
				t.Fatalf("the dead letters are %+v, want one of one attempt", dead)
			}
			sink.down = false
			o.replayAll()
			time.Sleep(time.Second)
			want(t, reason+": left", ids(o.List(outbox.Selection{})))
			equal(t, reason+": the first recipient got it", sink.first, 1)
		})
	}
}
