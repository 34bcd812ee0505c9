package bridge_test

import (
	"fmt"
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

// heads returns the heads of the log audit that a sink was told.
func heads(e *recorder) (said []string) {
	for _, h := range e.accepted() {
		data := cloudevent.Fields(h.Event)["data"].(map[string]any)
		if h.Event.Type() == cloudevent.ChainHead && data["sink"] == "audit" {
			said = append(said, data["head"].(string))
		}
	}
	return said
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
		pause(5 * time.Second)
		wantIDs(t, heads(watch)) // before the first line
		audit.grows("1")
		pause(5 * time.Second)
		wantIDs(t, heads(watch), "1") // after it
		audit.grows("2")
		pause(24*time.Hour - 10*time.Second)
		wantIDs(t, heads(watch), "1") // within a day
		pause(10 * time.Second)
		wantIDs(t, heads(watch), "1", "2") // after a day
		b.end()
		wantIDs(t, heads(watch), "1", "2") // at a stop without a new line
		b = s.start(route, watch.all("watch").With(all), deaf.all("deaf"))
		pause(5 * time.Second)
		wantIDs(t, heads(watch), "1", "2", "2") // after a start
		audit.grows("3")
		b.end()
		wantIDs(t, heads(watch), "1", "2", "2", "3") // at a stop
		b = s.start(route, watch.all("watch").With(all), deaf.all("deaf"))
		pause(5 * time.Second)
		audit.grows("") // as that of a new file does
		b.end()
		wantIDs(t, heads(watch), "1", "2", "2", "3", "3") // at a stop before the first line of a new file
		wantIDs(t, heads(audit.recorder))                 // of its own
		wantIDs(t, heads(deaf))
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
		subtest(t, fmt.Sprintf("it hangs %t", hangs), func(t *testing.T, s *stage) {
			audit, watch := &recorder{}, &recorder{}
			all := func(t *bridge.Terms) { t.Bridge = bridge.LevelAll }
			route := audit.all("audit").With(all).To(chainedRecorder{audit})
			b := s.start(route, watch.all("watch").With(all))
			s.reboot(idA)
			pause(5 * time.Second)
			if hangs {
				audit.say(always(errHang))
			}
			took, most := b.endsIn(), time.Second
			heard, lines := heads(watch), audit.accepted()
			last := lines[len(lines)-1].Event
			wantEqual(t, "the last head", heard[len(heard)-1], last.ID())
			wantEqual(t, "the last line is of the stop", last.Type() == cloudevent.BridgeStopping, !hangs)
			if hangs {
				most = 6 * time.Second
			}
			wantWithin(t, "the stop", took, 0, most)
		})
	}
}

// A stop doesn't wait for what such a log gets only when its lead has come.
func TestAStopDoesNotWaitForTheLeadOfALog(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		audit := &recorder{}
		route := audit.all("audit").To(chainedRecorder{audit}).With(func(x *bridge.Terms) {
			x.Bridge, x.Lead = bridge.LevelAll, time.Minute
		})
		b := s.start(route)
		pause(5 * time.Second)
		s.redeploy(idA, time.Hour)
		pause(5 * time.Second)
		wantWithin(t, "the stop", b.endsIn(), 0, 500*time.Millisecond)
		lines := audit.types()
		wantEqual(t, "the last line", lines[len(lines)-1], "stopping")
	})
}
