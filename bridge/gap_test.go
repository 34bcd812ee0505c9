package bridge_test

import (
	"fmt"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imdstest"
)

// A reboot that happened while nobody watched is told as completed, with the time at which the VM was back.
func TestARebootInTheGapIsKnownByTheBootTime(t *testing.T) {
	for _, tt := range []struct {
		booted, started bool
		want            cloudevent.Outcome
	}{
		{false, false, cloudevent.OutcomeUnknown}, {true, false, cloudevent.OutcomeCompleted},
		{false, true, cloudevent.OutcomeCompleted}, {true, true, cloudevent.OutcomeCompleted},
	} {
		subtest(t, fmt.Sprintf("booted %v, started %v", tt.booted, tt.started), func(t *testing.T, s *stage) {
			s.opts.Booted = time.Now().Add(-time.Hour)
			e := &recorder{}
			b := s.up(e.all("a"))
			s.reboot(idA)
			pause(5 * time.Second)
			if tt.started {
				s.azure.Start(idA)
				pause(5 * time.Second)
			}
			b.crash()
			pause(30 * time.Second)
			var back time.Time
			if tt.booted {
				back = time.Now()
				s.opts.Booted = back
			}
			pause(20 * time.Second)
			s.azure.End(idA)
			s.start(e.all("a"))
			pause(5 * time.Second)
			if d := e.wantEnd(t, tt.want); !d.Back.Equal(back) {
				t.Errorf("back %v, want %v", d.Back, back)
			}
		})
	}
}

// A reboot after which an event is still listed as to come was not the event's. If it goes then, nobody says that it was
// carried out.
func TestAnotherRebootCompletesNoEvent(t *testing.T) {
	for _, what := range []string{"nothing else", "a crash after it", "a change during it"} {
		subtest(t, what, func(t *testing.T, s *stage) {
			s.opts.Interval = seldom
			e, want := &recorder{}, []string{"scheduled", "vanished"}
			b := s.up(e.all("a"))
			s.redeploy(idA, 72*time.Hour)
			pause(time.Minute)
			b.end()
			pause(30 * time.Second)
			s.opts.Booted = time.Now()
			if what == "a change during it" {
				s.azure.Update(idA, func(e *imdstest.Event) { e.Description = "Now with a reason." })
				want = []string{"scheduled", "updated", "vanished"}
			}
			b = s.start(e.all("a"))
			pause(time.Hour)
			if what == "a crash after it" {
				b.crash()
				s.start(e.all("a"))
				pause(time.Minute)
			}
			s.azure.End(idA)
			pause(time.Minute)
			wantIDs(t, e.types(), want...)
			e.wantEnd(t, cloudevent.OutcomeUnknown)
		})
	}
}

// A reboot after an approval may well be the event's, though Azure lists it as to come for a while. If it goes then, it
// was carried out.
func TestARebootAfterAnApprovalCompletesTheEvent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		e := &recorder{}
		b := s.up(e.all("a"))
		s.userReboot(idA)
		pause(1500 * time.Millisecond)
		b.approve(idA, cloudevent.ResultApproved)
		pause(1500 * time.Millisecond)
		b.crash()
		pause(30 * time.Second)
		s.opts.Booted = time.Now()
		s.start(e.all("a"))
		pause(10 * time.Second) // it is still listed as to come
		s.azure.End(idA)
		pause(3 * time.Second)
		wantIDs(t, e.types(), "scheduled", "approved", "vanished")
		e.wantEnd(t, cloudevent.OutcomeCompleted)
	})
}

// What is gone after a while in which nobody watched may be gone for as long, also if the first document after it can't
// be read in part, and if that happens twice. What is there again was seen to go.
func TestAPartialFirstDocumentHidesNoGap(t *testing.T) {
	for _, what := range []string{"it is gone", "it is gone, after two gaps", "it is there again"} {
		subtest(t, what, func(t *testing.T, s *stage) {
			e := &recorder{}
			b := s.up(e.all("a"))
			s.reboot(idA)
			pause(5 * time.Second)
			b.end()
			stopped := time.Now()
			pause(time.Hour)
			s.document(9, `{"EventStatus":"Scheduled"}`)
			s.start(e.all("a"))
			pause(5 * time.Second)
			switch what {
			case "it is gone, after two gaps":
				s.azure.SetFault(imdstest.Fault{Status: 503, For: 5 * time.Minute})
				s.document(10, `{"EventStatus":"Started"}`)
				pause(6 * time.Minute)
			case "it is there again":
				s.azure.SetDocument(nil)
				pause(5 * time.Second)
			}
			s.azure.End(idA)
			s.azure.SetDocument(nil)
			pause(5 * time.Second)
			wantIDs(t, e.types(), "scheduled", "vanished")
			d := e.last(t)
			away := what != "it is there again"
			wantEqual(t, "whileAway", d.WhileAway, away)
			if d.NotEarlierThan.IsZero() == away || d.NotEarlierThan.After(stopped) {
				t.Errorf("not earlier than %v, want %v if it went while nobody watched", d.NotEarlierThan, stopped)
			}
		})
	}
}

// That nobody watched for a while outlasts a crash.
func TestACrashForgetsNoGap(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		b := s.up(e.all("a"))
		s.redeploy(idA, 5*time.Hour)
		pause(2 * time.Second)
		s.azure.SetFault(imdstest.Fault{Status: 503, For: 5 * time.Minute})
		for back := time.Now().Add(5 * time.Minute); b.AnsweredAt().Before(back); {
			pause(time.Second)
		}
		b.crash()
		s.up(e.all("a"))
		s.azure.End(idA)
		pause(2 * time.Second)
		wantIDs(t, e.types(), "scheduled", "vanished")
		e.wantEnd(t, cloudevent.OutcomeUnknown)
	})
}

// The end of an event says for how long this machine stood still at most while the event was open, also if the program
// crashed since then. An endpoint that fails, is slow or does not answer is no standstill, and neither is a restart.
func TestTheLongestStandstillIsTold(t *testing.T) {
	fails := func(fault imdstest.Fault) func(*stage, *running, bridge.Route) {
		return func(s *stage, _ *running, _ bridge.Route) {
			s.azure.SetFault(fault)
			pause(fault.For + 30*time.Second)
		}
	}
	standsStill := func(b *running) {
		for _, d := range []time.Duration{2 * time.Second, 7 * time.Second, 3 * time.Second} {
			b.StandStill(d)
			pause(10 * time.Second)
		}
	}
	for _, tt := range []struct {
		claim       string
		meanwhile   func(s *stage, b *running, r bridge.Route)
		least, most float64 // seconds
	}{
		{"a standstill", func(_ *stage, b *running, _ bridge.Route) { standsStill(b) }, 6, 8},
		{"a standstill and a crash", func(s *stage, b *running, r bridge.Route) {
			standsStill(b)
			b.crash()
			s.up(r)
		}, 6, 8},
		{"nothing", fails(imdstest.Fault{}), 0, 0},
		{"one slow answer", fails(imdstest.Fault{Delay: 7 * time.Second, Times: 1}), 0, 0},
		{"an endpoint that fails", fails(imdstest.Fault{Status: 503, For: 10 * time.Minute}), 0, 0},
		{"an endpoint that refuses", fails(imdstest.Fault{Status: 403, For: 10 * time.Minute}), 0, 0},
		{"an endpoint that hangs", fails(imdstest.Fault{Hang: true, For: 10 * time.Minute}), 0, 0},
		{"a restart", func(s *stage, b *running, r bridge.Route) {
			b.end()
			pause(time.Minute)
			s.up(r)
		}, 0, 0},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			e := &recorder{}
			b := s.up(e.all("a"))
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Freeze"})
			pause(2 * time.Second)
			s.azure.Start(idA)
			pause(2 * time.Second)
			tt.meanwhile(s, b, e.all("a"))
			s.azure.End(idA)
			pause(2 * time.Second)
			d := e.wantEnd(t, cloudevent.OutcomeCompleted)
			wantWithin(t, "the longest pause", d.LongestPause, tt.least, tt.most)
		})
	}
}

// A clock that was set back between two runs hides how long nobody watched. So nothing is said to be cancelled.
func TestAClockThatWasSetBackIsAGap(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T, s *stage) {
		s.dir = dir
		pause(time.Hour)
		s.up((&recorder{}).all("a"))
		s.reboot(idA)
		pause(2 * time.Second)
	})
	bubble(t, func(t *testing.T, s *stage) { // in which it is an hour earlier, and the event is gone
		s.dir = dir
		e := &recorder{}
		s.start(e.all("a"))
		pause(5 * time.Second)
		e.wantEnd(t, cloudevent.OutcomeUnknown)
	})
}
