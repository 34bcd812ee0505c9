package relay_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// takesNothingForSinks makes the stream refuse messages for one sink only, such as those for a fallback. allow reverses
// that.
func (s *stage) takesNothingForSinks() (allow func()) {
	s.Helper()
	var all []string
	s.change("FOREWARN", func(c *jetstream.StreamConfig) { all, c.Subjects = c.Subjects, []string{"forewarn.events.>"} })
	return func() { s.change("FOREWARN", func(c *jetstream.StreamConfig) { c.Subjects = all }) }
}

// A change that was rejected isn't sent again while it can't be handed to the fallback. Once it can, the fallback gets
// it, and it is a dead letter.
func TestARejectedChangeIsSentOnceWhileItsFallbackCannotGetIt(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		first, second := newRecorder(), newRecorder()
		first.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		hook := with(route("hook", first), func(terms *bridge.Terms) {
			terms.Fallback = delivery.Fallback{Sink: "second", After: time.Hour}
		})
		spare := route("second", second)
		spare.Filter.Only.Types = []string{"Preempt"}
		r, stop := s.run(hook, spare)
		allow := s.takesNothingForSinks()
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(10 * time.Minute)
		wantIDs(t, "attempts", first.attempts(), ce)
		st := r.Status()
		if got := strings.Join(st.Reasons, "\n"); st.Ready || !strings.Contains(got, "hook: 1 deliveries can't become dead letters") {
			t.Errorf("ready is %v because of %q, want a reason that dead letters of hook can't be stored", st.Ready, got)
		}
		allow()
		pause(10 * time.Second)
		wantIDs(t, "attempts", first.attempts(), ce)
		wantIDs(t, "the fallback", second.all(), ce)
		if dead := keys(t, r, "hook"); len(dead) != 1 {
			t.Errorf("dead letters are %q, want one", dead)
		}
		if st := r.Status(); !st.Ready || st.Outbox.Pending > 0 {
			t.Errorf("afterwards %d are pending, and the relay isn't ready because of %q", st.Outbox.Pending, st.Reasons)
		}
		stop()
	})
}

// What is rejected is sent once while the stream of dead letters refuses it, and is kept as soon as that takes it.
func TestARejectedChangeIsSentOnceWhileDeadLettersCannotBeStored(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		hook.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		r, stop := s.run(route("hook", hook))
		var subjects []string
		s.change("FOREWARN_dead", func(c *jetstream.StreamConfig) { subjects, c.Subjects = c.Subjects, []string{"other"} })
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(10 * time.Minute)
		wantIDs(t, "attempts", hook.attempts(), ce)
		s.change("FOREWARN_dead", func(c *jetstream.StreamConfig) { c.Subjects = subjects })
		pause(10 * time.Second)
		wantIDs(t, "attempts", hook.attempts(), ce)
		if dead := keys(t, r, "hook"); len(dead) != 1 {
			t.Errorf("dead letters are %q, want one", dead)
		}
		stop()
	})
}

// A CloudEvent that came in binary mode may be too large for the fallback's copy, which is JSON. It is a dead letter
// all the same.
func TestWhatIsTooLargeForTheFallbackIsADeadLetter(t *testing.T) {
	systemtest.Alone(t)
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		hook.answer = fails(fmt.Errorf("%w: 400", delivery.ErrRejected))
		r, stop := s.run(with(route("hook", hook), func(terms *bridge.Terms) {
			terms.Bridge, terms.Fallback = bridge.LevelAll, delivery.Fallback{Sink: "second", After: time.Hour}
		}), route("second", newRecorder()))
		h := nats.Header{}
		for name, v := range map[string]string{
			"ce-specversion": "1.0", "ce-id": "large", "ce-source": "/other", "ce-type": "dev.forewarn.bridge.other",
			"ce-datacontenttype": "application/octet-stream",
		} {
			h[name] = []string{v}
		}
		s.publishRaw("forewarn.events._._._.test.large", h, bytes.Repeat([]byte{0xFF}, 900<<10)) // 1200 KiB as base64
		pause(10 * time.Minute)
		if tried := hook.attempts(); len(tried) != 1 {
			t.Errorf("it was attempted %d times, want once", len(tried))
		}
		if dead := keys(t, r, "hook"); len(dead) != 1 {
			t.Errorf("dead letters are %q, want one", dead)
		}
		stop()
	})
}

// A sink gets what is new at once, however many of its deliveries can't be handed to the fallback.
func TestASinkGoesOnWhileItsFallbackCannotGetWhatFailed(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		first := newRecorder()
		first.answer = fails(errRefused)
		_, stop := s.run(with(route("hook", first), func(terms *bridge.Terms) {
			terms.Fallback = delivery.Fallback{Sink: "second", After: 5 * time.Minute}
		}), route("second", newRecorder()))
		s.takesNothingForSinks()
		for n := range 40 {
			s.publish(eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		pause(7 * time.Minute)
		first.say(nil)
		news := eventNo(99).in(time.Minute).say(t, imds.Scheduled, "vm-1")
		s.publish(news)
		pause(2 * time.Second)
		if got := first.all(); len(got) == 0 || got[0] != news.ID() {
			t.Errorf("within 2 s the sink heard %q, want %s first", got, news.ID())
		}
		pause(time.Minute)
		if got := first.all(); len(got) != 41 {
			t.Errorf("the sink heard %d, want all 41", len(got))
		}
		stop()
	})
}

// A message that can't be accepted is logged and counted once, also while what follows it can't be kept as a dead letter.
func TestWhatCannotBeAcceptedIsLoggedOnceWhileTheNextCannotBeKept(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		var log systemtest.Log
		hook := newRecorder()
		r := with(route("hook", hook), func(terms *bridge.Terms) { terms.Late = delivery.LateDrop })
		_, stop := s.start(relay.Options{Routes: []bridge.Route{r}, Log: log.Logger()})
		pause(2 * time.Second)
		late := eventNo(1).say(t, imds.Scheduled, "vm-1")
		pause(time.Minute)
		begun := eventNo(1).say(t, imds.Started, "vm-2")
		s.publish(begun)
		pause(10 * time.Second)
		s.change("FOREWARN_dead", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1 << 10 })
		next := eventNo(2).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publishRaw("forewarn.events.junk", nil, []byte("junk"))
		s.publish(late, next)
		pause(time.Minute)
		wantIDs(t, "while it can't be kept", hook.all(), begun)
		s.change("FOREWARN_dead", func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 })
		pause(10 * time.Second)
		wantIDs(t, "when it can", hook.all(), begun, next)
		if n := log.Count("a message of the stream can't be accepted"); n != 1 {
			t.Errorf("it is logged %d times, want once", n)
		}
		stop()
	})
}
