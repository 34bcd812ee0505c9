package bridge_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// runbook returns a route that begins nothing late.
func (e *recorder) runbook(name string) bridge.Route {
	return e.all(name).With(func(x *bridge.Terms) { x.Late = delivery.LateDrop })
}

// latest returns a route of people who read only the latest of what is late.
func (e *recorder) latest(name string) bridge.Route {
	return e.all(name).With(func(x *bridge.Terms) { x.Late = delivery.LateLatest })
}

// historyOf returns the deliveries of the first change of the event.
func (r *running) historyOf(id string) []bridge.HistoryDelivery {
	r.s.t.Helper()
	lives, err := bridge.History(r.Outbox, bridge.Period{Event: id})
	if err != nil || len(lives) != 1 {
		r.s.t.Fatalf("History = %v, %v", lives, err)
	}
	return lives[0].Changes[0].Deliveries
}

// waysToWait are all ways in which the announcement of an event waits while the event ends. Each starts a bridge with
// the route, has an event announced and ended, and returns the bridge when the destination of the route is well again.
var waysToWait = map[string]func(s *stage, e *recorder, r bridge.Route) *running{
	"for a retry": func(s *stage, e *recorder, r bridge.Route) *running {
		return announcedAndEnded(s, e, s.up(r), errSinkDown)
	},
	"because it is blocked": func(s *stage, e *recorder, r bridge.Route) *running {
		return announcedAndEnded(s, e, s.up(r), fmt.Errorf("%w: exit 78", delivery.ErrBlocked))
	},
	"for the end of a mute": func(s *stage, e *recorder, r bridge.Route) *running {
		b := s.up(r)
		b.mute(r.Name, 5*time.Minute)
		return announcedAndEnded(s, e, b, nil)
	},
	"for the end of a mute, across a restart": func(s *stage, e *recorder, r bridge.Route) *running {
		b := s.up(r)
		b.mute(r.Name, 5*time.Minute)
		announcedAndEnded(s, e, b, nil).crash()
		return s.start(r)
	},
	forItsLead: func(s *stage, e *recorder, r bridge.Route) *running {
		r.Terms.Lead = 5 * time.Minute
		return announcedAndEnded(s, e, s.up(r), nil)
	},
	"for its turn": func(s *stage, e *recorder, r bridge.Route) *running {
		r.Sink = slowSink{e, 10 * time.Minute}
		r.Terms.Timeout = 0
		b := s.up(r)
		s.later(idB)
		pause(1500 * time.Millisecond)
		return announcedAndEnded(s, e, b, nil)
	},
	beforeTheFile: func(s *stage, e *recorder, r bridge.Route) *running {
		b := announcedInVain(s, e, r)
		b, bring := s.lateFile(b, func() { s.azure.End(idA) }, r)
		pause(time.Minute)
		e.say(nil)
		bring()
		return b
	},
	"for forewarn to be started again": func(s *stage, e *recorder, r bridge.Route) *running {
		announcedInVain(s, e, r).end()
		s.azure.End(idA)
		e.say(nil)
		return s.start(r)
	},
	withoutTheSink: func(s *stage, e *recorder, r bridge.Route) *running {
		b := announcedInVain(s, e, r)
		b.reload()
		s.azure.End(idA)
		pause(10 * time.Second)
		b.end()
		e.say(nil)
		b = s.start()
		pause(10 * time.Second)
		b.reload(r)
		return b
	},
	"for a reload that makes it late": func(s *stage, e *recorder, r bridge.Route) *running {
		before := r
		before.Terms.Late = delivery.LateSend
		b := announcedAndEnded(s, e, s.up(before), errSinkDown)
		e.say(always(errSinkDown))
		pause(time.Minute)
		b.reload(r)
		e.say(nil)
		return b
	},
}

// Of the first two ways the end is known before the outbox knows that there was an announcement, or that there is a
// sink; of the third nothing is pending when it comes.
const (
	beforeTheFile  = "for a file that comes late"
	withoutTheSink = "for its sink to be in the settings again"
	forItsLead     = "for its lead"
)

// announcedAndEnded has the reboot of vm-0 announced to a destination that answers with why, and ended.
func announcedAndEnded(s *stage, e *recorder, b *running, why error) *running {
	e.say(always(why))
	s.reboot(idA)
	pause(2 * time.Minute)
	s.azure.End(idA)
	pause(3 * time.Second)
	e.say(nil)
	return b
}

// announcedInVain has the reboot of vm-0 announced to a destination that is down.
func announcedInVain(s *stage, e *recorder, routes ...bridge.Route) *running {
	e.say(always(errSinkDown))
	b := s.up(routes...)
	s.reboot(idA)
	pause(time.Minute)
	return b
}

// A sink that acts begins nothing about an event that is known to be over, and one for people that isn't told of the
// end isn't told either that the event is to come, however the announcement has waited. The history says why.
func TestNothingIsBegunAboutAnEventThatIsOver(t *testing.T) {
	routes := map[string]func(*recorder) bridge.Route{
		"drop":                    func(e *recorder) bridge.Route { return e.runbook("drain").OnlyChanges("scheduled") },
		"drop, with the end":      func(e *recorder) bridge.Route { return e.runbook("drain") },
		"latest, without the end": func(e *recorder) bridge.Route { return e.latest("drain").OnlyChanges("scheduled") },
	}
	for name, route := range routes {
		for way, wait := range waysToWait {
			subtest(t, name+" waits "+way, func(t *testing.T, s *stage) {
				if name != "drop" {
					systemtest.Alone(t)
				}
				e := &recorder{}
				b := wait(s, e, route(e))
				pause(20 * time.Minute)
				if slices.Contains(e.ids(), idA+"-scheduled") {
					t.Error("it is told that the event is to come, after the end")
				}
				wantIDs(t, deadIDs(b.Outbox))
				d := b.historyOf(idA)
				if way == forItsLead { // nothing was pending
					wantEqual(t, "deliveries in the history", len(d), 0)
					return
				}
				says := way == beforeTheFile || len(d) == 1 && d[0].Answer == delivery.EventOver
				if len(d) != 1 || d[0].State != outbox.StateSuperseded || !says {
					t.Errorf("the history says %+v, want that the event is over", d)
				}
			})
		}
	}
}

// Whoever is told of the end is told of it, with what was missed, however the announcement has waited.
func TestTheEndIsToldToPeopleWhoMissedTheRest(t *testing.T) {
	systemtest.Alone(t)
	for way, wait := range waysToWait {
		if way == beforeTheFile || way == withoutTheSink {
			continue
		}
		subtest(t, way, func(t *testing.T, s *stage) {
			e := &recorder{}
			wait(s, e, e.latest("chat"))
			pause(20 * time.Minute)
			got := slices.DeleteFunc(e.ids(), func(id string) bool { return strings.HasPrefix(id, idB) })
			wantIDs(t, got, idA+"-vanished")
		})
	}
}

// What was under way when its event ended is left to end, and is on record as attempted, with its answer if one comes.
// A failure isn't tried again.
func TestWhatWasUnderWayAtTheEndIsOnRecord(t *testing.T) {
	failed := bridge.HistoryDelivery{
		Route: "drain", State: outbox.StateSuperseded, Attempts: 1, Answer: delivery.EventOver,
	}
	because := func(why string) bridge.HistoryDelivery {
		d := failed
		d.Error = why
		return d
	}
	for claim, tt := range map[string]struct {
		answer  error
		crashes bool
		want    bridge.HistoryDelivery
		logs    string
	}{
		"it succeeds":       {want: bridge.HistoryDelivery{Route: "drain", State: outbox.StateAccepted, Attempts: 1}},
		"it fails for good": {answer: errDrainFailed, want: because("rejected: exit 1")},
		"it wants more": {answer: errors.New("exit status 75"), want: because("exit status 75"),
			logs: "delivery failed, and is not tried again"},
		"nobody knows": {crashes: true, want: failed},
	} {
		subtest(t, claim, func(t *testing.T, s *stage) {
			e := &recorder{answer: func(delivery.Delivery) error {
				time.Sleep(9 * time.Second) // before its timeout
				return tt.answer
			}}
			r := e.runbook("drain").OnlyChanges("scheduled")
			b := s.up(r)
			s.reboot(idA)
			pause(3 * time.Second)
			s.azure.End(idA)
			pause(3 * time.Second)
			if tt.crashes {
				b.crash()
				b = s.start(r)
			}
			pause(20 * time.Minute)
			wantEqual(t, "times that it was tried", len(e.tried()), 1)
			got := b.historyOf(idA)
			if len(got) == 1 {
				got[0].At = time.Time{}
			}
			if !slices.Equal(got, []bridge.HistoryDelivery{tt.want}) {
				t.Errorf("the history says %+v, want %+v", got, tt.want)
			}
			s.wantLogged(tt.logs)
		})
	}
}

// After a start nobody knows which events are over until Azure answers. What acts waits for that, whatever it has
// waited for before, and what is still to come then begins. People are told: better once too often.
func TestWhatActsWaitsForAzuresFirstAnswer(t *testing.T) {
	for way, tt := range map[string]struct {
		route   func(drain *recorder) bridge.Route
		stopped time.Duration
	}{
		"for a retry": {func(drain *recorder) bridge.Route { return drain.runbook("drain") }, 0},
		"for its lead": {func(drain *recorder) bridge.Route {
			return drain.runbook("drain").With(func(x *bridge.Terms) { x.Lead = 5 * time.Minute })
		}, 9 * time.Minute},
		"for another sink to fail": {func(drain *recorder) bridge.Route {
			return drain.runbook("drain").OnlyTypes("Freeze")
		}, 2 * time.Minute},
	} {
		for kind, isOver := range map[string]bool{"vanished": true, "scheduled": false} {
			subtest(t, "it has waited "+way+", then "+kind, func(t *testing.T, s *stage) {
				drain, hook, chat := answering(errSinkDown), &recorder{}, answering(errSinkDown)
				routes := []bridge.Route{tt.route(drain), hook.fallsBack("hook", "drain", 2*time.Minute), chat.all("chat")}
				announcedInVain(s, hook, routes...).end()
				if isOver {
					s.azure.End(idA)
				}
				pause(tt.stopped)
				drain.say(nil)
				chat.say(nil)
				s.azure.SetFault(imdstest.Fault{Status: 503})
				b := s.up(routes...)
				pause(time.Minute)
				wantIDs(t, drain.ids())
				wantIDs(t, chat.ids(), idA+"-scheduled")
				wantEqual(t, "what the sink waits for", b.sink("drain").WaitsFor, delivery.WaitsForAnswer)
				s.azure.ClearFaults()
				pause(4 * time.Minute)
				wantIDs(t, drain.ids(), idA+"-"+kind)
			})
		}
	}
}

// What it is told of trouble doesn't wait: it may be the only sink that somebody hears of it from.
func TestWhatActsHearsOfTroubleBeforeAzuresFirstAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		drain := &recorder{}
		r := drain.runbook("drain").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelTrouble })
		announcedInVain(s, drain, r).end()
		drain.say(nil)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		b := s.start(r)
		pause(20 * time.Minute)
		wantIDs(t, drain.types(), "imds.unavailable")
		k := b.sink("drain")
		wantEqual(t, "deliveries that are pending", k.Pending, 1)
		wantEqual(t, "what the sink waits for", k.WaitsFor, delivery.WaitsForAnswer)
	})
}

// Nor does what forewarn itself says of an approval start anything before Azure's first answer.
func TestAWithheldApprovalStartsNothingBeforeAzuresFirstAnswer(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		acts := s.drain.runbook("runbook").With(func(x *bridge.Terms) { x.Acts = true })
		s.routes = []bridge.Route{acts.OnlyChanges("approved")}
		s.announce(waiting(rebootRule, 5*time.Minute))
		pause(time.Minute)
		s.end()
		s.azure.End(idA)
		s.opts.Rules = nil
		s.azure.SetFault(imdstest.Fault{Status: 503})
		s.up()
		pause(time.Minute)
		wantIDs(t, s.drain.ids())
		s.azure.ClearFaults()
		pause(time.Minute)
		wantIDs(t, s.drain.ids())
	})
}

// An approval that is answered when its event is over starts no runbook: people hear of it.
func TestAnApprovalStartsNothingAboutAnEventThatIsOver(t *testing.T) {
	approvalTest(t, func(t *testing.T, s *approvalStage) {
		s.routes[0] = s.drain.runbook("runbook").With(func(x *bridge.Terms) { x.Acts = true }).OnlyChanges("approved")
		s.afterApprovals(func(*http.Response) error {
			s.azure.End(idA)
			time.Sleep(3 * time.Second)
			return nil
		})
		s.announce()
		s.approveNow("alice")
		pause(time.Minute)
		wantIDs(t, s.audit.ids(), idA+"-scheduled", idA+"-vanished", idA+"-approved")
		wantIDs(t, s.drain.ids())
	})
}

// A fallback that acts begins nothing about an event that ended before the other sink gave up, and people don't read
// that it is to come.
func TestAFallbackBeginsNothingAboutAnEventThatIsOver(t *testing.T) {
	for late, tt := range map[delivery.Late]struct{ changes, dead, told []string }{
		delivery.LateDrop:   {nil, []string{idA + "-scheduled", idA + "-vanished"}, []string{idA + "-vanished"}},
		delivery.LateLatest: {[]string{"scheduled"}, []string{idA + "-scheduled"}, nil},
	} {
		subtest(t, string(late), func(t *testing.T, s *stage) {
			hook, other := &recorder{}, &recorder{}
			second := other.all("other").With(func(x *bridge.Terms) { x.Late = late }).OnlyTypes("Freeze")
			b := announcedInVain(s, hook, hook.fallsBack("hook", "other", time.Hour).OnlyChanges(tt.changes...), second)
			s.azure.End(idA)
			pause(time.Minute)
			hook.say(always(fmt.Errorf("%w: 410 Gone", delivery.ErrRejected)))
			pause(30 * time.Minute)
			wantIDs(t, deadIDs(b.Outbox), tt.dead...)
			wantIDs(t, other.ids(), tt.told...)
		})
	}
}

// What somebody asks for is sent, also when its event is over: whoever replays a dead letter knows what they do.
func TestWhatIsReplayedAfterTheEndIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		r := e.runbook("drain").OnlyChanges("scheduled")
		b := announcedAndEnded(s, e, s.up(r), errDrainFailed)
		e.say(always(errSinkDown))
		b.replay(b.deadLetters()[0], "")
		pause(time.Minute)
		b.reload(r)
		e.say(nil)
		pause(10 * time.Minute)
		wantIDs(t, e.ids(), idA+"-scheduled")
	})
}

// A dead letter about an event that is over is known as such for a sink that acts, so that who replays all that is dead
// begins nothing. One of an open event, of the end itself, or for another sink is not.
func TestADeadLetterKnowsThatItsEventIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.up(answering(errDrainFailed).runbook("drain"), (&recorder{}).all("chat"))
		s.reboot(idA)
		s.reboot(idB)
		pause(5 * time.Second)
		s.azure.End(idA)
		pause(5 * time.Second)
		for _, d := range b.deadLetters() {
			wantEqual(t, d.ID+" is over for drain", b.Outbox.Over(d, "drain"), d.ID == idA+"-scheduled")
			wantEqual(t, d.ID+" is over for chat", b.Outbox.Over(d, "chat"), false)
		}
		wantIDs(t, deadIDs(b.Outbox), idA+"-scheduled", idB+"-scheduled", idA+"-vanished")
	})
}

// A sink that gets an old change after the end of its event is told that the event is over: a relay behind it begins
// nothing then.
func TestASinkKnowsThatTheEventIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		stream := &recorder{}
		announcedInVain(s, stream, stream.all("stream"))
		s.azure.End(idA)
		s.reboot(idB)
		pause(10 * time.Second)
		stream.say(nil)
		pause(8 * time.Minute)
		wantEqual(t, "number of deliveries", len(stream.ids()), 3)
		for _, h := range stream.accepted() {
			wantEqual(t, h.Event.ID()+" is delivered as one whose event is over", h.EventOver, h.Event.ID() == idA+"-scheduled")
		}
	})
}
