package bridge_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
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

// results returns what became of the approvals that the recorder heard of.
func (e *recorder) results(t *testing.T) (list []string) {
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
		drain, audit := &recorder{answer: always(errSinkDown)}, &recorder{}
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
		drain, audit := &recorder{answer: always(delivery.ErrRejected)}, &recorder{}
		b := s.start(drain.all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(10 * time.Minute)
		wantIDs(t, s.approvals())
		wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-approved")
		s.wantLogged(`rule 1: sink \"drain\" failed: rejected`)
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
				b := s.start((&recorder{answer: always(answer)}).all("drain"))
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
				s.wantLogged(`rule 1: sink \"drain\" failed: somebody dropped what it was to do`)
				b.end()
			})
		})
	}
}

// What the sink took is what is approved: an event that changes is approved only when the sink has taken the change.
func TestAChangedEventIsDecidedAnew(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{drainRule}
		drain := &recorder{}
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
				audit, chat, other := &recorder{}, &recorder{}, &recorder{}
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
					want = append(want, idA+"-scheduled", idA+"-approved")
				}
				wantIDs(t, chat.ids(), want...)
				wantIDs(t, other.ids())
				b.end()
			})
		})
	}
}

// Azure may have taken an approval whose answer was lost, though it refuses the next one: the event may begin at any time.
func TestAnApprovalWhoseAnswerWasLostIsNotForgottenWhenTheNextIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		answers := []int{503, 400}
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return meddler{next: next, after: func(resp *http.Response) error {
				resp.StatusCode, answers = answers[0], answers[1:]
				return nil
			}}
		}
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{rebootRule}
		audit := &recorder{}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(time.Minute)
		wantIDs(t, audit.results(t), cloudevent.ResultRefused)
		if asked := dataIn(t, audit.accepted()[1].Event).Asked; asked == nil || asked.Answered || asked.By != "rule 1" {
			t.Errorf("with the refusal it is said that %+v has asked, want rule 1, without an answer", asked)
		}
		b.end()
	})
}

// What Azure refused before an event was gone and came back doesn't count as approved: its end is told as a cancellation.
func TestAnEventThatComesBackAfterARefusalIsNotTakenForApproved(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 400})
		audit := &recorder{}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		for range 2 {
			s.redeploy(idA, time.Hour)
			pause(2 * time.Second)
			if len(audit.results(t)) == 0 {
				b.ApproveNow(t.Context(), idA, s.shown(idA), "jane")
			}
			pause(2 * time.Second)
			s.azure.End(idA)
			pause(2 * time.Second)
		}
		wantIDs(t, audit.results(t), cloudevent.ResultRefused)
		wantIDs(t, audit.types(), "scheduled", "approved", "vanished", "scheduled", "vanished")
		last := audit.accepted()[4]
		if d := dataIn(t, last.Event); d.Outcome != cloudevent.OutcomeCanceled {
			t.Errorf("%s says that it is %s, want canceled", last.Event.ID(), d.Outcome)
		}
		b.end()
	})
}

// While the endpoint does not answer, the last look before an approval is taken as seldom as polls are, and the
// approval is sent once it answers.
func TestAnApprovalWaitsForTheEndpointAsPollsDo(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{drainRule}
		audit := &recorder{}
		b := s.start((&recorder{}).all("drain"), audit.all("audit"))
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

// Two VMs of one set that both run with a rule for the leader approve once.
func TestOnlyTheLeaderApproves(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		leader := bridge.Rule{Only: bridge.Match{VMs: "leader", Types: bridge.TypesValues}, Others: true}
		s.opts.Rules = []bridge.Rule{leader}
		s.beginsLate()
		first := s.start((&recorder{}).all("a"))
		other := newStage(t)
		other.azure, other.vm, other.opts.Rules = s.azure, "vm-1", []bridge.Rule{leader}
		audit := &recorder{}
		second := other.start(audit.reminds("a", 10*time.Minute))
		pause(1500 * time.Millisecond)
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Resources: []string{"vm-0", "vm-1"}, NotBefore: time.Now().Add(25 * time.Minute)})
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
		pause(16 * time.Minute) // what became of that rule the other VM can't know
		reminder := audit.accepted()[1].Event
		if rules := dataIn(t, reminder).Rules; !strings.HasSuffix(reminder.Type(), "reminder") || len(rules) != 1 || rules[0].VM != "vm-0" {
			t.Errorf("the other VM says %s with the rules %+v, want a reminder with that of vm-0", reminder.Type(), rules)
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
				b := s.start((&recorder{}).all("a"))
				pause(2 * time.Second)
				b.end()

				s.vm = "vm-1"
				s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 2 * time.Minute})
				s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Resources: []string{"vm-0"}})
				s.azure.Schedule(imdstest.Event{ID: idB, Type: "Reboot", Resources: []string{"vm-1"}})
				b = s.start((&recorder{}).all("a"))
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

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A rule that a reload takes away while its approval is still to be sent, and that another brings back, approves the event.
func TestARuleThatComesBackApprovesThoughItsDecisionWasGivenUp(t *testing.T) {
	for claim, path := range map[string]string{"nothing was sent": imdstest.ScheduledEvents, "Azure didn't answer": imdstest.Approvals} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{rebootRule}
				audit := &recorder{}
				refuses := s.refusesLooks()
				b := s.start(audit.all("audit"))
				pause(1500 * time.Millisecond)
				if path == imdstest.Approvals {
					s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
				}
				s.userReboot(idA)
				pause(1200 * time.Millisecond)
				refuses.Store(path != imdstest.Approvals)
				pause(5 * time.Second)
				b.Reload(b.Routes, nil, bridge.SettingsInfo{})
				pause(20 * time.Second)
				refuses.Store(false)
				s.azure.ClearFaults()
				t.Log(audit.results(t), s.approvals())
				b.Reload(b.Routes, []bridge.Rule{rebootRule}, bridge.SettingsInfo{})
				pause(3 * time.Minute)
				t.Log(audit.results(t), b.Status().Events[0].Approval)
				wantIDs(t, s.approvals(), idA)
				b.end()
			})
		})
	}
}

// What is told of an approval keeps to the schema though the clock was set back since the event was first seen.
func TestAnApprovalAfterTheClockWasSetBackKeepsToTheSchema(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		audit := &recorder{}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(5 * time.Second)
		s.step(-time.Hour)
		b.end()
		b = s.start(audit.all("audit"))
		pause(5 * time.Second)
		b.ApproveNow(t.Context(), idA, s.shown(idA), "root")
		pause(5 * time.Second)
		_, data := schemas(t)
		for _, h := range audit.accepted() {
			if err := breaks(t, data, h.Event.Data()); err != nil {
				t.Errorf("%s: %v", h.Event.ID(), err)
			}
		}
		wantIDs(t, audit.results(t), cloudevent.ResultApproved)
		b.end()
	})
}
