package bridge_test

import (
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
)

// A reboot that happened while nobody watched is told as completed, with the time at which the VM was back.
func TestARebootInTheGapIsKnownByTheBootTime(t *testing.T) {
	for _, booted := range []bool{false, true} {
		for _, started := range []bool{false, true} {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Booted = time.Now().Add(-time.Hour)
				e := &recorder{}
				b := s.start(e.all("a"))
				pause(2 * time.Second)
				s.reboot(idA)
				pause(5 * time.Second)
				if started {
					s.azure.Start(idA)
					pause(5 * time.Second)
				}
				b.crash()
				pause(30 * time.Second)
				if booted {
					s.opts.Booted = time.Now()
				}
				pause(20 * time.Second)
				s.azure.End(idA)
				s.start(e.all("a"))
				pause(5 * time.Second)
				d := e.last(t)
				want := cloudevent.OutcomeUnknown
				if booted || started {
					want = cloudevent.OutcomeCompleted
				}
				if d.Change != imds.Vanished || d.Outcome != want || booted && !d.Back.Equal(s.opts.Booted) || !booted && !d.Back.IsZero() {
					t.Errorf("booted %v, started %v: told %s, outcome %s, back %v; want %s", booted, started, d.Change, d.Outcome, d.Back, want)
				}
			})
		}
	}
}

// A reboot after which an event is still listed as to come was not the event's. If it goes then, nobody says that it was
// carried out.
func TestAnotherRebootCompletesNoEvent(t *testing.T) {
	for _, what := range []string{"nothing else", "a crash after it", "a change during it"} {
		bubble(t, func(t *testing.T, s *stage) {
			s.opts.Interval = seldom
			e, want := &recorder{}, []string{"scheduled", "vanished"}
			b := s.start(e.all("a"))
			pause(2 * time.Second)
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Freeze", Resources: []string{"vm-0"}, NotBefore: time.Now().Add(72 * time.Hour)})
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
			if d := e.last(t); d.Outcome != cloudevent.OutcomeUnknown {
				t.Errorf("%s: outcome %s, want unknown", what, d.Outcome)
			}
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
		if a := b.ApproveNow(t.Context(), idA, s.shown(idA), "root"); a.Result != cloudevent.ResultApproved {
			t.Fatalf("ApproveNow = %+v, want it approved", a)
		}
		pause(1500 * time.Millisecond)
		b.crash()
		pause(30 * time.Second)
		s.opts.Booted = time.Now()
		b = s.start(e.all("a"))
		pause(10 * time.Second) // it is still listed as to come
		s.azure.End(idA)
		pause(3 * time.Second)
		b.end()
		wantIDs(t, e.types(), "scheduled", "approved", "vanished")
		if d := e.last(t); d.Outcome != cloudevent.OutcomeCompleted {
			t.Errorf("outcome %s, want completed", d.Outcome)
		}
	})
}

// What is gone after a while in which nobody watched may be gone for as long, also if the first document after it can't
// be read in part, and if that happens twice. What is there again was seen to go.
func TestAPartialFirstDocumentHidesNoGap(t *testing.T) {
	for _, what := range []string{"it is gone", "it is gone, after two gaps", "it is there again"} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &recorder{}
			b := s.start(e.all("a"))
			pause(2 * time.Second)
			s.reboot(idA)
			pause(5 * time.Second)
			b.end()
			stopped := time.Now()
			pause(time.Hour)
			s.azure.SetDocument([]byte(`{"DocumentIncarnation":9,"Events":[{"EventStatus":"Scheduled"}]}`))
			b = s.start(e.all("a"))
			pause(5 * time.Second)
			if what == "it is gone, after two gaps" {
				s.azure.SetFault(imdstest.Fault{Status: 503, For: 5 * time.Minute})
				s.azure.SetDocument([]byte(`{"DocumentIncarnation":10,"Events":[{"EventStatus":"Started"}]}`))
				pause(6 * time.Minute)
			}
			if what == "it is there again" {
				s.azure.SetDocument(nil)
				pause(5 * time.Second)
			}
			s.azure.End(idA)
			s.azure.SetDocument(nil)
			pause(5 * time.Second)
			b.end()
			wantIDs(t, e.types(), "scheduled", "vanished")
			d := dataIn(t, e.accepted()[1].Event)
			if what == "it is there again" {
				if d.WhileAway || !d.NotEarlierThan.IsZero() {
					t.Errorf("%s: told as while away %v, not earlier than %v; want neither", what, d.WhileAway,
						d.NotEarlierThan)
				}
			} else if !d.WhileAway || d.NotEarlierThan.IsZero() || d.NotEarlierThan.After(stopped) {
				t.Errorf("%s: told as while away %v, not earlier than %v; want not earlier than %v", what, d.WhileAway,
					d.NotEarlierThan, stopped)
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
		s.start(e.all("a"))
		pause(2 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		wantIDs(t, e.types(), "scheduled", "vanished")
		if d := dataIn(t, e.accepted()[1].Event); d.Outcome != cloudevent.OutcomeUnknown {
			t.Errorf("outcome = %s, want unknown", d.Outcome)
		}
	})
}

// An endpoint that fails, is slow or does not answer is no pause of this machine, and neither is a restart.
func TestOnlyAStandstillIsAPause(t *testing.T) {
	for _, tt := range []struct {
		claim   string
		fault   imdstest.Fault
		restart bool
	}{
		{"nothing", imdstest.Fault{}, false},
		{"one slow answer", imdstest.Fault{Delay: 7 * time.Second, Times: 1}, false},
		{"an endpoint that fails", imdstest.Fault{Status: 503, For: 10 * time.Minute}, false},
		{"an endpoint that refuses", imdstest.Fault{Status: 403, For: 10 * time.Minute}, false},
		{"an endpoint that hangs", imdstest.Fault{Hang: true, For: 10 * time.Minute}, false},
		{"a restart", imdstest.Fault{}, true},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			e := &recorder{}
			b := s.start(e.all("a"))
			pause(2 * time.Second)
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Freeze"})
			pause(2 * time.Second)
			s.azure.Start(idA)
			pause(2 * time.Second)
			s.azure.SetFault(tt.fault)
			pause(tt.fault.For + 30*time.Second)
			if tt.restart {
				b.end()
				pause(time.Minute)
				b = s.start(e.all("a"))
				pause(5 * time.Second)
			}
			s.azure.End(idA)
			pause(2 * time.Second)
			b.end()
			if d := e.last(t); d.Change != imds.Vanished || d.LongestPause != 0 {
				t.Errorf("%s, longestPause %v, want vanished and none", d.Change, d.LongestPause)
			}
		})
	}
}

// The end of an event says for how long this machine stood still at most while the event was open, also if the program
// crashed since then.
func TestTheLongestStandstillIsTold(t *testing.T) {
	for _, crash := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &recorder{}
			b := s.start(e.all("a"))
			pause(2 * time.Second)
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Freeze"})
			pause(2 * time.Second)
			s.azure.Start(idA)
			for _, d := range []time.Duration{2 * time.Second, 7 * time.Second, 3 * time.Second} {
				b.StandStill(d)
				pause(10 * time.Second)
			}
			if crash {
				b.crash()
				s.start(e.all("a"))
				pause(2 * time.Second)
			}
			s.azure.End(idA)
			pause(2 * time.Second)
			d := e.last(t)
			if d.Change != imds.Vanished || d.LongestPause < 6 || d.LongestPause > 8 {
				t.Errorf("crash %t: %s, longestPause %v, want vanished and about 7 s", crash, d.Change, d.LongestPause)
			}
		})
	}
}

// A clock that was set back between two runs hides how long nobody watched. So nothing is said to be cancelled.
func TestAClockThatWasSetBackIsAGap(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.dir = dir
		pause(time.Hour)
		s.start((&recorder{}).all("a"))
		pause(2 * time.Second)
		s.reboot(idA)
		pause(2 * time.Second)
	})
	synctest.Test(t, func(t *testing.T) { // in which it is an hour earlier, and the event is gone
		s := newStage(t)
		s.dir = dir
		e := &recorder{}
		b := s.start(e.all("a"))
		pause(5 * time.Second)
		b.end()
		if d := e.last(t); d.Change != imds.Vanished || d.Outcome != cloudevent.OutcomeUnknown {
			t.Errorf("told %s, outcome %s; want vanished, unknown", d.Change, d.Outcome)
		}
	})
}
