package bridge_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// An approval by hand that takes long is nobody else's meanwhile, and goes to Azure once, whether a rule wants it too
// or there is none.
func TestAnApprovalByHandIsLeftAlone(t *testing.T) {
	for name, rules := range map[string][]bridge.Rule{"without rules": nil, "with a rule": {rebootRule}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.proxy = func(next http.RoundTripper) http.RoundTripper {
					return meddler{next: next, before: func() error { pause(5 * time.Second); return nil }}
				}
				s.beginsLate()
				audit := &recorder{}
				b := s.start(audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(1500 * time.Millisecond)
				b.Reload(b.Routes, rules, bridge.SettingsInfo{})
				if a := b.ApproveNow(t.Context(), idA, s.shown(idA), "root"); a.Result != cloudevent.ResultApproved || a.By != "root" || a.Attempts != 1 {
					t.Errorf("ApproveNow = %+v, want it approved", a)
				}
				pause(time.Minute)
				wantIDs(t, s.approvals(), idA)
				wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-approved")
				b.end()
			})
		})
	}
}

// What a sink could not be told yet of an approval is told though the event moves then, and the news of that waits for
// its lead.
func TestAnApprovalIsToldThoughTheEventMovesAway(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		s.beginsLate()
		s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 400})
		ops := &recorder{answer: always(errSinkDown)}
		b := s.start(ops.all("ops").With(func(x *bridge.Terms) { x.Lead = 10 * time.Minute }))
		pause(1500 * time.Millisecond)
		s.redeploy(idA, 30*time.Minute)
		pause(2 * seldom)
		if a := b.ApproveNow(t.Context(), idA, s.shown(idA), "root"); a.Result != cloudevent.ResultRefused {
			t.Fatalf("ApproveNow = %+v, want it refused", a)
		}
		pause(time.Minute)
		s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Hour) })
		pause(2 * seldom)
		ops.say(nil)
		pause(90 * time.Minute)
		wantIDs(t, ops.types(), "approved", "updated")
		b.end()
	})
}

// As long as one of two people still approves an event by hand, no rule does.
func TestNoRuleInterferesWithTheSlowerOfTwoPeople(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return meddler{next: next, before: func() error { pause(5 * time.Second); return nil }}
		}
		s.beginsLate()
		audit := &recorder{}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(1500 * time.Millisecond)
		time.AfterFunc(time.Second, func() { b.ApproveNow(t.Context(), idA, "something else", "mistaken") })
		time.AfterFunc(2*time.Second, func() { b.Reload(b.Routes, []bridge.Rule{rebootRule}, bridge.SettingsInfo{}) })
		b.ApproveNow(t.Context(), idA, s.shown(idA), "root")
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		wantIDs(t, audit.results(t), cloudevent.ResultApproved)
		b.end()
	})
}

// shown returns the digest of the event as somebody would be shown it now; "" when Azure doesn't list it.
func (s *stage) shown(id string) string {
	s.t.Helper()
	client := imds.NewClient("http://azure.test", imds.DefaultAPIVersion, s.logger(), s.azure.RoundTripper())
	doc, err := client.Document(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range doc.Events {
		if e.ID == id {
			return e.Digest()
		}
	}
	return ""
}

// By hand, what is approved is what somebody was shown: an event that changed since is not, and neither is one that
// nobody was shown.
func TestByHandExactlyWhatWasShownIsApproved(t *testing.T) {
	for _, tt := range []struct {
		claim  string
		change func(e *imdstest.Event)
		shown  func(before string) string
		result string
	}{
		{"nothing changes", nil, nil, cloudevent.ResultApproved},
		{"it becomes another type for other VMs", func(e *imdstest.Event) {
			e.Type, e.Resources = "Terminate", []string{"vm-1", "vm-2"}
		}, nil, cloudevent.ResultMoot},
		{"it names one more VM", func(e *imdstest.Event) { e.Resources = append(e.Resources, "vm-1") }, nil, cloudevent.ResultMoot},
		{"it moves", func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Minute) }, nil, cloudevent.ResultMoot},
		{"nobody says what was shown", nil, func(string) string { return "" }, cloudevent.ResultMoot},
		{"a part of the digest is no digest", nil, func(before string) string { return before[:8] }, cloudevent.ResultMoot},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				audit := &recorder{}
				b := s.start(audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(1500 * time.Millisecond)
				shown := s.shown(idA)
				if tt.change != nil {
					s.azure.Update(idA, tt.change)
				}
				if tt.shown != nil {
					shown = tt.shown(shown)
				}
				if a := b.ApproveNow(t.Context(), idA, shown, "root"); a.Result != tt.result {
					t.Errorf("ApproveNow = %+v, want it %s", a, tt.result)
				}
				want := []string{}
				if tt.result == cloudevent.ResultApproved {
					want = append(want, idA)
				}
				wantIDs(t, s.approvals(), want...)
				b.end()
			})
		})
	}
}

// An event that has begun, or is gone, is not approved by hand any more: Azure isn't asked, and nothing goes on record.
func TestAnEventThatHasBegunIsNotApprovedByHand(t *testing.T) {
	for claim, then := range map[string]func(s *stage){
		"it has begun": func(s *stage) { s.azure.Start(idA) },
		"it is gone":   func(s *stage) { s.azure.End(idA) },
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				audit := &recorder{}
				b := s.start(audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(1500 * time.Millisecond)
				then(s)
				if a := b.ApproveNow(t.Context(), idA, s.shown(idA), "root"); a.Result != cloudevent.ResultMoot || a.Attempts != 0 {
					t.Errorf("ApproveNow = %+v, want it moot", a)
				}
				pause(10 * time.Second)
				for _, r := range s.azure.Requests() {
					if r.Method == http.MethodPost {
						t.Errorf("Azure was asked: %s %s", r.Method, r.Path)
					}
				}
				for _, id := range audit.ids() {
					if strings.Contains(id, "-approved") {
						t.Errorf("told %s, want no approval on record", id)
					}
				}
				b.end()
			})
		})
	}
}

// An approval by hand that fails, or that a crash interrupts, leaves the event to the rules, which approve it then.
func TestAnApprovalByHandThatFailsLeavesTheRules(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprintf("crash %v", crash), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				failing := true
				s.proxy = func(next http.RoundTripper) http.RoundTripper {
					return meddler{next: next, before: func() error {
						if failing {
							pause(3 * time.Second)
							return errSinkDown
						}
						return nil
					}}
				}
				s.beginsLate()
				audit := &recorder{}
				b := s.start(audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(1500 * time.Millisecond)
				asked := make(chan cloudevent.Approval, 1)
				go func() { asked <- b.ApproveNow(t.Context(), idA, s.shown(idA), "root") }()
				pause(time.Second)
				want := []string{idA + "-scheduled", idA + "-approved"}
				if crash {
					b.crash()
					<-asked // of a process that is no more
					b = s.start(audit.all("audit"))
					pause(10 * time.Second) // there is nobody to approve it
					wantIDs(t, audit.ids(), want[:1]...)
				} else if a := <-asked; a.Result != cloudevent.ResultUnanswered {
					t.Errorf("ApproveNow = %+v, want it unanswered", a)
				} else {
					want = append(want, idA+"-approved")
				}
				failing = false
				b.Reload(b.Routes, []bridge.Rule{rebootRule}, bridge.SettingsInfo{})
				pause(time.Minute)
				wantIDs(t, s.approvals(), idA)
				wantIDs(t, audit.ids(), want...)
				if all := audit.accepted(); dataIn(t, all[len(all)-1].Event).Approval.By != "rule 1" {
					t.Errorf("the last word is %s, want the rule's approval", idsOf(all))
				}
				b.end()
			})
		})
	}
}

// An approval by hand whose answer is lost is not told as refused: Azure may have taken it. Nor is the event, when it
// goes, told as canceled, even if the bridge had not seen it yet when it was approved.
func TestAnApprovalByHandWithoutAnAnswerIsNoRefusal(t *testing.T) {
	for name, seen := range map[string]bool{"of an event that is known": true, "of one that is not": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.proxy = func(next http.RoundTripper) http.RoundTripper {
					return meddler{next: next, after: func(*http.Response) error { pause(5 * time.Second); return errSinkDown }}
				}
				s.beginsLate()
				s.opts.Interval = 3 * time.Second
				audit := &recorder{}
				b := s.start(audit.all("audit"))
				pause(4 * time.Second)
				s.userReboot(idA)
				if seen {
					pause(4 * time.Second)
				}
				a := b.ApproveNow(t.Context(), idA, s.shown(idA), "root")
				if a.Result != cloudevent.ResultUnanswered || a.Error != errSinkDown.Error() {
					t.Errorf("ApproveNow = %+v, want it unanswered", a)
				}
				s.azure.End(idA)
				pause(10 * time.Second)
				wantIDs(t, s.approvals(), idA)
				wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-approved", idA+"-vanished")
				all := audit.accepted()
				if d := dataIn(t, all[len(all)-1].Event); d.Outcome != cloudevent.OutcomeUnknown {
					t.Errorf("outcome = %s, want unknown", d.Outcome)
				}
				b.end()
			})
		})
	}
}

// Nobody hears that an event was called off that somebody approved by hand, although it changed, or was found, only
// while that was under way.
func TestWhatWasApprovedByHandIsNotCalledOff(t *testing.T) {
	for _, claim := range []string{"it moved", "it was found"} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				audit := &recorder{}
				var holds atomic.Bool
				s.proxy = func(next http.RoundTripper) http.RoundTripper {
					return roundTrip(func(r *http.Request) (*http.Response, error) {
						if r.Method == http.MethodPost && holds.CompareAndSwap(true, false) {
							time.Sleep(3 * time.Second) // and the poll does not
						}
						return next.RoundTrip(r)
					})
				}
				b := s.start(audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				if claim == "it moved" {
					pause(1500 * time.Millisecond)
					time.AfterFunc(time.Second, func() {
						s.azure.Update(idA, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Minute) })
					})
				}
				holds.Store(true)
				if a := b.ApproveNow(t.Context(), idA, s.shown(idA), "root"); a.Result != cloudevent.ResultApproved {
					t.Errorf("ApproveNow = %+v, want it approved", a)
				}
				s.endsUnknown(audit)
				b.end()
			})
		})
	}
}

// approveAlone approves an event for root with the outbox of a bridge that has ended.
func (s *stage) approveAlone(o bridge.Options, id string) cloudevent.Approval {
	s.t.Helper()
	box, err := outbox.Open(s.dir, outbox.Options{Log: s.logger()})
	if err != nil {
		s.t.Fatal(err)
	}
	o.Outbox = box
	alone, err := bridge.New(o)
	if err != nil {
		s.t.Fatal(err)
	}
	a := alone.ApproveNow(s.t.Context(), id, s.shown(id), "root")
	if err := box.Close(); err != nil {
		s.t.Error(err)
	}
	return a
}

// An event that was approved before anything else knew of it, with no bridge running, is not called off either.
func TestWhatWasApprovedBeforeItWasFoundIsNotCalledOff(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		audit := &recorder{}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		b.end()
		s.userReboot(idA)
		if a := s.approveAlone(b.Options(), idA); a.Result != cloudevent.ResultApproved || a.After > 1 {
			t.Errorf("ApproveNow = %+v, want it approved, at once", a)
		}
		b = s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.endsUnknown(audit)
		b.end()
	})
}

// Nor is an event whose approval by hand a crash interrupted: Azure may have taken it, so that this is on disk before
// Azure is asked.
func TestWhatACrashFoundBeingApprovedIsNotCalledOff(t *testing.T) {
	for _, by := range []string{"a rule", "hand"} {
		t.Run("by "+by, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.proxy = func(next http.RoundTripper) http.RoundTripper {
					return meddler{next: next, after: func(*http.Response) error { pause(5 * time.Second); return errSinkDown }}
				}
				s.beginsLate()
				audit := &recorder{}
				b := s.start(audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(1500 * time.Millisecond)
				asked := make(chan cloudevent.Approval, 1)
				if by == "hand" {
					go func() { asked <- b.ApproveNow(t.Context(), idA, s.shown(idA), "root") }()
				} else {
					b.Reload(b.Routes, []bridge.Rule{rebootRule}, bridge.SettingsInfo{})
					asked <- cloudevent.Approval{}
				}
				pause(2 * time.Second)
				b.crash()
				<-asked             // of a process that is no more
				if by == "a rule" { // else its decision is the first thing that is looked at
					s.azure.End(idA)
				}
				b = s.start(audit.all("audit"))
				pause(1500 * time.Millisecond)
				wantIDs(t, s.approvals(), idA)
				s.endsUnknown(audit)
				b.end()
			})
		})
	}
}

// An approval by hand that is under way at SIGTERM is on record before the outbox is closed; one that would take too
// long is given up, and that is on record. A bridge that has stopped approves nothing.
func TestAStopWaitsForTheRecordOfAnApprovalByHand(t *testing.T) {
	for _, tt := range []struct {
		takes  time.Duration
		result string
	}{{3 * time.Second, cloudevent.ResultApproved}, {time.Hour, cloudevent.ResultUnanswered}} {
		t.Run(tt.result, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				s.proxy = func(next http.RoundTripper) http.RoundTripper {
					return roundTrip(func(r *http.Request) (*http.Response, error) {
						if r.Method == http.MethodPost {
							select {
							case <-time.After(tt.takes):
							case <-r.Context().Done():
								return nil, context.Cause(r.Context())
							}
						}
						return next.RoundTrip(r)
					})
				}
				audit := &recorder{}
				b := s.start(audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(1500 * time.Millisecond)
				asked := make(chan cloudevent.Approval, 1)
				go func() { asked <- b.ApproveNow(t.Context(), idA, s.shown(idA), "root") }()
				pause(time.Second)
				b.end()
				if a := <-asked; a.Result != tt.result {
					t.Errorf("ApproveNow = %+v, want it %s", a, tt.result)
				}
				if a := b.ApproveNow(t.Context(), idA, s.shown(idA), "root"); a.Result != cloudevent.ResultRefused {
					t.Errorf("ApproveNow of a bridge that has stopped = %+v, want it refused", a)
				}
				b = s.start(audit.all("audit"))
				pause(5 * time.Second)
				wantIDs(t, audit.ids(), idA+"-scheduled", idA+"-approved")
				if all := audit.accepted(); len(all) != 2 || dataIn(t, all[1].Event).Approval.Result != tt.result {
					t.Errorf("told %s, want the approval at the end, %s", idsOf(all), tt.result)
				}
				b.end()
			})
		})
	}
}

// endsUnknown ends the event, and checks that the last word of it is not that it was called off.
func (s *stage) endsUnknown(audit *recorder) {
	s.t.Helper()
	s.azure.End(idA)
	pause(3 * time.Second)
	all := audit.accepted()
	if last := dataIn(s.t, all[len(all)-1].Event); last.Outcome != cloudevent.OutcomeUnknown {
		s.t.Errorf("told %s, the outcome %q, want it unknown", idsOf(all), last.Outcome)
	}
}

// Somebody may be quicker than the next poll, or approve while forewarn is stopped. What is told of the event then says who
// asked and that Azure agreed, in the status too, and no rule is promised or asks once more.
func TestWhatWasApprovedBeforeItWasSeenIsToldSo(t *testing.T) {
	for claim, stopped := range map[string]bool{"before the next poll": false, "while forewarn is stopped": true} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				s.opts.Interval = time.Minute
				rule := rebootRule
				rule.Wait = 2 * time.Minute
				s.opts.Rules = []bridge.Rule{rule}
				audit := &recorder{}
				b := s.start(audit.all("audit"))
				pause(90 * time.Second)
				s.userReboot(idA)
				var a cloudevent.Approval
				if stopped {
					b.end()
					a = s.approveAlone(b.Options(), idA)
					b = s.start(audit.all("audit"))
				} else {
					a = b.ApproveNow(t.Context(), idA, s.shown(idA), "root")
				}
				if a.Result != cloudevent.ResultApproved {
					t.Fatalf("ApproveNow = %+v, want it approved", a)
				}
				pause(2 * time.Minute)
				asked := dataIn(t, audit.accepted()[0].Event).Asked
				if asked == nil || asked.By != "root" || !asked.Answered {
					t.Errorf("what is told has asked %+v, want root, and that Azure agreed", asked)
				}
				wantIDs(t, audit.promised(t), "-")
				if st := b.Status().Events[0]; st.Asked == nil || st.Asked.By != "root" {
					t.Errorf("the status has asked %+v, want root", st.Asked)
				}
				pause(5 * time.Minute)
				wantIDs(t, s.approvals(), idA)
				b.end()
			})
		})
	}
}

// An event that no document has shown yet isn't over.
func TestAnEventThatWasNotSeenYetIsNotOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Interval = time.Minute
		s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveRefuse})
		stream := &recorder{}
		b := s.start(stream.all("stream").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelTrouble }))
		pause(90 * time.Second)
		s.userReboot(idA)
		if a := b.ApproveNow(t.Context(), idA, s.shown(idA), "root"); a.Result != cloudevent.ResultRefused {
			t.Fatalf("ApproveNow = %+v, want it refused", a)
		}
		pause(time.Second)
		for _, h := range stream.accepted() {
			if h.EventOver {
				t.Errorf("%s is delivered as one whose event is over", h.Event.ID())
			}
		}
		if n := len(stream.accepted()); n != 1 {
			t.Errorf("%d are delivered, want 1", n)
		}
		b.end()
	})
}

// That Azure has taken an approval stays said when somebody asks once more and gets no answer.
func TestThatAzureAgreedStaysSaid(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		audit := &recorder{}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(1500 * time.Millisecond)
		if a := b.ApproveNow(t.Context(), idA, s.shown(idA), "root"); a.Result != cloudevent.ResultApproved {
			t.Fatalf("%+v", a)
		}
		s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
		if a := b.ApproveNow(t.Context(), idA, s.shown(idA), "jane"); a.Result != cloudevent.ResultUnanswered {
			t.Fatalf("%+v", a)
		}
		if asked := b.Status().Events[0].Asked; asked == nil || !asked.Answered {
			t.Errorf("the status says %+v", asked)
		}
		b.end()
	})
}

// What a rule asked a second time, and Azure then refused, does not hide that Azure has taken what somebody asked meanwhile.
func TestARefusalOfARuleDoesNotHideThatAzureAgreed(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Rules = []bridge.Rule{rebootRule}
		posts := 0
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Method != http.MethodPost || r.Context().Value(person{}) != nil {
					return next.RoundTrip(r)
				}
				posts++
				if posts == 1 {
					return nil, errSinkDown
				}
				time.Sleep(5 * time.Second)
				s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Approve: imdstest.ApproveRefuse})
				return next.RoundTrip(r)
			})
		}
		audit := &recorder{}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(4 * time.Second)
		a := b.ApproveNow(byPerson(t), idA, s.shown(idA), "root")
		t.Log(a.Result, posts)
		pause(10 * time.Second)
		t.Log(audit.results(t))
		if asked := b.Status().Events[0].Asked; asked == nil || asked.By != "root" || !asked.Answered {
			t.Errorf("the status says %+v", asked)
		}
		for _, h := range audit.accepted() {
			d := dataIn(t, h.Event)
			if d.Approval != nil {
				t.Log(d.Approval.Result, d.Approval.By, d.Asked)
			}
		}
		b.end()
	})
}
