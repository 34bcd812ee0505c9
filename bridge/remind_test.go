package bridge_test

import (
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// seldom is how often stories of many hours poll.
const seldom = 9 * time.Second

// reminds returns a route that wants reminders.
func (e *recorder) reminds(name string, leads ...time.Duration) bridge.Route {
	return e.all(name).With(func(t *bridge.Terms) { t.Remind = leads })
}

func (s *stage) redeploy(id string, notice time.Duration) {
	s.azure.Schedule(imdstest.Event{
		ID: id, Type: "Redeploy", Resources: []string{"vm-0"}, NotBefore: time.Now().Add(notice),
	})
}

// A route gets one reminder for each of its leads; a route without leads gets none, and neither does one that doesn't
// take the event.
func TestARouteIsRemindedOnceForEachLead(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		chat, audit, cold := &recorder{}, &recorder{}, &recorder{}
		s.up(chat.reminds("chat", 3*time.Hour, time.Hour), audit.all("audit"),
			cold.reminds("freezes", 3*time.Hour, time.Hour).OnlyTypes("Freeze"))
		s.redeploy(idA, 4*time.Hour)
		at := time.Now().Add(4 * time.Hour)
		pause(3*time.Hour + 30*time.Minute)
		stamp := at.UTC().Truncate(time.Second).Format("20060102T150405") + "Z"
		wantIDs(t, chat.ids(), idA+"-scheduled", idA+"-reminder-3h-"+stamp, idA+"-reminder-1h-"+stamp)
		wantIDs(t, audit.ids(), idA+"-scheduled")
		wantIDs(t, cold.ids())
		before := at.Sub(chat.accepted()[1].at)
		wantWithin(t, "how long before the first reminder came", before, 3*time.Hour-5*time.Second, 3*time.Hour+time.Second)
		wantEqual(t, "the VM that the first reminder names", chat.data(t)[1].Observer.Name, "vm-0")
	})
}

// Who wants to hear of an event only some time ahead is not reminded of it before.
func TestNobodyIsRemindedBeforeTheLead(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		e, only := &recorder{}, &recorder{}
		lead := func(x *bridge.Terms) { x.Lead = 20 * time.Minute }
		s.up(e.reminds("a", time.Hour, 5*time.Minute).With(lead),
			only.reminds("only", time.Hour, 20*time.Minute).With(lead).OnlyChanges("reminder"))
		s.redeploy(idA, 2*time.Hour)
		at := time.Now().Add(2 * time.Hour)
		pause(3 * time.Hour)
		wantIDs(t, e.types(), "scheduled", "reminder")
		wantIDs(t, only.types(), "reminder") // of the lead itself
		for _, first := range []heard{e.accepted()[0], only.accepted()[0]} {
			wantWithin(t, "how long before the first came", at.Sub(first.at), 0, 20*time.Minute+time.Second)
		}
	})
}

// Nor at the same time as that: it is told of the event then, and a reminder says nothing new, whether it is told of the
// latest change or, because its filter leaves that out, of the announcement.
func TestNobodyIsRemindedOfWhatTheLeadTells(t *testing.T) {
	for claim, changes := range map[string][]string{"updated": nil, "scheduled": {"scheduled", "reminder"}} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Interval = seldom
				e := &recorder{}
				route := e.reminds("a", 20*time.Minute, 5*time.Minute).With(func(x *bridge.Terms) { x.Lead = 20 * time.Minute })
				route.Filter.Only.Changes = changes
				b := s.start(route)
				pause(1500 * time.Millisecond)
				s.redeploy(idA, time.Hour)
				pause(20 * time.Minute)
				s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(10 * time.Minute) })
				pause(35 * time.Minute) // five minutes after the lead
				wantIDs(t, e.types(), claim)
				pause(11 * time.Minute)
				wantIDs(t, e.types(), claim, "reminder")
				b.end()
			})
		})
	}
}

// A reminder comes also if the clock was ahead when the event was announced.
func TestAReminderComesAfterTheClockWasSetBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		chat := &recorder{}
		b := s.up(chat.reminds("chat", time.Hour))
		s.redeploy(idA, 90*time.Minute)
		pause(time.Minute)
		s.step(-2 * time.Hour)
		b.end()
		s.up(chat.reminds("chat", time.Hour))
		pause(time.Hour)
		wantIDs(t, chat.types(), "scheduled", "reminder")
	})
}

// A reminder that was left out because somebody was told just now, by a clock that was ahead, comes when the clock was
// set back to before it is due. Who was reminded is not reminded again.
func TestAReminderThatAWrongClockLeftOutStillComes(t *testing.T) {
	const lead, ahead = time.Hour, 2 * time.Hour
	for _, tt := range []struct {
		claim   string
		notice  time.Duration // by the clock that is ahead
		changes bool          // after the clock was set back
		want    []string
	}{
		{"it was over", 40 * time.Minute, false, []string{"scheduled", "reminder"}},
		{"it was just over, and the event changes", 55 * time.Minute, true, []string{"scheduled", "updated", "reminder"}},
		{"it came soon, and the event changes", 65 * time.Minute, true, []string{"scheduled", "updated", "reminder"}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			systemtest.Alone(t)
			dir, chat, only := t.TempDir(), &recorder{}, &recorder{}
			routes := []bridge.Route{chat.reminds("chat", lead), only.reminds("only", lead).OnlyChanges("reminder")}
			var at time.Time
			bubble(t, func(_ *testing.T, s *stage) {
				s.dir, s.opts.Interval = dir, seldom
				pause(ahead)
				s.up(routes...)
				at = time.Now().Add(tt.notice)
				s.redeploy(idA, tt.notice)
				pause(6 * time.Minute)
			})
			bubble(t, func(t *testing.T, s *stage) { // whose clock begins anew
				s.dir, s.opts.Interval = dir, seldom
				s.redeploy(idA, time.Until(at))
				s.start(routes...)
				pause(20 * time.Minute)
				if tt.changes {
					s.azure.Update(idA, func(e *imdstest.Event) { e.Description = "another host" })
				}
				pause(time.Until(at.Add(time.Minute - lead)))
				wantIDs(t, chat.types(), tt.want...)
				wantIDs(t, only.types(), "reminder")
			})
		})
	}
}

// A reminder is left out where it would say nothing new: right after another message, for a lead that was over when the
// event was first seen, and after a restart for what was told before.
func TestAReminderThatSaysNothingNewIsLeftOut(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		chat := &recorder{}
		route := chat.reminds("chat", 24*time.Hour, time.Hour)
		b := s.up(route)
		s.redeploy(idA, 65*time.Minute) // an hour before is in five minutes
		pause(30 * time.Minute)
		wantIDs(t, chat.types(), "scheduled")
		s.redeploy(idB, 75*time.Minute)
		pause(25 * time.Minute)
		wantIDs(t, chat.types(), "scheduled", "scheduled", "reminder")
		b.crash()
		s.start(route)
		pause(5 * time.Minute)
		wantIDs(t, chat.types(), "scheduled", "scheduled", "reminder")
		s.wantLoggedTimes(1, "reminder due") // the others nobody got
	})
}

// A reminder is news to everybody who is to get it and was not told of a change just now, whatever others were told: of
// two leads that are close to each other, both count, and who takes nothing but reminders gets each of them, at once if
// the event is announced later than that.
func TestAReminderIsLeftOutForWhoWasToldJustNow(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		chat, mail, drain := &recorder{}, &recorder{}, &recorder{}
		acts := func(terms *bridge.Terms) { terms.Acts = true }
		s.up(chat.reminds("chat", 15*time.Minute), mail.reminds("mail", 10*time.Minute, 5*time.Minute),
			drain.reminds("drain", 10*time.Minute).With(acts).OnlyChanges("reminder"))
		s.redeploy(idA, time.Hour)
		pause(time.Hour - 10*time.Second)
		wantIDs(t, chat.types(), "scheduled", "reminder")
		wantIDs(t, mail.types(), "scheduled", "reminder", "reminder")
		wantIDs(t, drain.types(), "reminder")
		s.redeploy(idB, 8*time.Minute)
		announced := time.Now()
		pause(7 * time.Minute)
		wantIDs(t, chat.types(), "scheduled", "reminder", "scheduled")
		wantIDs(t, mail.types(), "scheduled", "reminder", "reminder", "scheduled")
		wantIDs(t, drain.types(), "reminder", "reminder")
		after := drain.accepted()[1].at.Sub(announced)
		wantWithin(t, "how long after the announcement of what begins soon", after, 0, 3*time.Second)
	})
}

// Just now is the ten minutes before the reminder.
func TestAReminderComesTenMinutesAfterTheLastWord(t *testing.T) {
	for ahead, want := range map[time.Duration][]string{
		25*time.Minute - 10*time.Second: {"scheduled"},
		25*time.Minute + 10*time.Second: {"scheduled", "reminder"},
	} {
		subtest(t, ahead.String(), func(t *testing.T, s *stage) {
			chat := &recorder{}
			s.up(chat.reminds("chat", 15*time.Minute))
			s.redeploy(idA, ahead)
			pause(11 * time.Minute)
			wantIDs(t, chat.types(), want...)
		})
	}
}

// An event that moved is reminded of for its new time; one that began or is over is not, even when the reminder was
// pending for a sink that was down.
func TestARemindersEventMustStillLieAhead(t *testing.T) {
	systemtest.Alone(t)
	for _, tt := range []struct {
		claim  string
		change func(s *stage)
		want   []string
	}{
		{"it began", func(s *stage) { s.azure.Start(idA) }, []string{"scheduled", "started"}},
		{"it is over", func(s *stage) { s.azure.End(idA) }, []string{"scheduled", "vanished"}},
		{"it moved", func(s *stage) { s.postpone(idA, 30*time.Minute) }, []string{"scheduled", "updated", "reminder"}},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			s.opts.Interval = seldom
			chat := &recorder{}
			s.up(chat.reminds("chat", 20*time.Minute))
			s.redeploy(idA, 40*time.Minute)
			pause(15 * time.Minute)
			chat.say(always(errSinkDown))
			pause(10 * time.Minute) // the reminder is pending
			tt.change(s)
			pause(10 * time.Second)
			chat.say(nil)
			pause(40 * time.Minute)
			wantIDs(t, chat.types(), tt.want...)
		})
	}
}

// Nobody is reminded of what is no longer to come when it is first seen: it is listed as begun, or its time is over.
func TestNobodyIsRemindedOfWhatIsNotToCome(t *testing.T) {
	for claim, tt := range map[string]struct {
		status string
		in     time.Duration
		want   []string
	}{
		"it is to come":    {imdstest.Scheduled, 5 * time.Minute, []string{"reminder"}},
		"it has begun":     {imdstest.Started, 5 * time.Minute, nil},
		"its time is over": {imdstest.Scheduled, -time.Minute, nil},
	} {
		subtest(t, claim, func(t *testing.T, s *stage) {
			drain := &recorder{}
			s.up(drain.reminds("drain", 10*time.Minute).OnlyChanges("reminder"))
			s.azure.Schedule(imdstest.Event{ID: idA, Status: tt.status, NotBefore: time.Now().Add(tt.in)})
			pause(4 * time.Minute)
			wantIDs(t, drain.types(), tt.want...)
		})
	}
}

// A reminder that is pending stays so when the event changes and its sink is not told of that, unless the event moved:
// then a reminder of the new time comes.
func TestAPendingReminderOutlivesAChangeThatItsSinkIsNotToldOf(t *testing.T) {
	for claim, by := range map[string]time.Duration{"the event stays where it is": 0, "it moves": 5 * time.Minute} {
		subtest(t, claim, func(t *testing.T, s *stage) {
			s.opts.Interval = seldom
			drain := answering(errSinkDown)
			s.up(drain.reminds("drain", 20*time.Minute).OnlyChanges("reminder"))
			s.redeploy(idA, 40*time.Minute)
			pause(25 * time.Minute) // the reminder is pending
			s.azure.Update(idA, func(e *imdstest.Event) { e.Description = "Now with a reason." })
			s.postpone(idA, by)
			pause(time.Minute)
			drain.say(nil)
			pause(10 * time.Minute)
			at := s.azure.Events()[0].NotBefore.Truncate(time.Second)
			wantIDs(t, drain.ids(), idA+"-reminder-20m-"+at.UTC().Format("20060102T150405Z"))
			if got := drain.accepted()[0].NotBefore; !got.Equal(at) {
				t.Errorf("the reminder is of %v, want %v", got, at)
			}
		})
	}
}

// After a start nobody is reminded of an event that is over by then, though the first answer waits for the VM's name.
func TestAfterAStartRemindersWaitForTheFirstPoll(t *testing.T) {
	systemtest.Alone(t)
	for last, over := range map[string]bool{"reminder": false, "vanished": true} {
		subtest(t, last, func(t *testing.T, s *stage) {
			chat := &recorder{}
			route := chat.reminds("chat", 30*time.Minute)
			b := s.up(route)
			s.redeploy(idA, 50*time.Minute)
			pause(15 * time.Minute)
			b.end()
			if over {
				s.azure.End(idA)
			}
			s.metadata(imdstest.Fault{Status: 503, For: time.Hour})
			pause(10 * time.Minute)
			s.start(route)
			pause(time.Minute)
			wantIDs(t, chat.types(), "scheduled", last)
		})
	}
}

// Who takes nothing but reminders gets them also of an event that was listed before the VM's name was known, unless it
// is another VM's.
func TestRemindersComeThoughTheNameComesLater(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.metadata(imdstest.Fault{Status: 503, For: 20 * time.Second})
		drain := &recorder{}
		route := drain.reminds("drain", 10*time.Minute).OnlyChanges("reminder")
		route.Filter.Only.VMs = "self"
		s.start(route)
		s.redeploy(idA, 40*time.Minute)
		s.rebootOf(40*time.Minute, idB, "vm-1")
		pause(39 * time.Minute)
		if ids := drain.ids(); len(ids) != 1 || !strings.HasPrefix(ids[0], idA+"-reminder-10m-") {
			t.Errorf("told %v, want the reminder of this VM's event", ids)
		}
	})
}

// An event that this VM is added to reminds who is told of this VM's events, also when the time of the reminder has
// passed by then.
func TestAnEventThatComesToThisVMReminds(t *testing.T) {
	systemtest.Alone(t)
	for _, added := range []time.Duration{5 * time.Second, 34 * time.Minute} {
		subtest(t, "after "+added.String(), func(t *testing.T, s *stage) {
			drain := &recorder{}
			route := drain.reminds("drain", 10*time.Minute).OnlyChanges("scheduled", "reminder")
			route.Filter.Only.VMs = "self"
			s.start(route)
			pause(5 * time.Second)
			s.rebootOf(40*time.Minute, idA, "vm-1")
			pause(added)
			s.moveTo(idA, "vm-0", "vm-1")
			pause(39*time.Minute - added)
			wantIDs(t, drain.types(), "reminder")
		})
	}
}

// What waits for the VM's name at a stop waits for it again after the next start, however long that took.
func TestTheNameIsWaitedForAgainAfterARestart(t *testing.T) {
	systemtest.LeftToGate(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.nameless()
		self, drain := &recorder{}, &recorder{}
		route, lead := self.all("self"), drain.leads("drain", 10*time.Minute)
		route.Filter.Only.VMs, lead.Filter.Only.VMs = "self", "self"
		s.later(idA, "vm-1")
		s.later(idB)
		b := s.start(route, lead)
		pause(30 * time.Second)
		b.end()
		pause(5 * time.Minute)
		s.start(route, lead)
		pause(30 * time.Second)
		wantIDs(t, append(self.ids(), drain.ids()...))
		s.azure.ClearFaults()
		pause(30 * time.Second)
		wantIDs(t, self.ids(), idB+"-scheduled")
		wantIDs(t, drain.ids())
		pause(time.Hour)
		wantIDs(t, drain.ids(), idB+"-scheduled")
	})
}

// Leads are written as people do.
func TestLeadsAreWrittenAsPeopleDo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		24 * time.Hour: "24h", time.Hour: "1h", 90 * time.Minute: "1h30m",
		10 * time.Minute: "10m", 30 * time.Second: "30s", 100 * time.Second: "1m40s",
	} {
		wantEqual(t, d.String(), cloudevent.LeadText(d), want)
	}
}
