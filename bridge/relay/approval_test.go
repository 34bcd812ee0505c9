package relay_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// A statement is what a VM tells of an event: a change, or what came of its approval, and the rules that will approve it.
type statement struct {
	kind  imds.ChangeKind
	rules []cloudevent.Rule
	came  *cloudevent.Approval
	asked *cloudevent.Asked
}

// on returns the CloudEvent, the nth about its event.
func (s statement) on(t *testing.T, a azure, nth int) event.Event {
	t.Helper()
	in := cloudevent.Circumstances{
		Observer: imds.Observer{Name: a.vm, ResourceGroup: "web"}, Time: time.Now(), Rules: s.rules, Approval: s.came,
		Asked: s.asked,
	}
	if s.kind == imds.Approved {
		in.Repeat = nth
	}
	ce, err := cloudevent.Wrap(imds.Change{Kind: s.kind, Event: a.event(imds.StatusScheduled), Lead: time.Hour}, in)
	if err != nil {
		t.Fatal(err)
	}
	return ce
}

// The status of a relay says of the approval of an event what its CloudEvents have told.
func TestARelayKnowsWhatItsVMsToldOfApprovals(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		r, stop := s.run(route("hook", newRecorder()))
		a, drain := eventNo(1), cloudevent.Rule{Name: `rule "drain first"`, After: []string{"drain"}}
		approved := &cloudevent.Approval{Result: cloudevent.ResultApproved, By: drain.Name, Status: "200 OK", Decided: time.Now()}
		asked := &cloudevent.Asked{By: drain.Name, Time: time.Now(), Answered: true}
		said := []struct {
			statement
			approval string // why it isn't approved, then
			asked    bool
		}{
			{statement{kind: imds.Scheduled, rules: []cloudevent.Rule{drain}}, `rule "drain first": it waits for sink "drain"`, false},
			{statement{kind: imds.Approved, came: approved, asked: asked}, "", true},
			{statement{kind: imds.Scheduled}, "", true}, // by another VM, which knows nothing of it
		}
		for n, tt := range said {
			s.publish(tt.on(t, a, n))
			pause(time.Second)
			open := r.Status().Events
			if len(open) != 1 || open[0].Approval != tt.approval || (open[0].Asked != nil) != tt.asked {
				t.Errorf("after %d CloudEvents the status has %+v; want %q, asked %v", n+1, open, tt.approval, tt.asked)
			}
		}
		stop()
	})
}

// Of a CloudEvent that names very many rules and sinks the status shows the first.
func TestTheRulesThatAreShownAreFew(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		r, stop := s.run(route("hook", newRecorder()))
		var rules []cloudevent.Rule
		for n := range 100 {
			rules = append(rules, cloudevent.Rule{Name: fmt.Sprint("rule ", n+1), After: slices.Repeat([]string{"x"}, 1000)})
		}
		s.publish(statement{kind: imds.Scheduled, rules: rules}.on(t, eventNo(1), 0))
		pause(time.Second)
		open := r.Status().Events
		if len(open) != 1 {
			t.Fatalf("%d events are open, want 1", len(open))
		}
		if n := len(open[0].Rules); n != 20 {
			t.Errorf("%d rules are shown, want 20", n)
		}
		if n := len(open[0].Approval); n > 20_000 {
			t.Errorf("what they wait for is %d bytes long", n)
		}
		stop()
	})
}
