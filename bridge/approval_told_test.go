package bridge_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
)

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
		drain := &recorder{}
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
				b := s.start((&recorder{answer: always(errSinkDown)}).all("drain"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(3 * time.Second)
				if got := b.Status().Events[0].Approval; got != `rule 1: it waits for sink "drain", which failed and is tried again: connection refused` {
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
		drain := &recorder{answer: always(errHang)}
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
				b := s.start((&recorder{}).all("audit"))
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
				b = s.start((&recorder{}).all("audit"))
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
		audit, chat := &recorder{}, &recorder{}
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
			audit := &recorder{}
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
				drain := &recorder{answer: always(errSinkDown)}
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

// When the sinks of two promised rules have failed, the status says of each why, and that it may pass if one of them is
// tried again, on the VM and, by what it has told, on a relay.
func TestWhyTwoRulesDoNotApproveIsSaidOfEach(t *testing.T) {
	again, forGood := errors.New("exit 75: 3 sessions left"), fmt.Errorf("%w: exit 1", delivery.ErrRejected)
	for claim, tt := range map[string]struct {
		drain, cordon error
		whys          []string
		notYet        bool
	}{
		"both for good":         {forGood, forGood, []string{"exit 1", "exit 1"}, false},
		"both are tried again":  {again, again, []string{"3 sessions left", "3 sessions left"}, true},
		"one is tried again":    {forGood, again, []string{"exit 1", "3 sessions left"}, true},
		"the other tried again": {again, forGood, []string{"3 sessions left", "exit 1"}, true},
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				second := namedRule()
				second.Name, second.After = "second", []string{"cordon"}
				s.opts.Rules = []bridge.Rule{namedRule(), second}
				audit := &recorder{}
				b := s.start((&recorder{answer: always(tt.drain)}).all("drain"), (&recorder{answer: always(tt.cordon)}).all("cordon"),
					audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(3 * time.Minute)
				status := b.Status().Events[0]
				var told bridge.ToldApproval
				for _, h := range audit.accepted() {
					told.Note(h.Event)
				}
				relay := bridge.EventStatus{Known: status.Known}
				told.Tell(&relay)
				want := fmt.Sprintf(`^rule "drain first": .*sink "drain".* failed.*: .*%s; rule "second": .*sink "cordon".* failed.*: .*%s$`,
					tt.whys[0], tt.whys[1])
				for who, said := range map[string]bridge.EventStatus{"the VM": status, "a relay": relay} {
					if !regexp.MustCompile(want).MatchString(said.Approval) || said.NotYet != tt.notYet {
						t.Errorf("%s says %q, not yet: %v; want each sink with its reason, %v", who, said.Approval, said.NotYet, tt.notYet)
					}
				}
				b.end()
			})
		})
	}
}
