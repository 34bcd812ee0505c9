package delivery_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
)

// A batch that made progress is repeated with the same members and with its progress, whatever arrives meanwhile, also
// after a restart; but where only the latest change is delivered, a newer one of a member's event takes its place, and
// everybody gets that: somebody who refuses the older one must not keep it from the others.
func TestBatchWithProgressIsRepeatedWithTheSameMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := newMemory(), &destination{}
		r := start(t, m, d, digest)
		d.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			return delivery.Answer{Progress: []byte("A has it")}, errors.New("B: 451 try again")
		})
		m.add(wave()...)
		pause(time.Second)
		want(t, "one batch", d.made()[:1], "E1-scheduled E2-scheduled E3-scheduled")

		m.add(change(4, "E2", "started", 0), change(5, "E4", "scheduled", 2*time.Hour))
		told := len(d.made())
		pause(time.Minute)
		for _, call := range d.made()[told:] {
			if call != "E1-scheduled E3-scheduled" && call != "E2-started" && call != "E4-scheduled" {
				t.Errorf("attempted %q, want the rest of the batch as it was", call)
			}
		}
		r.stop()
		m.restart()
		start(t, m, d, digest)
		before := len(d.made())
		d.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			if len(batch) == 2 && string(batch[0].Progress) != "A has it" {
				return delivery.Answer{}, fmt.Errorf("%w: the progress is %q", delivery.ErrRejected, batch[0].Progress)
			}
			return delivery.Answer{}, nil
		})
		pause(5 * time.Minute)
		calls := d.made()[before:]
		slices.Sort(calls)
		want(t, "after a restart", calls, "E1-scheduled E3-scheduled", "E2-started", "E4-scheduled")
		if len(m.dead) != 0 || len(m.pending) != 0 {
			t.Errorf("%d dead letters and %d pending are left, want none", len(m.dead), len(m.pending))
		}
	})
}

// What a sink left half delivered is taken over, after a reload, by one of another kind that takes one delivery at a
// time.
func TestHalfDeliveredBatchIsNoLargerThanItsSinkTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := newMemory(), &destination{}
		r := start(t, m, d, digest)
		d.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			return delivery.Answer{Progress: []byte("A has it")}, errors.New("B: 451 try again")
		})
		m.add(wave()...)
		pause(time.Second)
		r.stop()
		m.restart()
		for _, answer := range []error{errDown, nil} {
			d.say(fails(answer))
			before := len(d.made())
			r = start(t, m, d, delivery.Terms{Late: delivery.LateSend, Batch: 1})
			pause(time.Minute)
			for _, call := range d.made()[before:] {
				if strings.Contains(call, " ") {
					t.Fatalf("a sink that takes one delivery at a time got %q", call)
				}
			}
			r.stop()
			m.restart()
		}
		want(t, "accepted", m.ids(&m.accepted), "E1-scheduled", "E2-scheduled", "E3-scheduled")
	})
}

// A route that delivers every change, in order, combines nothing.
func TestDigestNeedsLateLatest(t *testing.T) {
	for _, late := range []delivery.Late{"", delivery.LateSend, delivery.LateDrop} {
		bubble(t, delivery.Terms{Late: late, DigestAbove: digest.DigestAbove}, func(t *testing.T, r *route) {
			r.add(wave()...)
			pause(time.Second)
			want(t, string(late), r.made(), "E1-scheduled", "E2-scheduled", "E3-scheduled")
		})
	}
}

// A rejected batch is split if it made no progress. One with progress is not, because some recipients have it already.
func TestRejectedBatchIsSplitUnlessItMadeProgress(t *testing.T) {
	reject := func(batch []delivery.Delivery) (delivery.Answer, error) {
		for _, d := range batch {
			if d.Event.ID() == "E2-scheduled" {
				return delivery.Answer{}, fmt.Errorf("%w: 400", delivery.ErrRejected)
			}
		}
		return delivery.Answer{}, nil
	}
	for _, progress := range []bool{false, true} {
		bubble(t, digest, func(t *testing.T, r *route) {
			r.say(reject)
			if progress {
				first := true
				r.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
					if first {
						first = false
						return delivery.Answer{Progress: []byte("A")}, errDown
					}
					return reject(batch)
				})
			}
			r.add(wave()...)
			pause(time.Minute)
			if progress {
				want(t, "calls with progress", r.made(), "E1-scheduled E2-scheduled E3-scheduled", "E1-scheduled E2-scheduled E3-scheduled")
				want(t, "dead with progress", r.ids(&r.dead), "E1-scheduled", "E2-scheduled", "E3-scheduled")
				return
			}
			want(t, "calls", r.made(), "E1-scheduled E2-scheduled E3-scheduled", "E1-scheduled", "E2-scheduled", "E3-scheduled")
			want(t, "dead", r.ids(&r.dead), "E2-scheduled")
			want(t, "accepted", r.ids(&r.accepted), "E1-scheduled", "E3-scheduled")
			if n := r.last()[0].Attempt; n != 2 {
				t.Errorf("after the batch it is attempt %d, want 2", n)
			}
		})
	}
}

// Messages about the bridge that become a partly delivered batch wait as long as the failure before asks for.
func TestPartlyDeliveredMessagesKeepTheirWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWith(t, newMemory(), &destination{}, delivery.Config{Terms: digest, Random: func() float64 { return 1 }})
		var at []time.Duration
		began := time.Now()
		r.say(func([]delivery.Delivery) (a delivery.Answer, err error) {
			if at = append(at, time.Since(began)); len(at) == 5 {
				a.Progress = []byte("one of three")
			}
			return a, errDown
		})
		r.mute(&delivery.Mute{Since: began, Ended: began, LastSeq: 9})
		for n := range uint64(3) {
			m := &delivery.Message{Seq: n + 1, ID: fmt.Sprint("trouble-", n)}
			r.add(delivery.Item{Message: m, PendingSince: began})
		}
		pause(time.Minute)
		if len(at) < 6 || at[5]-at[4] < at[4]-at[3] {
			t.Errorf("attempts were made after %v, want no shorter wait after the progress", at)
		}
	})
}

// A receipt is returned with the next delivery of its group, whichever answer it was in, and with no other group.
func TestReceiptsBelongToTheirGroup(t *testing.T) {
	for _, err := range []error{nil, errDown, fmt.Errorf("%w: 422", delivery.ErrRejected)} {
		bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
			r.say(func([]delivery.Delivery) (delivery.Answer, error) {
				return delivery.Answer{Receipt: []byte("thread 1")}, err
			})
			r.add(change(1, "E1", "scheduled", time.Hour))
			pause(time.Millisecond)
			r.say(nil)
			r.add(change(2, "E2", "scheduled", time.Hour))
			pause(time.Minute)
			if got := r.receipt("E2"); got != nil {
				t.Errorf("after %v E2 has the receipt %q", err, got)
			}
			r.add(change(3, "E1", "started", 0))
			pause(time.Minute)
			if got := string(r.last()[0].Receipt); got != "thread 1" {
				t.Errorf("after %v the receipt is %q", err, got)
			}
		})
	}
}

// Members of a batch that have come a different way, because they were delivered one by one for a while, are not in one
// batch again: its progress would be that of only some of them.
func TestMembersWithDifferentProgressAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, d := newMemory(), &destination{}
		terms := delivery.Terms{Late: delivery.LateLatest, Batch: 1, DigestAbove: 1}
		single := terms
		single.DigestAbove = 0
		d.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			switch string(batch[0].Progress) + batch[0].Event.ID() {
			case "A-scheduled":
				return delivery.Answer{Progress: []byte("one ")}, errDown
			case "one A-scheduled":
				return delivery.Answer{Progress: []byte("one, two ")}, errDown
			}
			return delivery.Answer{}, errDown
		})
		m.add(change(1, "A", "scheduled", time.Hour), change(2, "B", "scheduled", 2*time.Hour))
		for n, terms := range []delivery.Terms{terms, single, terms} { // the settings change twice
			if n == 2 {
				d.say(nil)
			}
			r := start(t, m, d, terms)
			pause(0)
			r.stop()
			m.restart()
		}
		want(t, "attempts", d.made(), "A-scheduled B-scheduled", "A-scheduled", "B-scheduled", "A-scheduled", "B-scheduled")
		if got := d.last()[0]; string(got.Progress) != "one " {
			t.Errorf("B is delivered with the progress %q, want its own", got.Progress)
		}
	})
}
