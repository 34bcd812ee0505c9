package delivery_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/delivery"
)

var errInput = errors.New("input/output error")

// What was not delivered within the time of the terms falls back, once, even while an attempt hangs. Heartbeats don't,
// nor what is itself a fallback, nor what is about the fallback.
func TestUndeliveredItemsFallBackOnce(t *testing.T) {
	for _, hang := range []bool{false, true} {
		terms := delivery.Terms{Fallback: delivery.Fallback{Sink: "b", After: 10 * time.Minute}}
		bubble(t, terms, func(t *testing.T, r *route) {
			r.say(fails(errDown))
			r.hang = hang
			beat := delivery.Item{Message: &delivery.Message{Seq: 2, ID: "beat", Transient: true}}
			foreign := change(3, "E2", "scheduled", time.Hour)
			foreign.FallbackFor = &delivery.FallbackFor{Sink: "c"}
			about := delivery.Item{Message: &delivery.Message{Seq: 4, ID: "b is blocked", About: "b"}}
			r.add(change(1, "E1", "scheduled", time.Hour), beat, foreign, about)
			pause(10*time.Minute - time.Second)
			want(t, "before", r.ids(&r.fellBack))
			pause(time.Second)
			want(t, "then", r.ids(&r.fellBack), "E1-scheduled")
			pause(time.Hour)
			want(t, "later", r.ids(&r.fellBack), "E1-scheduled")
		})
	}
}

// A CloudEvent that can never be read again becomes a dead letter. The others of its batch don't, and one that can't be
// read at the moment is tried again.
func TestOnlyLostItemsBecomeDeadLetters(t *testing.T) {
	bubble(t, delivery.Terms{Batch: 10}, func(t *testing.T, r *route) {
		r.misread(0, errInput)
		r.misread(2, delivery.ErrLost)
		r.add(announced(3)...)
		pause(time.Minute)
		want(t, "dead", r.ids(&r.dead), "E2-scheduled")
		want(t, "calls while nothing can be read", r.made())
		r.misread(0, nil)
		pause(10 * time.Minute) // longer than any backoff
		want(t, "accepted", sorted(r.ids(&r.accepted)), "E1-scheduled", "E3-scheduled")
	})
}

// A delivery that could not be read was not attempted: it does not expire for that, and keeps its number of attempts.
func TestUnreadDeliveryIsNoAttempt(t *testing.T) {
	bubble(t, delivery.Terms{MaxAge: time.Hour}, func(t *testing.T, r *route) {
		r.misread(0, errInput)
		old := change(1, "E1", "scheduled", 24*time.Hour)
		old.PendingSince = time.Now().Add(-2 * time.Hour)
		r.add(old)
		pause(time.Minute)
		want(t, "calls", r.made())
		want(t, "dead", r.ids(&r.dead))
		r.misread(0, nil)
		pause(10 * time.Minute)
		want(t, "calls once it can be read", r.made(), "E1-scheduled")
		if n := r.last()[0].Attempt; n != 1 {
			t.Errorf("it is attempt %d, want the first", n)
		}
	})
}

// One delivery that can't be read for now delays no other of its batch or digest for long, and is delivered later.
func TestAnUnreadDeliveryDelaysNoOther(t *testing.T) {
	for claim, terms := range map[string]delivery.Terms{"in a batch": {Batch: 10}, "in a digest": digest} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, terms, func(t *testing.T, r *route) {
				r.misread(2, errInput)
				r.add(announced(3)...)
				r.add(change(4, "E4", "scheduled", time.Minute))
				pause(2 * time.Minute)
				want(t, "accepted while one can't be read", sorted(r.ids(&r.accepted)),
					"E1-scheduled", "E3-scheduled", "E4-scheduled")
				r.misread(2, nil)
				pause(10 * time.Minute) // longer than any backoff
				want(t, "accepted at last", r.ids(&r.accepted)[3:], "E2-scheduled")
			})
		})
	}
}

// However many deliveries can't be read, the destination is not to blame: what can be read goes to it at once.
func TestUnreadDeliveriesDoNotBlameTheDestination(t *testing.T) {
	play(t, delivery.Config{Random: longest}, func(t *testing.T, r *route) {
		r.misread(0, errInput)
		r.add(announced(20)...)
		pause(100 * time.Millisecond)
		r.misread(0, nil)
		r.add(change(21, "E21", "scheduled", 24*time.Hour))
		pause(100 * time.Millisecond)
		want(t, "the first attempt", r.made()[:1], "E21-scheduled")
	})
}

// What a sink puts off delays nothing else, is no failure, and is delivered at its time, in order.
func TestWhatASinkPutsOffDelaysNothingElse(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		until := time.Now().Add(3 * time.Second)
		r.say(first(1, fails(&delivery.NotYet{Until: until}), takes(0)))
		r.add(change(1, "E1", "scheduled", 10*time.Minute), change(2, "E2", "scheduled", 11*time.Minute))
		pause(100 * time.Millisecond)
		want(t, "trouble", r.trouble())
		want(t, "attempts before its time", r.made(), "E1-scheduled", "E2-scheduled")
		r.add(change(3, "E1", "started", 0))
		pause(time.Minute)
		want(t, "accepted", r.ids(&r.accepted), "E2-scheduled", "E1-scheduled", "E1-started")
	})
}

// While the destination is down, what it puts off is not asked for again and again.
func TestWhatASinkPutsOffIsWaitedForWhileItIsDown(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(fails(errDown))
		r.add(announced(10)...)
		pause(time.Minute)
		r.forget()
		until := time.Now().Add(3 * time.Second)
		r.say(func([]delivery.Delivery) (delivery.Answer, error) {
			if time.Now().Before(until) {
				return delivery.Answer{}, &delivery.NotYet{Until: until}
			}
			return delivery.Answer{}, nil
		})
		r.add(change(11, "E11", "scheduled", 10*time.Minute), change(12, "E12", "scheduled", 10*time.Minute))
		pause(time.Minute)
		if n := len(r.made()); n > 20 {
			t.Errorf("there were %d attempts, want that it is waited for", n)
		}
		if n := len(r.ids(&r.accepted)); n != 12 {
			t.Errorf("%d are accepted, want all 12", n)
		}
	})
}

// A worker never sleeps for more than a minute while something is pending: the clock may be stepped to its time.
func TestWorkerLooksAtTheClockEveryMinute(t *testing.T) {
	bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
		r.say(fails(&delivery.RetryAfter{After: time.Hour, Err: errDown}))
		r.add(announced(1)...)
		pause(time.Second)
		before := r.looks()
		pause(50 * time.Minute)
		if n := r.looks() - before; n < 49 || n > 51 {
			t.Errorf("it looked %d times in 50 minutes, want once a minute", n)
		}
	})
}

// A route with Durable has every result on disk before the next attempt, not only acceptances: progress and rejections
// would be repeated after a crash.
func TestDurableRouteWritesEachResultFirst(t *testing.T) {
	for _, durable := range []bool{true, false} {
		for _, err := range []error{nil, errDown, fmt.Errorf("%w: 422", delivery.ErrRejected), delivery.ErrBlocked} {
			bubble(t, delivery.Terms{Durable: durable}, func(t *testing.T, r *route) {
				r.say(fails(err))
				r.add(announced(1)...)
				pause(0)
				if got := r.lastReport(); got.Durable != durable {
					t.Errorf("after %v durable is %v, want %v", err, got.Durable, durable)
				}
			})
		}
	}
}

// The caller's Random decides the jitter: each wait is a part of the backoff, which doubles from a second.
func TestRandomIsTheSourceOfJitter(t *testing.T) {
	play(t, delivery.Config{Random: func() float64 { return 0.5 }}, func(t *testing.T, r *route) {
		r.say(fails(errDown))
		r.add(announced(1)...)
		pause(1500*time.Millisecond - 1)
		want(t, "after half a second and almost another", r.made(), "E1-scheduled", "E1-scheduled")
		pause(1)
		want(t, "then", r.made()[2:], "E1-scheduled")
	})
}

// A change of a secret file, also that it comes or goes, is noticed within two seconds, and what waits is attempted at
// once. While the file stays as it is, nothing is.
func TestChangedSecretIsTriedAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(secret string) func() error {
		return func() error { return os.WriteFile(file, []byte(secret), 0o600) }
	}
	var log strings.Builder
	c := delivery.Config{Secrets: []string{file}, Log: slog.New(slog.NewTextHandler(&log, nil))}
	play(t, c, func(t *testing.T, r *route) {
		r.say(fails(&delivery.RetryAfter{After: time.Hour, Err: errDown}))
		r.add(announced(1)...)
		pause(time.Minute)
		for _, change := range []func() error{write("old"), write("new secret"), func() error { return os.Remove(file) }} {
			r.forget()
			if err := change(); err != nil {
				t.Fatal(err)
			}
			pause(2 * time.Second)
			want(t, "attempts within two seconds", r.made(), "E1-scheduled")
			pause(time.Minute)
			want(t, "attempts within a minute", r.made(), "E1-scheduled")
		}
	})
	if n := strings.Count(log.String(), "secret file changed"); n != 3 {
		t.Errorf("the log says %d times that a file changed, want 3:\n%s", n, &log)
	}
}

// One event that is still refused after another was accepted waits alone: it doesn't block the route, whether nothing
// else is pending or others come and are accepted, and their acceptance doesn't bring its next attempt forward.
func TestOneRefusedEventDoesNotBlockTheRoute(t *testing.T) {
	troubles := 0
	trouble := func(why error) {
		if why != nil {
			troubles++
		}
	}
	play(t, delivery.Config{Random: longest, Trouble: trouble}, func(t *testing.T, r *route) {
		r.say(failsOf("E1-scheduled", fmt.Errorf("%w: 403", delivery.ErrBlocked)))
		r.add(announced(1)...)
		pause(time.Millisecond)
		for n := range uint64(60) {
			r.add(change(n+2, fmt.Sprint("OTHER-", n), "scheduled", 24*time.Hour))
			pause(time.Second)
			if got := len(r.ids(&r.accepted)); got != int(n+1) {
				t.Fatalf("%d others are accepted, want all %d", got, n+1)
			}
		}
		pause(time.Hour)
		want(t, "trouble", r.trouble(), "retrying", "blocked: 403")
		if tries := len(r.made()) - 60; troubles > 0 || tries < 15 || tries > 25 {
			t.Errorf("it was tried %d times, and was trouble %d times; want its own waits and none", tries, troubles)
		}
	})
}

// With LateLatest the newest change of an event takes the place of the older ones, also in a digest, and lists those
// of its event. Every message about the bridge is delivered.
func TestLatestListsTheMissedChanges(t *testing.T) {
	bubble(t, digest, func(t *testing.T, r *route) {
		r.add(announced(3)...)
		r.add(change(4, "E2", "updated", 24*time.Hour), change(5, "E1", "started", 0), change(6, "E2", "started", 0))
		r.add(change(7, "E3", "started", 0), change(8, "", "first", 0), change(9, "", "second", 0))
		pause(time.Minute)
		want(t, "attempts", r.made(), "E1-started E2-started E3-started", "-first", "-second")
		var missed []string
		for _, d := range slices.Concat(r.calls...) {
			for _, m := range d.Missed {
				missed = append(missed, d.Event.ID()+": "+m.Change)
			}
		}
		want(t, "missed", missed, "E1-started: scheduled", "E2-started: scheduled", "E2-started: updated",
			"E3-started: scheduled")
	})
}

// What was attempted and is older than max_age becomes a dead letter, with the older changes that it replaces. What is
// exactly that old is tried again.
func TestExpiredItemsTakeTheOlderChangesWithThem(t *testing.T) {
	terms := delivery.Terms{Late: delivery.LateLatest, MaxAge: 10 * time.Second, Timeout: 10 * time.Second}
	bubble(t, terms, func(t *testing.T, r *route) {
		r.hang = true
		r.add(change(1, "E1", "scheduled", 24*time.Hour), change(2, "E1", "updated", 24*time.Hour))
		pause(10*time.Second + time.Millisecond)
		want(t, "just as old", r.ids(&r.dead))
		pause(time.Minute)
		want(t, "older", sorted(r.ids(&r.dead)), "E1-scheduled", "E1-updated")
		want(t, "attempts", r.made(), "E1-updated", "E1-updated")
		if got := r.lastReport(); got.Reason != delivery.ReasonExpired {
			t.Errorf("the reason is %q", got.Reason)
		}
	})
}

// What waits and is removed is not attempted again, wherever it is in the queue, and the worker continues.
func TestRemovedItemIsNotAttemptedAgain(t *testing.T) {
	for _, late := range []delivery.Late{delivery.LateSend, delivery.LateLatest} {
		bubble(t, delivery.Terms{Late: late, Batch: 10}, func(t *testing.T, r *route) {
			r.say(fails(errDown))
			r.add(change(1, "E1", "scheduled", time.Hour), change(2, "E1", "updated", time.Hour))
			r.add(change(3, "E1", "started", 0), change(4, "E2", "scheduled", time.Hour))
			pause(30 * time.Second)
			r.remove(1, 3, 4)
			r.forget()
			r.say(nil)
			pause(10 * time.Minute)
			want(t, string(late), r.made(), "E1-updated")
		})
	}
}

// With LateDrop, older changes are dropped, and a scheduled one whose time has passed, even while the route is
// blocked. An end is never too late, nor is what is about the bridge.
func TestLateItemsAreDropped(t *testing.T) {
	bubble(t, delivery.Terms{Late: delivery.LateDrop}, func(t *testing.T, r *route) {
		r.say(fails(fmt.Errorf("%w: 401", delivery.ErrBlocked)))
		r.add(change(1, "E1", "scheduled", 3*time.Hour), change(2, "E2", "scheduled", 2*time.Hour))
		r.add(change(3, "E3", "vanished", time.Minute), change(4, "", "one", 0), change(5, "", "another", 0))
		pause(time.Hour)
		want(t, "dead while nothing is late", r.ids(&r.dead))
		r.add(change(6, "E1", "updated", 3*time.Hour))
		pause(time.Millisecond)
		want(t, "overtaken", r.ids(&r.dead), "E1-scheduled")
		pause(time.Hour)
		want(t, "too late", r.ids(&r.dead), "E1-scheduled", "E2-scheduled")
		if got := r.lastReport(); got.Reason != delivery.ReasonLate {
			t.Errorf("the reason is %q", got.Reason)
		}
		r.say(nil)
		pause(time.Hour)
		want(t, "accepted", sorted(r.ids(&r.accepted)), "-another", "-one", "E1-updated", "E3-vanished")
	})
}

// The end of a replaced event is delivered before the event that replaced it, also by a sink that takes one delivery at
// a time, and after an outage. It waits no longer than its replacement.
func TestEndOfAReplacedEventComesFirst(t *testing.T) {
	both := func(r *route) {
		gone := change(2, "old", "vanished", time.Hour)
		gone.Replaced = true
		r.add(gone, delivery.Item{Message: &delivery.Message{Seq: 3, Group: "new", Change: "started", ID: "new-started"}})
	}
	for _, tt := range []struct {
		claim  string
		before error // of attempts about another event
		then   func(r *route)
		want   []string
	}{
		{"both pending", nil, both, []string{"old-vanished", "new-started"}},
		{"behind a change of its own", nil, func(r *route) {
			r.add(change(1, "old", "scheduled", time.Hour))
			both(r)
		}, []string{"old-scheduled", "old-vanished", "new-started"}},
		{"at a sink that asked for patience", &delivery.RetryAfter{After: time.Hour, Err: errDown}, both,
			[]string{"old-vanished", "new-started", "other-scheduled"}},
		{"at a sink that is blocked", delivery.ErrBlocked, both,
			[]string{"old-vanished", "new-started", "other-scheduled"}},
		{"what is only over waits", nil, func(r *route) {
			r.add(change(1, "old", "vanished", time.Hour), change(2, "new", "started", 0))
		}, []string{"new-started", "old-vanished"}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, delivery.Terms{}, func(t *testing.T, r *route) {
				if tt.before != nil {
					r.say(fails(tt.before))
					r.add(change(1, "other", "scheduled", 24*time.Hour))
					pause(10 * time.Minute)
				}
				r.forget()
				r.say(nil)
				tt.then(r)
				pause(time.Hour)
				want(t, "order", r.made(), tt.want...)
			})
		})
	}
}

// What was muted for longer than max_age is still attempted, and its age counts from the end of the mute. The sink gets
// the mute. With LateDrop, what became late meanwhile is delivered too, but for older changes, which are superseded and
// don't become dead letters. What becomes late after the end does.
func TestMutedItemsAreDeliveredAfterTheMute(t *testing.T) {
	bubble(t, delivery.Terms{MaxAge: time.Hour, Late: delivery.LateDrop}, func(t *testing.T, r *route) {
		r.say(fails(errDown))
		mute := delivery.Mute{Reason: "repairs", Since: time.Now()}
		r.mute(&mute)
		r.add(change(1, "A", "scheduled", time.Hour), change(2, "A", "started", 0))
		r.add(change(3, "B", "scheduled", time.Hour), change(4, "C", "scheduled", 2*time.Hour+10*time.Minute))
		pause(2 * time.Hour)
		want(t, "attempts while they are muted", r.made())
		want(t, "dead while they are muted", r.ids(&r.dead))
		over := mute
		over.Ended, over.LastSeq = time.Now(), 4
		r.mute(&over)
		pause(0)
		want(t, "attempts at the end", r.made(), "A-started", "B-scheduled", "C-scheduled")
		want(t, "superseded", r.ids(&r.superseded), "A-scheduled")
		if got := r.last()[0].Mute; got != &over {
			t.Errorf("the sink is told that they waited for %+v", got)
		}
		pause(30 * time.Minute)
		want(t, "dead half an hour after the end", r.ids(&r.dead), "C-scheduled")
		pause(time.Hour)
		want(t, "dead after max_age", sorted(r.ids(&r.dead)), "A-started", "B-scheduled", "C-scheduled")
	})
}
