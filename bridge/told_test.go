package bridge_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// A statement is what a VM tells of an event: a change, or what came of its approval, and the rules that will approve it.
type statement struct {
	kind  imds.ChangeKind
	rules []cloudevent.Rule
	came  *cloudevent.Approval
	asked *cloudevent.Asked
	moved time.Duration // of NotBefore, since the announcement
	begun bool          // what comes of an approval comes after the start
	again bool          // the event is back after its end
	vm    string        // that tells it; "" for vm-1
}

// cloudEvent returns the CloudEvent, the nth about its event, and the event as Azure lists it then.
func (s statement) cloudEvent(t *testing.T, no, nth int) (event.Event, imds.Event) {
	t.Helper()
	status, notBefore := imds.StatusScheduled, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(s.moved)
	if s.kind == imds.Started || s.begun {
		status, notBefore = imds.StatusStarted, time.Time{}
	}
	begins := ""
	if !notBefore.IsZero() {
		begins = notBefore.Format("Mon, 02 Jan 2006 15:04:05 GMT")
	}
	doc, err := imds.DecodeDocument(fmt.Appendf(nil, `{"DocumentIncarnation":1,"Events":[{"EventId":"00000000-0000-4000-8000-%012d",`+
		`"EventType":"Reboot","ResourceType":"VirtualMachine","Resources":["vm-1"],"EventStatus":%q,"NotBefore":%q,`+
		`"EventSource":"Platform"}]}`, no, status, begins))
	if err != nil {
		t.Fatal(err)
	}
	in := cloudevent.Circumstances{
		Observer: imds.Observer{Name: cmp.Or(s.vm, "vm-1"), ResourceGroup: "web"}, Time: time.Now(), Rules: s.rules, Approval: s.came,
		Asked: s.asked,
	}
	if s.kind == imds.Approved || s.again {
		in.Repeat = nth
	}
	ce, err := cloudevent.Wrap(imds.Change{Kind: s.kind, Event: doc.Events[0], Lead: time.Hour}, in)
	if err != nil {
		t.Fatal(err)
	}
	return ce, doc.Events[0]
}

// Where an event names several VMs, what came of its approval is said of the VM that tells it: those of the others may
// approve it all the same.
func TestWhatCameOfAnApprovalIsSaidOfItsVM(t *testing.T) {
	failed := cloudevent.Approval{Result: cloudevent.ResultWithheld, By: "rule 1", Sink: "drain", Error: "exit 1"}
	for vms, want := range map[string]string{
		"vm-1": `rule 1: sink "drain" failed: exit 1`, "vm-1 vm-2": `on vm-1: rule 1: sink "drain" failed: exit 1`,
	} {
		e := imds.Event{ID: "A", Status: imds.StatusScheduled, Resources: strings.Fields(vms), Raw: []byte("{}")}
		ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Approved, Event: e},
			cloudevent.Circumstances{Observer: imds.Observer{Name: "vm-1"}, Time: time.Now(), Approval: &failed})
		if err != nil {
			t.Fatal(err)
		}
		var told bridge.ToldApproval
		status := bridge.EventStatus{Known: e}
		told.Note(ce)
		told.Tell(&status)
		if status.Approval != want {
			t.Errorf("of %s the status says %q, want %q", vms, status.Approval, want)
		}
	}
}

// Of an event of very many VMs it is kept what the first twenty told, and an approval of any of them counts.
func TestWhatIsToldOfAnApprovalIsBounded(t *testing.T) {
	var told bridge.ToldApproval
	note := func(vm int, s statement) bridge.EventStatus {
		s.vm = fmt.Sprint("vm-", vm)
		ce, listed := s.cloudEvent(t, 1, vm)
		status := bridge.EventStatus{Known: listed}
		told.Note(ce)
		told.Tell(&status)
		return status
	}
	for vm := range 30 {
		rules := []cloudevent.Rule{{Name: fmt.Sprint("rule of ", vm)}, {Name: "rule of all"}}
		status := note(vm, statement{kind: imds.Scheduled, rules: rules})
		if want := min(vm+2, 20); len(status.Rules) != want {
			t.Errorf("%d VMs told of %d rules, want %d", vm+1, len(status.Rules), want)
		}
	}
	failed := cloudevent.Approval{Result: cloudevent.ResultWithheld, By: "rule of all", Error: "it is off"}
	for vm := range 30 {
		status := note(vm, statement{kind: imds.Approved, came: &failed})
		if over := status.Approval == "rule of all: it is off"; over != (vm >= 19) {
			t.Errorf("with the rules of %d VMs withheld the status says %q", vm+1, status.Approval)
		}
	}
	note(0, statement{kind: imds.Reminder, rules: []cloudevent.Rule{{Name: "rule of all"}}})
	approved := cloudevent.Approval{Result: cloudevent.ResultApproved, By: "rule of all"}
	if status := note(29, statement{kind: imds.Approved, came: &approved}); len(status.Rules) > 0 {
		t.Errorf("once it is approved, rules stand: %+v", status.Rules)
	}
}

// Of the approval of an event its CloudEvents tell, since its latest change, what the VM's own status says: the rules that
// will approve it, and what came of that.
func TestCloudEventsTellOfAnApprovalWhatTheStatusSays(t *testing.T) {
	drain := cloudevent.Rule{Name: `rule "drain first"`, After: []string{"drain"}}
	slow := cloudevent.Rule{Name: "rule 2", After: []string{"drain", "audit"}, Wait: 30}
	const waits = `rule "drain first": it waits for sink "drain"`

	announced := func(rules ...cloudevent.Rule) statement { return statement{kind: imds.Scheduled, rules: rules} }
	came := func(result string, of cloudevent.Approval, rules ...cloudevent.Rule) statement {
		of.Result, of.Decided = result, time.Now().UTC()
		if of.By == "" {
			of.By = drain.Name
		}
		s := statement{kind: imds.Approved, rules: rules, came: &of}
		if result == cloudevent.ResultApproved || result == cloudevent.ResultUnanswered {
			s.asked = &cloudevent.Asked{By: of.By, Time: of.Decided, Answered: result == cloudevent.ResultApproved}
		}
		return s
	}
	approved := came(cloudevent.ResultApproved, cloudevent.Approval{Status: "200 OK"})
	failed := cloudevent.Approval{Sink: "drain", Error: "rejected: exit 1"}
	triedAgain := cloudevent.Approval{Sink: "drain", Error: "blocked: exit 75", NotYet: true}
	withheld := func(of cloudevent.Approval) statement { return came(cloudevent.ResultWithheld, of) }
	refused := cloudevent.Approval{Error: "Azure refuses the approval: 400 Bad Request"}
	onAnother := func(of cloudevent.Approval) statement {
		s := came(cloudevent.ResultRefused, of)
		s.vm, s.came.By = "vm-2", "root"
		return s
	}
	unanswered := came(cloudevent.ResultUnanswered, cloudevent.Approval{Error: "timeout"})
	bothFailed := drain.Name + `: sink "drain" failed and is tried again: exit 75; rule 2: sink "audit" failed: exit 1`
	both := cloudevent.Approval{Error: bothFailed, NotYet: true}
	moved := statement{kind: imds.Updated, moved: time.Minute}
	movedWithRule := statement{kind: imds.Updated, moved: time.Minute, rules: []cloudevent.Rule{drain}}
	late := came(cloudevent.ResultRefused, refused)
	late.begun = true
	const failsYet = waits + ", which failed and is tried again: exit 75"
	again := drain
	again.Again = "drain"
	remindedAgain := statement{kind: imds.Reminder, rules: []cloudevent.Rule{again}}
	on := func(vm string, s statement) statement {
		s.vm = vm
		return s
	}
	left := cloudevent.Rule{Name: `rule "leader drains"`, After: []string{"drain"}, VM: "vm-1"} // as others than vm-1 tell of it
	standIn := cloudevent.Rule{Name: `rule "stand-in"`, After: []string{"drain"}, Wait: 100}
	const standsIn = `rule "stand-in": it waits for sink "drain", then 1m40s`
	ofLeader := func(result string, of cloudevent.Approval, rules ...cloudevent.Rule) statement {
		of.By = left.Name
		return came(result, of, rules...)
	}
	back := announced()
	back.again = true

	tests := []struct {
		what  string
		said  []statement
		want  string // why it isn't approved
		by    string // who has asked Azure; "" for nobody
		rules int
	}{
		{"no rule is for it", []statement{announced()}, "", "", 0},
		{"a rule waits for a sink", []statement{announced(drain)}, waits, "", 1},
		{"a rule waits a while", []statement{announced(cloudevent.Rule{Name: "rule 1", Wait: 300})}, "rule 1: it waits 5m", "", 1},
		{"a rule waits for nothing", []statement{announced(cloudevent.Rule{Name: "rule 1"})}, "rule 1: it approves at once", "", 1},
		{"a rule leaves it to another VM", []statement{announced(cloudevent.Rule{Name: "rule 1", VM: "vm-2"})},
			"rule 1: it is left to vm-2, which Azure names first (only.vms)", "", 1},
		{"two rules", []statement{announced(drain, slow)},
			waits + `; rule 2: it waits for sink "drain" and sink "audit", then 30s`, "", 2},
		{"a reminder has a rule", []statement{announced(), {kind: imds.Reminder, rules: []cloudevent.Rule{drain}}}, waits, "", 1},

		{"another VM reminds of what failed here", []statement{announced(drain), withheld(failed), {kind: imds.Reminder, vm: "vm-2"}},
			drain.Name + `: sink "drain" failed: exit 1`, "", 0},
		{"refused on another VM, while a rule stands", []statement{announced(drain), onAnother(refused)}, waits, "", 1},
		{"refused on another VM, after a failure here", []statement{announced(drain), withheld(failed), onAnother(refused)},
			drain.Name + `: sink "drain" failed: exit 1`, "", 0},

		{"approved", []statement{announced(drain), approved}, "", drain.Name, 0},
		{"told again, perhaps by another VM", []statement{announced(drain), approved, announced()}, "", drain.Name, 0},
		{"moved since", []statement{announced(drain), approved, moved}, "", drain.Name, 0},
		{"moved while Azure was asked", []statement{announced(drain), movedWithRule, approved}, waits, drain.Name, 1},
		{"begun since", []statement{announced(drain), approved, {kind: imds.Started}}, "", drain.Name, 0},
		{"over, and back", []statement{announced(drain), approved, {kind: imds.Vanished}, back}, "", "", 0},

		{"refused", []statement{announced(drain), came(cloudevent.ResultRefused, refused)},
			drain.Name + ": Azure refused the approval", "", 0},
		{"refused at last", []statement{announced(drain), unanswered, came(cloudevent.ResultRefused, refused)},
			drain.Name + ": Azure refused the approval", "", 0},
		{"refused when it had begun", []statement{announced(drain), {kind: imds.Started}, late}, "", "", 0},
		{"refused to a user, while a rule stands", []statement{announced(drain), came(cloudevent.ResultRefused, refused, drain)},
			waits, "", 1},
		{"approved, and refused to a user of another VM", []statement{announced(drain), approved,
			came(cloudevent.ResultRefused, cloudevent.Approval{By: "alice", Error: refused.Error})}, "alice: Azure refused the approval", drain.Name, 0},
		{"a user's request is unanswered", []statement{announced(drain),
			came(cloudevent.ResultUnanswered, cloudevent.Approval{By: "alice", Error: "timeout"})}, waits, "alice", 1},
		{"a rule's request is unanswered", []statement{announced(drain), unanswered}, "", drain.Name, 0},

		{"its sink failed", []statement{announced(drain), withheld(failed)}, drain.Name + `: sink "drain" failed: exit 1`, "", 0},
		{"its sink is tried again", []statement{announced(drain), withheld(triedAgain)}, failsYet, "", 1},
		{"the sink of one of two is tried again", []statement{announced(drain, cloudevent.Rule{Name: "rule 3", After: []string{"audit"}}),
			withheld(triedAgain)}, failsYet, "", 1},
		{"its sink is tried again, and nobody told of the rule", []statement{announced(), withheld(triedAgain)}, failsYet, "", 1},
		{"a reminder says that its sink is tried again", []statement{announced(drain), withheld(triedAgain), remindedAgain}, failsYet, "", 1},
		{"only a reminder says that its sink is tried again", []statement{announced(drain), remindedAgain},
			waits + ", which failed and is tried again", "", 1},
		{"its sink failed, and a reminder came", []statement{announced(drain), withheld(failed), {kind: imds.Reminder}},
			drain.Name + `: sink "drain" failed: exit 1`, "", 0},
		{"its sink fails for good at last", []statement{announced(drain), withheld(triedAgain), withheld(failed)},
			drain.Name + `: sink "drain" failed: exit 1`, "", 0},
		{"its sink succeeds at last", []statement{announced(drain), withheld(triedAgain), approved}, "", drain.Name, 0},
		{"the sinks of two rules failed, of which one is tried again", []statement{announced(drain, slow), withheld(both)},
			"not yet: " + bothFailed, "", 0},
		{"the sinks of two rules failed for good at last", []statement{announced(drain, slow), withheld(both),
			withheld(cloudevent.Approval{Error: bothFailed})}, bothFailed, "", 0},
		{"its wait is too long", []statement{announced(drain), withheld(cloudevent.Approval{Error: "the wait of 1h lasts until 3:40"})},
			drain.Name + ": the wait of 1h lasts until 3:40", "", 0},
		{"its rule is gone", []statement{announced(drain),
			withheld(cloudevent.Approval{Error: drain.Name + " was removed from the settings"})},
			drain.Name + " was removed from the settings", "", 0},
		{"another rule stands", []statement{announced(drain, slow), came(cloudevent.ResultWithheld, failed, slow)},
			`rule 2: it waits for sink "drain" and sink "audit", then 30s`, "", 1},

		{"a sink failed on the VM to which another left it", []statement{on("vm-2", announced(left, standIn)),
			ofLeader(cloudevent.ResultWithheld, failed)}, standsIn, "", 1},
		{"it is tried again there", []statement{on("vm-2", announced(left, standIn)), ofLeader(cloudevent.ResultWithheld, triedAgain)},
			standsIn + `; rule "leader drains": it waits for sink "drain", which failed and is tried again: exit 75`, "", 2},
		{"its rule is gone from one VM, not from another", []statement{on("vm-2", announced(drain)),
			withheld(cloudevent.Approval{Error: drain.Name + " was removed from the settings"})}, waits, "", 1},
		{"another VM's rules are in its copy", []statement{announced(drain), withheld(failed), on("vm-2", announced(standIn))},
			standsIn, "", 1},
		{"a copy, read again, of a VM that told more since", []statement{announced(drain), withheld(failed), announced(drain)},
			drain.Name + `: sink "drain" failed: exit 1`, "", 0},
		{"two VMs have the same rule", []statement{announced(drain), on("vm-2", announced(drain))}, waits, "", 1},
		{"the rule of two VMs failed on both", []statement{announced(drain), on("vm-2", announced(drain)), withheld(failed),
			on("vm-2", withheld(failed))}, drain.Name + `: sink "drain" failed: exit 1`, "", 0},
		{"another VM reminds of its rules", []statement{announced(drain), withheld(failed),
			{kind: imds.Reminder, vm: "vm-2", rules: []cloudevent.Rule{left, standIn}}}, standsIn, "", 1},
		{"refused to a user of another VM, which has a rule", []statement{announced(drain), withheld(failed),
			on("vm-2", came(cloudevent.ResultRefused, cloudevent.Approval{By: "root", Error: refused.Error}, standIn))}, standsIn, "", 1},
		{"refused to a rule of another VM", []statement{announced(drain), on("vm-2", announced(standIn)), withheld(failed),
			on("vm-2", came(cloudevent.ResultRefused, cloudevent.Approval{By: standIn.Name, Error: refused.Error}))},
			standIn.Name + ": Azure refused the approval", "", 0},
		{"left to a VM that has no such rule", []statement{on("vm-2", announced(left)), {kind: imds.Reminder}}, "", "", 0},
		{"a rule approved it, and one of another VM would", []statement{announced(drain), on("vm-2", announced(standIn)), approved},
			"", drain.Name, 0},
		{"unanswered to a rule, and one of another VM would", []statement{on("vm-2", announced(left, standIn)),
			ofLeader(cloudevent.ResultUnanswered, cloudevent.Approval{Error: "timeout"})}, standsIn, left.Name, 1},
	}
	for i, tt := range tests {
		var told bridge.ToldApproval
		var status bridge.EventStatus
		for n, said := range tt.said {
			ce, listed := said.cloudEvent(t, i, n)
			told.Note(ce)
			status = bridge.EventStatus{Known: listed}
		}
		told.Tell(&status)
		if status.NotYet && len(status.Rules) == 0 {
			status.Approval = "not yet: " + status.Approval
		}
		if status.Approval != tt.want || len(status.Rules) != tt.rules {
			t.Errorf("%s: it isn't approved because of %q, with %d rules; want %q, %d", tt.what, status.Approval,
				len(status.Rules), tt.want, tt.rules)
		}
		by := ""
		if status.Asked != nil {
			by = status.Asked.By
		}
		if by != tt.by || by == "alice" && status.Asked.Answered {
			t.Errorf("%s: Azure was asked: %+v, want by %q", tt.what, status.Asked, tt.by)
		}
	}
}

// Who asked Azure to start an event before its VM had seen it is told by that VM's announcement, though another VM's came first.
func TestACopyOfTheAnnouncementTellsWhoAsked(t *testing.T) {
	asked := &cloudevent.Asked{By: "root", Time: time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC), Answered: true}
	var told bridge.ToldApproval
	var status bridge.EventStatus
	for n, s := range []statement{{kind: imds.Scheduled, vm: "vm-2"}, {kind: imds.Scheduled, asked: asked}} {
		ce, listed := s.cloudEvent(t, 1, n)
		told.Note(ce)
		status = bridge.EventStatus{Known: listed}
		told.Tell(&status)
	}
	if status.Asked == nil || status.Asked.By != "root" {
		t.Errorf("the status has asked %+v, want root", status.Asked)
	}
}
