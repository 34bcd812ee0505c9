package bridge_test

import (
	"strconv"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// fallsBack returns a route whose deliveries fall back to another sink after a while.
func (e *recorder) fallsBack(name, to string, after time.Duration) bridge.Route {
	return e.all(name).With(func(t *bridge.Terms) { t.Fallback = delivery.Fallback{Sink: to, After: after} })
}

// What a sink cannot take for long, or rejects, goes to its fallback with the reason, once; what the fallback was
// told anyway is not told again, and nothing falls back twice.
func TestWhatASinkCannotTellItsFallbackDoes(t *testing.T) {
	systemtest.LeftToGate(t)
	for _, tt := range []struct {
		claim  string
		answer error
		after  time.Duration
	}{
		{"it is down", errSinkDown, time.Minute},
		{"it hangs", errHang, time.Minute},
		{"it rejects", delivery.ErrRejected, 0},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			chat, mail, last := answering(tt.answer), answering(errSinkDown), &recorder{}
			routes := []bridge.Route{
				chat.fallsBack("chat", "mail", time.Minute),
				mail.fallsBack("mail", "last", time.Minute).OnlyTypes("Preempt"), last.all("last").OnlyTypes("Preempt"),
			}
			b := s.up(routes...)
			began := time.Now()
			s.redeploy(idA, 5*time.Hour)
			pause(6 * time.Minute)
			mail.say(nil)
			pause(5 * time.Minute)
			wantIDs(t, mail.ids(), idA+"-scheduled")
			first := mail.tried()[0]
			wantWithin(t, "when the fallback was tried", first.at.Sub(began), tt.after, tt.after+4*time.Second)
			if first.FallbackFor == nil || first.FallbackFor.Sink != "chat" || first.FallbackFor.Error == "" {
				t.Errorf("it is told %+v as the reason", first.FallbackFor)
			}
			wantIDs(t, last.ids())
			chat.say(nil)
			b.crash()
			s.start(routes...)
			pause(10 * time.Minute)
			wantIDs(t, mail.ids(), idA+"-scheduled")
		})
	}
}

// A sink that refuses is tried with one delivery at a time. Those that it never saw fall back for that reason too.
func TestAFallbackIsToldWhyASinkDoesNotGetWhatItNeverSaw(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		mail := &recorder{}
		s.up(answering(errRefused).fallsBack("chat", "mail", time.Minute), mail.all("mail").OnlyTypes("Preempt"))
		s.redeploy(idA, 5*time.Hour)
		pause(45 * time.Second)
		s.redeploy(idB, 5*time.Hour)
		pause(10 * time.Second)
		s.azure.End(idB)
		pause(2 * time.Minute)
		wantIDs(t, mail.ids(), idA+"-scheduled", idB+"-scheduled", idB+"-vanished")
		for _, m := range mail.accepted() {
			wantEqual(t, "the reason for "+m.Event.ID(), m.FallbackFor.Error, errRefused.Error())
		}
	})
}

// A fallback that gets the event anyway does not get it twice.
func TestAFallbackThatKnowsGetsNothingTwice(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		mail := &recorder{}
		s.up(answering(errSinkDown).fallsBack("chat", "mail", time.Minute), mail.all("mail"))
		s.redeploy(idA, 5*time.Hour)
		pause(10 * time.Minute)
		wantIDs(t, mail.ids(), idA+"-scheduled")
	})
}

// What falls back at the same time comes in the order in which it happened.
func TestWhatFallsBackComesInOrder(t *testing.T) {
	systemtest.LeftToGate(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = 50 * time.Millisecond
		mail := &recorder{}
		b := s.start(answering(errSinkDown).fallsBack("chat", "mail", time.Minute), mail.all("mail").OnlyTypes("Preempt"))
		pause(1550 * time.Millisecond)
		s.redeploy(idA, 5*time.Hour)
		for i := range 8 {
			pause(100 * time.Millisecond)
			s.azure.Update(idA, func(e *imdstest.Event) { e.Description = strconv.Itoa(i) })
		}
		pause(5 * time.Minute)
		var want []string
		for _, e := range b.Outbox.List(outbox.Selection{Route: "chat"}) {
			want = append(want, e.ID)
		}
		wantIDs(t, mail.ids(), want...)
	})
}
