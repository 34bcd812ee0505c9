package bridge_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imdstest"
)

// The last look before an approval may see that an event has moved before a poll does. Then nothing is sent: the event is
// decided anew when its change is known.
func TestWhatOnlyTheLastLookFindsMovedIsNotApproved(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		s.opts.Interval = 5 * time.Minute
		rule := rebootRule
		rule.Name, rule.Wait = "restart", time.Minute
		s.opts.Rules = []bridge.Rule{rule}
		audit := &recorder{}
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
		s.wantLogged(`rule \"restart\": Azure's newest document differs in NotBefore`)
		if strings.Contains(s.log.String(), "rule 1") {
			t.Error("the log calls the rule by its number")
		}
		pause(4 * time.Minute)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// While the attempt is written to a slow disk, the event may change, or the disk fail. Then nothing is sent, and nobody
// reads that Azure was asked.
func TestAnAttemptThatIsNotMadeAfterItsSlowWriteIsNotSaidToBeMade(t *testing.T) {
	for claim, tt := range map[string]struct {
		after time.Duration // the disk is slow: the decision is written in the first two seconds, then the attempt
		spoil func(*stage)
	}{
		"the event changed":        {5 * time.Second, becomesAnothers},
		"the disk is full by then": {3 * time.Second, func(s *stage) { s.disk.fail(errFull) }},
	} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				rule := rebootRule
				rule.Wait = 3 * time.Second
				s.opts.Rules = []bridge.Rule{rule}
				var slow atomic.Int64
				s.wrote = func() { time.Sleep(time.Duration(slow.Load())) }
				audit := &recorder{}
				b := s.start(audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(2 * time.Second)
				slow.Store(int64(2 * time.Second))
				pause(tt.after)
				tt.spoil(s)
				pause(2 * time.Minute)
				slow.Store(0)
				pause(time.Minute)
				wantIDs(t, s.approvals())
				for _, h := range audit.accepted() {
					d := dataIn(t, h.Event)
					if d.Approval != nil && (d.Asked != nil || d.Approval.Result == cloudevent.ResultUnanswered) {
						t.Errorf("%s says that %+v has asked, and nobody has", h.Event.ID(), d.Asked)
					}
				}
				if asked := b.Status().Events[0].Asked; asked != nil {
					t.Errorf("the status says that %+v has asked, and nobody has", asked)
				}
				b.cancel()
				<-b.done
			})
		})
	}
}

// An approval by hand waits for the same write.
func TestWhatChangedWhileAnApprovalByHandWasWrittenIsNotApproved(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start((&recorder{}).all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(2 * time.Second)
		shown := s.shown(idA)
		release := s.disk.block()
		time.AfterFunc(1200*time.Millisecond, func() { becomesAnothers(s) })
		time.AfterFunc(3*time.Second, release)
		if a := b.ApproveNow(t.Context(), idA, shown, "root"); a.Result != cloudevent.ResultMoot {
			t.Errorf("it is %+v, want moot", a)
		}
		wantIDs(t, s.approvals())
		b.end()
	})
}

// becomesAnothers makes the event one of Azure's own, and of another VM too.
func becomesAnothers(s *stage) {
	s.azure.Update(idA, func(e *imdstest.Event) { e.Source, e.Resources = "Platform", []string{"vm-0", "vm-9"} })
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
		b := s.start((&recorder{}).all("a"))
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
				b := s.start((&recorder{}).all("audit"))
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
				b := s.start((&recorder{}).all("audit"))
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
		audit := &recorder{}
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
				audit := &recorder{}
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
				drain, audit := &recorder{answer: always(errSinkDown)}, &recorder{}
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
				b := s.start((&recorder{}).all("audit"))
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

// A person is in the context of what somebody asks for by hand.
type person struct{}

func byPerson(t *testing.T) context.Context { return context.WithValue(t.Context(), person{}, true) }

// Nor when a second person's approval, which was under way at the same time, came to nothing.
func TestWhatOneOfTwoPeopleApprovedIsNotCalledOff(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		audit := &recorder{}
		looks := 0
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Context().Value(person{}) != nil && r.Method == http.MethodGet {
					looks++
					if looks == 2 { // the look after the slow write
						time.Sleep(3 * time.Second)
						return nil, errSinkDown
					}
				}
				return next.RoundTrip(r)
			})
		}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(1500 * time.Millisecond)
		shown := s.shown(idA)
		release := s.disk.block()
		time.AfterFunc(2*time.Second, release)
		second := make(chan cloudevent.Approval)
		go func() {
			second <- b.ApproveNow(context.WithValue(t.Context(), person{}, true), idA, shown, "jane")
		}()
		pause(100 * time.Millisecond)
		if a := b.ApproveNow(t.Context(), idA, shown, "root"); a.Result != cloudevent.ResultApproved {
			t.Errorf("the first is %+v, want it approved", a)
		}
		if a := <-second; a.Result != cloudevent.ResultRefused {
			t.Errorf("the second is %+v, want it not sent", a)
		}
		s.endsUnknown(audit)
		b.end()
	})
}

// Nor when an attempt of a rule, which was under way at the same time, was not made after all.
func TestWhatWasAskedBesideARuleIsNotCalledOff(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		audit := &recorder{}
		var down atomic.Bool
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				byHand := r.Context().Value(person{}) != nil
				look := r.Method == http.MethodGet && r.Header.Get("If-None-Match") == "" && strings.HasSuffix(r.URL.Path, "/scheduledevents")
				switch {
				case byHand && r.Method == http.MethodPost:
					_, _ = next.RoundTrip(r)
					return nil, errSinkDown // Azure has it
				case !byHand && look && down.Load(): // the rule's, after its slow write
					down.Store(false)
					time.Sleep(3 * time.Second)
					return nil, errSinkDown
				}
				return next.RoundTrip(r)
			})
		}
		s.opts.Rules = []bridge.Rule{rebootRule}
		release := func() {}
		var once sync.Once
		s.logged = func(words string) { // then the attempt of the rule is written
			if words == "approving event" {
				once.Do(func() { release = s.disk.block() })
			}
		}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(1500 * time.Millisecond)
		shown := s.shown(idA)
		time.AfterFunc(2*time.Second, func() { down.Store(true); release() })
		a := b.ApproveNow(context.WithValue(t.Context(), person{}, true), idA, shown, "root")
		if a.Result != cloudevent.ResultUnanswered {
			t.Errorf("it is %+v, want it unanswered", a)
		}
		wantIDs(t, s.approvals(), idA)
		pause(3100 * time.Millisecond) // the rule has not tried again
		s.endsUnknown(audit)
		b.end()
	})
}

// Nor while Azure's answer to what somebody asked is still on its way, when an attempt of a rule is taken back.
func TestWhatIsBeingAskedBesideARuleIsNotCalledOff(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		audit := &recorder{}
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				resp, err := next.RoundTrip(r)
				if r.Method == http.MethodPost { // Azure has it, and its answer is slow
					time.Sleep(8 * time.Second)
				}
				return resp, err
			})
		}
		s.opts.Rules = []bridge.Rule{rebootRule}
		release := func() {}
		var once sync.Once
		s.logged = func(words string) { // then the attempt of the rule is written
			if words == "approving event" {
				once.Do(func() { release = s.disk.block() })
			}
		}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(1500 * time.Millisecond)
		shown := s.shown(idA)
		time.AfterFunc(700*time.Millisecond, func() { release() })
		asked := make(chan cloudevent.Approval, 1)
		go func() { asked <- b.ApproveNow(t.Context(), idA, shown, "root") }()
		pause(3 * time.Second)
		s.endsUnknown(audit)
		if a := <-asked; a.Result != cloudevent.ResultApproved {
			t.Errorf("it is %+v, want it approved", a)
		}
		wantIDs(t, s.approvals(), idA)
		pause(time.Second)
		b.end()
	})
}

// Nor while the answer to the first of two people is on its way, and the second's approval comes to nothing.
func TestWhatOneOfTwoPeopleIsAskingIsNotCalledOff(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.beginsLate()
		audit := &recorder{}
		looks := 0
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Context().Value(person{}) != nil && r.Method == http.MethodGet {
					looks++
					if looks == 2 { // the look after the slow write
						time.Sleep(time.Second)
						return nil, errSinkDown
					}
				}
				resp, err := next.RoundTrip(r)
				if r.Method == http.MethodPost {
					time.Sleep(8 * time.Second)
				}
				return resp, err
			})
		}
		b := s.start(audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(1500 * time.Millisecond)
		shown := s.shown(idA)
		release := s.disk.block()
		time.AfterFunc(2*time.Second, release)
		second, first := make(chan cloudevent.Approval, 1), make(chan cloudevent.Approval, 1)
		go func() {
			second <- b.ApproveNow(context.WithValue(t.Context(), person{}, true), idA, shown, "jane")
		}()
		pause(100 * time.Millisecond)
		go func() { first <- b.ApproveNow(t.Context(), idA, shown, "root") }()
		pause(4 * time.Second)
		if a := <-second; a.Result != cloudevent.ResultRefused {
			t.Errorf("the second is %+v, want it not sent", a)
		}
		s.endsUnknown(audit)
		if a := <-first; a.Result != cloudevent.ResultApproved {
			t.Errorf("the first is %+v, want it approved", a)
		}
		b.end()
	})
}
