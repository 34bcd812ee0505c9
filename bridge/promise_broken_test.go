package bridge_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// A disk that fails takes the promise back, because nothing is approved that a crash would forget.
func TestWhileTheDiskFailsThePromiseIsTakenBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{namedRule()}
		drain, audit := &recorder{}, &recorder{}
		b := s.start(drain.all("drain"), audit.all("audit"))
		pause(1500 * time.Millisecond)
		s.disk.fail(errFull)
		s.userReboot(idA)
		pause(20 * time.Second)
		wantIDs(t, audit.results(t), cloudevent.ResultWithheld)
		wantIDs(t, s.approvals())
		s.disk.fail(nil)
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		b.end()
	})
}

// A reload that takes the rule away takes its promise back.
func TestARuleThatIsTakenAwayTakesItsPromiseBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{namedRule()}
		drain, audit := &recorder{answer: always(errors.New("busy"))}, &recorder{}
		routes := []bridge.Route{drain.all("drain"), audit.all("audit")}
		b := s.start(routes...)
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(3 * time.Second)
		b.Reload(b.killable(routes), nil, bridge.SettingsInfo{})
		pause(3 * time.Second)
		wantIDs(t, audit.results(t), cloudevent.ResultWithheld)
		if a := dataIn(t, audit.accepted()[1].Event).Approval; a.Sink != "" || a.Error != `rule "drain first" was removed from the settings` {
			t.Errorf("it is told as %+v", a)
		}
		b.end()
	})
}

// Those who were told that the event starts by itself are told why it does not when it has changed so that no rule
// approves it any more. The reason is that of the rule that was to.
func TestAnUpdateThatEndsAPromiseIsTold(t *testing.T) {
	for _, tt := range []struct {
		claim  string
		change func(*imdstest.Event)
		why    string
	}{
		{"the drain does not get it", func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(time.Hour) },
			`sink "drain" did not get the latest change`},
		{"it names another VM, too", func(e *imdstest.Event) { e.Resources = []string{"vm-0", "vm-1"} },
			"it also names vm-1, and the rule has no others: true"},
		{"it names another VM", func(e *imdstest.Event) { e.Resources = []string{"vm-1"} }, `rule "drain first" is not for events of other VMs`},
		{"its type is not the rule's", func(e *imdstest.Event) { e.Type = "Freeze" }, `rule "drain first" is not for a Freeze`},
	} {
		for claim, busy := range map[string]bool{"while the drain runs": true, "while Azure is asked": false} {
			t.Run(tt.claim+", "+claim, func(t *testing.T) {
				bubble(t, func(t *testing.T, s *stage) {
					rule := namedRule()
					rule.Only.Types = []string{"Reboot"}
					s.opts.Rules = []bridge.Rule{rule}
					drain, audit := &recorder{}, &recorder{}
					if busy {
						drain.say(always(errors.New("busy")))
					} else {
						s.azure.SetFault(imdstest.Fault{Path: imdstest.Approvals, Status: 503})
					}
					route := drain.all("drain")
					route.Filter.Only.Changes = []string{"scheduled"}
					b := s.start(route, audit.all("audit"))
					pause(1500 * time.Millisecond)
					s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Source: "User", Resources: []string{"vm-0"},
						NotBefore: time.Now().Add(2 * time.Hour)})
					pause(15 * time.Second)
					wantIDs(t, audit.withheld(t))
					s.azure.Update(idA, tt.change)
					pause(3 * time.Second)
					wantIDs(t, audit.withheld(t), tt.why)
					pause(2 * time.Minute)
					wantIDs(t, audit.withheld(t), tt.why)
					wantIDs(t, s.approvals())
					b.end()
				})
			})
		}
	}
}

// A mute that comes later and lasts too long takes the promise back after a minute. The status names it at once, also
// one that ends in time, which takes nothing back.
func TestAMuteThatLastsTooLongTakesThePromiseBack(t *testing.T) {
	for name, tt := range map[string]struct {
		muted  time.Duration
		status string
		told   []string
		result []string
	}{
		"too long": {time.Hour, `sink "drain" is muted until `, []string{`sink "drain" is muted until 01:00:03 UTC`},
			[]string{cloudevent.ResultWithheld, cloudevent.ResultApproved}},
		"in time": {10 * time.Minute, `it waits for sink "drain", which is muted until `, nil, []string{cloudevent.ResultApproved}},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "in time" {
				systemtest.Alone(t)
			}
			bubble(t, func(t *testing.T, s *stage) {
				s.beginsLate()
				s.opts.Rules = []bridge.Rule{namedRule()}
				drain, audit := &recorder{answer: always(&delivery.RetryAfter{Err: errSinkDown, After: 4 * time.Second})}, &recorder{}
				b := s.start(drain.all("drain"), audit.all("audit"))
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(2 * time.Second)
				drain.say(nil)
				if _, err := b.Mute(bridge.Mute{Sink: "drain", Reason: "repairs", By: "alice"}, tt.muted); err != nil {
					t.Fatal(err)
				}
				pause(bridge.FailingFor / 2)
				if got := b.Status().Events[0].Approval; !strings.HasPrefix(got, `rule "drain first": `+tt.status) {
					t.Errorf("the status says %q, want %q", got, tt.status)
				}
				wantIDs(t, audit.withheld(t))
				pause(bridge.FailingFor)
				wantIDs(t, audit.withheld(t), tt.told...)
				pause(tt.muted + time.Minute)
				wantIDs(t, audit.results(t), tt.result...)
				wantIDs(t, s.approvals(), idA)
				b.end()
			})
		})
	}
}

// After a reload people are told once if a rule that they were told of is no longer there, with the rules that still
// are, or if none approves the event any more; with the exact reason. What comes later, within the notice, or sooner,
// is not worth a message, nor is a new name.
func TestAReloadThatBreaksAPromiseIsTold(t *testing.T) {
	drain, other := namedRule(), namedRule()
	other.Name, other.After, other.Wait = "anyway", nil, 10*time.Minute
	with := func(r bridge.Rule, change func(*bridge.Rule)) bridge.Rule { change(&r); return r }
	const drained = `rule "drain first" after drain and 5s;`
	for _, tt := range []struct {
		claim  string
		before []bridge.Rule
		after  []bridge.Rule
		failed bool // the drain has, when the settings come
		again  bool // it has, and is tried again
		told   []string
		still  string // the rules that stand
	}{
		{claim: "nothing changed", before: []bridge.Rule{drain, other}, after: []bridge.Rule{drain, other}},
		{claim: "one of two is gone", before: []bridge.Rule{drain, other}, after: []bridge.Rule{drain},
			told: []string{`rule "anyway" was removed from the settings`}, still: drained},
		{claim: "one of two without names is gone", after: []bridge.Rule{with(drain, func(r *bridge.Rule) { r.Name = "" })},
			before: []bridge.Rule{with(other, func(r *bridge.Rule) { r.Name = "" }), with(drain, func(r *bridge.Rule) { r.Name = "" })},
			told:   []string{"rule 1 was changed in the settings"}, still: "rule 1 after drain and 5s;"},
		{claim: "one failed, and the other is gone", before: []bridge.Rule{drain, other}, after: []bridge.Rule{drain}, failed: true,
			told: []string{`rule "drain first": sink "drain" failed: exit 75; rule "anyway" was removed from the settings`}},
		{claim: "one is tried again, and the other is gone", before: []bridge.Rule{drain, other}, after: []bridge.Rule{drain}, again: true,
			told: []string{`rule "drain first": sink "drain" failed and is tried again: busy; rule "anyway" was removed from the settings`}},
		{claim: "both are gone", before: []bridge.Rule{drain, other}, told: []string{`rule "drain first" was removed from the ` +
			`settings; rule "anyway" was removed from the settings`}},
		{claim: "another one comes", before: []bridge.Rule{drain}, after: []bridge.Rule{drain, other}},
		{claim: "it waits for longer", before: []bridge.Rule{drain}, after: []bridge.Rule{with(drain, func(r *bridge.Rule) { r.Wait = time.Minute })}},
		{claim: "it waits for too long", before: []bridge.Rule{drain}, after: []bridge.Rule{with(drain, func(r *bridge.Rule) { r.Wait = time.Hour })},
			told: []string{`it waits for sink "drain", and the wait of 1h after that is too long`}},
		{claim: "it has a new name", before: []bridge.Rule{drain}, after: []bridge.Rule{with(drain, func(r *bridge.Rule) { r.Name = "empty it" })}},
		{claim: "it has a new name, and the drain failed", before: []bridge.Rule{drain}, failed: true,
			after: []bridge.Rule{with(drain, func(r *bridge.Rule) { r.Name = "empty it" })}, told: []string{"rejected: exit 75"}},
		{claim: "it is for other events", before: []bridge.Rule{drain}, after: []bridge.Rule{with(drain, func(r *bridge.Rule) {
			r.Only.Types = []string{"Freeze"}
		})}, told: []string{`rule "drain first" is not for a Reboot`}},
		{claim: "it waits for another sink", before: []bridge.Rule{drain}, after: []bridge.Rule{with(drain, func(r *bridge.Rule) {
			r.After = []string{"drain-2"}
		})}, told: []string{"rejected: exit 75"}},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Rules = tt.before
				sink, audit := &recorder{answer: always(errHang)}, &recorder{}
				failing := &recorder{answer: always(fmt.Errorf("%w: exit 75", delivery.ErrRejected))}
				drainRoute := sink.all("drain").With(func(r *bridge.Terms) { r.Timeout = 0 })
				if tt.failed {
					drainRoute.Sink = failing
				}
				if tt.again {
					sink.say(always(errors.New("busy")))
				}
				routes := []bridge.Route{drainRoute, audit.all("audit")}
				b := s.start(routes...)
				pause(1500 * time.Millisecond)
				s.userReboot(idA)
				pause(1200 * time.Millisecond)
				if slices.ContainsFunc(tt.after, func(r bridge.Rule) bool { return slices.Contains(r.After, "drain-2") }) {
					routes = append(routes, failing.all("drain-2"))
				}
				b.Reload(b.killable(routes), tt.after, bridge.SettingsInfo{})
				pause(2 * time.Minute)
				wantIDs(t, audit.withheld(t), tt.told...)
				told := audit.promised(t)
				if tt.still != "" && told[len(told)-1] != tt.still {
					t.Errorf("told last that it starts by %q, want %q", told[len(told)-1], tt.still)
				}
				b.cancel()
				<-b.done
			})
		})
	}
}
