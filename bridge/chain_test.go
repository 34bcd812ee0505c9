package bridge_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/systemtest"
)

// A log is a recorder with a chain.
type chainLog struct {
	*recorder
	mu   sync.Mutex
	head string
}

func (l *chainLog) Head() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

func (l *chainLog) grows(head string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.head = head
}

// The head of a chained log goes to the other routes that get all about the bridge: once the log has grown, then at
// most once a day, and at a stop; never if it is the same.
func TestHeadsOfChainedLogsAreReported(t *testing.T) {
	systemtest.LeftToGate(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = time.Minute // days pass
		audit, watch, deaf := &chainLog{recorder: &recorder{}}, &recorder{}, &recorder{}
		all := func(t *bridge.Terms) { t.Bridge = bridge.LevelAll }
		route := audit.all("audit").With(all).To(audit)
		b := s.start(route, watch.all("watch").With(all), deaf.all("deaf"))
		heads := func(e *recorder) (said []string) {
			for _, h := range e.accepted() {
				if h.Event.Type() == cloudevent.ChainHead {
					data := cloudevent.Fields(h.Event)["data"].(map[string]any)
					said = append(said, data["sink"].(string)+" "+data["head"].(string))
				}
			}
			return said
		}
		want := func(what string, want ...string) {
			t.Helper()
			if got := heads(watch); !slices.Equal(got, want) {
				t.Errorf("%s: heard the heads %q, want %q", what, got, want)
			}
		}
		pause(5 * time.Second)
		want("before the first line")
		audit.grows("1")
		pause(5 * time.Second)
		want("after it", "audit 1")
		audit.grows("2")
		pause(24*time.Hour - 10*time.Second)
		want("within a day", "audit 1")
		pause(10 * time.Second)
		want("after a day", "audit 1", "audit 2")
		b.end()
		want("at a stop without a new line", "audit 1", "audit 2")
		b = s.start(route, watch.all("watch").With(all), deaf.all("deaf"))
		pause(5 * time.Second)
		want("after a start", "audit 1", "audit 2", "audit 2")
		audit.grows("3")
		b.end()
		want("at a stop", "audit 1", "audit 2", "audit 2", "audit 3")
		b = s.start(route, watch.all("watch").With(all), deaf.all("deaf"))
		pause(5 * time.Second)
		audit.grows("") // as that of a new file does
		b.end()
		want("at a stop before the first line of a new file", "audit 1", "audit 2", "audit 2", "audit 3", "audit 3")
		for name, other := range map[string]*recorder{"the log itself": audit.recorder, "a route that gets nothing about it": deaf} {
			if got := heads(other); len(got) > 0 {
				t.Errorf("%s heard %q", name, got)
			}
		}
	})
}

// A written log is a recorder whose chain ends in the id of its last line.
type chainedRecorder struct{ *recorder }

func (w chainedRecorder) Head() string {
	lines := w.ids()
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// The head that is reported at a stop is that of the last line, which is about the stop, also while the log is slow. A
// log that hangs delays the stop by a second.
func TestTheHeadAtAStopCoversTheLastLine(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *stage) {
			audit, watch := &recorder{}, &recorder{}
			all := func(t *bridge.Terms) { t.Bridge = bridge.LevelAll }
			route := audit.all("audit").With(all).To(chainedRecorder{audit})
			b := s.start(route, watch.all("watch").With(all))
			s.reboot(idA)
			pause(5 * time.Second)
			if hangs {
				audit.say(always(errHang))
			}
			began := time.Now()
			b.end()
			var heard []string
			for _, h := range watch.accepted() {
				if h.Event.Type() == cloudevent.ChainHead {
					heard = append(heard, cloudevent.Fields(h.Event)["data"].(map[string]any)["head"].(string))
				}
			}
			lines := audit.accepted()
			if last := lines[len(lines)-1].Event; last.ID() != heard[len(heard)-1] ||
				(last.Type() == cloudevent.BridgeStopping) == hangs {
				t.Errorf("hangs %t: the last line is %s, and the heads are %q", hangs, last.ID(), heard)
			}
			if took := time.Since(began); !hangs && took > time.Second || took > 6*time.Second {
				t.Errorf("hangs %t: the stop took %v", hangs, took)
			}
		})
	}
}

// A stop doesn't wait for what such a log gets only when its lead has come.
func TestAStopDoesNotWaitForTheLeadOfALog(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		audit := &recorder{}
		route := audit.all("audit").With(func(x *bridge.Terms) { x.Bridge, x.Lead = bridge.LevelAll, time.Minute }).To(chainedRecorder{audit})
		b := s.start(route)
		pause(5 * time.Second)
		s.redeploy(idA, time.Hour)
		pause(5 * time.Second)
		began := time.Now()
		b.end()
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("the stop took %v", took)
		}
		if lines := audit.accepted(); lines[len(lines)-1].Event.Type() != cloudevent.BridgeStopping {
			t.Errorf("the log has %s, want the stop in the end", idsOf(lines))
		}
	})
}
