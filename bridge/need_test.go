package bridge_test

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// countLogged returns how many lines of the log hold all the texts.
func (s *stage) countLogged(texts ...string) (n int) {
	for line := range strings.Lines(s.log.String()) {
		missing := func(text string) bool { return !strings.Contains(line, text) }
		if !slices.ContainsFunc(texts, missing) {
			n++
		}
	}
	return n
}

// However a sink comes to need somebody, one line of the log says so as an error, when the status does, and one says
// when that is over.
func TestTheLogSaysOnceThatASinkNeedsSomebody(t *testing.T) {
	systemtest.Alone(t)
	for _, tt := range []struct {
		claim  string
		notice time.Duration
		answer error
		after  time.Duration // which it needs somebody, and not much earlier
	}{
		{"it refuses", 2 * time.Hour, errRefused, time.Minute},
		{"it is down", 2 * time.Hour, errSinkDown, 5 * time.Minute},
		{"it hangs", 2 * time.Hour, errHang, 5 * time.Minute},
		{"it refuses while an event is due", 10 * time.Minute, errRefused, 2 * time.Second},
		{"it is down while an event is due", 10 * time.Minute, errSinkDown, 62 * time.Second},
		{"it hangs while an event is due", 10 * time.Minute, errHang, 62 * time.Second},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				down := &recorder{answer: always(tt.answer)}
				b := s.start((&recorder{}).all("well"), down.all("down"))
				pause(1500 * time.Millisecond)
				s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", NotBefore: time.Now().Add(tt.notice)})
				pause(tt.after/4 + 500*time.Millisecond)
				if n := s.countLogged("needs somebody"); n > 0 {
					t.Errorf("after %v the log says %d times that a sink needs somebody", tt.after/4, n)
				}
				pause(tt.after*3/4 + 3*time.Second)
				for range 4 { // from now on it does, whenever one looks
					k := b.Status().Sinks[0]
					if n := s.countLogged("level=ERROR", `msg="sink needs somebody`, "sink=down"); n != 1 || !k.NeedsSomebody(time.Now()) {
						t.Errorf("the log says it %d times as an error, the status is %+v", n, k)
					}
					pause(time.Minute)
				}
				down.say(nil)
				pause(6 * time.Minute)
				if n := s.countLogged("level=INFO", `msg="sink no longer needs somebody"`, "sink=down"); n != 1 {
					t.Errorf("the log says %d times that it is over", n)
				}
				if n := s.countLogged("level=ERROR"); n != 1 {
					t.Errorf("there are %d errors in the log, want one", n)
				}
				b.end()
			})
		})
	}
}

// A mute mends nothing: the sink still needs somebody, for the same reason and since the same time, until it accepts.
func TestAMuteDoesNotSayThatASinkNoLongerNeedsSomebody(t *testing.T) {
	for _, tt := range []struct {
		claim  string
		notice time.Duration
		answer error
		after  time.Duration
	}{
		{"it refuses", 2 * time.Hour, errRefused, 2 * time.Minute},
		{"it refuses while an event is due", time.Hour / 6, errRefused, 10 * time.Second},
		{"it is down while an event is due", time.Hour / 6, errSinkDown, 70 * time.Second},
		{"it is down for long", 2 * time.Hour, errSinkDown, 7 * time.Minute},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				down := &recorder{answer: always(tt.answer)}
				b := s.start((&recorder{}).all("well"), down.all("down"))
				pause(1500 * time.Millisecond)
				s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", NotBefore: time.Now().Add(tt.notice)})
				pause(tt.after)
				still := func(when string) {
					t.Helper()
					k, over := b.Status().Sinks[0], s.countLogged("no longer needs somebody")
					n := s.countLogged(`msg="sink needs somebody`)
					if n != 1 || over > 0 || !k.NeedsSomebody(time.Now()) || k.LastError != tt.answer.Error() {
						t.Errorf("%s: it needs somebody, by the log %d times, and %d times no longer; %+v", when, n, over, k)
					}
				}
				still("before the mute")
				if _, err := b.Mute(delivery.Mute{Sink: "down", Reason: "test", By: "root"}, time.Hour); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					pause(20 * time.Second)
					still("while it is muted")
				}
				if _, err := b.Unmute(nil, true, "root"); err != nil {
					t.Fatal(err)
				}
				for range 4 {
					pause(3 * time.Second)
					still("after the mute")
				}
				waits := "something urgent has waited for the sink down since 00:00:02 UTC: connection refused"
				urgent := tt.answer == errSinkDown && tt.notice < time.Hour
				if reasons := b.Status().Reasons; urgent && !slices.Contains(reasons, waits) {
					t.Errorf("after the mute it is not ready for %q, want %q", reasons, waits)
				}
				down.say(nil)
				pause(6 * time.Minute)
				if n := s.countLogged("level=INFO", "no longer needs somebody", "sink=down"); n != 1 {
					t.Errorf("once it accepts the log says %d times that it no longer needs somebody", n)
				}
				b.end()
			})
		})
	}
}

// What is urgent, was attempted and has waited for more than a minute makes the bridge not ready, with the sink's name.
func TestSomethingUrgentThatIsOverdueIsNamed(t *testing.T) {
	for _, tt := range []struct {
		claim   string
		event   imdstest.Event
		then    func(s *stage, b *running)
		answer  error
		overdue bool
	}{
		{"an event is due soon", imdstest.Event{NotBefore: time.Unix(10*60, 0)}, nil, errSinkDown, true},
		{"an event has begun", imdstest.Event{Status: imdstest.Started}, nil, errSinkDown, true},
		{"an event has begun, and the sink refuses it", imdstest.Event{Status: imdstest.Started}, nil,
			fmt.Errorf("%w: 401 Unauthorized", delivery.ErrBlocked), true},
		{"an event is far away", imdstest.Event{NotBefore: time.Unix(3600, 0)}, nil, errSinkDown, false},
		{"the event is over", imdstest.Event{NotBefore: time.Unix(10*60, 0)}, func(s *stage, _ *running) { s.azure.End(idA) }, errSinkDown, false},
		{"somebody muted the sink", imdstest.Event{NotBefore: time.Unix(10*60, 0)}, func(_ *stage, b *running) {
			if _, err := b.Mute(delivery.Mute{Sink: "down", Reason: "test", By: "root"}, time.Hour); err != nil {
				panic(err)
			}
		}, errSinkDown, false},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				down := &recorder{answer: always(tt.answer)}
				b := s.start((&recorder{}).all("well"), down.all("down"))
				pause(1500 * time.Millisecond)
				e := tt.event
				e.ID, e.Type = idA, "Reboot"
				if !e.NotBefore.IsZero() {
					e.NotBefore = time.Now().Add(time.Duration(e.NotBefore.Unix()) * time.Second)
				}
				s.azure.Schedule(e)
				pause(50 * time.Second)
				if st := b.Status(); !st.Ready {
					t.Errorf("after 50 s it is not ready: %q", st.Reasons)
				}
				if tt.then != nil {
					tt.then(s, b)
				}
				pause(20 * time.Second)
				want := []string{}
				if tt.overdue {
					want = append(want, "something urgent has waited for the sink down since 00:00:02 UTC: "+
						delivery.WithoutClass(tt.answer.Error()))
				}
				if st := b.Status(); !slices.Equal(st.Reasons, want) || st.Sinks[0].NeedsSomebody(time.Now()) != tt.overdue {
					t.Errorf("reasons %q, want %q; the sink is %+v", st.Reasons, want, st.Sinks[0])
				}
				down.say(nil)
				pause(70 * time.Second) // one that refuses is asked once a minute
				if st := b.Status(); !st.Ready {
					t.Errorf("once all is told it is not ready: %q", st.Reasons)
				}
				b.end()
			})
		})
	}
}

// What the log does with the line that a sink needs somebody keeps nobody from the status.
func TestALogThatHangsKeepsNobodyFromTheStatus(t *testing.T) {
	var needs bridge.NeedLog
	blocked := bridge.SinkStatus{Name: "a", State: bridge.SinkIsBlocked}
	asked := make(chan bool)
	log := slog.New(listener{slog.NewTextHandler(io.Discard, nil), func(string) {
		go func() {
			needs.Keep(&bridge.SinkStatus{Name: "a", State: bridge.SinkOK})
			close(asked)
		}()
		select {
		case <-asked:
		case <-time.After(20 * time.Second):
			t.Error("who asks for the status waits for the log")
		}
	}})
	needs.Note(log, []bridge.SinkStatus{blocked}, time.Now())
	<-asked
}
