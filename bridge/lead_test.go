package bridge_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// leads returns a route that is told shortly before an event begins, as a drain is.
func (e *recorder) leads(name string, lead time.Duration, changes ...string) bridge.Route {
	r := e.all(name).With(func(t *bridge.Terms) { t.Lead, t.Late = lead, delivery.LateDrop })
	r.Filter.Only.Changes = changes
	return r
}

// With a lead, scheduled is due so long before the event begins: at once when less is left, moved when the event moves,
// across a restart, and never when the event began or ended before.
func TestALeadWaitsForItsTime(t *testing.T) {
	systemtest.LeftToGate(t)
	const notice, lead = 70 * time.Minute, 10 * time.Minute
	for _, tt := range []struct {
		claim  string
		notice time.Duration
		change func(s *stage, b *running, route bridge.Route) // half an hour before it is due
		due    time.Duration                                  // after it was scheduled; 0 never
	}{
		{"nothing happens", notice, nil, notice - lead},
		{"less is left than the lead", 5 * time.Minute, nil, time.Second},
		{"it moves away", notice, func(s *stage, _ *running, _ bridge.Route) {
			s.postpone(idA, 30*time.Minute)
		}, notice + 30*time.Minute - lead},
		{"it moves near", notice, func(s *stage, _ *running, _ bridge.Route) {
			s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = time.Now().Add(5 * time.Minute) })
		}, 30*time.Minute + time.Second},
		{"it begins early", notice, func(s *stage, _ *running, _ bridge.Route) { s.azure.Start(idA) }, 0},
		{"it is cancelled", notice, func(s *stage, _ *running, _ bridge.Route) { s.azure.End(idA) }, 0},
		{"the program restarts", notice, func(s *stage, b *running, route bridge.Route) {
			b.crash()
			s.start(route)
		}, notice - lead},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			s.opts.Interval = seldom
			drain := &recorder{}
			route := drain.leads("drain", lead, "scheduled")
			b := s.up(route)
			began := time.Now()
			s.redeploy(idA, tt.notice)
			if tt.change != nil {
				pause(notice - lead - 30*time.Minute)
				wantIDs(t, drain.ids())
				tt.change(s, b, route)
			}
			pause(110 * time.Minute)
			if tt.due == 0 {
				wantIDs(t, drain.ids())
				return
			}
			wantIDs(t, drain.ids(), idA+"-scheduled")
			wantWithin(t, "told after", drain.delay(began), tt.due-2*time.Second, tt.due+seldom+3*time.Second)
		})
	}
}

// What is tried in vain gives way to a newer change that waits for its lead: the route is told once, when the time of
// that has come.
func TestWhatIsTriedInVainGivesWayToAChangeThatWaitsForItsLead(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		drain := answering(errSinkDown)
		s.up(drain.leads("drain", 10*time.Minute, "scheduled", "updated"))
		s.redeploy(idA, 5*time.Minute) // less than the lead
		for _, later := range []time.Duration{time.Minute, time.Hour} {
			pause(time.Minute)
			s.postpone(idA, later)
		}
		pause(time.Minute)
		drain.say(nil)
		pause(40 * time.Minute)
		wantIDs(t, drain.ids())
		pause(20 * time.Minute)
		wantIDs(t, drain.types(), "updated")
	})
}

// The latest change of an event that somebody replayed to a route before its lead is not told again when that comes.
func TestWhatWasReplayedBeforeTheLeadIsNotToldAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		chat, drain := answering(delivery.ErrRejected), &recorder{}
		b := s.up(chat.all("chat"), drain.leads("drain", 10*time.Minute, "scheduled"))
		s.redeploy(idA, time.Hour)
		pause(time.Minute)
		b.replay(b.deadLetters()[0], "drain")
		pause(time.Minute)
		wantIDs(t, drain.ids(), idA+"-scheduled")
		pause(time.Hour)
		wantIDs(t, drain.ids(), idA+"-scheduled")
	})
}

// So does what was told at once and is tried in vain, because less than the lead was left; but not the news of an
// approval, which stay true.
func TestWhatIsNoLongerTrueGivesWay(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		drain := answering(errSinkDown)
		b := s.start(drain.leads("drain", 10*time.Minute, "scheduled", "updated", "approved").With(func(t *bridge.Terms) {
			t.Late = delivery.LateSend
		}))
		pause(1500 * time.Millisecond)
		s.redeploy(idA, 5*time.Minute) // less than the lead
		s.redeploy(idB, 5*time.Minute)
		pause(2 * time.Second)
		b.approve(idB, cloudevent.ResultApproved)
		s.postpone(idA, time.Hour)
		s.postpone(idB, time.Hour)
		pause(time.Minute)
		drain.say(nil)
		pause(30 * time.Minute)
		wantIDs(t, drain.ids(), idB+"-approved")
		pause(30 * time.Minute)
		wantIDs(t, drain.types(), "approved", "updated", "updated")
	})
}

// What waits for its lead gives way to a newer change that does not wait, also on a route that is told everything.
func TestWhatWaitsForItsLeadGivesWay(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		e := &recorder{}
		s.up(e.all("a").With(func(t *bridge.Terms) { t.Lead = 10 * time.Minute }))
		s.redeploy(idA, 2*time.Hour)
		pause(time.Minute)
		s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = time.Now().Add(5 * time.Minute) })
		pause(time.Hour)
		wantIDs(t, e.types(), "updated")
	})
}

// So does what waits for its lead at a sink that was away when the change came, and is told of it when it returns.
func TestWhatWaitsForItsLeadGivesWayToWhatAReturningSinkMissed(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		drain, kept := &recorder{}, (&recorder{}).all("kept")
		route := drain.all("drain").With(func(x *bridge.Terms) { x.Lead = 10 * time.Minute })
		b := s.up(kept, route)
		s.redeploy(idA, 20*time.Minute)
		pause(time.Minute)
		b.reload(kept)
		s.azure.Update(idA, func(e *imdstest.Event) { e.Description = "Now with a reason." })
		pause(time.Minute)
		b.reload(kept, route)
		pause(20 * time.Minute)
		wantIDs(t, drain.types(), "updated")
	})
}

// A delivery that waited says when the event begins as far as it is known now, though its CloudEvent was fixed before.
func TestAMovedDeliveryKnowsTheNewTime(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		drain := &recorder{}
		s.up(drain.leads("drain", 10*time.Minute, "scheduled"))
		s.redeploy(idA, time.Hour)
		pause(time.Minute)
		moved := time.Now().Add(2 * time.Hour).Truncate(time.Second)
		s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = moved })
		pause(2 * time.Hour)
		wantIDs(t, drain.ids(), idA+"-scheduled")
		wantEqual(t, "it knows the new time", drain.accepted()[0].NotBefore.Equal(moved), true)
	})
}

// Whatever happens while a route waits for its lead, it is told once when that has come: the latest change, or the
// announcement if that is all that it takes.
func TestALeadComesWhateverHappens(t *testing.T) {
	systemtest.Alone(t)
	for claim, meanwhile := range map[string]func(s *stage, b *running, r bridge.Route){
		"a crash": func(s *stage, b *running, r bridge.Route) {
			b.crash()
			s.start(r)
		},
		"a stop until the lead has come": func(s *stage, b *running, r bridge.Route) {
			b.end()
			pause(50 * time.Minute)
			s.start(r)
		},
		"another lead": func(s *stage, b *running, r bridge.Route) {
			r.Terms.Lead = 5 * time.Minute
			b.reload(r)
		},
		"no lead any more": func(s *stage, b *running, r bridge.Route) {
			pause(40 * time.Minute)
			r.Terms.Lead = 0
			b.reload(r)
		},
		"a reload without it": func(s *stage, b *running, r bridge.Route) {
			b.reload()
			pause(50 * time.Minute)
			b.reload(r)
		},
		"a reload that takes fewer changes": func(s *stage, b *running, r bridge.Route) {
			r.Filter.Only.Changes = []string{"vanished"}
			b.reload(r)
		},
		"a mute": func(s *stage, b *running, r bridge.Route) {
			b.mutes(delivery.Mute{Sink: r.Name}, 55*time.Minute)
		},
		"a disk that fails": func(s *stage, b *running, r bridge.Route) {
			s.disk.fail(errFull)
		},
	} {
		for _, changes := range [][]string{{"scheduled", "updated"}, {"scheduled"}, {"first"}} {
			subtest(t, claim+" "+strings.Join(changes, "+"), func(t *testing.T, s *stage) {
				s.opts.Interval = seldom
				drain := &recorder{}
				r := drain.leads("drain", 10*time.Minute, changes...)
				b := s.up(r)
				announced := time.Now()
				s.redeploy(idA, 30*time.Minute)
				pause(seldom + time.Second)
				s.postpone(idA, 30*time.Minute)
				pause(seldom + time.Second)
				meanwhile(s, b, r)
				pause(time.Until(announced.Add(59 * time.Minute)))
				want := "scheduled"
				if len(changes) > 1 && !strings.Contains(claim, "fewer") {
					want = "updated"
				}
				wantIDs(t, drain.types(), want)
			})
		}
	}
}

// A lead that has come before a start begins nothing until Azure has answered: the event may be over.
func TestALeadThatHasComeBeforeAStartWaitsForAzure(t *testing.T) {
	for over, heard := range map[bool][]string{false: {idA + "-scheduled"}, true: nil} {
		subtest(t, fmt.Sprintf("over %t", over), func(t *testing.T, s *stage) {
			drain := &recorder{}
			r := drain.leads("drain", 10*time.Minute, "scheduled")
			b := s.up(r)
			s.redeploy(idA, 30*time.Minute)
			pause(time.Minute)
			b.end()
			if over {
				s.azure.End(idA)
			}
			s.azure.SetFault(imdstest.Fault{Status: 503})
			pause(20 * time.Minute)
			s.start(r)
			pause(90 * time.Second)
			wantIDs(t, drain.ids())
			s.azure.ClearFaults()
			pause(30 * time.Second)
			wantIDs(t, drain.ids(), heard...)
		})
	}
}

// What came of an approval is told after the event that it is about, when the lead has come.
func TestAnApprovalIsToldAfterItsEvent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		s.answersApprovals(400)
		ops := &recorder{}
		b := s.up(ops.all("ops").With(func(x *bridge.Terms) { x.Lead = 10 * time.Minute }))
		s.redeploy(idA, 30*time.Minute)
		pause(seldom + time.Second)
		b.approve(idA, cloudevent.ResultRefused)
		pause(15 * time.Minute)
		wantIDs(t, ops.types())
		pause(10 * time.Minute)
		wantIDs(t, ops.types(), "scheduled", "approved")
	})
}

// What was told at once is no announcement to be told when the lead comes, not even of a route that a reload made refuse the
// update with which it waits.
func TestWhatWasToldAtOnceIsNotToldAgainAtTheLead(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		drain := &recorder{}
		b := s.up(drain.leads("drain", 10*time.Minute, "scheduled", "updated"))
		s.redeploy(idA, 5*time.Minute) // less than the lead
		pause(seldom + time.Second)
		s.postpone(idA, 30*time.Minute)
		pause(seldom + time.Second)
		b.reload(drain.leads("drain", 10*time.Minute, "scheduled"))
		pause(30 * time.Minute)
		wantIDs(t, drain.types(), "scheduled", "updated")
	})
}

// A route still waits for its lead when the event changes after an approval of it came to nothing.
func TestALeadOutlivesAnApproval(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		s.answersApprovals(400)
		drain := &recorder{}
		b := s.up(drain.leads("drain", 10*time.Minute, "scheduled"))
		s.redeploy(idA, 30*time.Minute)
		pause(seldom + time.Second)
		b.approve(idA, cloudevent.ResultRefused)
		s.moveTo(idA, "vm-0", "vm-1")
		pause(25 * time.Minute)
		wantIDs(t, drain.types(), "scheduled")
	})
}

// A sink that waits for its lead, and whose filter leaves an update out, gets only the announcement then. So no rule that
// waits for it is announced with the update, and people are told at once why not, not when the lead has come.
func TestARuleIsNotAnnouncedWithAnUpdateThatItsSinkNeverGets(t *testing.T) {
	for _, change := range []string{"scheduled", "first"} {
		t.Run(change, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Interval = seldom
				s.opts.Rules = []bridge.Rule{namedRule()}
				drain, audit := &recorder{}, &recorder{}
				b := s.start(drain.leads("drain", 10*time.Minute, change), audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Source: "User", Resources: []string{"vm-0"},
					NotBefore: time.Now().Add(time.Hour)})
				pause(2 * seldom)
				s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Hour) })
				pause(2 * seldom)
				wantIDs(t, audit.promised(t), `rule "drain first" after drain and 5s;`, "-", "-")
				wantIDs(t, audit.withheld(t), `sink "drain" did not get the latest change`)
				pause(2 * time.Hour)
				wantIDs(t, drain.types(), "scheduled")
				wantIDs(t, audit.results(t), cloudevent.ResultWithheld)
				wantIDs(t, s.approvals())
				b.end()
			})
		})
	}
}

// A route whose lead has not come is not taken for one that does not answer.
func TestWaitingForALeadIsNoTrouble(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		drain, chat := &recorder{}, &recorder{}
		s.up(drain.leads("drain", 10*time.Minute), chat.all("chat").With(func(t *bridge.Terms) { t.Bridge = bridge.LevelTrouble }))
		s.redeploy(idA, 10*time.Hour)
		pause(time.Hour)
		wantIDs(t, chat.types(), "scheduled")
	})
}
