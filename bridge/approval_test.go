package bridge_test

import (
	"fmt"
	"net/http"
	"regexp"
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
	"forewarn/bridge/outbox"
)

// userReboot schedules a reboot of vm-0 that a user asked for.
func (s *stage) userReboot(id string) {
	s.azure.Schedule(imdstest.Event{ID: id, Type: "Reboot", Source: "User", Resources: []string{"vm-0"}, NotBefore: time.Now().Add(15 * time.Minute)})
}

// beginsLate makes an Azure that begins nothing within an hour of its approval.
func (s *stage) beginsLate() {
	s.azure = imdstest.New(imdstest.Options{VMs: s.azure.VMs(), ApproveDelay: time.Hour})
}

// approvals returns the ids of what Azure was asked to begin.
func (s *stage) approvals() (ids []string) {
	for _, a := range s.azure.Approvals() {
		ids = append(ids, strings.ToUpper(a.EventID))
	}
	return ids
}

// results returns what became of the approvals that the ear heard of.
func (e *ear) results(t *testing.T) (list []string) {
	for _, h := range e.accepted() {
		if a := dataIn(t, h.Event).Approval; a != nil {
			list = append(list, a.Result)
		}
	}
	return list
}

// rebootRule approves every reboot of this VM alone, at once.
var rebootRule = bridge.Rule{Only: bridge.Match{Types: []string{"Reboot"}}}

// drainRule approves what users asked for, once the route drain has taken it.
var drainRule = bridge.Rule{
	Only: bridge.Match{Types: bridge.TypesValues, Sources: []string{"User"}}, After: []string{"drain"}, Wait: 5 * time.Second,
}

// What a rule names is approved when the sinks have accepted that it waits for, and not before; the approval is told
// and on record.
func TestAnEventIsApprovedAfterItsSinks(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{drainRule}
		drain, audit := &ear{answer: always(errSinkDown)}, &ear{}
		b := s.start(drain.all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(20 * time.Second)
		wantIDs(t, s.approvals())
		drain.say(nil)
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-approved", idA+"-started")
		s.wantLogged("to=drain,audit")
		a := dataIn(t, audit.accepted()[1].Event).Approval
		if tenths := fmt.Sprintf("%.1f", a.After); fmt.Sprint(a.After) != tenths && fmt.Sprint(a.After)+".0" != tenths {
			t.Errorf("it is told as approved after %v seconds, want %s", a.After, tenths)
		}
		if a == nil || a.Result != cloudevent.ResultApproved || a.By != "rule 1" || a.Status != "200 OK" || a.Attempts != 1 || a.After < 25 {
			t.Errorf("the approval is told as %+v", a)
		}
		s.azure.End(idA)
		pause(3 * time.Second)
		b.end()
		for _, wrong := range []string{`why=""`, "approval not sent"} {
			if strings.Contains(s.log.String(), wrong) {
				t.Errorf("the log has a line with %s", wrong)
			}
		}
	})
}

// A sink that rejects what it is told, such as a drain that failed, keeps the event from being approved, which those are
// told who were told that the rule would approve it.
func TestAFailedDrainMeansNoApproval(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{drainRule}
		drain, audit := &ear{answer: always(delivery.ErrRejected)}, &ear{}
		b := s.start(drain.all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(10 * time.Minute)
		wantIDs(t, s.approvals())
		wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-approved")
		s.wantLogged(`rule 1: sink \"drain\" did not accept the latest change`)
		b.end()
	})
}

// A delivery that somebody dropped was not accepted: no drain ran, so the event is not approved, whether the delivery
// was still pending or a dead letter.
func TestADroppedDeliveryMeansNoApproval(t *testing.T) {
	for claim, answer := range map[string]error{"pending": errSinkDown, "a dead letter": delivery.ErrRejected} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Rules = []bridge.Rule{drainRule}
				b := s.start((&ear{answer: always(answer)}).all("drain"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(10 * time.Second)
				entries := slices.DeleteFunc(b.Outbox.List(outbox.Selection{Route: "drain", Group: idA}),
					func(d outbox.Delivery) bool { return d.Change != string(imds.Scheduled) })
				if len(entries) != 1 {
					t.Fatalf("the outbox has %d deliveries for drain, want 1", len(entries))
				}
				if _, err := b.Drop([]string{entries[0].Key}, "root"); err != nil {
					t.Fatal(err)
				}
				pause(10 * time.Minute)
				wantIDs(t, s.approvals())
				s.wantLogged(`rule 1: sink \"drain\" did not accept the latest change`)
				b.end()
			})
		})
	}
}

// What the sink took is what is approved: an event that changes is approved only when the sink has taken the change.
func TestAChangedEventIsDecidedAnew(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{drainRule}
		drain := &ear{}
		b := s.start(drain.all("drain"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Second)
		drain.say(always(errSinkDown))
		s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = time.Now().Add(20 * time.Minute) })
		pause(time.Minute)
		wantIDs(t, s.approvals())
		drain.say(nil)
		pause(6 * time.Minute)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// meddler lets a test see, hold up and answer the approvals that are sent.
type meddler struct {
	next   http.RoundTripper
	before func() error // of the approval
	after  func(*http.Response) error
}

func (m meddler) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPost {
		return m.next.RoundTrip(r)
	}
	if m.before != nil {
		if err := m.before(); err != nil {
			return nil, err
		}
	}
	resp, err := m.next.RoundTrip(r)
	if err == nil && m.after != nil {
		if err := m.after(resp); err != nil {
			resp.Body.Close()
			return nil, err
		}
	}
	return resp, err
}

// An approval that does not get through is sent again; one that Azure refuses is not, and people hear of it.
func TestAnApprovalIsSentUntilItIsAnswered(t *testing.T) {
	for _, tt := range []struct {
		claim   string
		status  int
		tries   int
		result  string
		trouble bool
	}{
		{"it is refused", 400, 1, cloudevent.ResultRefused, true},
		{"Azure has a bad moment", 503, 3, cloudevent.ResultApproved, false},
		{"it is throttled", 429, 3, cloudevent.ResultApproved, false},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				tries := 0
				s.proxy = func(next http.RoundTripper) http.RoundTripper {
					return meddler{next: next, after: func(resp *http.Response) error {
						if tries++; tries < 3 {
							resp.StatusCode, resp.Status = tt.status, fmt.Sprint(tt.status, " ", http.StatusText(tt.status))
						}
						return nil
					}}
				}
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{rebootRule}
				audit, chat, other := &ear{}, &ear{}, &ear{}
				b := s.start(audit.all("audit"), other.all("other").OnlyTypes("Freeze"),
					chat.all("chat").With(func(terms *bridge.Terms) { terms.Bridge = bridge.LevelTrouble }).OnlyTypes("Freeze"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(time.Minute)
				if tries != tt.tries {
					t.Errorf("it was sent %d times, want %d", tries, tt.tries)
				}
				wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-approved")
				if a := dataIn(t, audit.accepted()[1].Event).Approval; a.Result != tt.result {
					t.Errorf("the approval is told as %+v, want it %s", a, tt.result)
				}
				want := []string{}
				if tt.trouble {
					want = append(want, idA+"-approved")
				}
				wantIDs(t, chat.ids(), want...)
				wantIDs(t, other.ids())
				b.end()
			})
		})
	}
}

// While the endpoint does not answer, the last look before an approval is taken as seldom as polls are, and the
// approval is sent once it answers.
func TestAnApprovalWaitsForTheEndpointAsPollsDo(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{drainRule}
		audit := &ear{}
		b := s.start((&ear{}).all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Second)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		pause(10 * time.Minute)
		if n := strings.Count(s.log.String(), "approval not sent; trying again"); n < 30 || n > 100 {
			t.Errorf("it was tried %d times in ten minutes", n)
		}
		s.azure.ClearFaults()
		pause(20 * time.Second)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, audit.results(t), cloudevent.ResultWithheld, cloudevent.ResultApproved)
		if a := dataIn(t, audit.accepted()[2].Event).Approval; a.Attempts != 1 {
			t.Errorf("the approval is told as %+v, want it sent once", a)
		}
		b.end()
	})
}

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
				drain, audit := &ear{}, &ear{}
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
		drain, audit := &ear{}, &ear{}
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
			audit := &ear{}
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
				drain, audit := &ear{}, &ear{}
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
				drain, audit := &ear{}, &ear{}
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

// Two VMs of one set that both run with a rule for the leader approve once.
func TestOnlyTheLeaderApproves(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		leader := bridge.Rule{Only: bridge.Match{VMs: "leader", Types: bridge.TypesValues}, Others: true}
		s.opts.Rules = []bridge.Rule{leader}
		s.beginsLate()
		first := s.start((&ear{}).all("a"))
		other := newStage(t)
		other.azure, other.vm, other.opts.Rules = s.azure, "vm-1", []bridge.Rule{leader}
		audit := &ear{}
		second := other.start(audit.all("a"))
		pause(1500 * time.Millisecond)
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Resources: []string{"vm-0", "vm-1"}, NotBefore: time.Now().Add(15 * time.Minute)})
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		// Who hears of it from the other VM only must know that it may begin before its time.
		if rules := dataIn(t, audit.accepted()[0].Event).Rules; len(rules) != 1 || rules[0].VM != "vm-0" {
			t.Errorf("the other VM announces it with the rules %+v, want that of vm-0", rules)
		}
		wantIDs(t, audit.withheld(t))
		if by := s.azure.Approvals()[0].VM; by != "vm-0" {
			t.Errorf("%s approved, want the first in the event", by)
		}
		first.end()
		second.end()
	})
}

// A rule goes by the name that instance metadata gives in this run, not by that on the disk: a machine that was given a
// copy of the disk would approve for another. A name that is set is the operator's word.
func TestARuleWaitsUntilItIsKnownWhichVMThisIs(t *testing.T) {
	for _, set := range []string{"", "vm-1"} {
		t.Run("imds.vm_name: "+set, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Rules, s.opts.VMName = []bridge.Rule{rebootRule}, set
				b := s.start((&ear{}).all("a"))
				pause(2 * time.Second)
				b.end()

				s.vm = "vm-1"
				s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 2 * time.Minute})
				s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Resources: []string{"vm-0"}})
				s.azure.Schedule(imdstest.Event{ID: idB, Type: "Reboot", Resources: []string{"vm-1"}})
				b = s.start((&ear{}).all("a"))
				pause(time.Minute)
				if set == "" {
					wantIDs(t, s.approvals())
				} else {
					wantIDs(t, s.approvals(), idB)
				}
				pause(3 * time.Minute)
				wantIDs(t, s.approvals(), idB)
				b.end()
			})
		})
	}
}

// What was approved here and then left the list was not cancelled.
func TestWhatWasApprovedIsNeverCalledCanceled(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{rebootRule}
		audit := &ear{}
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
		audit := &ear{}
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

// While the outbox is not durable nothing is approved.
func TestWithoutADiskNothingIsApproved(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{rebootRule}
		b := s.start((&ear{}).all("a"))
		s.disk.fail(errFull)
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(time.Minute)
		wantIDs(t, s.approvals())
		s.wantLogged("the outbox is not durable")
		if tried := "approval waits until"; strings.Contains(s.log.String(), tried) {
			t.Errorf("the log says %q, so something was decided", tried)
		}
		s.disk.fail(nil)
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// Nor is anything approved if it is the decision that the disk fails at.
func TestADecisionThatCannotBeWrittenIsNotSent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{rebootRule}
		var last atomic.Bool
		s.wrote = func() {
			if last.Load() {
				s.disk.fail(errFull)
			}
		}
		b := s.start((&ear{}).all("a").OnlyTypes("Freeze"))
		pause(1500 * time.Millisecond)
		last.Store(true)
		s.userReboot(idA)
		pause(time.Minute)
		wantIDs(t, s.approvals())
		s.wantLogged("approval waits until the outbox can be written")
		if sent := "approving event"; strings.Contains(s.log.String(), sent) {
			t.Errorf("the log says %q", sent)
		}
		last.Store(false)
		s.disk.fail(nil)
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// The last look before an approval may see that an event has moved before a poll does. Then nothing is sent: the event is
// decided anew when its change is known.
func TestWhatOnlyTheLastLookFindsMovedIsNotApproved(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Interval = 5 * time.Minute
		rule := rebootRule
		rule.Wait = time.Minute
		s.opts.Rules = []bridge.Rule{rule}
		audit := &ear{}
		s.userReboot(idA)
		b := s.start(audit.all("audit"))
		pause(30 * time.Second)
		s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Hour) })
		pause(4 * time.Minute)
		wantIDs(t, s.approvals())
		wantIDs(t, audit.types(), "scheduled", "approved")
		wantIDs(t, audit.results(t), cloudevent.ResultWithheld)
		if sent := "approval not sent"; strings.Contains(s.log.String(), sent) {
			t.Errorf("the log says %q, so it was tried", sent)
		}
		pause(4 * time.Minute)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// refusesLooks makes each request for the whole document fail while the result is true, such as the last look before an
// approval. Polls that know the document go through.
func (s *stage) refusesLooks() *atomic.Bool {
	var refuses atomic.Bool
	s.proxy = func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if refuses.Load() && r.Header.Get("If-None-Match") == "" {
				return nil, errSinkDown
			}
			return next.RoundTrip(r)
		})
	}
	return &refuses
}

// What was decided but never sent does not keep people from hearing that the event was called off.
func TestADecisionThatWasNeverSentHidesNoCancellation(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		refuses := s.refusesLooks()
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{drainRule}
		audit := &ear{}
		b := s.start((&ear{}).all("drain"), audit.all("audit"))
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

// However many approvals take their longest, the approval loop counts as alive.
func TestManySlowApprovalsAreNoStandstill(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		rule := rebootRule
		rule.Wait = 10 * time.Second
		s.opts.Rules = []bridge.Rule{rule}
		for n := range 40 {
			s.userReboot(fmt.Sprintf("%s-%d", idA, n))
		}
		b := s.start((&ear{}).all("a"))
		pause(5 * time.Second)
		s.azure.SetFault(imdstest.Fault{Path: imdstest.ScheduledEvents, Hang: true})
		for range 50 {
			pause(10 * time.Second)
			if err := b.Alive(); err != nil {
				t.Fatalf("Alive = %v", err)
			}
		}
		s.wantLogged("approval not sent; trying again")
		s.azure.ClearFaults()
		b.end()
	})
}

// Nor is a decision sent again that did not get through before the disk failed.
func TestWithoutADiskNoDecisionIsSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{rebootRule}
		s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
		b := s.start((&ear{}).all("a"))
		sent := func() int {
			return len(slices.DeleteFunc(s.azure.Requests(), func(r imdstest.Request) bool { return r.Method != http.MethodPost }))
		}
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(5 * time.Second)
		s.disk.fail(errFull)
		s.azure.Schedule(imdstest.Event{ID: idB, Type: "Freeze"}) // which cannot be written
		pause(5 * time.Second)
		before := sent()
		pause(2 * time.Minute)
		if again := sent() - before; before == 0 || again > 0 {
			t.Errorf("sent %d times, and %d times while the disk failed, want none then", before, again)
		}
		s.disk.fail(nil)
		s.azure.ClearFaults()
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// A sink that acts hears of an approval only when its filter names it; others hear of it with the rest of the event.
func TestWhoActsHearsOfApprovalsOnlyByName(t *testing.T) {
	for _, tt := range []struct {
		acts    bool
		changes []string
		hears   bool
	}{
		{false, nil, true}, {false, []string{"scheduled"}, false}, {false, []string{"approved"}, true},
		{true, nil, false}, {true, []string{"scheduled"}, false}, {true, []string{"scheduled", "approved"}, true},
	} {
		r := bridge.Route{Terms: bridge.Terms{Acts: tt.acts}, Filter: bridge.Filter{Only: bridge.Only{Changes: tt.changes}}}
		if got := r.Hears(imds.Change{Kind: imds.Approved}, "vm-0"); got != tt.hears {
			t.Errorf("a sink that acts: %v, with changes %v, hears of an approval: %v, want %v", tt.acts, tt.changes, got, tt.hears)
		}
	}
}

// The first change of an event is neither an approval nor a reminder: a drain that asks for the first change runs once.
func TestWhatComesFirstIsNoApprovalAndNoReminder(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{rebootRule}
		drain := &ear{}
		route := drain.reminds("drain", 10*time.Minute).With(func(terms *bridge.Terms) { terms.Acts = true })
		route.Filter.Only.Changes = []string{"first"}
		b := s.start(route)
		pause(1500 * time.Millisecond)
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", NotBefore: time.Now().Add(time.Hour)})
		pause(59 * time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, drain.ids(), idA+"-scheduled")
		b.end()
	})
}

// While Azure is long about one event, people approve another one by hand, and settings take the rules away: what comes
// next goes by that, and not by what was so when Azure was asked.
func TestAnApprovalGoesByWhatIsSoNow(t *testing.T) {
	for _, tt := range []struct {
		claim string
		then  func(b *running)
		want  []string
	}{
		{"nothing happens", func(*running) {}, []string{idA, idB}},
		{"the rules go", func(b *running) { b.Reload(b.Routes, nil, bridge.SettingsInfo{}) }, []string{idA}},
		{"the second is approved by hand", func(b *running) { b.ApproveNow(b.s.t.Context(), idB, b.s.shown(idB), "root") }, []string{idB, idA}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				slow := true
				s.proxy = func(next http.RoundTripper) http.RoundTripper {
					return meddler{next: next, before: func() error {
						if slow {
							slow = false
							pause(5 * time.Second)
						}
						return nil
					}}
				}
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{rebootRule}
				b := s.start((&ear{}).all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				s.userReboot(idB)
				pause(3 * time.Second) // the first is being approved
				tt.then(b)
				pause(time.Minute)
				wantIDs(t, s.approvals(), tt.want...)
				b.end()
			})
		})
	}
}

// Rules that go while the document is looked at for the last time approve nothing. If somebody approves the event by hand
// then, that is the one approval.
func TestWhatComesDuringTheLastLookCounts(t *testing.T) {
	for _, tt := range []struct {
		claim string
		comes func(b *running, shown string)
		want  []string
	}{
		{"the rules go", func(b *running, _ string) { b.Reload(b.Routes, nil, bridge.SettingsInfo{}) }, nil},
		{"it is approved by hand", func(b *running, shown string) { b.ApproveNow(b.s.t.Context(), idA, shown, "root") }, []string{idA}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				b := s.start((&ear{}).all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(1500 * time.Millisecond)
				shown := s.shown(idA)
				s.azure.SetFault(imdstest.Fault{Delay: 4 * time.Second})
				b.Reload(b.Routes, []bridge.Rule{rebootRule}, bridge.SettingsInfo{})
				pause(2 * time.Second)
				tt.comes(b, shown)
				pause(time.Minute)
				wantIDs(t, s.approvals(), tt.want...)
				b.end()
			})
		})
	}
}

// A decision about an event that Azure moves while the answer of the last look is on its way is moot. The next one is
// about the event as it is by then.
func TestWhatMovesDuringTheLastLookIsDecidedAnew(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		var late atomic.Bool
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				resp, err := next.RoundTrip(r)
				if late.Load() && r.Method == http.MethodGet && r.Header.Get("If-None-Match") == "" {
					time.Sleep(3 * time.Second)
				}
				return resp, err
			})
		}
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{rebootRule}
		audit := &ear{}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		late.Store(true)
		s.userReboot(idA)
		pause(2 * time.Second)
		s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Hour) })
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, audit.types(), "scheduled", "updated", "approved", "approved")
		wantIDs(t, audit.results(t), cloudevent.ResultMoot, cloudevent.ResultApproved)
		b.end()
	})
}

// A reload that puts another rule before the one that decided loses nothing that is pending.
func TestAReloadDoesNotLoseAnApproval(t *testing.T) {
	platform := bridge.Rule{Only: bridge.Match{Types: bridge.TypesValues, Sources: []string{"Platform"}}}
	for claim, tt := range map[string]struct {
		rules []bridge.Rule
		by    string
	}{
		"nothing changes":           {[]bridge.Rule{rebootRule}, "rule 1"},
		"another rule comes before": {[]bridge.Rule{platform, rebootRule}, "rule 2"},
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{rebootRule}
				s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
				audit := &ear{}
				b := s.start(audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(5 * time.Second)
				b.Reload(b.Routes, tt.rules, bridge.SettingsInfo{})
				pause(20 * time.Second)
				s.azure.ClearFaults()
				pause(2 * time.Minute)
				wantIDs(t, s.approvals(), idA)
				wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-approved")
				if all := audit.accepted(); dataIn(t, all[len(all)-1].Event).Approval.By != tt.by {
					t.Errorf("approved as %+v, want by %s", dataIn(t, all[len(all)-1].Event).Approval, tt.by)
				}
				b.end()
			})
		})
	}
}

// A decision that is still to be sent waits as long as the rules do not approve it yet, be it that a reload made them
// wait or that the disk failed: it is given up only when none will.
func TestADecisionWaitsWhileTheRulesDo(t *testing.T) {
	longer := rebootRule
	longer.Wait = time.Minute
	for claim, then := range map[string]func(s *stage, b *running){
		"for another sink": func(s *stage, b *running) { b.Reload(b.Routes, []bridge.Rule{drainRule}, bridge.SettingsInfo{}) },
		"for longer":       func(s *stage, b *running) { b.Reload(b.Routes, []bridge.Rule{longer}, bridge.SettingsInfo{}) },
		"for longer, but for one that never will": func(s *stage, b *running) {
			b.Reload(b.Routes, []bridge.Rule{longer, {Only: bridge.Match{Types: []string{"Freeze"}}}}, bridge.SettingsInfo{})
		},
		"for a disk that is back before the decision is looked at": func(s *stage, b *running) {
			s.disk.fail(errFull)
			pause(40 * time.Second) // not so long that people are told
		},
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.logged = func(words string) {
					if words == "event not approved yet" {
						s.disk.fail(nil)
						time.Sleep(2 * diskRetry)
					}
				}
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{rebootRule}
				s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
				drain, audit := &ear{answer: always(errSinkDown)}, &ear{}
				b := s.start(drain.all("drain"), audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(5 * time.Second)
				then(s, b)
				s.azure.ClearFaults()
				pause(20 * time.Second)
				drain.say(nil)
				pause(2 * time.Minute)
				wantIDs(t, s.approvals(), idA)
				want := []string{cloudevent.ResultApproved}
				if claim == "for another sink" { // people were told that it waits for none
					want = []string{cloudevent.ResultWithheld, cloudevent.ResultApproved}
				}
				wantIDs(t, audit.results(t), want...)
				b.end()
			})
		})
	}
}

// The status says why an event is not approved while that is so: not if it was approved by hand, has begun, or
// that no rule is left for.
func TestStatusSaysWhyAnEventIsNotApprovedWhileItIsNot(t *testing.T) {
	for claim, then := range map[string]func(b *running){
		"it was approved by hand": func(b *running) { b.ApproveNow(b.s.t.Context(), idA, b.s.shown(idA), "root") },
		"it has begun":            func(b *running) { b.s.azure.Start(idA) },
		"the rules are gone":      func(b *running) { b.Reload(b.Routes, nil, bridge.SettingsInfo{}) },
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{drainRule}
				b := s.start((&ear{answer: always(errSinkDown)}).all("drain"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(3 * time.Second)
				if got := b.Status().Events[0].Approval; got != `rule 1: it waits for sink "drain", which failed and is tried again` {
					t.Errorf("told %q", got)
				}
				then(b)
				pause(3 * time.Second)
				if got := b.Status().Events[0].Approval; got != "" {
					t.Errorf("still told %q", got)
				}
				b.end()
			})
		})
	}
}

// The status knows which rules will approve an event, as long as they can.
func TestStatusKnowsWhichRulesWillApprove(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{drainRule}
		drain := &ear{answer: always(errHang)}
		b := s.start(drain.all("drain"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Second)
		if got := b.Status().Events[0].Rules; len(got) != 1 || got[0].Name != "rule 1" || !slices.Equal(got[0].After, []string{"drain"}) {
			t.Errorf("while the drain runs it knows %v", got)
		}
		drain.say(always(delivery.ErrRejected))
		pause(time.Minute)
		if got := b.Status().Events[0].Rules; got != nil {
			t.Errorf("after the drain has failed it knows %v", got)
		}
		b.end()
	})
}

// The status of an event that Azure was asked to begin says when and by whom it was approved, also after a restart and
// when the event has changed. One that Azure refused, or that nobody has approved, has no such thing.
func TestStatusSaysWhatWasApproved(t *testing.T) {
	for _, tt := range []struct {
		claim  string
		rules  []bridge.Rule
		answer string // of Azure
		by     string
		why    string
	}{
		{"by a rule", []bridge.Rule{rebootRule}, imdstest.ApproveIgnore, "rule 1", ""},
		{"by hand", nil, imdstest.ApproveIgnore, "root", ""},
		{"refused", []bridge.Rule{rebootRule}, imdstest.ApproveRefuse, "", "rule 1: Azure refused the approval"},
		{"no rule is for it", []bridge.Rule{{Only: bridge.Match{Types: []string{"Freeze"}}}}, imdstest.ApproveIgnore, "", ""},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Approve: tt.answer})
				s.opts.Rules = tt.rules
				b := s.start((&ear{}).all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(3 * time.Second)
				if tt.by == "root" {
					b.ApproveNow(t.Context(), idA, s.shown(idA), tt.by)
				}
				check := func(when string) {
					t.Helper()
					got := b.Status().Events[0]
					switch {
					case got.Approval != tt.why:
						t.Errorf("%s the status says %q, want %q", when, got.Approval, tt.why)
					case (got.Asked == nil) != (tt.by == ""):
						t.Errorf("%s the status says %+v, want it approved by %q", when, got.Asked, tt.by)
					case got.Asked != nil && (got.Asked.By != tt.by || !got.Asked.Answered || time.Since(got.Asked.Time) > time.Minute):
						t.Errorf("%s the status says %+v, want it approved by %s just now", when, got.Asked, tt.by)
					}
				}
				check("then")
				b.end()
				s.opts.Rules = nil
				b = s.start((&ear{}).all("audit"))
				pause(3 * time.Second)
				check("after a restart")
				s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Minute) })
				pause(3 * time.Second)
				if got := b.Status().Events[0]; (got.Asked == nil) != (tt.by == "") || got.Approval != "" {
					t.Errorf("after a change the status says %+v %q, want who asked", got.Asked, got.Approval)
				}
				b.end()
			})
		})
	}
}

// An event that ends between the decision to approve it and the approval is approved by nobody, and ends nothing else.
func TestAnEventThatEndsAtItsDecision(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{rebootRule}
		audit := &ear{}
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
		audit := &ear{}
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

// Azure's answer to an approval is on record also if it comes after the end of the event. People don't read it: they have
// read that it is over.
func TestAnAnswerAfterTheEndIsOnRecord(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				resp, err := next.RoundTrip(r)
				if r.Method == http.MethodPost {
					time.Sleep(5 * time.Second)
				}
				return resp, err
			})
		}
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{rebootRule}
		audit, chat := &ear{}, &ear{}
		people := chat.all("chat")
		people.Terms.Late = delivery.LateLatest
		b := s.start(audit.all("audit"), people)
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Second)
		s.azure.End(idA)
		pause(time.Minute)
		wantIDs(t, audit.types(), "scheduled", "approved", "vanished", "approved")
		if told := chat.types(); told[len(told)-1] != "vanished" { // the first of the answers may have gone before it
			t.Errorf("people read %q", told)
		}
		wantIDs(t, audit.results(t), cloudevent.ResultUnanswered, cloudevent.ResultApproved)
		b.end()
	})
}

// What comes of an approval once the event has begun says that it has: nobody must read again that it may begin.
func TestAnAnswerAfterTheStartSaysThatItHasBegun(t *testing.T) {
	for claim, answer := range map[string]error{"Azure agrees": nil, "the answer is lost": errSinkDown} {
		bubble(t, func(t *testing.T, s *stage) {
			s.proxy = func(next http.RoundTripper) http.RoundTripper {
				return meddler{next: next, after: func(*http.Response) error { time.Sleep(5 * time.Second); return answer }}
			}
			s.opts.Rules = []bridge.Rule{rebootRule}
			audit := &ear{}
			b := s.start(audit.all("audit"))
			pause(1500 * time.Millisecond)
			s.userReboot(idA)
			pause(time.Minute)
			wantIDs(t, audit.types(), "scheduled", "started", "approved")
			if last := audit.accepted()[2].Event.Extensions()["azeventstatus"]; last != imds.StatusStarted {
				t.Errorf("%s: the approval is told of an event that is %v", claim, last)
			}
			b.end()
		})
	}
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
			audit := &ear{}
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

// What is decided about an event is decided by the rules of now, however long it takes to ask for it or for another
// one: a rule that is taken away approves nothing any more once the reload is through.
func TestARuleThatIsTakenAwayApprovesNothingMore(t *testing.T) {
	for _, slow := range []string{http.MethodGet, http.MethodPost} {
		t.Run("a slow "+slow, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				var holds atomic.Bool
				s.proxy = func(next http.RoundTripper) http.RoundTripper {
					return roundTrip(func(r *http.Request) (*http.Response, error) {
						if holds.Load() && r.Method == slow {
							time.Sleep(5 * time.Second)
						}
						return next.RoundTrip(r)
					})
				}
				b := s.start((&ear{}).all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				s.userReboot(idB)
				pause(1500 * time.Millisecond)
				holds.Store(true)
				b.Reload(b.Routes, []bridge.Rule{rebootRule}, bridge.SettingsInfo{})
				pause(2 * time.Second)
				b.Reload(b.Routes, nil, bridge.SettingsInfo{})
				pause(time.Minute)
				want := []string{} // but for what was on its way
				if slow == http.MethodPost {
					want = append(want, idA)
				}
				wantIDs(t, s.approvals(), want...)
				b.end()
			})
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The log says of an event that is not approved whether it may be yet.
func TestTheLogSaysWhetherAnEventMayYetBeApproved(t *testing.T) {
	for _, tt := range []struct {
		claim string
		rule  bridge.Rule
		vms   []string
		want  string
	}{
		{"its drain fails", drainRule, []string{"vm-0"}, `msg="event not approved yet" `},
		{"it hits another VM too", rebootRule, []string{"vm-0", "vm-1"}, `msg="event not approved" `},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Rules = []bridge.Rule{tt.rule}
				drain := &ear{answer: always(errSinkDown)}
				b := s.start(drain.all("drain"))
				pause(1500 * time.Millisecond)
				s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Source: "User", Resources: tt.vms})
				pause(10 * time.Second)
				b.end()
				said := regexp.MustCompile(`msg="event not approved( yet)?" `).FindAllString(s.log.String(), -1)
				if !slices.Equal(said, []string{tt.want}) {
					t.Errorf("the log says %q, want %s once", said, tt.want)
				}
			})
		})
	}
}
