package bridge_test

import (
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
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

// announceToDown starts a bridge with two sinks, of which one, named down, answers with an error, and has it announce a
// reboot.
func (s *stage) announceToDown(answer error, notice time.Duration) (*running, *recorder) {
	s.t.Helper()
	down := answering(answer)
	b := s.up((&recorder{}).all("well"), down.all("down"))
	s.userRebootIn(notice, idA)
	return b, down
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
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			b, down := s.announceToDown(tt.answer, tt.notice)
			pause(tt.after/4 + 500*time.Millisecond)
			wantEqual(t, "times that the log says it too early", s.countLogged("needs somebody"), 0)
			pause(tt.after*3/4 + 3*time.Second)
			for range 4 { // from now on it does, whenever one looks
				k := b.sink("down")
				logged := s.countLogged("level=ERROR", `msg="sink needs somebody`, "sink=down")
				if logged != 1 || !k.NeedsSomebody(time.Now()) {
					t.Errorf("the log says it %d times as an error, the status is %+v", logged, k)
				}
				pause(time.Minute)
			}
			down.say(nil)
			pause(6 * time.Minute)
			over := s.countLogged("level=INFO", `msg="sink no longer needs somebody"`, "sink=down")
			wantEqual(t, "times that the log says it is over", over, 1)
			wantEqual(t, "errors in the log", s.countLogged("level=ERROR"), 1)
		})
	}
}

// A mute mends nothing: the sink still needs somebody, for the same reason and since the same time, until it accepts.
func TestAMuteDoesNotSayThatASinkNoLongerNeedsSomebody(t *testing.T) {
	const waits = "something urgent has waited for the sink down since 00:00:02 UTC: connection refused"
	for _, tt := range []struct {
		claim   string
		notice  time.Duration
		answer  error
		after   time.Duration
		reasons []string // that the bridge isn't ready, after the mute
	}{
		{"it refuses", 2 * time.Hour, errRefused, 2 * time.Minute, nil},
		{"it refuses while an event is due", 10 * time.Minute, errRefused, 10 * time.Second, nil},
		{"it is down while an event is due", 10 * time.Minute, errSinkDown, 70 * time.Second, []string{waits}},
		{"it is down for long", 2 * time.Hour, errSinkDown, 7 * time.Minute, nil},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			b, down := s.announceToDown(tt.answer, tt.notice)
			still := func(when string) {
				t.Helper()
				wantEqual(t, "lines that the sink needs somebody, "+when, s.countLogged(`msg="sink needs somebody`), 1)
				wantEqual(t, "lines that it no longer does, "+when, s.countLogged("no longer needs somebody"), 0)
				if k := b.sink("down"); !k.NeedsSomebody(time.Now()) || k.LastError != tt.answer.Error() {
					t.Errorf("%s the status says %+v, want that it needs somebody because of %v", when, k, tt.answer)
				}
			}
			pause(tt.after)
			still("before the mute")
			b.mute("down", time.Hour)
			for range 3 {
				pause(20 * time.Second)
				still("while it is muted")
			}
			b.unmute()
			for range 4 {
				pause(3 * time.Second)
				still("after the mute")
			}
			if tt.reasons != nil {
				wantIDs(t, b.Status().Reasons, tt.reasons...)
			}
			down.say(nil)
			pause(6 * time.Minute)
			over := s.countLogged("level=INFO", "no longer needs somebody", "sink=down")
			wantEqual(t, "lines that it no longer does, in the end", over, 1)
		})
	}
}

// What is urgent, was attempted and has waited for more than a minute makes the bridge not ready, with the sink's name.
func TestSomethingUrgentThatIsOverdueIsNamed(t *testing.T) {
	nothing := func(*stage, *running) {}
	begins := func(s *stage, _ *running) { s.azure.Start(idA) }
	ends := func(s *stage, _ *running) { s.azure.End(idA) }
	mutes := func(_ *stage, b *running) { b.mute("down", time.Hour) }
	for _, tt := range []struct {
		claim   string
		notice  time.Duration
		first   func(*stage, *running)
		then    func(*stage, *running) // after 50 seconds
		answer  error
		overdue bool
	}{
		{"an event is due soon", 10 * time.Minute, nothing, nothing, errSinkDown, true},
		{"an event has begun", time.Hour, begins, nothing, errSinkDown, true},
		{"an event has begun, and the sink refuses it", time.Hour, begins, nothing, errRefused, true},
		{"an event is far away", time.Hour, nothing, nothing, errSinkDown, false},
		{"the event is over", 10 * time.Minute, nothing, ends, errSinkDown, false},
		{"somebody muted the sink", 10 * time.Minute, nothing, mutes, errSinkDown, false},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			b, down := s.announceToDown(tt.answer, tt.notice)
			tt.first(s, b)
			pause(50 * time.Second)
			wantIDs(t, b.Status().Reasons)
			tt.then(s, b)
			pause(20 * time.Second)
			var want []string
			if tt.overdue {
				why := delivery.WithoutClass(tt.answer.Error())
				want = []string{"something urgent has waited for the sink down since 00:00:02 UTC: " + why}
			}
			st := b.Status()
			wantIDs(t, st.Reasons, want...)
			wantEqual(t, "the sink needs somebody", b.sink("down").NeedsSomebody(time.Now()), tt.overdue)
			down.say(nil)
			pause(70 * time.Second) // one that refuses is asked once a minute
			wantIDs(t, b.Status().Reasons)
		})
	}
}

// What the log does with the line that a sink needs somebody keeps nobody from the status.
func TestALogThatHangsKeepsNobodyFromTheStatus(t *testing.T) {
	var needs bridge.NeedLog
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
	needs.Note(log, []bridge.SinkStatus{{Name: "a", State: bridge.SinkIsBlocked}}, time.Now())
	<-asked
}
