package bridge_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// A reboot that happened while nobody watched is told as completed, with the time at which the VM was back.
func TestARebootInTheGapIsKnownByTheBootTime(t *testing.T) {
	for _, booted := range []bool{false, true} {
		for _, started := range []bool{false, true} {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Booted = time.Now().Add(-time.Hour)
				e := &ear{}
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
				b = s.start(e.all("a"))
				pause(5 * time.Second)
				all := e.accepted()
				d := dataIn(t, all[len(all)-1].Event)
				want := cloudevent.OutcomeUnknown
				if booted || started {
					want = cloudevent.OutcomeCompleted
				}
				if d.Change != imds.Vanished || d.Outcome != want || booted && !d.Back.Equal(s.opts.Booted) || !booted && !d.Back.IsZero() {
					t.Errorf("booted %v, started %v: told %s, outcome %s, back %v; want %s", booted, started, d.Change, d.Outcome, d.Back, want)
				}
				b.end()
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
			e, want := &ear{}, []string{"scheduled", "vanished"}
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
				b = s.start(e.all("a"))
				pause(time.Minute)
			}
			s.azure.End(idA)
			pause(time.Minute)
			wantIDs(t, e.types(), want...)
			all := e.accepted()
			if d := dataIn(t, all[len(all)-1].Event); d.Outcome != cloudevent.OutcomeUnknown {
				t.Errorf("%s: outcome %s, want unknown", what, d.Outcome)
			}
			b.end()
		})
	}
}

// A reboot after an approval may well be the event's, though Azure lists it as to come for a while. If it goes then, it
// was carried out.
func TestARebootAfterAnApprovalCompletesTheEvent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		e := &ear{}
		b := s.start(e.all("a"))
		pause(1500 * time.Millisecond)
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
		all := e.accepted()
		if d := dataIn(t, all[len(all)-1].Event); d.Outcome != cloudevent.OutcomeCompleted {
			t.Errorf("outcome %s, want completed", d.Outcome)
		}
	})
}

// What is gone after a while in which nobody watched may be gone for as long, also if the first document after it can't
// be read in part, and if that happens twice. What is there again was seen to go.
func TestAPartialFirstDocumentHidesNoGap(t *testing.T) {
	for _, what := range []string{"it is gone", "it is gone, after two gaps", "it is there again"} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &ear{}
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
		e := &ear{}
		b := s.start(e.all("a"))
		pause(1500 * time.Millisecond)
		s.redeploy(idA, 5*time.Hour)
		pause(2 * time.Second)
		s.azure.SetFault(imdstest.Fault{Status: 503, For: 5 * time.Minute})
		for back := time.Now().Add(5 * time.Minute); b.AnsweredAt().Before(back); {
			pause(time.Second)
		}
		b.crash()
		b = s.start(e.all("a"))
		pause(2 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		wantIDs(t, e.types(), "scheduled", "vanished")
		if d := dataIn(t, e.accepted()[1].Event); d.Outcome != cloudevent.OutcomeUnknown {
			t.Errorf("outcome = %s, want unknown", d.Outcome)
		}
		b.end()
	})
}

// An open event that can't be read is logged, and is new to the bridge if Azure still lists it.
func TestAnOpenEventThatCannotBeReadIsNew(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		box, err := outbox.Open(s.dir, outbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		broken := map[string]*outbox.Group{idA: {State: []byte(`"nonsense"`), Latest: 1}, idB: {State: []byte("{}"), Latest: 2}}
		wait := box.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(outbox.Batch{Groups: broken}) })
		if err := errors.Join(wait(), box.Close()); err != nil {
			t.Fatal(err)
		}
		s.reboot(idA)
		e := &ear{}
		b := s.start(e.all("a"))
		pause(2 * time.Second)
		b.end()
		wantIDs(t, e.ids(), idA+"-scheduled")
		if n := strings.Count(s.log.String(), "cannot read an open event"); n != 2 {
			t.Errorf("the log says %d times that one can't be read, want 2", n)
		}
	})
}

// What can't be read of what the last run kept is logged, and nothing else is.
func TestAValueThatCannotBeReadIsLogged(t *testing.T) {
	for value, want := range map[string]int{`{"at":"2000-01-01T00:00:00Z"}`: 0, "nonsense": 1} {
		bubble(t, func(t *testing.T, s *stage) {
			box, err := outbox.Open(s.dir, outbox.Options{})
			if err != nil {
				t.Fatal(err)
			}
			kept := outbox.Batch{Values: map[string][]byte{bridge.ValueAnswer: []byte(value)}}
			wait := box.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(kept) })
			if err := errors.Join(wait(), box.Close()); err != nil {
				t.Fatal(err)
			}
			b := s.start((&ear{}).all("a"))
			pause(2 * time.Second)
			b.end()
			if n := strings.Count(s.log.String(), "level=ERROR"); n != want {
				t.Errorf("%s is kept: %d errors are logged, want %d", value, n, want)
			}
		})
	}
}

// An event that goes before its time was cancelled, if the bridge watched all along.
func TestAnEventThatGoesBeforeItsTimeWasCanceledUnlessNobodyWatched(t *testing.T) {
	for _, tt := range []struct {
		gap  time.Duration
		want cloudevent.Outcome
	}{{0, cloudevent.OutcomeCanceled}, {2 * time.Second, cloudevent.OutcomeCanceled}, {30 * time.Second, cloudevent.OutcomeUnknown}} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &ear{}
			b := s.start(e.all("a"))
			pause(2 * time.Second)
			s.reboot(idA)
			pause(2 * time.Second)
			if tt.gap > 0 {
				s.azure.SetFault(imdstest.Fault{Status: 503, For: tt.gap})
				pause(tt.gap + 20*time.Second)
			}
			s.azure.End(idA)
			pause(2 * time.Second)
			b.end()
			all := e.accepted()
			if d := dataIn(t, all[len(all)-1].Event); d.Outcome != tt.want {
				t.Errorf("after %v without an answer: outcome %s, want %s", tt.gap, d.Outcome, tt.want)
			}
		})
	}
}

// Nor was it surely cancelled if a document left it out and held an entry that cannot be read: in that it may have
// begun.
func TestAnEventThatMayHaveBegunInAnUnreadableEntryIsNeverCalledCanceled(t *testing.T) {
	for _, then := range []string{"it goes on", "it restarts", "it crashes after it"} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &ear{}
			b := s.start(e.all("a"))
			pause(2 * time.Second)
			s.reboot(idA)
			pause(2 * time.Second)
			s.azure.SetDocument([]byte(`{"DocumentIncarnation":9,"Events":[{"EventStatus":"Started","EventType":"Reboot"}]}`))
			pause(3 * time.Second)
			switch then {
			case "it restarts":
				b.end()
				b = s.start(e.all("a"))
				pause(2 * time.Second)
			case "it crashes after it":
				b.crash()
				s.azure.SetDocument(nil) // the event is listed again
				b = s.start(e.all("a"))
				pause(2 * time.Second)
			}
			s.azure.SetDocument([]byte(`{"DocumentIncarnation":10,"Events":[]}`))
			pause(2 * time.Second)
			b.end()
			all := e.accepted()
			d := dataIn(t, all[len(all)-1].Event)
			if d.Change != imds.Vanished || d.Outcome != cloudevent.OutcomeUnknown {
				t.Errorf("%s: told %s, outcome %s; want %s, %s", then, d.Change, d.Outcome, imds.Vanished,
					cloudevent.OutcomeUnknown)
			}
			if want := then == "it restarts"; d.WhileAway != want { // only then may it have gone while nobody watched
				t.Errorf("%s: told as while away %t, want %t", then, d.WhileAway, want)
			}
		})
	}
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
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				e := &ear{}
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
				all := e.accepted()
				if d := dataIn(t, all[len(all)-1].Event); d.Change != imds.Vanished || d.LongestPause != 0 {
					t.Errorf("%s, longestPause %v, want vanished and none", d.Change, d.LongestPause)
				}
			})
		})
	}
}

// The end of an event says for how long this machine stood still at most while the event was open, also if the program
// crashed since then.
func TestTheLongestStandstillIsTold(t *testing.T) {
	for _, crash := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &ear{}
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
				b = s.start(e.all("a"))
				pause(2 * time.Second)
			}
			s.azure.End(idA)
			pause(2 * time.Second)
			all := e.accepted()
			d := dataIn(t, all[len(all)-1].Event)
			if d.Change != imds.Vanished || d.LongestPause < 6 || d.LongestPause > 8 {
				t.Errorf("crash %t: %s, longestPause %v, want vanished and about 7 s", crash, d.Change, d.LongestPause)
			}
			b.end()
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
		b := s.start((&ear{}).all("a"))
		pause(2 * time.Second)
		s.reboot(idA)
		pause(2 * time.Second)
		b.end()
	})
	synctest.Test(t, func(t *testing.T) { // in which it is an hour earlier, and the event is gone
		s := newStage(t)
		s.dir = dir
		e := &ear{}
		b := s.start(e.all("a"))
		pause(5 * time.Second)
		b.end()
		all := e.accepted()
		if d := dataIn(t, all[len(all)-1].Event); d.Change != imds.Vanished || d.Outcome != cloudevent.OutcomeUnknown {
			t.Errorf("told %s, outcome %s; want vanished, unknown", d.Change, d.Outcome)
		}
	})
}

// What became pending before the clock was set back and the program restarted counts from the restart: for the fallback,
// and for status.
func TestAClockThatWasSetBackDelaysNoFallback(t *testing.T) {
	dir := t.TempDir()
	down := (&ear{answer: always(errSinkDown)}).all("down").With(func(x *bridge.Terms) {
		x.Fallback = delivery.Fallback{Sink: "b", After: time.Minute}
	})
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.dir = dir
		pause(time.Hour)
		b := s.start(down, (&ear{}).self("b"))
		pause(2 * time.Second)
		s.redeploy(idA, 10*time.Hour)
		s.azure.Update(idA, func(e *imdstest.Event) { e.Resources = []string{"vm-1"} })
		pause(2 * time.Second)
		b.end()
	})
	synctest.Test(t, func(t *testing.T) { // in which it is an hour earlier
		s := newStage(t)
		s.dir = dir
		s.azure.SetFault(imdstest.Fault{Status: 503})
		other := &ear{}
		b := s.start(down, other.self("b"))
		pause(30 * time.Second)
		if st := b.Status().Sinks; st[1].Name != "down" || st[1].OldestPendingSeconds < 20 {
			t.Errorf("after half a minute the status is %+v", st)
		}
		pause(time.Minute)
		wantIDs(t, other.ids(), idA+"-scheduled")
		b.end()
	})
}

// self returns a route of events that name this VM.
func (e *ear) self(name string) bridge.Route {
	r := e.all(name)
	r.Filter.Only.VMs = ""
	return r
}

// A filter decides once per Azure event: a sink that heard the beginning hears the end, whatever becomes of the event,
// of the bridge and of the filter. Only changes is asked each time.
func TestAFilterDecidesOncePerEvent(t *testing.T) {
	for _, how := range []string{"running", "restarted", "crashed", "reloaded"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				self, ends, never := &ear{}, &ear{}, &ear{}
				routes := func(vms string) []bridge.Route {
					a, b, c := self.self("self"), ends.self("ends"), never.self("never")
					a.Filter.Only.VMs, b.Filter.Only.VMs = vms, vms
					b.Filter.Only.Changes = []string{"vanished"}
					c.Filter.Only.Types = []string{"Freeze"}
					return []bridge.Route{a, b, c}
				}
				b := s.start(routes("self")...)
				pause(2 * time.Second)
				s.reboot(idA)
				pause(2 * time.Second)
				switch how {
				case "restarted":
					b.end()
					b = s.start(routes("leader")...)
				case "crashed":
					b.crash()
					b = s.start(routes("leader")...)
				case "reloaded":
					b.Reload(routes("leader"), nil, bridge.SettingsInfo{})
				}
				pause(2 * time.Second)
				s.azure.Update(idA, func(e *imdstest.Event) { e.Resources = []string{"vm-1"} })
				pause(2 * time.Second)
				s.azure.Start(idA)
				pause(2 * time.Second)
				s.azure.End(idA)
				pause(2 * time.Second)
				b.end()
				if got := strings.Join(self.types(), " "); got != "scheduled updated started vanished" {
					t.Errorf("the sink that wants this VM's events heard %s", got)
				}
				if got := strings.Join(ends.types(), " "); got != "vanished" {
					t.Errorf("the sink that wants their ends heard %s", got)
				}
				wantIDs(t, never.ids())
			})
		})
	}
}

// An event that a filter refused is asked about again at its next change: from the first that it accepts on, the sink
// hears all.
func TestAFilterIsAskedUntilItAccepts(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &ear{}
		b := s.start(e.self("a"))
		pause(2 * time.Second)
		s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-1"}})
		pause(2 * time.Second)
		wantIDs(t, e.ids())
		s.azure.Update(idA, func(e *imdstest.Event) { e.Resources = []string{"vm-1", "vm-0"} })
		pause(2 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		if got := strings.Join(e.types(), " "); got != "updated vanished" {
			t.Errorf("heard %s, want updated vanished", got)
		}
		b.end()
	})
}

// later has Azure announce a reboot of these VMs in an hour.
func (s *stage) later(id string, vms ...string) {
	s.azure.Schedule(imdstest.Event{ID: id, Type: "Reboot", Resources: vms, NotBefore: time.Now().Add(time.Hour)})
}

// While nobody knows this VM's name, the first document of an installation waits for it, for a minute at most. Nobody is
// told anything before, and all decide by the name then.
func TestTheFirstDocumentWaitsForTheNameOfThisVM(t *testing.T) {
	unknown := imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true}
	const passes = "VM name unknown; the event passes"
	t.Run("and passes when it doesn't come, which is said", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *stage) {
			s.azure.SetFault(unknown)
			self, all := &ear{}, &ear{}
			began := time.Now()
			b := s.start(self.self("self"), all.all("all"))
			pause(10 * time.Second) // an empty document is no reason to decide about the next
			s.later(idA, "vm-1")
			pause(45 * time.Second)
			wantIDs(t, all.ids())
			wantIDs(t, self.ids())
			s.wantLogged("waiting for the VM name; until then sinks are told only of what begins within 15 minutes")
			if strings.Contains(s.log.String(), passes) {
				t.Error("it passed at once")
			}
			pause(10 * time.Second)
			wantIDs(t, all.ids(), idA+"-scheduled")
			wantIDs(t, self.ids(), idA+"-scheduled")
			for _, h := range self.accepted() {
				if d := h.at.Sub(began); d < bridge.NameForFilters || d > bridge.NameForFilters+2*time.Second {
					t.Errorf("waited for %v, want a minute", d)
				}
			}
			s.wantLogged(passes)
			s.azure.End(idA)
			pause(2 * time.Second)
			s.later(idB, "vm-1")
			pause(2 * time.Second)
			wantIDs(t, self.ids(), idA+"-scheduled", idA+"-vanished", idB+"-scheduled")
			b.end()
		})
	})
	t.Run("and is decided about as soon as it comes", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *stage) {
			s.opts.Random = func() float64 { return 0 } // it is asked for after 0, 0.5, 1.5, 3.5 and 7.5 seconds
			s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 7100 * time.Millisecond})
			s.later(idA, "vm-1", "vm-0")
			s.later(idB, "vm-1")
			self, leader := &ear{}, &ear{}
			lead := leader.self("leader")
			lead.Filter.Only.VMs = "leader"
			began := time.Now()
			b := s.start(self.self("self"), lead)
			pause(20 * time.Second)
			wantIDs(t, self.ids(), idA+"-scheduled")
			wantIDs(t, leader.ids())
			for _, h := range self.accepted() {
				if d := h.at.Sub(began); d > 7500*time.Millisecond+bridge.DefaultInterval {
					t.Errorf("it was told after %v, want it at the next poll", d)
				}
			}
			if strings.Contains(s.log.String(), passes) {
				t.Error("the log says that it passed")
			}
			b.end()
		})
	})
	t.Run("and an event that ends meanwhile was nobody's", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *stage) {
			s.azure.SetFault(unknown)
			all := &ear{}
			b := s.start(all.all("all"))
			s.later(idA, "vm-0")
			pause(10 * time.Second)
			s.azure.End(idA)
			pause(2 * time.Minute)
			wantIDs(t, all.ids())
			b.end()
		})
	})
	t.Run("across a crash", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *stage) {
			s.azure.SetFault(unknown)
			self := &ear{}
			b := s.start(self.self("self"))
			s.later(idA, "vm-0")
			s.later(idB, "vm-1")
			pause(10 * time.Second)
			b.crash()
			wantIDs(t, self.ids())
			s.azure.ClearFaults()
			b = s.start(self.self("self"))
			pause(10 * time.Second)
			wantIDs(t, self.ids(), idA+"-scheduled")
			b.end()
		})
	})
	t.Run("once", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *stage) {
			s.azure.SetFault(unknown)
			b := s.start((&ear{}).self("self"))
			pause(2 * time.Minute)
			b.end()
			s.later(idA, "vm-1")
			self := &ear{}
			b = s.start(self.self("self"))
			pause(5 * time.Second)
			wantIDs(t, self.ids(), idA+"-scheduled")
			b.end()
		})
	})
}

// What is urgent doesn't wait for the name of this VM, nor does what the same document lists beside it.
func TestWhatIsUrgentDoesNotWaitForTheName(t *testing.T) {
	for claim, makeUrgent := range map[string]func(e *imdstest.Event){
		"a Preempt":                     func(e *imdstest.Event) { e.Type = "Preempt" },
		"what begins within 15 minutes": func(e *imdstest.Event) { e.NotBefore = time.Now().Add(14 * time.Minute) },
		"what Azure gives no time for":  func(e *imdstest.Event) { e.NotBefore = time.Time{} },
		"what has begun":                func(e *imdstest.Event) { e.Status = imdstest.Started },
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
				self := &ear{}
				b := s.start(self.self("self"))
				s.later(idA, "vm-1")
				s.later(idB, "vm-1")
				pause(10 * time.Second)
				wantIDs(t, self.ids())
				s.azure.Update(idB, makeUrgent)
				pause(1500 * time.Millisecond)
				if got := self.ids(); len(got) != 2 {
					t.Errorf("heard %v, want both events", got)
				}
				s.wantLogged("VM name unknown; the event passes")
				b.end()
			})
		})
	}
	t.Run("what comes near while it waits", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *stage) {
			s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
			self, began := &ear{}, time.Now()
			b := s.start(self.self("self"))
			s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-1"}, NotBefore: began.Add(15*time.Minute + 20*time.Second)})
			pause(30 * time.Second)
			wantIDs(t, self.ids(), idA+"-scheduled")
			for _, h := range self.accepted() {
				if d := h.at.Sub(began).Round(time.Second); d < 20*time.Second || d > 21*time.Second {
					t.Errorf("it was told after %v, want it 15 minutes ahead", d)
				}
			}
			b.end()
		})
	})
}

// An answer that will stay the same ends the wait for this VM's name: a refusal at once, one that a host gives for a
// moment after some seconds. Until then the status says what it waits for, then what that means, and what helps.
func TestNobodyWaitsForANameThatWillNotCome(t *testing.T) {
	systemtest.Alone(t)
	for _, tt := range []struct {
		claim       string
		fault       imdstest.Fault
		least, most time.Duration
	}{
		{"a refusal", imdstest.Fault{Status: 403}, 0, 2 * time.Second},
		{"a malformed request", imdstest.Fault{Status: 400}, 0, 2 * time.Second},
		{"not found", imdstest.Fault{Status: 404}, 3 * time.Second, 4600 * time.Millisecond},
		{"gone", imdstest.Fault{Status: 410}, 3 * time.Second, 4600 * time.Millisecond},
		{"something else", imdstest.Fault{HTML: true}, 3 * time.Second, 4600 * time.Millisecond},
		{"too many requests", imdstest.Fault{Status: 429}, time.Minute, 62 * time.Second},
		{"an error of the service", imdstest.Fault{Status: 500}, time.Minute, 62 * time.Second},
		{"no answer", imdstest.Fault{Hang: true}, time.Minute, 62 * time.Second},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Random = func() float64 { return 0 } // it is asked after 0, 0.5, 1.5 and 3.5 seconds
				tt.fault.Path = imdstest.InstanceFacts
				s.azure.SetFault(tt.fault)
				self := &ear{}
				began := time.Now()
				b := s.start(self.self("self"))
				s.later(idA, "vm-1")
				if tt.least == time.Minute {
					pause(30 * time.Second)
					warned := strings.Join(b.Status().Warnings, " ")
					if !strings.Contains(warned, "waiting for the VM name until 00:01:00 UTC") || !strings.Contains(warned, "imds.vm_name") {
						t.Errorf("the status warns of %q, want what it waits for", warned)
					}
				}
				pause(70 * time.Second)
				wantIDs(t, self.ids(), idA+"-scheduled")
				if d := self.accepted()[0].at.Sub(began); d < tt.least || d > tt.most {
					t.Errorf("it passed after %v, want %v to %v", d, tt.least, tt.most)
				}
				s.wantLogged("imds.vm_name")
				s.wantLogged("instance metadata gave no identity")
				if warned := strings.Join(b.Status().Warnings, " "); !strings.Contains(warned, "sinks get the events of every VM") || !strings.Contains(warned, "imds.vm_name") {
					t.Errorf("the status warns of %q, want what it means and what helps", warned)
				}
				s.azure.ClearFaults()
				pause(2 * time.Minute)
				if st := b.Status(); st.Observer.Name != "vm-0" || len(st.Warnings) != 0 {
					t.Errorf("once it is answered the name is %q, with the warnings %q", st.Observer.Name, st.Warnings)
				}
				b.end()
			})
		})
	}
}

// A host that says for a moment that there is nothing, as after it moved a VM, is waited for.
func TestANameThatComesSoonIsWaitedFor(t *testing.T) {
	for _, fault := range []imdstest.Fault{{Status: 404}, {Status: 410}} {
		bubble(t, func(t *testing.T, s *stage) {
			fault.Path, fault.Times = imdstest.InstanceFacts, 2
			s.azure.SetFault(fault)
			self := &ear{}
			b := s.start(self.self("self"))
			s.later(idA, "vm-1")
			s.later(idB, "vm-0")
			pause(70 * time.Second)
			wantIDs(t, self.ids(), idB+"-scheduled")
			b.end()
		})
	}
}

// Nor is one given up that says so again after something else: each time begins anew.
func TestAHostThatSaysAgainThatThereIsNothingIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		instance := func(status int) {
			s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: status})
		}
		instance(404)
		self := &ear{}
		b := s.start(self.self("self"))
		s.later(idA, "vm-1")
		s.later(idB, "vm-0")
		pause(time.Second)
		instance(503)
		pause(10 * time.Second)
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 404, Times: 1})
		pause(time.Minute)
		wantIDs(t, self.ids(), idB+"-scheduled")
		b.end()
	})
}

// The name of this VM that was learnt last is kept, and one that is set is not asked for.
func TestTheNameOfThisVMIsKeptOrSet(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start((&ear{}).self("a"))
		pause(2 * time.Second)
		b.end()
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		e := &ear{}
		b = s.start(e.self("a"))
		pause(10 * time.Second)
		s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-1"}})
		s.azure.Schedule(imdstest.Event{ID: idB, Resources: []string{"vm-0"}})
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idB+"-scheduled")
		if strings.Contains(s.log.String(), "VM name unknown") {
			t.Error("the log says that the name is unknown, though the one of before is kept")
		}
		b.end()
	})
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.VMName = "vm-1"
		e := &ear{}
		b := s.start(e.self("a"))
		s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-1"}})
		s.azure.Schedule(imdstest.Event{ID: idB, Resources: []string{"vm-0"}})
		pause(10 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled")
		if o := b.Status().Observer; o.Name != "vm-1" || o.VMID == "" {
			t.Errorf("the observer is %+v, want the name that was set and the vmId that was learnt", o)
		}
		b.end()
	})
}

// What the bridge knows of itself when nobody tells it stands in the CloudEvents: the host in their source, and the
// operating system in what they say of the observer.
func TestTheHostStandsInForAName(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		e := &ear{}
		b := s.start(e.all("a").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelAll }))
		s.reboot(idA)
		pause(10 * time.Second)
		for _, h := range e.accepted() {
			if got := h.Event.Source(); got != "urn:forewarn:host-0" {
				t.Errorf("the source of %s is %s", h.Event.ID(), got)
			}
			observer, _ := tellingOf(t, h.Event)["observer"].(map[string]any)
			if got := observer["osType"]; got != imds.ThisOS {
				t.Errorf("%s names the system %v, want %s", h.Event.ID(), got, imds.ThisOS)
			}
		}
		if len(e.ids()) != 2 {
			t.Errorf("heard %v", e.ids())
		}
		b.end()
	})
}

// Each change has the number of the document that it was found in.
func TestAChangeNamesItsDocument(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &ear{}
		b := s.start(e.all("a"))
		for n := range 3 {
			s.azure.SetDocument(fmt.Appendf(nil, `{"DocumentIncarnation":%d,"Events":[%s]}`, 5+n, []string{"",
				`{"EventId":"` + idA + `","EventType":"Reboot","EventStatus":"Scheduled"}`,
				`{"EventId":"` + idA + `","EventType":"Reboot","EventStatus":"Started"}`}[n]))
			pause(5 * time.Second)
		}
		var got []any
		for _, h := range e.accepted() {
			got = append(got, tellingOf(t, h.Event)["documentIncarnation"])
		}
		if want := []any{6.0, 7.0}; !slices.Equal(got, want) {
			t.Errorf("the changes are of the documents %v, want %v", got, want)
		}
		b.end()
	})
}

// Until instance metadata has had time to answer, the status warns of nothing.
func TestTheFirstMomentWarnsOfNoName(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		b := s.start((&ear{}).self("self"))
		pause(time.Second)
		if w := b.Status().Warnings; len(w) > 0 {
			t.Errorf("the status warns of %q", w)
		}
		b.end()
	})
}

// That the VM's name will not come is said once, and not where the settings have it.
func TestThatTheNameIsUnknownIsLoggedOnce(t *testing.T) {
	for name, want := range map[string]int{"": 1, "vm-0": 0} {
		bubble(t, func(t *testing.T, s *stage) {
			s.opts.VMName = name
			s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 403})
			b := s.start((&ear{}).self("self"))
			pause(10 * time.Minute)
			if n := strings.Count(s.log.String(), "VM name unknown; sinks get the events of every VM"); n != want {
				t.Errorf("with the name %q in the settings it is logged %d times, want %d", name, n, want)
			}
			b.end()
		})
	}
}

// What is urgent waits 3 s for the name of this VM after the first answer, and no longer.
func TestWhatIsUrgentWaitsThreeSecondsForTheName(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		s.reboot(idA)
		e, began := &ear{}, time.Now()
		b := s.start(e.all("a"))
		pause(10 * time.Second)
		if all := e.accepted(); len(all) != 1 || all[0].at.Sub(began).Truncate(time.Second) != 3*time.Second {
			t.Errorf("told %v after %v, want one after 3 s", idsOf(all), all[0].at.Sub(began))
		}
		b.end()
	})
}

// Whom a change reaches because the wait for the VM's name is over hears the rest of that event, even if it turns out
// to be another VM's.
func TestWhoWasToldForWantOfANameHearsTheEnd(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = 100 * time.Millisecond
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		e := &ear{}
		route := e.self("self")
		route.Filter.Only.Changes = []string{"started", "vanished"}
		b := s.start(route)
		pause(5 * time.Second)
		s.later(idA, "vm-1")
		pause(bridge.NameForFilters)
		wantIDs(t, e.types())
		s.azure.Start(idA)
		pause(500 * time.Millisecond)
		wantIDs(t, e.types(), "started")
		s.azure.ClearFaults()
		pause(5 * time.Minute)
		s.azure.End(idA)
		pause(5 * time.Second)
		wantIDs(t, e.types(), "started", "vanished")
		b.end()
	})
}

// However many VMs Azure names, the line about an event stays readable.
func TestALongListOfVMsIsCutInTheLog(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start((&ear{}).all("audit"))
		pause(1500 * time.Millisecond)
		var vms []string
		for i := range 300 {
			vms = append(vms, fmt.Sprintf("vm-%06d", i))
		}
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Resources: vms})
		pause(1500 * time.Millisecond)
		b.end()
		for line := range strings.Lines(s.log.String()) {
			if _, list, is := strings.Cut(line, " resources="); is {
				list, _, _ = strings.Cut(list, " ")
				if len(list) != 1<<10 || !strings.HasPrefix(list, "vm-000000,vm-000001,") {
					t.Errorf("the log has %d bytes of the names, want the first 1,024", len(list))
				}
			}
		}
		s.wantLogged(" resources=vm-000000,")
	})
}

// The line about an event says when it begins, if Azure said that, and nothing of it if not.
func TestTheLogSaysWhenAnEventBeginsIfAzureDoes(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start((&ear{}).all("audit"))
		pause(1500 * time.Millisecond)
		s.azure.SetDocument([]byte(`{"DocumentIncarnation":2,"Events":[
			{"EventId":"` + idA + `","EventType":"Reboot","EventStatus":"Scheduled","NotBefore":"Mon, 03 Jan 2000 04:05:06 GMT"},
			{"EventId":"` + idB + `","EventType":"Reboot","EventStatus":"Scheduled"}]}`))
		pause(2 * time.Second)
		b.end()
		for id, want := range map[string]string{idA: "2000-01-03T04:05:06.000Z", idB: ""} {
			got := "no line"
			for line := range strings.Lines(s.log.String()) {
				if strings.Contains(line, "change=scheduled event="+id) {
					_, got, _ = strings.Cut(strings.TrimSpace(line), " notBefore=")
				}
			}
			if got != want {
				t.Errorf("the line about %s says %q of when it begins, want %q", id, got, want)
			}
		}
	})
}

// A log that is slow, such as a full pipe, delays only what writes to it: no line is written under a lock that others
// wait for.
func TestNothingIsLoggedUnderALock(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		var b atomic.Pointer[running]
		seen := map[string]bool{}
		var mu sync.Mutex
		free := func(lock *sync.Mutex) bool {
			for range 1_000_000 { // others may hold it for a moment
				if lock.TryLock() {
					lock.Unlock()
					return true
				}
				runtime.Gosched()
			}
			return false
		}
		s.logged = func(words string) {
			if b := b.Load(); b != nil && slices.ContainsFunc(b.Locks(), func(lock *sync.Mutex) bool { return !free(lock) }) {
				t.Errorf("%q is logged under a lock", words)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[words] = true
		}
		b.Store(s.start((&ear{}).all("a").With(func(x *bridge.Terms) { x.Remind = []time.Duration{time.Minute} })))
		pause(1500 * time.Millisecond)
		s.reboot(idA)
		pause(16 * time.Minute)
		if _, err := b.Load().Mute(bridge.Mute{Reason: "test", By: "root"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		b.Load().end()
		mu.Lock()
		defer mu.Unlock()
		for _, words := range []string{"azure event", "reminder due", "muted; deliveries wait"} {
			if !seen[words] {
				t.Errorf("%q was not logged", words)
			}
		}
	})
}
