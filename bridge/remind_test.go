package bridge_test

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// seldom is how often stories of many hours poll.
const seldom = 9 * time.Second

// reminds returns a route that wants reminders.
func (e *recorder) reminds(name string, leads ...time.Duration) bridge.Route {
	return e.all(name).With(func(t *bridge.Terms) { t.Remind = leads })
}

func (s *stage) redeploy(id string, notice time.Duration) {
	s.azure.Schedule(imdstest.Event{ID: id, Type: "Redeploy", Resources: []string{"vm-0"}, NotBefore: time.Now().Add(notice)})
}

// A route gets one reminder for each of its leads; a route without leads gets none, and neither does one that doesn't
// take the event.
func TestARouteIsRemindedOnceForEachLead(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		chat, audit, cold := &recorder{}, &recorder{}, &recorder{}
		freezes := cold.reminds("freezes", 3*time.Hour, time.Hour)
		freezes.Filter.Only.Types = []string{"Freeze"}
		b := s.start(chat.reminds("chat", 3*time.Hour, time.Hour), audit.all("audit"), freezes)
		pause(1500 * time.Millisecond)
		s.redeploy(idA, 4*time.Hour)
		at := time.Now().Add(4 * time.Hour)
		pause(3*time.Hour + 30*time.Minute)
		stamp := at.UTC().Truncate(time.Second).Format("20060102T150405") + "Z"
		wantIDs(t, chat.ids(), idA+"-scheduled", idA+"-reminder-3h-"+stamp, idA+"-reminder-1h-"+stamp)
		wantIDs(t, audit.ids(), idA+"-scheduled")
		wantIDs(t, cold.ids())
		if got := at.Sub(chat.accepted()[1].at); got < 3*time.Hour-5*time.Second || got > 3*time.Hour+time.Second {
			t.Errorf("the first reminder came %v before, want 3h", got)
		}
		if name := dataIn(t, chat.accepted()[1].Event).Observer.Name; name != "vm-0" {
			t.Errorf("the first reminder names %q as the VM", name)
		}
		b.end()
	})
}

// Who wants to hear of an event only some time ahead is not reminded of it before.
func TestNobodyIsRemindedBeforeTheLead(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		e, only := &recorder{}, &recorder{}
		lead := func(x *bridge.Terms) { x.Lead = 20 * time.Minute }
		reminders := only.reminds("only", time.Hour, 20*time.Minute).With(lead)
		reminders.Filter.Only.Changes = []string{"reminder"}
		b := s.start(e.reminds("a", time.Hour, 5*time.Minute).With(lead), reminders)
		pause(1500 * time.Millisecond)
		s.redeploy(idA, 2*time.Hour)
		at := time.Now().Add(2 * time.Hour)
		pause(3 * time.Hour)
		wantIDs(t, e.types(), "scheduled", "reminder")
		if first := at.Sub(e.accepted()[0].at); first > 20*time.Minute+time.Second {
			t.Errorf("it was told %v before", first)
		}
		wantIDs(t, only.types(), "reminder") // of the lead itself
		for _, h := range only.accepted() {
			if first := at.Sub(h.at); first > 20*time.Minute+time.Second {
				t.Errorf("who takes only reminders was told %v before", first)
			}
		}
		b.end()
	})
}

// A reminder comes also if the clock was ahead when the event was announced.
func TestAReminderComesAfterTheClockWasSetBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		chat := &recorder{}
		route := chat.reminds("chat", time.Hour)
		b := s.start(route)
		pause(1500 * time.Millisecond)
		s.redeploy(idA, 90*time.Minute)
		pause(time.Minute)
		s.step(-2 * time.Hour)
		b.end()
		b = s.start(route)
		pause(time.Hour)
		if got := chat.types(); !slices.Equal(got, []string{"scheduled", "reminder"}) {
			t.Errorf("told %v, want the reminder too", got)
		}
		b.end()
	})
}

// A reminder that was left out because somebody was told just now, by a clock that was ahead, comes when the clock was set
// back to before it is due. Who was reminded is not reminded again.
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
			reminders := only.reminds("only", lead)
			reminders.Filter.Only.Changes = []string{"reminder"}
			routes := []bridge.Route{chat.reminds("chat", lead), reminders}
			var at time.Time
			bubble(t, func(_ *testing.T, s *stage) {
				s.dir, s.opts.Interval = dir, seldom
				pause(ahead)
				b := s.start(routes...)
				pause(1500 * time.Millisecond)
				at = time.Now().Add(tt.notice)
				s.redeploy(idA, tt.notice)
				pause(6 * time.Minute)
				b.end()
			})
			bubble(t, func(t *testing.T, s *stage) { // whose clock begins anew
				s.dir, s.opts.Interval = dir, seldom
				s.redeploy(idA, time.Until(at))
				b := s.start(routes...)
				pause(20 * time.Minute)
				if tt.changes {
					s.azure.Update(idA, func(e *imdstest.Event) { e.Description = "another host" })
				}
				pause(time.Until(at.Add(time.Minute - lead)))
				wantIDs(t, chat.types(), tt.want...)
				wantIDs(t, only.types(), "reminder")
				b.end()
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
		b := s.start(route)
		pause(1500 * time.Millisecond)
		s.redeploy(idA, 65*time.Minute) // an hour before is in five minutes
		pause(30 * time.Minute)
		wantIDs(t, chat.ids(), idA+"-scheduled")
		s.redeploy(idB, 75*time.Minute)
		pause(25 * time.Minute)
		n := len(chat.ids())
		if kinds := chat.types(); !slices.Contains(kinds, "reminder") {
			t.Errorf("told %v, want a reminder of the second event", kinds)
		}
		b.crash()
		b = s.start(route)
		pause(5 * time.Minute)
		if got := chat.types(); len(got) != n {
			t.Errorf("after a restart told %v, want nothing more than the %d before", got, n)
		}
		if n := strings.Count(s.log.String(), "reminder due"); n != 1 {
			t.Errorf("the log says %d times that a reminder is due, want once: the others nobody got", n)
		}
		b.end()
	})
}

// A reminder is news to everybody who is to get it and was not told of a change just now, whatever others were told: of
// two leads that are close to each other, both count, and who takes nothing but reminders gets each of them, at once if
// the event is announced later than that.
func TestAReminderIsLeftOutForWhoWasToldJustNow(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		chat, mail, drain := &recorder{}, &recorder{}, &recorder{}
		only := drain.reminds("drain", 10*time.Minute).With(func(terms *bridge.Terms) { terms.Acts = true })
		only.Filter.Only.Changes = []string{"reminder"}
		b := s.start(chat.reminds("chat", 15*time.Minute), mail.reminds("mail", 10*time.Minute, 5*time.Minute), only)
		pause(1500 * time.Millisecond)
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
		if late := drain.accepted()[1].at.Sub(announced); late > 3*time.Second {
			t.Errorf("the reminder of an event that begins soon came %v after it was announced, want it at once", late)
		}
		b.end()
	})
}

// Just now is the ten minutes before the reminder.
func TestAReminderComesTenMinutesAfterTheLastWord(t *testing.T) {
	for ahead, want := range map[time.Duration][]string{
		25*time.Minute - 10*time.Second: {"scheduled"},
		25*time.Minute + 10*time.Second: {"scheduled", "reminder"},
	} {
		bubble(t, func(t *testing.T, s *stage) {
			chat := &recorder{}
			b := s.start(chat.reminds("chat", 15*time.Minute))
			pause(1500 * time.Millisecond)
			s.redeploy(idA, ahead)
			pause(11 * time.Minute)
			wantIDs(t, chat.types(), want...)
			b.end()
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
		{"it moved", func(s *stage) {
			s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(30 * time.Minute) })
		}, []string{"scheduled", "updated", "reminder"}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Interval = seldom
				chat := &recorder{}
				b := s.start(chat.reminds("chat", 20*time.Minute))
				pause(1500 * time.Millisecond)
				s.redeploy(idA, 40*time.Minute)
				pause(15 * time.Minute)
				chat.say(always(errSinkDown))
				pause(10 * time.Minute) // the reminder is pending
				tt.change(s)
				pause(10 * time.Second)
				chat.say(nil)
				pause(40 * time.Minute)
				wantIDs(t, chat.types(), tt.want...)
				b.end()
			})
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
		"it is to come":    {"Scheduled", 5 * time.Minute, []string{"reminder"}},
		"it has begun":     {"Started", 5 * time.Minute, nil},
		"its time is over": {"Scheduled", -time.Minute, nil},
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				drain := &recorder{}
				route := drain.reminds("drain", 10*time.Minute)
				route.Filter.Only.Changes = []string{"reminder"}
				b := s.start(route)
				pause(1500 * time.Millisecond)
				s.azure.Schedule(imdstest.Event{ID: idA, Status: tt.status, NotBefore: time.Now().Add(tt.in)})
				pause(4 * time.Minute)
				wantIDs(t, drain.types(), tt.want...)
				b.end()
			})
		})
	}
}

// A reminder that is pending stays so when the event changes and its sink is not told of that, unless the event moved:
// then a reminder of the new time comes.
func TestAPendingReminderOutlivesAChangeThatItsSinkIsNotToldOf(t *testing.T) {
	for claim, move := range map[string]time.Duration{"the event stays where it is": 0, "the event moves": 5 * time.Minute} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Interval = seldom
				drain := &recorder{answer: always(errSinkDown)}
				route := drain.reminds("drain", 20*time.Minute)
				route.Filter.Only.Changes = []string{"reminder"}
				b := s.start(route)
				pause(1500 * time.Millisecond)
				s.redeploy(idA, 40*time.Minute)
				pause(25 * time.Minute) // the reminder is pending
				s.azure.Update(idA, func(e *imdstest.Event) {
					e.Description, e.NotBefore = "Now with a reason.", e.NotBefore.Add(move)
				})
				pause(time.Minute)
				drain.say(nil)
				pause(10 * time.Minute)
				if heard := drain.accepted(); len(heard) != 1 ||
					!strings.HasSuffix(heard[0].Event.ID(), heard[0].NotBefore.Format("20060102T150405")+"Z") ||
					!heard[0].NotBefore.Equal(s.azure.Events()[0].NotBefore.Truncate(time.Second)) {
					t.Errorf("heard %v, want the one reminder of the time that counts", drain.ids())
				}
				b.end()
			})
		})
	}
}

// After a start nobody is reminded of an event that is over by then, though the first answer waits for the VM's name.
func TestAfterAStartRemindersWaitForTheFirstPoll(t *testing.T) {
	systemtest.Alone(t)
	for _, over := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &recorder{}
			route := e.reminds("chat", 30*time.Minute)
			b := s.start(route)
			pause(1500 * time.Millisecond)
			s.redeploy(idA, 50*time.Minute)
			pause(15 * time.Minute)
			b.end()
			if over {
				s.azure.End(idA)
			}
			s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: time.Hour})
			pause(10 * time.Minute)
			b = s.start(route)
			pause(time.Minute)
			want := "scheduled reminder"
			if over {
				want = "scheduled vanished"
			}
			if got := strings.Join(e.types(), " "); got != want {
				t.Errorf("over %v: told %s, want %s", over, got, want)
			}
			b.end()
		})
	}
}

// Who takes nothing but reminders gets them also of an event that was listed before the VM's name was known, unless it is
// another VM's.
func TestRemindersComeThoughTheNameComesLater(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 20 * time.Second})
		drain := &recorder{}
		route := drain.reminds("drain", 10*time.Minute)
		route.Filter.Only = bridge.Only{VMs: "self", Changes: []string{"reminder"}}
		b := s.start(route)
		s.redeploy(idA, 40*time.Minute)
		s.azure.Schedule(imdstest.Event{ID: idB, Type: "Reboot", Resources: []string{"vm-1"}, NotBefore: time.Now().Add(40 * time.Minute)})
		pause(39 * time.Minute)
		if ids := drain.ids(); len(ids) != 1 || !strings.HasPrefix(ids[0], idA+"-reminder-10m-") {
			t.Errorf("told %v, want the reminder of this VM's event", ids)
		}
		b.end()
	})
}

// An event that this VM is added to reminds who is told of this VM's events, also when the time of the reminder has passed
// by then.
func TestAnEventThatComesToThisVMReminds(t *testing.T) {
	systemtest.Alone(t)
	for _, added := range []time.Duration{5 * time.Second, 34 * time.Minute} {
		bubble(t, func(t *testing.T, s *stage) {
			drain := &recorder{}
			route := drain.reminds("drain", 10*time.Minute)
			route.Filter.Only = bridge.Only{VMs: "self", Changes: []string{"scheduled", "reminder"}}
			b := s.start(route)
			pause(5 * time.Second)
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Resources: []string{"vm-1"}, NotBefore: time.Now().Add(40 * time.Minute)})
			pause(added)
			s.azure.Update(idA, func(e *imdstest.Event) { e.Resources = []string{"vm-0", "vm-1"} })
			pause(39*time.Minute - added)
			wantIDs(t, drain.types(), "reminder")
			b.end()
		})
	}
}

// What waits for the VM's name at a stop waits for it again after the next start, however long that took.
func TestTheNameIsWaitedForAgainAfterARestart(t *testing.T) {
	systemtest.LeftToGate(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		self, drain := &recorder{}, &recorder{}
		route, lead := self.all("self"), drain.leads("drain", 10*time.Minute)
		route.Filter.Only.VMs, lead.Filter.Only.VMs = "self", "self"
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Resources: []string{"vm-1"}, NotBefore: time.Now().Add(time.Hour)})
		s.azure.Schedule(imdstest.Event{ID: idB, Type: "Reboot", NotBefore: time.Now().Add(time.Hour)})
		b := s.start(route, lead)
		pause(30 * time.Second)
		b.end()
		pause(5 * time.Minute)
		b = s.start(route, lead)
		pause(30 * time.Second)
		wantIDs(t, append(self.ids(), drain.ids()...))
		s.azure.ClearFaults()
		pause(30 * time.Second)
		wantIDs(t, self.ids(), idB+"-scheduled")
		wantIDs(t, drain.ids())
		pause(time.Hour)
		wantIDs(t, drain.ids(), idB+"-scheduled")
		b.end()
	})
}

// What a sink cannot take for long, or rejects, goes to its fallback with the reason, once; what the fallback was
// told anyway is not told again, and nothing falls back twice.
func TestWhatASinkCannotTellItsFallbackDoes(t *testing.T) {
	systemtest.LeftToGate(t)
	for _, tt := range []struct {
		claim  string
		answer error
		after  time.Duration
	}{
		{"it is down", errSinkDown, 61 * time.Second},
		{"it hangs", errHang, 61 * time.Second},
		{"it rejects", delivery.ErrRejected, time.Second},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				chat, mail, last := &recorder{answer: always(tt.answer)}, &recorder{answer: always(errSinkDown)}, &recorder{}
				fallback := func(to string) func(*bridge.Terms) {
					return func(t *bridge.Terms) { t.Fallback = delivery.Fallback{Sink: to, After: time.Minute} }
				}
				routes := []bridge.Route{chat.all("chat").With(fallback("mail")), mail.all("mail").OnlyTypes("Preempt").With(fallback("last")), last.all("last").OnlyTypes("Preempt")}
				b := s.start(routes...)
				pause(1500 * time.Millisecond)
				began := time.Now()
				s.redeploy(idA, 5*time.Hour)
				pause(50 * time.Second)
				if tt.answer != delivery.ErrRejected {
					wantIDs(t, idsOf(mail.tried()))
				}
				pause(5 * time.Minute)
				mail.say(nil)
				pause(5 * time.Minute)
				wantIDs(t, mail.ids(), idA+"-scheduled")
				first := mail.tried()[0]
				if got := first.at.Sub(began); got > tt.after+3*time.Second {
					t.Errorf("the fallback was tried after %v, want %v", got, tt.after)
				}
				if first.FallbackFor == nil || first.FallbackFor.Sink != "chat" || first.FallbackFor.Error == "" {
					t.Errorf("it is told %+v as the reason", first.FallbackFor)
				}
				wantIDs(t, last.ids())
				chat.say(nil)
				b.crash()
				b = s.start(routes...)
				pause(10 * time.Minute)
				wantIDs(t, mail.ids(), idA+"-scheduled")
				b.end()
			})
		})
	}
}

// A sink that refuses is tried with one delivery at a time. Those that it never saw fall back for that reason too.
func TestAFallbackIsToldWhyASinkDoesNotGetWhatItNeverSaw(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		chat, mail := &recorder{answer: always(errRefused)}, &recorder{}
		b := s.start(chat.all("chat").With(func(t *bridge.Terms) {
			t.Fallback = delivery.Fallback{Sink: "mail", After: time.Minute}
		}), mail.all("mail").OnlyTypes("Preempt"))
		pause(1500 * time.Millisecond)
		s.redeploy(idA, 5*time.Hour)
		pause(45 * time.Second)
		s.redeploy(idB, 5*time.Hour)
		pause(10 * time.Second)
		s.azure.End(idB)
		pause(2 * time.Minute)
		wantIDs(t, mail.ids(), idA+"-scheduled", idB+"-scheduled", idB+"-vanished")
		for _, m := range mail.accepted() {
			if m.FallbackFor.Error != errRefused.Error() {
				t.Errorf("of %s it is told %q as the reason, want %q", m.Event.ID(), m.FallbackFor.Error, errRefused)
			}
		}
		b.end()
	})
}

// A fallback that gets the event anyway does not get it twice.
func TestAFallbackThatKnowsGetsNothingTwice(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		chat, mail := &recorder{answer: always(errSinkDown)}, &recorder{}
		b := s.start(chat.all("chat").With(func(t *bridge.Terms) { t.Fallback = delivery.Fallback{Sink: "mail", After: time.Minute} }), mail.all("mail"))
		pause(1500 * time.Millisecond)
		s.redeploy(idA, 5*time.Hour)
		pause(10 * time.Minute)
		wantIDs(t, mail.ids(), idA+"-scheduled")
		b.end()
	})
}

// What falls back at the same time comes in the order in which it happened.
func TestWhatFallsBackComesInOrder(t *testing.T) {
	systemtest.LeftToGate(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = 50 * time.Millisecond
		chat, mail := &recorder{answer: always(errSinkDown)}, &recorder{}
		b := s.start(chat.all("chat").With(func(t *bridge.Terms) { t.Fallback = delivery.Fallback{Sink: "mail", After: time.Minute} }), mail.all("mail").OnlyTypes("Preempt"))
		pause(1550 * time.Millisecond)
		s.redeploy(idA, 5*time.Hour)
		for i := range 8 {
			pause(100 * time.Millisecond)
			s.azure.Update(idA, func(e *imdstest.Event) { e.Description = strconv.Itoa(i) })
		}
		pause(5 * time.Minute)
		var want []string
		for _, e := range b.Outbox.List(outbox.Selection{Route: "chat"}) {
			want = append(want, e.ID)
		}
		wantIDs(t, mail.ids(), want...)
		b.end()
	})
}

// Leads are written as people do.
func TestLeadsAreWrittenAsPeopleDo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		24 * time.Hour: "24h", time.Hour: "1h", 90 * time.Minute: "1h30m", 10 * time.Minute: "10m", 30 * time.Second: "30s", 100 * time.Second: "1m40s",
	} {
		if got := cloudevent.LeadText(d); got != want {
			t.Errorf("%v is written %s, want %s", d, got, want)
		}
	}
}

// A reminder names no rule of an event that somebody has approved just before.
func TestAReminderAfterAnApprovalByHandNamesNoRule(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		rule, slow := namedRule(), rebootRule
		rule.Wait = 29 * time.Minute
		slow.Only.Types = []string{"Redeploy"}
		slow.Wait = 25*time.Minute - 2*time.Second
		s.opts.Rules = []bridge.Rule{rule, slow}
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPost && r.Context().Value(person{}) == nil {
					select {
					case <-time.After(9 * time.Second):
					case <-r.Context().Done():
					}
				}
				return next.RoundTrip(r)
			})
		}
		audit := &recorder{}
		b := s.start((&recorder{}).all("drain"), audit.all("audit").With(func(x *bridge.Terms) { x.Remind = []time.Duration{5 * time.Minute} }))
		pause(1500 * time.Millisecond)
		s.redeploy(idB, time.Hour)
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Source: "User", Resources: []string{"vm-0"}, NotBefore: time.Now().Add(30 * time.Minute)})
		pause(24*time.Minute + 59*time.Second)
		b.ApproveNow(context.WithValue(t.Context(), person{}, true), idA, s.shown(idA), "root")
		pause(20 * time.Second)
		t.Log(audit.ids(), s.approvals())
		n := 0
		for _, h := range audit.accepted() {
			d := dataIn(t, h.Event)
			if d.Change == "reminder" {
				n++
				if len(d.Rules) > 0 {
					t.Errorf("the reminder names %+v, asked %+v", d.Rules, d.Asked)
				}
			}
		}
		if n != 1 {
			t.Errorf("%d reminders", n)
		}
		b.end()
	})
}
