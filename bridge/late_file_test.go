package bridge_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
)

// lateFile ends the bridge, has something happen, and starts another without its file, which comes when bring is
// called.
func (s *stage) lateFile(b *running, happens func(), routes ...bridge.Route) (after *running, bring func()) {
	b.end()
	happens()
	older := filepath.Join(s.dir, "outbox.db")
	s.dir = notADirectory(s.t)
	return s.start(routes...), func() {
		must(s.t, errors.Join(os.Remove(filepath.Dir(s.dir)), os.MkdirAll(s.dir, 0o700)))
		copyFile(s.t, older, filepath.Join(s.dir, "outbox.db"))
	}
}

// missesFile is the same for a file that comes after some seconds.
func (s *stage) missesFile(b *running, happens func(), routes ...bridge.Route) (after *running) {
	b, bring := s.lateFile(b, happens, routes...)
	pause(3 * time.Second)
	bring()
	pause(20 * time.Second)
	return b
}

// The disk may come late and bring an older outbox: its backlog is delivered, what was open in it and is over is told,
// and what memory knows stays.
func TestAnOlderOutboxThatComesLateIsTakenUp(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start(answering(errSinkDown).all("a"), (&recorder{}).all("gone"))
		s.reboot(idA)
		pause(2 * time.Second)
		s.reboot(idB)
		pause(2 * time.Second)
		e := &recorder{}
		b, bring := s.lateFile(b, func() { s.azure.End(idB) }, e.all("a"))
		pause(2 * time.Second)
		s.azure.Start(idA)
		pause(20 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started")
		bring()
		pause(20 * time.Second)
		got := e.ids()
		slices.Sort(got)
		// idA's scheduled twice: memory did not know that it was pending already.
		wantIDs(t, got, idA+"-scheduled", idA+"-scheduled", idA+"-started", idB+"-scheduled", idB+"-vanished")
		for _, h := range e.accepted() {
			if h.Event.ID() == idB+"-vanished" {
				wantEqual(t, "the outcome, as nobody watched", dataIn(t, h.Event).Outcome, cloudevent.OutcomeUnknown)
			}
		}
		b.wantDurable()
		b.end()
		wantIDs(t, pendingIDs(stored(t, s.dir), "a"))
	})
}

// What a late file remembers of an event counts, though the event was told as new before it came: that it was approved,
// had begun, and to which routes it goes. What ended meanwhile ended while nobody watched.
func TestWhatALateFileRemembersOfAnEventCounts(t *testing.T) {
	for begun, outcome := range map[bool]cloudevent.Outcome{false: cloudevent.OutcomeUnknown, true: cloudevent.OutcomeCompleted} {
		subtest(t, fmt.Sprintf("begun %t", begun), func(t *testing.T, s *stage) {
			s.beginsLate()
			e, moved := &recorder{}, &recorder{}
			first := moved.all("first").OnlyWhen(`data.event.Description == "first"`)
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Description: "first", Resources: []string{"vm-0"}})
			s.redeploy(idB, time.Hour)
			b := s.start(e.all("a"), first)
			pause(2500 * time.Millisecond)
			if begun {
				s.azure.Start(idA)
			} else {
				b.approve(idA, cloudevent.ResultApproved)
			}
			pause(2 * time.Second)
			watched := time.Now()
			s.missesFile(b, func() {
				s.azure.End(idB)
				s.azure.Update(idA, func(e *imdstest.Event) {
					e.Status, e.Description, e.NotBefore = "Scheduled", "second", time.Now().Add(time.Hour)
				})
				pause(30 * time.Second)
			}, e.all("a"), first)
			before := len(moved.ids())
			s.azure.End(idA)
			pause(3 * time.Second)
			ends := map[string]cloudevent.Data{}
			for _, h := range e.accepted() {
				ends[h.Event.Subject()] = dataIn(t, h.Event)
			}
			wantEqual(t, "the outcome", ends[idA].Outcome, outcome)
			wantEqual(t, "the outcome of what ended while nobody watched", ends[idB].Outcome, cloudevent.OutcomeUnknown)
			if d := ends[idB]; !d.WhileAway || d.NotEarlierThan.After(watched) {
				t.Errorf("it ended while away %v, not earlier than %v, want before %v", d.WhileAway, d.NotEarlierThan, watched)
			}
			for id, d := range ends {
				if !d.Announced.Before(watched) {
					t.Errorf("%s was announced at %v, want before %v", id, d.Announced, watched)
				}
			}
			wantIDs(t, moved.types()[before:], "vanished")
		})
	}
}

// So does an approval that Azure has not answered: the event may begin at any time, and isn't canceled when it is gone.
func TestALateFileRemembersAnApprovalWithoutAnAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.answersApprovals(503)
		s.opts.Rules = []bridge.Rule{rebootRule}
		e := &recorder{}
		b := s.start(e.all("a"))
		pause(2500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Second)
		b = s.missesFile(b, func() { s.opts.Rules = nil }, e.all("a"))
		if asked := b.Status().Events[0].Asked; asked == nil || asked.Answered || asked.By != "rule 1" {
			t.Errorf("the status says that %+v has asked, want rule 1, without an answer", asked)
		}
		s.azure.End(idA)
		pause(3 * time.Second)
		e.wantEnd(t, cloudevent.OutcomeUnknown)
	})
}

// So does what people were told of the rules: when the drain fails, they are told that none starts the event; and that one
// does once it is on course, as what was told while the file was away names none.
func TestALateFileRemembersWhichRulesWereTold(t *testing.T) {
	for _, tt := range []struct {
		result string
		answer error // of the drain, when it is tried again
	}{
		{cloudevent.ResultWithheld, delivery.ErrRejected},
		{cloudevent.ResultPromised, errHang},
	} {
		t.Run(tt.result, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Rules = []bridge.Rule{namedRule()}
				drain, e := &recorder{answer: always(errHang)}, &recorder{}
				slow := drain.all("drain").With(func(x *bridge.Terms) { x.Timeout = time.Hour })
				b := s.start(slow, e.all("a"))
				pause(2500 * time.Millisecond)
				s.userReboot(idA)
				pause(3 * time.Second)
				b, bring := s.lateFile(b, func() { drain.say(always(tt.answer)) }, slow, e.all("a"))
				pause(2500 * time.Millisecond)
				bring()
				pause(3 * time.Minute)
				wantIDs(t, e.promised(t)[:2], `rule "drain first" after drain and 5s;`, "-")
				wantIDs(t, e.results(t), tt.result)
				b.cancel()
				<-b.done
			})
		})
	}
}

// That Azure has taken an approval stays said when somebody asks once more before the record comes, and gets no answer.
func TestALateFileRemembersThatAzureAgreed(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		e := &recorder{}
		b := s.start(e.all("a"))
		pause(2500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Second)
		b.approve(idA, cloudevent.ResultApproved)
		asked := b.Status().Events[0].Asked
		b, bring := s.lateFile(b, func() {}, e.all("a"))
		pause(10 * time.Second)
		s.answersApprovals(503)
		b.approve(idA, cloudevent.ResultUnanswered)
		bring()
		pause(30 * time.Second)
		wantEqual(t, "who asked", *b.Status().Events[0].Asked, *asked)
	})
}

// Who was told that a rule doesn't approve an event for now isn't told so again because the record of that came late.
func TestALateFileRemembersWhatKeepsARule(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{namedRule()}
		drain, e := answering(errSinkDown), &recorder{}
		b := s.start(drain.all("drain"), e.all("a"))
		pause(2500 * time.Millisecond)
		s.userRebootIn(time.Hour, idA)
		pause(2 * time.Minute)
		s.missesFile(b, func() {}, drain.all("drain"), e.all("a"))
		pause(3 * time.Minute)
		wantIDs(t, e.results(t), cloudevent.ResultWithheld)
	})
}

// So does that nobody watched it for a while: before the start without the file, or until this.
func TestALateFileRemembersThatNobodyWatched(t *testing.T) {
	for _, when := range []string{"before", "until the start"} {
		subtest(t, when, func(t *testing.T, s *stage) {
			e := &recorder{}
			b := s.up(e.all("a"))
			s.redeploy(idA, 5*time.Hour)
			pause(2 * time.Second)
			if when == "before" {
				s.azure.SetFault(imdstest.Fault{Status: 503, For: 30 * time.Second})
				pause(time.Minute)
			}
			s.missesFile(b, func() {
				if when == "until the start" {
					pause(30 * time.Second)
				}
			}, e.all("a"))
			s.azure.End(idA)
			pause(3 * time.Second)
			e.wantEnd(t, cloudevent.OutcomeUnknown)
		})
	}
}

// What was told as new before a late file came is a first change, as its CloudEvent says, also for routes that are added
// later. What came after it is not.
func TestWhatWasToldAsNewBeforeALateFileIsAFirstChange(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		first, added, later := &recorder{}, &recorder{}, &recorder{}
		routes := []bridge.Route{first.all("first"), added.all("added").OnlyChanges("first"), later.all("later").OnlyChanges("first")}
		b := s.up(routes[0])
		s.reboot(idA)
		pause(6 * time.Second)
		b = s.missesFile(b, func() {}, routes[0])
		b.reload(routes[:2]...)
		pause(2 * time.Second)
		wantIDs(t, added.ids(), idA+"-scheduled")
		s.azure.Start(idA)
		pause(2 * time.Second)
		b.reload(routes...)
		pause(2 * time.Second)
		wantIDs(t, first.ids(), idA+"-scheduled", idA+"-scheduled", idA+"-started")
		wantIDs(t, later.ids())
	})
}

// A route that is new, or returns, at a start without the file hears what is open in it, also if the file comes before
// the first document.
func TestANewRouteHearsWhatIsOpenInALateFile(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		first, added, returning, mine := &recorder{}, &recorder{}, &recorder{}, &recorder{}
		b := s.up(first.all("first"), returning.all("returning"))
		s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-1"}})
		pause(2 * time.Second)
		b.reload(first.all("first"))
		pause(2 * time.Second)
		s.azure.Start(idA)
		pause(6 * time.Second)
		_, bring := s.lateFile(b, func() { s.azure.SetFault(imdstest.Fault{Path: imdstest.ScheduledEvents, Status: 503}) },
			first.all("first"), added.all("added"), returning.all("returning"), mine.self("mine"))
		pause(10 * time.Second)
		bring()
		pause(20 * time.Second)
		s.azure.ClearFaults()
		pause(time.Minute)
		s.azure.End(idA)
		pause(2 * time.Second)
		wantIDs(t, first.ids(), idA+"-scheduled", idA+"-started", idA+"-vanished")
		wantIDs(t, added.ids(), idA+"-started", idA+"-vanished")
		wantIDs(t, returning.ids(), idA+"-scheduled", idA+"-started", idA+"-vanished")
		wantIDs(t, mine.ids())
	})
}

// A route that is new at a start without the file keeps an event that it got then: it is told the end also if the event names
// its VM no longer when the file comes.
func TestANewRouteKeepsWhatItGotBeforeALateFile(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		audit, mine := &recorder{}, &recorder{}
		b := s.up(audit.all("audit"))
		_, bring := s.lateFile(b, func() {}, audit.all("audit"), mine.self("mine"))
		pause(10 * time.Second)
		s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-0"}})
		pause(2 * time.Second)
		s.moveTo(idA, "vm-1")
		pause(2 * time.Second)
		bring()
		pause(20 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		wantEqual(t, "told last", mine.last(t).Change, imds.Vanished)
	})
}

// A reboot while the file could not be read yet ended the event in it as one in any other gap. So did one whose event is
// still listed, whether the file knows of the reboot or came too late for that.
func TestARebootOfAnEventInALateFileIsKnown(t *testing.T) {
	for _, when := range []string{"before the start, and the event is gone", "before the start", "before the file is gone"} {
		subtest(t, when, func(t *testing.T, s *stage) {
			e := &recorder{}
			reboots := func() {
				pause(2 * time.Minute)
				s.opts.Booted = time.Now()
				pause(20 * time.Second)
			}
			b := s.up(e.all("a"))
			s.redeploy(idA, time.Minute)
			pause(3 * time.Second)
			if when == "before the file is gone" {
				b.end()
				reboots()
				b = s.start(e.all("a"))
				reboots = func() {}
				pause(5 * time.Second)
			}
			s.missesFile(b, func() {
				reboots()
				if when == "before the start, and the event is gone" {
					s.azure.End(idA)
				}
			}, e.all("a"))
			s.azure.End(idA)
			pause(3 * time.Second)
			if d := e.wantEnd(t, cloudevent.OutcomeCompleted); !d.Back.Equal(s.opts.Booted) {
				t.Errorf("back %v, want %v", d.Back, s.opts.Booted)
			}
		})
	}
}

// What is pending in a late file about the bridge is never out of date: nothing newer says it.
func TestALateFileKeepsWhatItHoldsAboutTheBridge(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := answering(errSinkDown)
		route := e.all("a").With(func(x *bridge.Terms) { x.Bridge, x.Late = bridge.LevelAll, delivery.LateLatest })
		b := s.start(route)
		pause(3 * time.Second)
		b = s.missesFile(b, func() { pause(10 * time.Second) }, route)
		e.say(nil)
		pause(5 * time.Minute)
		b.end()
		told := e.types()
		slices.Sort(told)
		wantIDs(t, told, "started", "started", "stopping", "stopping")
	})
}

// A crash before a late file was taken up leaves it as it was.
func TestACrashWhileALateFileIsTakenUpLosesNothingOfIt(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e, down := &recorder{}, answering(errSinkDown).all("down")
		first := e.all("first").OnlyWhen(`data.event.Description == "first"`)
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Description: "first", Resources: []string{"vm-0"}})
		b := s.start(first, down)
		pause(3 * time.Second)
		b, bring := s.lateFile(b, func() {
			s.metadata(imdstest.Fault{Status: 503, For: time.Minute})
			s.azure.Update(idA, func(e *imdstest.Event) { e.Description = "second" })
		}, first, down)
		pause(6 * time.Second)
		bring()
		pause(8 * time.Second) // read, but nobody knows yet whose it is
		b.crash()
		s.azure.End(idA)
		s.start(first, down)
		pause(20 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-vanished")
	})
}

// A stop while a late file is taken up, or before anybody has seen that it is there, loses nothing of it: the event in it
// goes on, and a route that is new hears of it, though its filter has to read it on a slow disk.
func TestAStopWhileALateFileIsTakenUpLosesNothingOfIt(t *testing.T) {
	for _, stopAfter := range []time.Duration{100 * time.Millisecond, 5 * time.Second} {
		subtest(t, fmt.Sprint("after ", stopAfter), func(t *testing.T, s *stage) {
			e, added, down := &recorder{}, &recorder{}, answering(errSinkDown).all("down")
			choosy := added.all("added").OnlyWhen(`data.event.EventId != ""`)
			s.reboot(idA)
			b := s.start(e.all("first"), down)
			pause(3 * time.Second)
			b, bring := s.lateFile(b, func() {
				s.metadata(imdstest.Fault{Status: 503, For: time.Minute})
				s.azure.SetFault(imdstest.Fault{Path: imdstest.ScheduledEvents, Status: 503, For: time.Minute})
			}, e.all("first"), choosy, down)
			pause(6 * time.Second)
			release := s.disk.blockReads()
			bring()
			pause(stopAfter)
			time.AfterFunc(time.Second, release)
			b.end()
			s.azure.ClearFaults()
			s.start(e.all("first"), choosy, down)
			pause(20 * time.Second)
			s.azure.End(idA)
			pause(2 * time.Second)
			wantIDs(t, e.ids(), idA+"-scheduled", idA+"-vanished")
			wantIDs(t, added.ids(), idA+"-scheduled", idA+"-vanished")
		})
	}
}

// An id that was used before the file was away isn't used again for another change.
func TestALateFileRemembersHowOftenAnIDWasUsed(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		b := s.start(e.all("a"))
		for range 2 { // it comes, and comes back
			s.reboot(idA)
			pause(2 * time.Second)
			s.azure.End(idA)
			pause(2 * time.Second)
		}
		b, bring := s.lateFile(b, func() { s.reboot(idA) }, e.all("a"))
		pause(2 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		bring()
		pause(10 * time.Second)
		b.crash()
		s.start(e.all("a"))
		s.reboot(idA)
		pause(20 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-vanished", idA+"-scheduled-r2", idA+"-vanished-r2",
			idA+"-scheduled", idA+"-vanished", // nobody could know
			idA+"-scheduled-r3", idA+"-vanished-r3")
	})
}

// What is already approved is not approved once more because its record came late.
func TestWhatALateFileKnowsAsApprovedIsNotApprovedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{rebootRule}
		e := &recorder{}
		b := s.start(e.all("a"))
		pause(2500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Second)
		wantIDs(t, s.approvals(), idA)
		_, bring := s.lateFile(b, func() {}, e.all("a"))
		pause(2500 * time.Millisecond)
		bring()
		pause(30 * time.Second)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, e.results(t), cloudevent.ResultApproved)
	})
}
