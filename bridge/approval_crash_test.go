package bridge_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
)

// kill -9 at each step never loses the approval and never makes one that the rule forbids.
func TestAnApprovalSurvivesACrashAtEachStep(t *testing.T) {
	for _, step := range []string{"before the decision", "after the decision", "after the POST", "while the rule is taken away"} {
		t.Run(step, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{drainRule}
				crash := make(chan struct{}, 1)
				hold := func() error { crash <- struct{}{}; time.Sleep(2 * time.Second); return http.ErrServerClosed }
				crashed := false
				s.proxy = func(next http.RoundTripper) http.RoundTripper {
					m := meddler{next: next}
					switch {
					case crashed:
					case step == "after the decision", step == "while the rule is taken away":
						m.before = hold
					case step == "after the POST":
						m.after = func(*http.Response) error { return hold() }
					}
					return m
				}
				drain, audit := &recorder{}, &recorder{}
				routes := []bridge.Route{drain.all("drain"), audit.all("audit")}
				b := s.start(routes...)
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				if step == "before the decision" {
					pause(3 * time.Second)
				} else {
					<-crash
				}
				b.crash()
				crashed = true
				sent := len(s.approvals())
				if step == "while the rule is taken away" {
					s.opts.Rules = nil
				}
				b = s.start(routes...)
				pause(time.Minute)
				switch got := s.approvals(); {
				case step == "while the rule is taken away" && len(got) != 0:
					t.Errorf("approved %v, want nothing without a rule", got)
				case step != "while the rule is taken away" && len(got) != sent+1:
					t.Errorf("approved %v, want one more than the %d before the crash", got, sent)
				}
				want := cloudevent.ResultApproved
				if step == "while the rule is taken away" {
					want = cloudevent.ResultUnanswered // the attempt was on record before it was made
				}
				if all := audit.accepted(); len(all) < 2 || dataIn(t, all[len(all)-1].Event).Approval.Result != want {
					t.Errorf("told %s, want the approval at the end, %s", idsOf(all), want)
				}
				b.end()
			})
		})
	}
}

// A decision that was made before a crash waits until instance metadata has confirmed the VM's name: until then no rule
// approves anything, which must not end it.
func TestADecisionWaitsForTheNameAfterACrash(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{drainRule}
		crash, crashed := make(chan struct{}, 1), false
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			m := meddler{next: next}
			if !crashed {
				m.before = func() error { crash <- struct{}{}; time.Sleep(2 * time.Second); return http.ErrServerClosed }
			}
			return m
		}
		drain, audit := &recorder{}, &recorder{}
		routes := []bridge.Route{drain.all("drain"), audit.all("audit")}
		b := s.start(routes...)
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		<-crash
		b.crash()
		crashed = true

		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 30 * time.Second})
		b = s.start(routes...)
		pause(20 * time.Second)
		if got := s.approvals(); len(got) != 0 {
			t.Errorf("approved %v while the name of the VM is not confirmed", got)
		}
		wantIDs(t, audit.ids(), idA+"-scheduled")
		pause(2 * time.Minute)
		wantIDs(t, s.approvals(), idA)
		if all := audit.accepted(); len(all) < 2 ||
			dataIn(t, all[len(all)-1].Event).Approval.Result != cloudevent.ResultApproved {
			t.Errorf("told %s, want the approval at the end", idsOf(all))
		}
		b.end()
	})
}

// A decision in the outbox that names no rule there is never ends the program.
func TestADecisionOfNoRuleIsMoot(t *testing.T) {
	for _, rule := range []int{-1, 0, 2, 1 << 40} {
		bubble(t, func(t *testing.T, s *stage) {
			s.beginsLate()
			audit := &recorder{}
			b := s.start(audit.all("audit"))
			pause(1500 * time.Millisecond)
			s.userReboot(idA)
			pause(1500 * time.Millisecond)
			b.DecideByRule(idA, rule)
			b.Reload(b.Routes, []bridge.Rule{{Only: bridge.Match{Types: bridge.TypesValues, Sources: []string{"Platform"}}}}, bridge.SettingsInfo{})
			pause(10 * time.Second)
			wantIDs(t, s.approvals())
			if all := audit.accepted(); len(all) != 2 || dataIn(t, all[1].Event).Approval.Result != cloudevent.ResultMoot {
				t.Errorf("told %s, want the approval, moot", idsOf(all))
			}
			b.end()
		})
	}
}

// An event that changes, begins or ends before its approval is sent is not approved after that, and the record says so.
func TestAnApprovalBecomesMoot(t *testing.T) {
	for _, tt := range []struct {
		claim  string
		change func(s *stage)
		again  bool // its change is announced with the rule that will approve it, whose drain then fails
	}{
		{"it moved", func(s *stage) {
			s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = time.Now().Add(time.Hour) })
		}, true},
		{"it began", func(s *stage) { s.azure.Start(idA) }, false},
		{"it ended", func(s *stage) { s.azure.End(idA) }, false},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				drain, audit := &recorder{}, &recorder{}
				refuses := s.refusesLooks()
				s.opts.Rules = []bridge.Rule{drainRule}
				b := s.start(drain.all("drain"), audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(2 * time.Second)
				refuses.Store(true)
				pause(6 * time.Second)
				drain.say(always(errSinkDown)) // so that the change is not approved
				tt.change(s)
				pause(2 * time.Second)
				refuses.Store(false)
				pause(bridge.FailingFor + 10*time.Second)
				wantIDs(t, s.approvals())
				want := []string{cloudevent.ResultMoot}
				if tt.again {
					want = append(want, cloudevent.ResultWithheld)
				}
				wantIDs(t, audit.results(t), want...)
				b.end()
			})
		})
	}
}

// An approval whose answer is lost is never told as one without effect, whatever becomes of it: Azure may have taken it.
func TestAnApprovalWhoseAnswerIsLostIsUnanswered(t *testing.T) {
	for claim, then := range map[string]func(s *stage, b *running, routes []bridge.Route){
		"it moves": func(s *stage, _ *running, _ []bridge.Route) {
			s.azure.Update(idA, func(e *imdstest.Event) { e.Description = "moved" })
		},
		"it begins": func(s *stage, _ *running, _ []bridge.Route) { s.azure.Start(idA) },
		"it ends":   func(s *stage, _ *running, _ []bridge.Route) { s.azure.End(idA) },
		"it begins after a crash": func(s *stage, b *running, routes []bridge.Route) {
			b.crash()
			s.azure.Start(idA)
			s.start(routes...)
		},
		"the rules go": func(_ *stage, b *running, _ []bridge.Route) { b.Reload(b.Routes, nil, bridge.SettingsInfo{}) },
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.proxy = func(next http.RoundTripper) http.RoundTripper {
					return meddler{next: next, after: func(*http.Response) error { return errSinkDown }}
				}
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{drainRule}
				drain, audit := &recorder{}, &recorder{}
				routes := []bridge.Route{drain.all("drain"), audit.all("audit")}
				b := s.start(routes...)
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(8 * time.Second)
				drain.say(always(delivery.ErrRejected)) // so that no change is approved
				then(s, b, routes)
				pause(20 * time.Second)
				if len(s.approvals()) == 0 {
					t.Error("Azure got no approval")
				}
				results := audit.results(t)
				if len(results) == 0 || results[0] != cloudevent.ResultUnanswered || slices.Contains(results, cloudevent.ResultMoot) {
					t.Errorf("told %q, want it unanswered", results)
				}
				if strings.Contains(s.log.String(), "approval not sent") {
					t.Error("the log says of an approval without an answer that it was not sent")
				}
			})
		})
	}
}

// What was approved here and then left the list was not cancelled.
func TestWhatWasApprovedIsNeverCalledCanceled(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{rebootRule}
		audit := &recorder{}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(5 * time.Second)
		s.azure.End(idA)
		pause(3 * time.Second)
		wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-approved", idA+"-vanished")
		if d := dataIn(t, audit.accepted()[2].Event); d.Outcome != cloudevent.OutcomeUnknown {
			t.Errorf("the outcome is %s, want %s", d.Outcome, cloudevent.OutcomeUnknown)
		}
		b.end()
	})
}

// An id is never given twice, also if only memory knew of the first one, as on a full disk, and a crash lost that.
func TestTheIDOfAnApprovalIsNeverUsedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return meddler{next: next, after: func(*http.Response) error {
				s.disk.fail(errFull)
				return nil
			}}
		}
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{rebootRule}
		audit := &recorder{}
		routes := []bridge.Route{audit.all("audit")}
		b := s.start(routes...)
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(10 * time.Second)
		b.crash()
		s.azure.Start(idA)
		b = s.start(routes...)
		pause(10 * time.Second)
		wantIDs(t, audit.results(t), cloudevent.ResultApproved, cloudevent.ResultUnanswered)
		seen := map[string]bool{}
		for _, h := range audit.accepted() {
			if seen[h.Event.ID()] {
				t.Errorf("two CloudEvents have the id %s", h.Event.ID())
			}
			seen[h.Event.ID()] = true
		}
		b.end()
	})
}

// What was decided but never sent does not keep people from hearing that the event was called off.
func TestADecisionThatWasNeverSentHidesNoCancellation(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		refuses := s.refusesLooks()
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{drainRule}
		audit := &recorder{}
		b := s.start((&recorder{}).all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Second)
		refuses.Store(true)
		pause(8 * time.Second)
		s.azure.End(idA)
		pause(3 * time.Second)
		s.wantLogged("approval not sent; trying again")
		wantIDs(t, audit.types(), "scheduled", "approved", "vanished")
		if d := dataIn(t, audit.accepted()[2].Event); d.Outcome != cloudevent.OutcomeCanceled {
			t.Errorf("the outcome is %s, want %s", d.Outcome, cloudevent.OutcomeCanceled)
		}
		refuses.Store(false)
		b.end()
	})
}

// An event that ends between the decision to approve it and the approval is approved by nobody, and ends nothing else.
func TestAnEventThatEndsAtItsDecision(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{rebootRule}
		audit := &recorder{}
		var b *running
		var ended atomic.Bool
		s.logged = func(words string) {
			if words == "approving event" {
				s.azure.End(idA)
				ended.Store(b.Take(&imds.Document{APIVersion: imds.DefaultAPIVersion}))
			}
		}
		b = s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(10 * time.Second)
		if !ended.Load() {
			t.Error("the event did not end at its decision")
		}
		wantIDs(t, s.approvals())
		wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-approved", idA+"-vanished")
		b.end()
	})
}

// An event that ends while its decision comes to nothing has one approval on record, and stops nothing.
func TestAnEventThatEndsAsItsDecisionBecomesMoot(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{rebootRule}
		s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
		audit := &recorder{}
		var b *running
		s.logged = func(words string) {
			if words == "event not approved" {
				s.azure.End(idA)
				b.Take(&imds.Document{APIVersion: imds.DefaultAPIVersion})
			}
		}
		b = s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Second)
		broken := rebootRule
		broken.When = mustParseWhen(t, "data.no.such.thing > 1")
		b.Reload(b.Routes, []bridge.Rule{broken}, bridge.SettingsInfo{})
		pause(10 * time.Second)
		s.redeploy(idB, time.Hour)
		pause(3 * time.Second)
		wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-approved", idA+"-vanished", idB+"-scheduled")
		b.end()
	})
}

// A rule's decision that comes to nothing says nothing about what becomes of the event: it was called off, unless somebody
// asked Azure by hand before and got no answer.
func TestADecisionThatComesToNothingChangesNoOutcome(t *testing.T) {
	for asked, want := range map[bool]cloudevent.Outcome{
		false: cloudevent.OutcomeCanceled, true: cloudevent.OutcomeUnknown,
	} {
		bubble(t, func(t *testing.T, s *stage) {
			refuses := s.refusesLooks()
			s.beginsLate()
			s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
			audit := &recorder{}
			b := s.start(audit.all("audit"))
			pause(1500 * time.Millisecond)
			s.userReboot(idA)
			pause(1500 * time.Millisecond)
			if asked {
				b.ApproveNow(t.Context(), idA, s.shown(idA), "root")
			}
			refuses.Store(true)
			b.Reload(b.Routes, []bridge.Rule{rebootRule}, bridge.SettingsInfo{})
			pause(3 * time.Second)
			b.Reload(b.Routes, nil, bridge.SettingsInfo{})
			pause(2 * time.Second)
			refuses.Store(false)
			pause(2 * time.Second)
			s.azure.End(idA)
			pause(3 * time.Second)
			results := audit.results(t)
			wantIDs(t, results[len(results)-1:], cloudevent.ResultMoot)
			all := audit.accepted()
			if d := dataIn(t, all[len(all)-1].Event); d.Outcome != want {
				t.Errorf("asked by hand %v: the outcome is %q, want %s", asked, d.Outcome, want)
			}
			b.end()
		})
	}
}
