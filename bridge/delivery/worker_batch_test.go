package delivery_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"forewarn/bridge/delivery"
)

// A batch that made progress is repeated with the same members and with its progress, whatever arrives meanwhile, also
// after a restart; but where only the latest change is delivered, a newer one of a member's event takes its place, and
// everybody gets that: somebody who refuses the older one must not keep it from the others.
func TestBatchWithProgressIsRepeatedWithTheSameMembers(t *testing.T) {
	bubble(t, digest, func(t *testing.T, r *route) {
		r.say(progresses("A has it"))
		r.add(announced(3)...)
		pause(time.Second)
		want(t, "one batch", r.made()[:1], "E1-scheduled E2-scheduled E3-scheduled")

		r.add(change(4, "E2", "started", 0), change(5, "E4", "scheduled", 2*time.Hour))
		r.forget()
		pause(time.Minute)
		want(t, "repeated are", slices.Compact(sorted(r.made())),
			"E1-scheduled E3-scheduled", "E2-started", "E4-scheduled")

		r.restart(t, digest)
		r.forget()
		r.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			if len(batch) == 2 && string(batch[0].Progress) != "A has it" {
				return delivery.Answer{}, fmt.Errorf("%w: the progress is %q", delivery.ErrRejected, batch[0].Progress)
			}
			return delivery.Answer{}, nil
		})
		pause(5 * time.Minute)
		want(t, "after a restart", sorted(r.made()), "E1-scheduled E3-scheduled", "E2-started", "E4-scheduled")
		want(t, "dead", r.ids(&r.dead))
	})
}

// What a sink left half delivered is taken over, after a reload, by one of another kind that takes one delivery at a
// time.
func TestHalfDeliveredBatchIsNoLargerThanItsSinkTakes(t *testing.T) {
	bubble(t, digest, func(t *testing.T, r *route) {
		r.say(progresses("A has it"))
		r.add(announced(3)...)
		pause(time.Second)
		r.forget()
		for _, err := range []error{errDown, nil} {
			r.say(fails(err))
			r.restart(t, delivery.Terms{Batch: 1})
			pause(time.Minute)
		}
		want(t, "attempts", slices.Compact(sorted(r.made())), "E1-scheduled", "E2-scheduled", "E3-scheduled")
		want(t, "accepted", sorted(r.ids(&r.accepted)), "E1-scheduled", "E2-scheduled", "E3-scheduled")
	})
}

// Members of a batch that have come a different way, because they were delivered one by one for a while, are not in one
// batch again: its progress would be that of only some of them.
func TestMembersWithDifferentProgressAreApart(t *testing.T) {
	both := delivery.Terms{Late: delivery.LateLatest, DigestAbove: 1}
	bubble(t, both, func(t *testing.T, r *route) {
		r.say(progresses("one"))
		r.add(change(1, "A", "scheduled", time.Hour), change(2, "B", "scheduled", 2*time.Hour))
		pause(0)
		r.say(first(1, progresses("one, two"), fails(errDown)))
		r.restart(t, delivery.Terms{Late: delivery.LateLatest})
		pause(0)
		r.say(nil)
		r.restart(t, both)
		pause(0)
		want(t, "attempts", r.made(),
			"A-scheduled B-scheduled", "A-scheduled", "B-scheduled", "A-scheduled", "B-scheduled")
		if got := r.last()[0]; string(got.Progress) != "one" {
			t.Errorf("B is delivered with the progress %q, want its own", got.Progress)
		}
	})
}

// A route that delivers every change, in order, combines nothing.
func TestDigestNeedsLateLatest(t *testing.T) {
	for _, late := range []delivery.Late{"", delivery.LateSend, delivery.LateDrop} {
		bubble(t, delivery.Terms{Late: late, DigestAbove: digest.DigestAbove}, func(t *testing.T, r *route) {
			r.add(announced(3)...)
			pause(time.Second)
			want(t, string(late), r.made(), "E1-scheduled", "E2-scheduled", "E3-scheduled")
		})
	}
}

// A rejected batch is split. The attempts of its members count on.
func TestRejectedBatchIsSplit(t *testing.T) {
	bubble(t, digest, func(t *testing.T, r *route) {
		r.say(failsOf("E2-scheduled", fmt.Errorf("%w: 400", delivery.ErrRejected)))
		r.add(announced(3)...)
		pause(time.Minute)
		want(t, "attempts", r.made(),
			"E1-scheduled E2-scheduled E3-scheduled", "E1-scheduled", "E2-scheduled", "E3-scheduled")
		want(t, "dead", r.ids(&r.dead), "E2-scheduled")
		want(t, "accepted", r.ids(&r.accepted), "E1-scheduled", "E3-scheduled")
		if n := r.last()[0].Attempt; n != 2 {
			t.Errorf("after the batch it is attempt %d, want 2", n)
		}
	})
}

// A rejected batch that made progress is not split, because some recipients have it already.
func TestRejectedBatchWithProgressIsNotSplit(t *testing.T) {
	bubble(t, digest, func(t *testing.T, r *route) {
		r.say(first(1, progresses("A"), fails(fmt.Errorf("%w: 400", delivery.ErrRejected))))
		r.add(announced(3)...)
		pause(time.Minute)
		const batch = "E1-scheduled E2-scheduled E3-scheduled"
		want(t, "attempts", r.made(), batch, batch)
		want(t, "dead", r.ids(&r.dead), "E1-scheduled", "E2-scheduled", "E3-scheduled")
	})
}

// Messages about the bridge that become a partly delivered batch wait as long as the failure before asks for.
func TestPartlyDeliveredMessagesKeepTheirWait(t *testing.T) {
	play(t, delivery.Config{Terms: digest, Random: longest}, func(t *testing.T, r *route) {
		var at []time.Duration
		began := time.Now()
		answer := first(4, fails(errDown), progresses("one of three"))
		r.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
			at = append(at, time.Since(began))
			return answer(batch)
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
			pause(time.Minute)
			for n, receipt := range map[string]string{"E2": "", "E1": "thread 1"} {
				r.add(change(uint64(len(r.made())+1), n, "started", 0))
				pause(time.Minute)
				if got := string(r.last()[0].Receipt); got != receipt {
					t.Errorf("after %v, %s has the receipt %q, want %q", err, n, got, receipt)
				}
			}
		})
	}
}
