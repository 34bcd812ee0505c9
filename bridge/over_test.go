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

// waysToWait are all ways in which the announcement of an event waits while the event ends. Each starts a bridge with the
// route, has an event announced and ended, and returns the bridge when the destination of the route is well again.
var waysToWait = map[string]func(t *testing.T, s *stage, e *recorder, r bridge.Route) *running{
	"for a retry": func(t *testing.T, s *stage, e *recorder, r bridge.Route) *running {
		return announcedAndEnded(s, e, s.start(r), errSinkDown)
	},
	"because it is blocked": func(t *testing.T, s *stage, e *recorder, r bridge.Route) *running {
		return announcedAndEnded(s, e, s.start(r), fmt.Errorf("%w: exit 78", delivery.ErrBlocked))
	},
	"for the end of a mute": func(t *testing.T, s *stage, e *recorder, r bridge.Route) *running {
		b := s.start(r)
		pause(1500 * time.Millisecond)
		if _, err := b.Mute(delivery.Mute{Sink: r.Name, Reason: "repairs", By: "alice"}, 5*time.Minute); err != nil {
			t.Fatal(err)
		}
		return announcedAndEnded(s, e, b, nil)
	},
	"for the end of a mute, across a restart": func(t *testing.T, s *stage, e *recorder, r bridge.Route) *running {
		b := s.start(r)
		pause(1500 * time.Millisecond)
		if _, err := b.Mute(delivery.Mute{Sink: r.Name, Reason: "repairs", By: "alice"}, 5*time.Minute); err != nil {
			t.Fatal(err)
		}
		announcedAndEnded(s, e, b, nil)
		b.crash()
		return s.start(r)
	},
	forItsLead: func(t *testing.T, s *stage, e *recorder, r bridge.Route) *running {
		r.Terms.Lead = 5 * time.Minute
		return announcedAndEnded(s, e, s.start(r), nil)
	},
	"for its turn": func(t *testing.T, s *stage, e *recorder, r bridge.Route) *running {
		r.Sink = slowSink{e, 10 * time.Minute}
		r.Terms.Timeout = 0
		b := s.start(r)
		pause(1500 * time.Millisecond)
		s.azure.Schedule(imdstest.Event{ID: idB, Type: "Reboot", NotBefore: time.Now().Add(time.Hour)})
		return announcedAndEnded(s, e, b, nil)
	},
	beforeTheFile: func(_ *testing.T, s *stage, e *recorder, r bridge.Route) *running {
		b := s.start(r)
		e.say(always(errSinkDown))
		pause(1500 * time.Millisecond)
		s.reboot(idA)
		pause(time.Minute)
		b, bring := s.lateFile(b, func() { s.azure.End(idA) }, r)
		pause(time.Minute)
		e.say(nil)
		bring()
		return b
	},
	"for forewarn to be started again": func(t *testing.T, s *stage, e *recorder, r bridge.Route) *running {
		b := s.start(r)
		e.say(always(errSinkDown))
		pause(1500 * time.Millisecond)
		s.reboot(idA)
		pause(time.Minute)
		b.end()
		s.azure.End(idA)
		e.say(nil)
		return s.start(r)
	},
	withoutTheSink: func(t *testing.T, s *stage, e *recorder, r bridge.Route) *running {
		b := s.start(r)
		e.say(always(errSinkDown))
		pause(1500 * time.Millisecond)
		s.reboot(idA)
		pause(10 * time.Second)
		b.Reload(nil, nil, bridge.SettingsInfo{})
		s.azure.End(idA)
		pause(10 * time.Second)
		b.end()
		e.say(nil)
		b = s.start()
		pause(10 * time.Second)
		b.Reload([]bridge.Route{r}, nil, bridge.SettingsInfo{})
		return b
	},
	"for a reload that makes it late": func(t *testing.T, s *stage, e *recorder, r bridge.Route) *running {
		before := r
		before.Terms.Late = delivery.LateSend
		b := announcedAndEnded(s, e, s.start(before), errSinkDown)
		e.say(always(errSinkDown))
		pause(time.Minute)
		b.Reload([]bridge.Route{r}, nil, bridge.SettingsInfo{})
		e.say(nil)
		return b
	},
}

// Of the first two ways the end is known before the outbox knows that there was an announcement, or that there is a sink; of
// the third nothing is pending when it comes.
const (
	beforeTheFile  = "for a file that comes late"
	withoutTheSink = "for its sink to be in the settings again"
	forItsLead     = "for its lead"
)

// announcedAndEnded has the reboot of vm-0 announced to a destination that answers with why, and ended.
func announcedAndEnded(s *stage, e *recorder, b *running, why error) *running {
	if why != nil {
		e.say(always(why))
	}
	pause(1500 * time.Millisecond)
	s.reboot(idA)
	pause(2 * time.Minute)
	s.azure.End(idA)
	pause(3 * time.Second)
	e.say(nil)
	return b
}

// A sink that acts begins nothing about an event that is known to be over, and one for people that isn't told of the end
// isn't told either that the event is to come, however the announcement has waited. The history says why.
func TestNothingIsBegunAboutAnEventThatIsOver(t *testing.T) {
	routes := map[string]func(*recorder) bridge.Route{
		"drop": func(e *recorder) bridge.Route {
			r := e.all("drain").With(func(x *bridge.Terms) { x.Late = delivery.LateDrop })
			r.Filter.Only.Changes = []string{"scheduled", "updated"}
			return r
		},
		"drop, with the end": func(e *recorder) bridge.Route {
			return e.all("drain").With(func(x *bridge.Terms) { x.Late = delivery.LateDrop })
		},
		"latest, without the end": func(e *recorder) bridge.Route {
			r := e.all("drain").With(func(x *bridge.Terms) { x.Late = delivery.LateLatest })
			r.Filter.Only.Changes = []string{"scheduled"}
			return r
		},
	}
	for name, route := range routes {
		for way, wait := range waysToWait {
			t.Run(name+" waits "+way, func(t *testing.T) {
				if name != "drop" {
					systemtest.Alone(t)
				}
				bubble(t, func(t *testing.T, s *stage) {
					e := &recorder{}
					b := wait(t, s, e, route(e))
					pause(20 * time.Minute)
					for _, h := range e.accepted() {
						if h.Event.ID() == idA+"-scheduled" {
							t.Errorf("told %s at %v, after the end", h.Event.ID(), h.at)
						}
					}
					wantIDs(t, deadIDs(b.Outbox))
					lives, err := bridge.History(b.Outbox, bridge.Period{Event: idA})
					if err != nil || len(lives) != 1 {
						t.Fatalf("History = %v, %v", lives, err)
					}
					d := lives[0].Changes[0].Deliveries
					said := way == beforeTheFile || len(d) == 1 && d[0].Answer == delivery.EventOver
					switch {
					case way == forItsLead: // nothing was pending
						if len(d) != 0 {
							t.Errorf("the history says %+v, want nothing", d)
						}
					case len(d) != 1 || d[0].State != outbox.StateSuperseded || !said:
						t.Errorf("the history says %+v, want that the event is over", d)
					}
					b.end()
				})
			})
		}
	}
}

// What was under way when its event ended is on record as attempted, with its answer if one comes, and isn't tried again.
func TestWhatWasUnderWayAtTheEndIsOnRecord(t *testing.T) {
	for claim, tt := range map[string]struct {
		why     error
		crashes bool
	}{
		"it fails for good": {why: fmt.Errorf("%w: exit status 1", delivery.ErrRejected)},
		"it wants more":     {why: errors.New("exit status 75")},
		"nobody knows":      {crashes: true},
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				e := &recorder{answer: func(delivery.Delivery) error {
					time.Sleep(9 * time.Second) // before its timeout
					return tt.why
				}}
				r := e.all("drain").With(func(x *bridge.Terms) { x.Late = delivery.LateDrop })
				r.Filter.Only.Changes = []string{"scheduled"}
				b := s.start(r)
				pause(1500 * time.Millisecond)
				s.reboot(idA)
				pause(3 * time.Second)
				s.azure.End(idA)
				pause(3 * time.Second)
				if tt.crashes {
					b.crash()
					b = s.start(r)
				}
				pause(20 * time.Minute)
				if n := len(e.tried()); n != 1 {
					t.Errorf("it was tried %d times", n)
				}
				lives, err := bridge.History(b.Outbox, bridge.Period{Event: idA})
				if err != nil || len(lives) != 1 {
					t.Fatalf("History = %v, %v", lives, err)
				}
				want := bridge.HistoryDelivery{Route: "drain", State: outbox.StateSuperseded, Attempts: 1, Answer: delivery.EventOver}
				if tt.why != nil {
					want.Error = tt.why.Error()
				}
				got := lives[0].Changes[0].Deliveries
				if len(got) == 1 {
					got[0].At = time.Time{}
				}
				if !slices.Equal(got, []bridge.HistoryDelivery{want}) {
					t.Errorf("the history says %+v, want %+v", got, want)
				}
				b.end()
			})
		})
	}
}

// After a start nobody knows which events are over until Azure answers. What acts waits for that, and what is still to come
// then begins.
func TestWhatActsWaitsForAzuresFirstAnswer(t *testing.T) {
	for name, isOver := range map[string]bool{"the event is over": true, "it is still to come": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				drain, chat := &recorder{answer: always(errSinkDown)}, &recorder{answer: always(errSinkDown)}
				routes := []bridge.Route{drain.all("drain").With(func(x *bridge.Terms) { x.Late = delivery.LateDrop }), chat.all("chat")}
				b := s.start(routes...)
				pause(1500 * time.Millisecond)
				s.reboot(idA)
				pause(time.Minute)
				b.end()
				if isOver {
					s.azure.End(idA)
				}
				drain.say(nil)
				chat.say(nil)
				s.azure.SetFault(imdstest.Fault{Status: 503})
				b = s.start(routes...)
				pause(time.Minute)
				wantIDs(t, drain.ids())
				wantIDs(t, chat.ids(), idA+"-scheduled") // people are told: better once too often
				if k := b.Status().Sinks[1]; k.Name != "drain" || k.WaitsFor != delivery.WaitsForAnswer {
					t.Errorf("the status says that %s waits for %q", k.Name, k.WaitsFor)
				}
				s.azure.ClearFaults()
				pause(time.Minute)
				want := idA + "-scheduled"
				if isOver {
					want = idA + "-vanished"
				}
				wantIDs(t, drain.ids(), want)
				b.end()
			})
		})
	}
}

// The same holds for what waited for its lead, which comes while Azure doesn't answer.
func TestALeadBeginsNothingBeforeAzuresFirstAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		drain := &recorder{}
		r := drain.all("drain").With(func(x *bridge.Terms) { x.Late, x.Lead = delivery.LateDrop, 5*time.Minute })
		b := s.start(r)
		pause(1500 * time.Millisecond)
		s.reboot(idA)
		pause(time.Minute)
		b.end()
		s.azure.End(idA)
		pause(9 * time.Minute)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		b = s.start(r)
		pause(time.Minute)
		wantIDs(t, drain.ids())
		s.azure.ClearFaults()
		pause(time.Minute)
		wantIDs(t, drain.ids(), idA+"-vanished")
		b.end()
	})
}

// Whoever is told of the end is told of it, with what was missed, however the announcement has waited.
func TestTheEndIsToldToPeopleWhoMissedTheRest(t *testing.T) {
	systemtest.Alone(t)
	for way, wait := range waysToWait {
		if way == beforeTheFile || way == withoutTheSink {
			continue
		}
		t.Run(way, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				e := &recorder{}
				b := wait(t, s, e, e.all("chat").With(func(x *bridge.Terms) { x.Late = delivery.LateLatest }))
				pause(20 * time.Minute)
				got := slices.DeleteFunc(e.ids(), func(id string) bool { return strings.HasPrefix(id, idB) })
				wantIDs(t, got, idA+"-vanished")
				b.end()
			})
		})
	}
}

// An attempt under way when the event ends is left to end, its result is on record, and nothing follows a failure.
func TestAnAttemptUnderWayAtTheEndIsLeftToEnd(t *testing.T) {
	for _, why := range []error{nil, errSinkDown} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &recorder{answer: always(why)}
			r := e.all("drain").With(func(x *bridge.Terms) { x.Late, x.Timeout = delivery.LateDrop, 0 })
			r.Filter.Only.Changes = []string{"scheduled"}
			r.Sink = slowSink{e, time.Minute}
			b := s.start(r)
			pause(1500 * time.Millisecond)
			s.reboot(idA)
			pause(10 * time.Second)
			s.azure.End(idA)
			pause(30 * time.Minute)
			if n := len(e.tried()); n != 1 {
				t.Errorf("%d attempts were made, want the one under way", n)
			}
			want := outbox.StateAccepted
			if why != nil {
				want = outbox.StateSuperseded
				s.wantLogged("delivery failed, and is not tried again")
			}
			lives, err := bridge.History(b.Outbox, bridge.Period{})
			if err != nil || lives[0].Changes[0].Deliveries[0].State != want {
				t.Errorf("the history says %+v, %v, want %s", lives, err, want)
			}
			b.end()
		})
	}
}

// A fallback that acts begins nothing about an event that ended before the other sink gave up, and people don't read that
// it is to come.
func TestAFallbackBeginsNothingAboutAnEventThatIsOver(t *testing.T) {
	for late, tt := range map[delivery.Late]struct{ changes, dead, told []string }{
		delivery.LateDrop:   {nil, []string{idA + "-scheduled", idA + "-vanished"}, []string{idA + "-vanished"}},
		delivery.LateLatest: {[]string{"scheduled"}, []string{idA + "-scheduled"}, nil},
	} {
		t.Run(string(late), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				hook, other := &recorder{answer: always(errSinkDown)}, &recorder{}
				first := hook.all("hook").With(func(x *bridge.Terms) { x.Fallback = delivery.Fallback{Sink: "other", After: time.Hour} })
				first.Filter.Only.Changes = tt.changes
				second := other.all("other").With(func(x *bridge.Terms) { x.Late = late })
				second.Filter.Only.Types = []string{"Freeze"}
				b := s.start(first, second)
				pause(1500 * time.Millisecond)
				s.reboot(idA)
				pause(time.Minute)
				s.azure.End(idA)
				pause(time.Minute)
				hook.say(always(fmt.Errorf("%w: 410 Gone", delivery.ErrRejected)))
				pause(30 * time.Minute)
				wantIDs(t, deadIDs(b.Outbox), tt.dead...)
				wantIDs(t, other.ids(), tt.told...)
				b.end()
			})
		})
	}
}

// What somebody asks for is sent, also when its event is over: whoever replays a dead letter knows what they do.
func TestWhatIsReplayedAfterTheEndIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{answer: always(fmt.Errorf("%w: exit 65", delivery.ErrRejected))}
		r := e.all("drain").With(func(x *bridge.Terms) { x.Late = delivery.LateDrop })
		r.Filter.Only.Changes = []string{"scheduled"}
		b := announcedAndEnded(s, e, s.start(r), errors.Join(delivery.ErrRejected))
		letters := b.Outbox.List(outbox.Selection{State: outbox.StateDead})
		if len(letters) != 1 {
			t.Fatalf("the dead letters are %+v", letters)
		}
		e.say(always(errSinkDown))
		if _, err := b.Replay([]string{letters[0].Key}, "", "root"); err != nil {
			t.Fatal(err)
		}
		pause(time.Minute)
		b.Reload([]bridge.Route{r}, nil, bridge.SettingsInfo{})
		e.say(nil)
		pause(10 * time.Minute)
		wantIDs(t, e.ids(), idA+"-scheduled")
		b.end()
	})
}

// An approval that is answered when its event is over starts no runbook: people hear of it.
func TestAnApprovalStartsNothingAboutAnEventThatIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		chat, runbook := &recorder{}, &recorder{}
		acts := runbook.all("runbook").With(func(x *bridge.Terms) { x.Late, x.Acts = delivery.LateDrop, true })
		acts.Filter.Only.Changes = []string{"approved"}
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPost {
					defer time.Sleep(3 * time.Second)
					defer s.azure.End(idA)
				}
				return next.RoundTrip(r)
			})
		}
		b := s.start(chat.all("chat"), acts)
		pause(1500 * time.Millisecond)
		s.reboot(idA)
		pause(2 * time.Second)
		b.ApproveNow(t.Context(), idA, s.shown(idA), "alice")
		pause(time.Minute)
		wantIDs(t, chat.ids(), idA+"-scheduled", idA+"-vanished", idA+"-approved")
		wantIDs(t, runbook.ids())
		b.end()
	})
}

// A dead letter about an event that is over is known as such for a sink that acts, so that who replays all that is dead
// begins nothing. One of an open event, of the end itself, or for another sink is not.
func TestADeadLetterKnowsThatItsEventIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{answer: always(fmt.Errorf("%w: exit 1", delivery.ErrRejected))}
		drain := e.all("drain").With(func(x *bridge.Terms) { x.Late = delivery.LateDrop })
		b := s.start(drain, (&recorder{}).all("chat"))
		pause(1500 * time.Millisecond)
		s.reboot(idA)
		s.reboot(idB)
		pause(5 * time.Second)
		s.azure.End(idA)
		pause(5 * time.Second)
		for _, d := range b.Outbox.List(outbox.Selection{State: outbox.StateDead}) {
			if want := d.ID == idA+"-scheduled"; b.Outbox.Over(d, "drain") != want || b.Outbox.Over(d, "chat") {
				t.Errorf("%s is over: %v, for chat %v", d.ID, b.Outbox.Over(d, "drain"), b.Outbox.Over(d, "chat"))
			}
		}
		wantIDs(t, deadIDs(b.Outbox), idA+"-scheduled", idB+"-scheduled", idA+"-vanished")
		b.end()
	})
}

// A sink that gets an old change after the end of its event is told that the event is over: a relay behind it begins nothing
// then.
func TestASinkKnowsThatTheEventIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		stream := &recorder{answer: always(errSinkDown)}
		b := s.start(stream.all("stream"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(10 * time.Second)
		s.azure.End(idA)
		s.userReboot(idB)
		pause(10 * time.Second)
		stream.say(nil)
		pause(10 * time.Minute)
		for _, h := range stream.accepted() {
			if want := h.Event.ID() == idA+"-scheduled"; h.EventOver != want {
				t.Errorf("%s is delivered as one whose event is over: %v, want %v", h.Event.ID(), h.EventOver, want)
			}
		}
		if n := len(stream.ids()); n != 3 {
			t.Errorf("%d are delivered, want 3", n)
		}
		b.end()
	})
}

// The same holds for a fallback that acts: what another sink could not deliver before the start.
func TestAFallbackBeginsNothingBeforeAzuresFirstAnswer(t *testing.T) {
	for name, isOver := range map[string]bool{"the event is over": true, "it is still to come": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				hook, drain := &recorder{answer: always(errSinkDown)}, &recorder{}
				first := hook.all("hook").With(func(x *bridge.Terms) {
					x.Fallback = delivery.Fallback{Sink: "drain", After: 2 * time.Minute}
				})
				second := drain.all("drain").With(func(x *bridge.Terms) { x.Late = delivery.LateDrop })
				second.Filter.Only.Types = []string{"Freeze"}
				b := s.start(first, second)
				pause(1500 * time.Millisecond)
				s.reboot(idA)
				pause(time.Minute)
				b.end()
				if isOver {
					s.azure.End(idA)
				}
				pause(2 * time.Minute)
				s.azure.SetFault(imdstest.Fault{Status: 503})
				b = s.start(first, second)
				pause(time.Minute)
				wantIDs(t, drain.ids())
				s.azure.ClearFaults()
				pause(4 * time.Minute)
				want := idA + "-scheduled"
				if isOver {
					want = idA + "-vanished"
				}
				wantIDs(t, drain.ids(), want)
				b.end()
			})
		})
	}
}

// The same holds for what forewarn itself says of an approval.
func TestAWithheldApprovalStartsNothingBeforeAzuresFirstAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		runbook := &recorder{}
		acts := runbook.all("runbook").With(func(x *bridge.Terms) { x.Late, x.Acts = delivery.LateDrop, true })
		acts.Filter.Only.Changes = []string{"approved"}
		rule := rebootRule
		rule.Wait = 5 * time.Minute
		s.opts.Rules = []bridge.Rule{rule}
		b := s.start(acts)
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(time.Minute)
		b.end()
		s.azure.End(idA)
		s.opts.Rules = nil
		s.azure.SetFault(imdstest.Fault{Status: 503})
		b = s.start(acts)
		pause(time.Minute)
		wantIDs(t, runbook.ids())
		s.azure.ClearFaults()
		pause(time.Minute)
		wantIDs(t, runbook.ids())
		b.end()
	})
}

// What it is told of trouble doesn't wait: it may be the only sink that somebody hears of it from.
func TestWhatActsHearsOfTroubleBeforeAzuresFirstAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		drain := &recorder{answer: always(errSinkDown)}
		r := drain.all("drain").With(func(x *bridge.Terms) { x.Late, x.Bridge = delivery.LateDrop, bridge.LevelTrouble })
		b := s.start(r)
		pause(1500 * time.Millisecond)
		s.redeploy(idA, time.Hour)
		pause(time.Minute)
		b.end()
		drain.say(nil)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		b = s.start(r)
		pause(20 * time.Minute)
		wantIDs(t, drain.types(), "imds.unavailable")
		if k := b.Status().Sinks[0]; k.Pending != 1 || k.WaitsFor != delivery.WaitsForAnswer {
			t.Errorf("the status says that %d are pending, for %q", k.Pending, k.WaitsFor)
		}
		b.end()
	})
}
