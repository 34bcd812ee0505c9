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
	for _, trouble := range []error{errSinkDown, errHang, fmt.Errorf("%w: 401", delivery.ErrBlocked)} {
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
			for i, h := range other.accepted() {
				if late := h.at.Sub(h.Event.Time()); late > time.Second {
					t.Errorf("delivery %d to the other sink came %v late", i, late)
				}
			}
			s.wantLogged(fmt.Sprintf(`msg="sink recovered" sink=a after=%d`, len(e.tried())-len(e.accepted())))
			s.wantLoggedTimes(1, `level=WARN msg="delivery failed`)
		})
	}
}

// What is due in less than 15 minutes is tried at once, however deep the sink is in its waits, or blocked.
func TestUrgencyBeatsTheSchedule(t *testing.T) {
	for _, trouble := range []error{errSinkDown, fmt.Errorf("%w: 401", delivery.ErrBlocked)} {
		bubble(t, func(t *testing.T, s *stage) {
			e := answering(trouble)
			s.up(e.all("a"))
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Redeploy", NotBefore: time.Now().Add(72 * time.Hour)})
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
		e := answering(fmt.Errorf("%w: 403", delivery.ErrBlocked))
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
		e := answering(fmt.Errorf("%w: 404", delivery.ErrBlocked))
		b := s.up(e.all("a"))
		far := time.Now().Add(72 * time.Hour)
		for _, id := range []string{idA, idB} {
			s.azure.Schedule(imdstest.Event{ID: id, Type: "Redeploy", NotBefore: far})
		}
		pause(10 * time.Minute)
		if st := b.Status().Sinks[0]; st.State != bridge.SinkIsBlocked || st.Pending != 2 || !strings.Contains(st.LastError, "404") {
			t.Errorf("the sink is %+v", st)
		}
		before := len(e.tried())
		pause(10 * time.Minute)
		probes := idsOf(e.tried()[before:])
		if len(probes) < 9 || len(probes) > 11 {
			t.Errorf("%d probes in 10 minutes, want one a minute", len(probes))
		}
		for i := 1; i < len(probes); i++ {
			if probes[i] == probes[i-1] {
				t.Errorf("probes %d and %d are both of %s; want the events in turn", i-1, i, probes[i])
			}
		}
		e.say(func(d delivery.Delivery) error {
			if d.Event.Subject() == idA {
				return fmt.Errorf("%w: 404", delivery.ErrBlocked)
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
		e := answering(fmt.Errorf("%w: 401", delivery.ErrBlocked))
		b := s.up(e.all("a"))
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", NotBefore: time.Now().Add(time.Hour)})
		pause(20 * time.Second)
		if st := b.Status().Sinks[0]; st.State != bridge.SinkRetrying {
			t.Errorf("after 20 s the sink is %s, want retrying", st.State)
		}
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
		if st := b.Status().Sinks[0]; st.State != bridge.SinkOK || !strings.Contains(st.LastError, "422") {
			t.Errorf("the sink is %s, its last error %q; want it ok, and to say why it gave up the last", st.State, st.LastError)
		}
		s.azure.Start(idA)
		pause(2 * time.Second)
		if st := b.Status().Sinks[0]; st.LastError != "" {
			t.Errorf("when it accepts again, its last error is %q", st.LastError)
		}
		wantIDs(t, e.ids(), idA+"-started")
		dead := b.deadLetters()
		if len(dead) != 1 || dead[0].Reason != delivery.ReasonRejected || !strings.Contains(dead[0].Error, "422") || dead[0].Attempts != 1 {
			t.Errorf("dead letters are %+v", dead)
		}
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
		if got := e.ids(); len(got) != 2 {
			t.Errorf("accepted were %s, want both good ones once", got)
		}
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
		dead := b.deadLetters()
		if len(dead) != 1 || dead[0].Route != "a" || dead[0].Reason != delivery.ReasonExpired {
			t.Errorf("dead letters are %+v", dead)
		}
	})
}

// late says what becomes of a change that a newer one has overtaken.
func TestLateIsAsTheRouteSays(t *testing.T) {
	for _, tt := range []struct {
		late   delivery.Late
		heard  []string
		missed int
		dead   []string
	}{
		{delivery.LateSend, []string{"-scheduled", "-started", "-vanished"}, 0, nil},
		{delivery.LateLatest, []string{"-vanished"}, 2, nil},
		{delivery.LateDrop, []string{"-vanished"}, 0, []string{"-scheduled"}}, // the end settles started
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
			var heard, dead []string
			for _, id := range e.ids() {
				heard = append(heard, strings.TrimPrefix(id, idA))
			}
			for _, id := range deadIDs(b.Outbox) {
				dead = append(dead, strings.TrimPrefix(id, idA))
			}
			wantIDs(t, heard, tt.heard...)
			wantIDs(t, dead, tt.dead...)
			all := e.accepted()
			missed := all[len(all)-1].Missed
			if len(missed) != tt.missed {
				t.Fatalf("the last one stood for %d others, want %d", len(missed), tt.missed)
			}
			for i, want := range []string{"scheduled", "started"}[:tt.missed] {
				if m := missed[i]; m.Change != want || time.Since(m.Time) > 2*time.Minute || time.Since(m.Time) < time.Minute {
					t.Errorf("it stood for %+v, want %s, when it was seen", m, want)
				}
			}
			lives, err := bridge.History(b.Outbox, bridge.Period{})
			if err != nil || tt.late == delivery.LateLatest && lives[0].Changes[0].Deliveries[0].State != outbox.StateSuperseded {
				t.Errorf("the history says %+v, %v", lives, err)
			}
		})
	}
}

// A receipt comes back with the next delivery about the same event, also one given beside an error.
func TestReceiptsComeBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{reply: delivery.Answer{Receipt: []byte("posted")}, answer: always(errSinkDown)}
		s.up(e.all("a"))
		s.reboot(idA)
		pause(500 * time.Millisecond)
		e.say(nil)
		pause(10 * time.Second)
		s.reboot(idB)
		pause(2 * time.Second)
		tried := e.tried()
		if got := string(tried[len(tried)-2].Receipt); got != "posted" || tried[0].Receipt != nil {
			t.Errorf("the receipts were %q first and %q then", tried[0].Receipt, got)
		}
		wantEqual(t, "another event came with the receipt", string(tried[len(tried)-1].Receipt), "")
	})
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
		e := answering(fmt.Errorf("%w: 401", delivery.ErrBlocked))
		r := e.all("a")
		r.Secrets = []string{secret}
		s.up(r)
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Redeploy", NotBefore: time.Now().Add(72 * time.Hour)})
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
		s.azure.Schedule(imdstest.Event{ID: idA, NotBefore: time.Now().Add(72 * time.Hour)})
		pause(40 * time.Minute)
		tried := e.tried()
		for i, h := range tried {
			if h.Attempt != i+1 {
				t.Errorf("attempt %d says that it is %d", i+1, h.Attempt)
			}
			if i == 0 {
				continue
			}
			if wait, most := h.at.Sub(tried[i-1].at), longestWaits[min(i, len(longestWaits))-1]; wait > most {
				t.Errorf("attempt %d came after %v, want %v at most", i+1, wait, most)
			}
		}
		if len(tried) < 12 {
			t.Errorf("%d attempts in 40 minutes", len(tried))
		}
		b.end()
		n := len(tried)
		s.start(e.all("a")) // which begins the times anew, and goes on counting
		pause(5 * time.Second)
		if tried = e.tried()[n:]; len(tried) < 2 || tried[0].Attempt != n+1 {
			t.Errorf("after the restart %d attempts within 5 s, the first is number %d, want %d", len(tried), tried[0].Attempt, n+1)
		}
	})
}

// A delivery that is too old is tried once after a start all the same: perhaps nothing but the bridge was down.
func TestWhatIsTooOldIsTriedOnceAfterAStart(t *testing.T) {
	for _, down := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *stage) {
			e := answering(errSinkDown)
			r := e.all("a").With(func(x *bridge.Terms) { x.MaxAge, x.Late = time.Hour, delivery.LateLatest })
			b := s.start(r)
			s.reboot(idA)
			pause(5 * time.Second)
			s.azure.Start(idA)
			pause(5 * time.Second)
			b.end()
			pause(3 * time.Hour)
			if !down {
				e.say(nil)
			}
			b = s.start(r)
			pause(5 * time.Second)
			if down {
				wantIDs(t, e.ids())
				wantIDs(t, deadIDs(b.Outbox), idA+"-scheduled", idA+"-started") // what the newest stood for goes with it
			} else {
				wantIDs(t, e.ids(), idA+"-started")
				wantIDs(t, deadIDs(b.Outbox))
			}
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
		if tried := e.tried(); len(tried) < 2 || tried[1].at.Sub(tried[0].at) < 4*time.Second || tried[1].at.Sub(tried[0].at) > 5*time.Second {
			t.Errorf("tried at %v", tried)
		}
		if got := b.Outbox.List(outbox.Selection{})[0].Error; strings.Count(got, "no answer within 4s") != 1 {
			t.Errorf("the error is %q, want it to say once that there was no answer", got)
		}
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
		wantIDs(t, deadIDs(b.Outbox), idA+"-scheduled")
		wantEqual(t, "the reason", b.Outbox.List(outbox.Selection{})[0].Reason, delivery.ReasonLate)
	})
}

// What a sink gives back beside a rejection counts too: the next change of the event may need it.
func TestAReceiptBesideARejectionComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{reply: delivery.Answer{Receipt: []byte("posted")}, answer: always(delivery.ErrRejected)}
		s.up(e.all("a"))
		s.reboot(idA)
		pause(2 * time.Second)
		e.say(nil)
		s.azure.Start(idA)
		pause(2 * time.Second)
		if tried := e.tried(); len(tried) != 2 || string(tried[1].Receipt) != "posted" {
			t.Errorf("tried %v, want the second with the receipt", tried)
		}
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

// waits bounds the waits after the first, second, … failure.
var longestWaits = []time.Duration{
	1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second, 30 * time.Second,
	60 * time.Second, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute,
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
