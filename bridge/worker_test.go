package bridge_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// A sink that refuses for 20 seconds gets everything once it is back, in order.
func TestASinkThatIsBackGetsEverything(t *testing.T) {
	for _, trouble := range []error{errSinkDown, errHang, errRefused} {
		bubble(t, func(t *testing.T, s *stage) {
			e, other := answering(trouble), &recorder{}
			s.up(e.all("a"), other.all("b"))
			s.reboot(idA)
			pause(10 * time.Second)
			s.azure.Start(idA)
			pause(10 * time.Second)
			s.azure.End(idA)
			e.say(nil)
			pause(2 * time.Minute)
			wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started", idA+"-vanished")
			wantIDs(t, other.ids(), idA+"-scheduled", idA+"-started", idA+"-vanished")
			for _, h := range other.accepted() {
				wantWithin(t, "the delay at the other sink", h.at.Sub(h.Event.Time()), 0, time.Second)
			}
			s.wantLogged(fmt.Sprintf(`msg="sink recovered" sink=a after=%d`, len(e.tried())-len(e.accepted())))
			s.wantLoggedTimes(1, `level=WARN msg="delivery failed`)
		})
	}
}

// What is due in less than 15 minutes is tried at once, however deep the sink is in its waits, or blocked.
func TestUrgencyBeatsTheSchedule(t *testing.T) {
	for _, trouble := range []error{errSinkDown, errRefused} {
		bubble(t, func(t *testing.T, s *stage) {
			e := answering(trouble)
			s.up(e.all("a"))
			s.redeploy(idA, 72*time.Hour)
			pause(20 * time.Minute)
			before := len(e.tried())
			s.azure.Schedule(imdstest.Event{ID: idB, Type: "Preempt", NotBefore: time.Now().Add(15 * time.Second)})
			came := time.Now()
			pause(2 * time.Second)
			tried := e.tried()[before:]
			at := slices.IndexFunc(tried, func(d heard) bool { return d.Event.ID() == idB+"-scheduled" })
			// The other's next try may fall into the moment before the poll that finds the eviction.
			if at < 0 || at > 1 || tried[at].at.Sub(came) > time.Second {
				t.Errorf("with %v, tried within 2 s: %s; want the eviction at once", trouble, idsOf(tried))
			}
		})
	}
}

// Urgent deliveries to a sink that waits come at most every five seconds, and never before a Retry-After ends.
func TestUrgencyHasItsLimits(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := answering(&delivery.RetryAfter{After: 30 * time.Second, Err: errors.New("503")})
		s.up(e.all("a"))
		s.reboot(idA)
		pause(2 * time.Second)
		first := e.tried()[0].at
		s.reboot(idB)
		pause(20 * time.Second)
		wantEqual(t, "attempts before the Retry-After ended", len(e.tried()), 1)
		e.say(nil)
		pause(20 * time.Second)
		wantIDs(t, e.ids(), idB+"-scheduled", idA+"-scheduled") // what is new, then what failed
		wantWithin(t, "came back after", e.accepted()[0].at.Sub(first), 30*time.Second, 32*time.Second)
	})
	bubble(t, func(t *testing.T, s *stage) {
		e := answering(errRefused)
		s.up(e.all("a"))
		s.reboot(idA)
		pause(2 * time.Minute) // blocked by now
		before := len(e.tried())
		for i := range 10 {
			s.azure.Schedule(imdstest.Event{ID: fmt.Sprintf("EVENT-%d", i), Type: "Preempt"})
			pause(time.Second)
		}
		wantWithin(t, "attempts in 10 s of urgent deliveries", len(e.tried())-before, 2, 4)
	})
}

// Three blocked answers over thirty seconds block a sink: it is probed once a minute, the events in turn; the first
// acceptance ends that, and an event that is still refused waits alone.
func TestABlockedSinkIsProbedOnceAMinute(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		e := answering(errRefused)
		b := s.up(e.all("a"))
		s.redeploy(idA, 72*time.Hour)
		s.redeploy(idB, 72*time.Hour)
		pause(10 * time.Minute)
		wantEqual(t, "the sink", b.sink("a").State, bridge.SinkIsBlocked)
		wantEqual(t, "pending", b.sink("a").Pending, 2)
		wantEqual(t, "the error", b.sink("a").LastError, errRefused.Error())
		before := len(e.tried())
		pause(10 * time.Minute)
		probes := idsOf(e.tried()[before:])
		wantWithin(t, "probes in 10 minutes", len(probes), 9, 11)
		for i := 1; i < len(probes); i++ {
			if probes[i] == probes[i-1] {
				t.Errorf("probes %d and %d are both of %s; want the events in turn", i-1, i, probes[i])
			}
		}
		e.say(func(d delivery.Delivery) error {
			if d.Event.Subject() == idA {
				return errRefused
			}
			return nil
		})
		pause(3 * time.Minute)
		wantIDs(t, e.ids(), idB+"-scheduled")
		s.azure.Start(idB)
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idB+"-scheduled", idB+"-started") // nothing waits for the one that is refused
		e.say(nil)
		pause(6 * time.Minute)
		wantIDs(t, e.ids(), idB+"-scheduled", idB+"-started", idA+"-scheduled")
	})
}

// Of two blocked answers within a second nobody concludes that a sink is blocked.
func TestASinkIsNotBlockedBeforeHalfAMinute(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := answering(errRefused)
		b := s.up(e.all("a"))
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", NotBefore: time.Now().Add(time.Hour)})
		pause(20 * time.Second)
		wantEqual(t, "the sink after 20 s", b.sink("a").State, bridge.SinkRetrying)
	})
}

// What a destination refuses for good is a dead letter, and what follows is delivered.
func TestWhatIsRejectedIsKept(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{answer: func(d delivery.Delivery) error {
			if strings.HasSuffix(d.Event.ID(), "-scheduled") {
				return fmt.Errorf("%w: 422 no such field", delivery.ErrRejected)
			}
			return nil
		}}
		b := s.up(e.all("a").With(func(t *bridge.Terms) { t.Batch = 10 }))
		s.reboot(idA)
		pause(2 * time.Second)
		wantEqual(t, "the sink", b.sink("a").State, bridge.SinkOK)
		wantIn(t, "why it gave up the last", b.sink("a").LastError, "422")
		s.azure.Start(idA)
		pause(2 * time.Second)
		wantEqual(t, "the last error, when it accepts again", b.sink("a").LastError, "")
		wantIDs(t, e.ids(), idA+"-started")
		b.wantDead(delivery.ReasonRejected, idA+"-scheduled")
		dead := b.deadLetters()[0]
		wantIn(t, "the error", dead.Error, "422")
		wantEqual(t, "attempts", dead.Attempts, 1)
	})
}

// A batch that is rejected is tried one by one, so that only what is to blame is given up.
func TestARejectedBatchIsTakenApart(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := answering(errSinkDown)
		b := s.up(e.all("a").With(func(t *bridge.Terms) { t.Batch = 10 }))
		for _, id := range []string{idA, "BAD", idB} {
			s.reboot(id)
		}
		pause(2 * time.Second)
		e.say(func(d delivery.Delivery) error {
			if d.Event.Subject() == "BAD" {
				return delivery.ErrRejected
			}
			return nil
		})
		pause(time.Minute)
		accepted := e.ids()
		slices.Sort(accepted)
		wantIDs(t, accepted, idA+"-scheduled", idB+"-scheduled")
		wantIDs(t, deadIDs(b.Outbox), "BAD-scheduled")
	})
}

// What is older than max_age becomes a dead letter once it was tried; with 0 it never does.
func TestOldDeliveriesExpire(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = 10 * time.Second
		e, patient := answering(errSinkDown), answering(errSinkDown)
		b := s.up(e.all("a").With(func(t *bridge.Terms) { t.MaxAge = time.Hour }), patient.all("b"))
		s.reboot(idA)
		pause(50 * time.Minute)
		wantIDs(t, deadIDs(b.Outbox))
		pause(20 * time.Minute)
		b.wantDead(delivery.ReasonExpired, idA+"-scheduled")
		wantIDs(t, pendingIDs(b.Outbox, "b"), idA+"-scheduled")
	})
}

// late says what becomes of a change that a newer one has overtaken.
func TestLateIsAsTheRouteSays(t *testing.T) {
	for _, tt := range []struct {
		late   delivery.Late
		heard  []string
		missed []string // by the last
		dead   []string
	}{
		{delivery.LateSend, []string{"scheduled", "started", "vanished"}, nil, nil},
		{delivery.LateLatest, []string{"vanished"}, []string{"scheduled", "started"}, nil},
		{delivery.LateDrop, []string{"vanished"}, nil, []string{idA + "-scheduled"}}, // the end settles started
	} {
		subtest(t, string(tt.late), func(t *testing.T, s *stage) {
			e := answering(errSinkDown)
			b := s.up(e.all("a").With(func(t *bridge.Terms) { t.Late = tt.late }))
			s.reboot(idA)
			pause(2 * time.Second)
			s.azure.Start(idA)
			pause(2 * time.Second)
			s.azure.End(idA)
			pause(2 * time.Second)
			e.say(nil)
			pause(time.Minute)
			wantIDs(t, e.types(), tt.heard...)
			b.wantDead(delivery.ReasonLate, tt.dead...)
			all := e.accepted()
			var missed []string
			for _, m := range all[len(all)-1].Missed {
				missed = append(missed, m.Change)
				wantWithin(t, "the age of "+m.Change, time.Since(m.Time), time.Minute, 2*time.Minute)
			}
			wantIDs(t, missed, tt.missed...)
			lives, err := bridge.History(b.Outbox, bridge.Period{})
			if err != nil || tt.late == delivery.LateLatest && lives[0].Changes[0].Deliveries[0].State != outbox.StateSuperseded {
				t.Errorf("the history says %+v, %v", lives, err)
			}
		})
	}
}

// A receipt comes back with the next delivery about the same event, also one given beside an error and beside a
// rejection.
func TestReceiptsComeBack(t *testing.T) {
	for claim, err := range map[string]error{"an error": errSinkDown, "a rejection": delivery.ErrRejected} {
		subtest(t, claim, func(t *testing.T, s *stage) {
			e := &recorder{reply: delivery.Answer{Receipt: []byte("posted")}, answer: always(err)}
			s.up(e.all("a"))
			s.reboot(idA)
			pause(600 * time.Millisecond)
			e.say(nil)
			pause(10 * time.Second)
			s.azure.Start(idA)
			pause(2 * time.Second)
			s.reboot(idB)
			pause(2 * time.Second)
			tried := e.tried()
			last := len(tried) - 1
			wantEqual(t, "the first receipt", string(tried[0].Receipt), "")
			wantEqual(t, "the receipt with the next", string(tried[1].Receipt), "posted")
			wantEqual(t, "the receipt with another event", string(tried[last].Receipt), "")
		})
	}
}

// A sink that panics is a failed attempt, not the end.
func TestAPanicInASinkIsAFailedAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		n := 0
		e := &recorder{answer: func(delivery.Delivery) error {
			if n++; n == 1 {
				panic("a bug")
			}
			return nil
		}}
		s.up(e.all("a"))
		s.reboot(idA)
		pause(5 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled")
	})
}

// A secret file that changes begins the times anew.
func TestANewSecretIsTriedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		secret := filepath.Join(t.TempDir(), "token")
		must(t, os.WriteFile(secret, []byte("old"), 0o600))
		e := answering(errRefused)
		r := e.all("a")
		r.Secrets = []string{secret}
		s.up(r)
		s.redeploy(idA, 72*time.Hour)
		pause(30*time.Minute + 10*time.Second)
		e.say(nil)
		must(t, os.WriteFile(secret, []byte("a new one"), 0o600))
		pause(5 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled")
	})
}

// The waits between attempts are those of the contract, as far as a random part of each can be.
func TestAttemptsAreSpacedByTheSchedule(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = 10 * time.Second
		e := answering(errSinkDown)
		b := s.start(e.all("a"))
		pause(5 * time.Second)
		s.redeploy(idA, 72*time.Hour)
		pause(40 * time.Minute)
		tried := e.tried()
		wantWithin(t, "attempts in 40 minutes", len(tried), 12, 100)
		for i, h := range tried {
			wantEqual(t, "the number of the attempt", h.Attempt, i+1)
			if i > 0 {
				most := longestWaits[min(i, len(longestWaits))-1]
				wantWithin(t, fmt.Sprint("the wait before attempt ", i+1), h.at.Sub(tried[i-1].at), 0, most)
			}
		}
		b.end()
		n := len(tried)
		s.start(e.all("a")) // which begins the times anew, and goes on counting
		pause(5 * time.Second)
		tried = e.tried()[n:]
		wantWithin(t, "attempts within 5 s after the restart", len(tried), 2, 10)
		wantEqual(t, "the number of the first", tried[0].Attempt, n+1)
	})
}

// longestWaits bounds the waits after the first, second, … failure.
var longestWaits = []time.Duration{
	1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second, 30 * time.Second,
	60 * time.Second, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute,
}

// A delivery that is too old is tried once after a start all the same: perhaps nothing but the bridge was down.
func TestWhatIsTooOldIsTriedOnceAfterAStart(t *testing.T) {
	for _, down := range []bool{false, true} {
		subtest(t, fmt.Sprintf("the sink is down %t", down), func(t *testing.T, s *stage) {
			e := answering(errSinkDown)
			r := e.all("a").With(func(x *bridge.Terms) { x.MaxAge, x.Late = time.Hour, delivery.LateLatest })
			b := s.start(r)
			s.reboot(idA)
			pause(5 * time.Second)
			s.azure.Start(idA)
			pause(5 * time.Second)
			b.end()
			pause(3 * time.Hour)
			told, dead := []string(nil), []string{idA + "-scheduled", idA + "-started"} // what the newest stood for goes with it
			if !down {
				e.say(nil)
				told, dead = []string{idA + "-started"}, nil
			}
			b = s.start(r)
			pause(5 * time.Second)
			wantIDs(t, e.ids(), told...)
			b.wantDead(delivery.ReasonExpired, dead...)
		})
	}
}

// An attempt ends with its time, and that is a failure that says so.
func TestAnAttemptEndsWithItsTime(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := answering(errHang)
		b := s.up(e.all("a").With(func(x *bridge.Terms) { x.Timeout = 4 * time.Second }))
		s.reboot(idA)
		pause(9 * time.Second)
		tried := e.tried()
		wantWithin(t, "the time of an attempt", tried[1].at.Sub(tried[0].at), 4*time.Second, 5*time.Second)
		why := b.Outbox.List(outbox.Selection{})[0].Error
		wantEqual(t, "it says that there was no answer", strings.Count(why, "no answer within 4s"), 1)
	})
}

// With drop, a scheduled that could not be told before its time is a dead letter; nobody runs a runbook for the past.
func TestWhatIsTooLateIsDropped(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := answering(errSinkDown)
		b := s.up(e.all("a").With(func(x *bridge.Terms) { x.Late = delivery.LateDrop }))
		s.azure.Schedule(imdstest.Event{ID: idA, NotBefore: time.Now().Add(time.Minute)})
		pause(50 * time.Second)
		wantIDs(t, deadIDs(b.Outbox))
		pause(6 * time.Minute) // longer than it ever waits between two attempts
		b.wantDead(delivery.ReasonLate, idA+"-scheduled")
	})
}

// A route may have several events under way at once, and one run of each.
func TestParallelAttemptsKeepTheOrderOfAnEvent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		r := e.all("a").With(func(x *bridge.Terms) { x.Parallel, x.Timeout = 3, time.Minute }).To(slowSink{e, 10 * time.Second})
		s.up(r)
		ids := []string{"A", "B", "C", "D"}
		for _, id := range ids {
			s.reboot(id)
		}
		pause(2 * time.Second)
		for _, id := range ids {
			s.azure.Start(id)
		}
		pause(9 * time.Second)
		wantEqual(t, "were done at once", len(e.ids()), 3)
		pause(30 * time.Second)
		last := map[string]string{}
		for _, h := range e.accepted() {
			id := h.Event.Subject()
			if h.Event.Type() == cloudevent.EventPrefix+"started" && last[id] != cloudevent.EventPrefix+"scheduled" {
				t.Errorf("%s was told before its scheduled", h.Event.ID())
			}
			last[id] = h.Event.Type()
		}
		wantEqual(t, "were told", len(e.ids()), 8)
	})
}

// A sink that must repeat nothing has each delivery settled on disk before the next.
func TestASinkThatMustNotRepeatIsNeverAheadOfTheDisk(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		image := filepath.Join(t.TempDir(), "image")
		r := e.all("a").With(func(x *bridge.Terms) { x.Durable = true })
		b := s.start(r)
		s.reboot(idA)
		s.reboot(idB)
		n := 0
		e.say(func(d delivery.Delivery) error {
			if n++; n == 2 {
				b.snapshot(image)
			}
			return nil
		})
		pause(2 * time.Second)
		b.end()
		copyFile(t, image, filepath.Join(s.dir, "outbox.db"))
		wantIDs(t, pendingIDs(stored(t, s.dir), "a"), idB+"-scheduled")
	})
}

// Forty events that come while the destination is down are one message once it is back, and what it gave back for them
// comes with each of them later.
func TestAWaveDoesNotFillAChannel(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{answer: always(errSinkDown), reply: delivery.Answer{Receipt: []byte("thread 1"), Status: "ok"}}
		s.start(e.all("a").With(func(terms *bridge.Terms) {
			terms.Late, terms.DigestAbove = delivery.LateLatest, 5
		}))
		pause(1500 * time.Millisecond)
		for i := range 40 {
			id := fmt.Sprintf("%08d-0000-4000-8000-000000000000", i)
			s.azure.Schedule(imdstest.Event{ID: id, Type: "Reboot", Resources: []string{"vm_0"}, NotBefore: time.Now().Add(48 * time.Hour)})
		}
		pause(time.Minute)
		e.say(nil)
		pause(6 * time.Minute) // longer than any wait between two attempts
		sizes := []int{}
		for _, call := range e.calls {
			sizes = append(sizes, len(call))
		}
		wantEqual(t, "events told", len(e.accepted()), 40)
		wantEqual(t, "the largest batch", slices.Max(sizes), 40)
		s.azure.Start("00000007-0000-4000-8000-000000000000")
		pause(2 * time.Second)
		last := e.accepted()[len(e.accepted())-1]
		wantEqual(t, "the receipt, of the group", string(last.Receipt), "thread 1")
	})
}
