package bridge_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
)

// A statement is what a VM tells of an event: a change, or what came of its approval, and the rules that will approve
// it.
type statement struct {
	kind  imds.ChangeKind
	rules []cloudevent.Rule
	came  *cloudevent.Approval
	asked *cloudevent.Asked
	moved time.Duration // of NotBefore, since the announcement
	begun bool          // what comes of an approval comes after the start
	again bool          // the event is back after its end
	vm    string        // that tells it; "" for vm-1
	names []string      // the VMs that the event names; nil for vm-1
}

// with returns the statement with these rules, on that of another VM, and by that about what somebody else asked for.
func (s statement) with(rules ...cloudevent.Rule) statement {
	s.rules = rules
	return s
}

func (s statement) on(vm string) statement {
	s.vm = vm
	return s
}

func (s statement) by(name string) statement {
	came := *s.came
	came.By = name
	s.came = &came
	return s
}

// tell has the CloudEvent of the statement noted, the nth about its event, and returns what is told then.
func (s statement) tell(t *testing.T, told *bridge.ToldApproval, nth int) (status bridge.EventStatus) {
	t.Helper()
	status.Known = imds.Event{
		ID: idA, Type: "Reboot", Status: imds.StatusScheduled, Resources: []string{"vm-1"}, Raw: []byte("{}"),
		NotBefore: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(s.moved),
	}
	if s.kind == imds.Started || s.begun {
		status.Known.Status, status.Known.NotBefore = imds.StatusStarted, time.Time{}
	}
	if s.names != nil {
		status.Known.Resources = s.names
	}
	if s.came != nil { // the rules decide about the latest change
		came := *s.came
		came.Decided = time.Now().UTC()
		s.came = &came
	}
	in := cloudevent.Circumstances{
		Observer: imds.Observer{Name: cmp.Or(s.vm, "vm-1"), ResourceGroup: "web"}, Time: time.Now(),
		Rules: s.rules, Approval: s.came, Asked: s.asked,
	}
	if s.came != nil && (s.came.Result == cloudevent.ResultApproved || s.came.Result == cloudevent.ResultUnanswered) {
		answered := s.came.Result == cloudevent.ResultApproved
		in.Asked = &cloudevent.Asked{By: s.came.By, Time: time.Now().UTC(), Answered: answered}
	}
	if s.kind == imds.Approved || s.again {
		in.Repeat = nth
	}
	ce, err := cloudevent.Wrap(imds.Change{Kind: s.kind, Event: status.Known, Lead: time.Hour}, in)
	if err != nil {
		t.Fatal(err)
	}
	told.Note(ce)
	told.Tell(&status)
	return status
}

// Where an event names several VMs, what came of its approval is said of the VM that tells it: those of the others may
// approve it all the same.
func TestWhatCameOfAnApprovalIsSaidOfItsVM(t *testing.T) {
	failed := cloudevent.Approval{Result: cloudevent.ResultWithheld, By: "rule 1", Sink: "drain", Error: "exit 1"}
	for vms, want := range map[string]string{
		"vm-1": `rule 1: sink "drain" failed: exit 1`, "vm-1 vm-2": `on vm-1: rule 1: sink "drain" failed: exit 1`,
	} {
		var told bridge.ToldApproval
		statement{kind: imds.Scheduled, names: strings.Fields(vms)}.tell(t, &told, 0)
		status := statement{kind: imds.Approved, came: &failed, names: strings.Fields(vms)}.tell(t, &told, 1)
		wantEqual(t, "what is said of "+vms, status.Approval, want)
	}
}

// Of an event of very many VMs it is kept what the first twenty told, and an approval of any of them counts.
func TestWhatIsToldOfAnApprovalIsBounded(t *testing.T) {
	var told bridge.ToldApproval
	tell := func(vm int, s statement) bridge.EventStatus {
		s.vm = fmt.Sprint("vm-", vm)
		return s.tell(t, &told, vm)
	}
	for vm := range 30 {
		rules := []cloudevent.Rule{{Name: fmt.Sprint("rule of ", vm)}, {Name: "rule of all"}}
		status := tell(vm, statement{kind: imds.Scheduled, rules: rules})
		wantEqual(t, fmt.Sprint("rules told by VMs up to ", vm), len(status.Rules), min(vm+2, 20))
	}
	failed := cloudevent.Approval{Result: cloudevent.ResultWithheld, By: "rule of all", Error: "it is off"}
	for vm := range 30 {
		status := tell(vm, statement{kind: imds.Approved, came: &failed})
		wantEqual(t, fmt.Sprint("the rules are off by VMs up to ", vm), status.Approval == "rule of all: it is off", vm >= 19)
	}
	tell(0, statement{kind: imds.Reminder, rules: []cloudevent.Rule{{Name: "rule of all"}}})
	approved := cloudevent.Approval{Result: cloudevent.ResultApproved, By: "rule of all"}
	wantEqual(t, "rules once it is approved", len(tell(29, statement{kind: imds.Approved, came: &approved}).Rules), 0)
}

// Of the approval of an event its CloudEvents tell, since its latest change, what the VM's own status says: the rules
// that will approve it, and what came of that.
func TestCloudEventsTellOfAnApprovalWhatTheStatusSays(t *testing.T) {
	drain := cloudevent.Rule{Name: `rule "drain first"`, After: []string{"drain"}}
	drainAgain := drain
	drainAgain.Again = "drain"
	slow := cloudevent.Rule{Name: "rule 2", After: []string{"drain", "audit"}, Wait: 30}
	standIn := cloudevent.Rule{Name: `rule "stand-in"`, After: []string{"drain"}, Wait: 100}
	leader := cloudevent.Rule{Name: `rule "leader drains"`, After: []string{"drain"}, VM: "vm-1"} // by others than vm-1

	announced := statement{kind: imds.Scheduled}
	back := statement{kind: imds.Scheduled, again: true}
	moved := statement{kind: imds.Updated, moved: time.Minute}
	reminds := statement{kind: imds.Reminder}
	begins := statement{kind: imds.Started}
	ends := statement{kind: imds.Vanished}

	came := func(result string, of cloudevent.Approval) statement {
		of.Result, of.By, of.Decided = result, drain.Name, time.Now().UTC()
		return statement{kind: imds.Approved, came: &of}
	}
	approved := came(cloudevent.ResultApproved, cloudevent.Approval{Status: "200 OK"})
	unanswered := came(cloudevent.ResultUnanswered, cloudevent.Approval{Error: "timeout"})
	refused := came(cloudevent.ResultRefused, cloudevent.Approval{Error: "Azure refuses the approval: 400 Bad Request"})
	refusedLate := refused
	refusedLate.begun = true
	failed := came(cloudevent.ResultWithheld, cloudevent.Approval{Sink: "drain", Error: "rejected: exit 1"})
	tried := came(cloudevent.ResultWithheld, cloudevent.Approval{Sink: "drain", Error: "blocked: exit 75", NotYet: true})
	withheld := func(why string) statement { return came(cloudevent.ResultWithheld, cloudevent.Approval{Error: why}) }
	gone := withheld(drain.Name + " was removed from the settings")

	const (
		waits    = `rule "drain first": it waits for sink "drain"`
		isTried  = `rule "drain first": sink "drain" failed and is tried again`
		triedYet = isTried + ": exit 75"
		slowly   = `rule 2: it waits for sink "drain" and sink "audit", then 30s`
		standsIn = `rule "stand-in": it waits for sink "drain", then 1m40s`
		hasFail  = `rule "drain first": sink "drain" failed: exit 1`
		both     = `rule "drain first": sink "drain" failed and is tried again: exit 75; rule 2: sink "audit" failed: exit 1`
		refusal  = `rule "drain first": Azure refused the approval`
		leads    = `rule "leader drains": sink "drain" failed and is tried again: exit 75`
	)
	bothYet := came(cloudevent.ResultWithheld, cloudevent.Approval{Error: both, NotYet: true})

	say := func(all ...statement) []statement { return all }
	for _, tt := range []struct {
		what  string
		said  []statement
		why   string // it isn't approved
		by    string // who has asked Azure; "" for nobody
		rules int
	}{
		{what: "no rule is for it", said: say(announced)},
		{what: "a rule waits for a sink", said: say(announced.with(drain)), why: waits, rules: 1},
		{what: "a rule waits a while", said: say(announced.with(cloudevent.Rule{Name: "rule 1", Wait: 300})),
			why: "rule 1: it waits 5m", rules: 1},
		{what: "a rule waits for nothing", said: say(announced.with(cloudevent.Rule{Name: "rule 1"})),
			why: "rule 1: it approves at once", rules: 1},
		{what: "a rule leaves it to another VM", said: say(announced.with(cloudevent.Rule{Name: "rule 1", VM: "vm-2"})),
			why: "rule 1: it is left to vm-2, which Azure names first (only.vms)", rules: 1},
		{what: "two rules", said: say(announced.with(drain, slow)), why: waits + "; " + slowly, rules: 2},
		{what: "a reminder has a rule", said: say(announced, reminds.with(drain)), why: waits, rules: 1},

		{what: "another VM reminds of what failed here",
			said: say(announced.with(drain), failed, reminds.on("vm-2")), why: hasFail},
		{what: "refused on another VM, while a rule stands",
			said: say(announced.with(drain), refused.by("root").on("vm-2")), why: waits, rules: 1},
		{what: "refused on another VM, after a failure here",
			said: say(announced.with(drain), failed, refused.by("root").on("vm-2")), why: hasFail},

		{what: "approved", said: say(announced.with(drain), approved), by: drain.Name},
		{what: "told again, perhaps by another VM", said: say(announced.with(drain), approved, announced), by: drain.Name},
		{what: "moved since", said: say(announced.with(drain), approved, moved), by: drain.Name},
		{what: "moved while Azure was asked",
			said: say(announced.with(drain), moved.with(drain), approved), why: waits, by: drain.Name, rules: 1},
		{what: "begun since", said: say(announced.with(drain), approved, begins), by: drain.Name},
		{what: "over, and back", said: say(announced.with(drain), approved, ends, back)},

		{what: "refused", said: say(announced.with(drain), refused), why: refusal},
		{what: "refused at last", said: say(announced.with(drain), unanswered, refused), why: refusal},
		{what: "refused when it had begun", said: say(announced.with(drain), begins, refusedLate)},
		{what: "refused to a user, while a rule stands",
			said: say(announced.with(drain), refused.with(drain)), why: waits, rules: 1},
		{what: "approved, and refused to a user of another VM",
			said: say(announced.with(drain), approved, refused.by("alice")),
			why:  "alice: Azure refused the approval", by: drain.Name},
		{what: "a user's request is unanswered",
			said: say(announced.with(drain), unanswered.by("alice")), why: waits, by: "alice", rules: 1},
		{what: "a rule's request is unanswered", said: say(announced.with(drain), unanswered), by: drain.Name},

		{what: "its sink failed", said: say(announced.with(drain), failed), why: hasFail},
		{what: "its sink is tried again", said: say(announced.with(drain), tried), why: triedYet, rules: 1},
		{what: "the sink of one of two is tried again",
			said: say(announced.with(drain, cloudevent.Rule{Name: "rule 3", After: []string{"audit"}}), tried),
			why:  triedYet, rules: 1},
		{what: "its sink is tried again, and nobody told of the rule", said: say(announced, tried), why: triedYet, rules: 1},
		{what: "a reminder says that its sink is tried again",
			said: say(announced.with(drain), tried, reminds.with(drainAgain)), why: triedYet, rules: 1},
		{what: "only a reminder says that its sink is tried again",
			said: say(announced.with(drain), reminds.with(drainAgain)),
			why:  isTried, rules: 1},
		{what: "its sink failed, and a reminder came", said: say(announced.with(drain), failed, reminds), why: hasFail},
		{what: "its sink fails for good at last", said: say(announced.with(drain), tried, failed), why: hasFail},
		{what: "its sink succeeds at last", said: say(announced.with(drain), tried, approved), by: drain.Name},
		{what: "the sinks of two rules failed, of which one is tried again",
			said: say(announced.with(drain, slow), bothYet), why: "not yet: " + both},
		{what: "the sinks of two rules failed for good at last",
			said: say(announced.with(drain, slow), bothYet, withheld(both)), why: both},
		{what: "its wait is too long", said: say(announced.with(drain), withheld("the wait of 1h lasts until 3:40")),
			why: drain.Name + ": the wait of 1h lasts until 3:40"},
		{what: "its rule is gone", said: say(announced.with(drain), gone), why: gone.came.Error},
		{what: "another rule stands", said: say(announced.with(drain, slow), failed.with(slow)), why: slowly, rules: 1},

		{what: "a sink failed on the VM to which another left it",
			said: say(announced.with(leader, standIn).on("vm-2"), failed.by(leader.Name)), why: standsIn, rules: 1},
		{what: "it is tried again there",
			said: say(announced.with(leader, standIn).on("vm-2"), tried.by(leader.Name)),
			why:  standsIn + "; " + leads, rules: 2},
		{what: "its rule is gone from one VM, not from another",
			said: say(announced.with(drain).on("vm-2"), gone), why: waits, rules: 1},
		{what: "another VM's rules are in its copy",
			said: say(announced.with(drain), failed, announced.with(standIn).on("vm-2")), why: standsIn, rules: 1},
		{what: "a copy, read again, of a VM that told more since",
			said: say(announced.with(drain), failed, announced.with(drain)), why: hasFail},
		{what: "two VMs have the same rule",
			said: say(announced.with(drain), announced.with(drain).on("vm-2")), why: waits, rules: 1},
		{what: "the rule of two VMs failed on both",
			said: say(announced.with(drain), announced.with(drain).on("vm-2"), failed, failed.on("vm-2")), why: hasFail},
		{what: "another VM reminds of its rules",
			said: say(announced.with(drain), failed, reminds.with(leader, standIn).on("vm-2")), why: standsIn, rules: 1},
		{what: "refused to a user of another VM, which has a rule",
			said: say(announced.with(drain), failed, refused.by("root").with(standIn).on("vm-2")), why: standsIn, rules: 1},
		{what: "refused to a rule of another VM",
			said: say(announced.with(drain), announced.with(standIn).on("vm-2"), failed, refused.by(standIn.Name).on("vm-2")),
			why:  standIn.Name + ": Azure refused the approval"},
		{what: "left to a VM that has no such rule", said: say(announced.with(leader).on("vm-2"), reminds)},
		{what: "a rule approved it, and one of another VM would",
			said: say(announced.with(drain), announced.with(standIn).on("vm-2"), approved), by: drain.Name},
		{what: "unanswered to a rule, and one of another VM would",
			said: say(announced.with(leader, standIn).on("vm-2"), unanswered.by(leader.Name)),
			why:  standsIn, by: leader.Name, rules: 1},
	} {
		var told bridge.ToldApproval
		var status bridge.EventStatus
		for n, said := range tt.said {
			status = said.tell(t, &told, n)
		}
		if status.NotYet && len(status.Rules) == 0 {
			status.Approval = "not yet: " + status.Approval
		}
		wantEqual(t, tt.what+": why it isn't approved", status.Approval, tt.why)
		wantEqual(t, tt.what+": rules", len(status.Rules), tt.rules)
		by := ""
		if status.Asked != nil {
			by = status.Asked.By
		}
		wantEqual(t, tt.what+": who asked Azure", by, tt.by)
		if by == "alice" {
			wantEqual(t, tt.what+": Azure answered", status.Asked.Answered, false)
		}
	}
}

// Who asked Azure to start an event before its VM had seen it is told by that VM's announcement, though another VM's
// came first.
func TestACopyOfTheAnnouncementTellsWhoAsked(t *testing.T) {
	asked := &cloudevent.Asked{By: "root", Time: time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC), Answered: true}
	var told bridge.ToldApproval
	statement{kind: imds.Scheduled, vm: "vm-2"}.tell(t, &told, 0)
	status := statement{kind: imds.Scheduled, asked: asked}.tell(t, &told, 1)
	wantAsked(t, "the status", status.Asked, "root", true)
}

// An approval that a change of the event ended says nothing of the rules that the change names: they stand, as the VM's own
// status says.
func TestWhatCameOfAnApprovalBeforeAChangeEndsNoRuleOfTheChange(t *testing.T) {
	for claim, path := range map[string]string{"not sent": imdstest.ScheduledEvents, "not answered": imdstest.Approvals} {
		t.Run(claim, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *stage) {
				s.opts.Rules, s.opts.Interval = []bridge.Rule{namedRule()}, seldom
				drain, stream := &recorder{}, &recorder{}
				b := s.start(drain.all("drain").With(func(r *bridge.Terms) { r.Timeout = time.Hour }), stream.all("stream"))
				pause(seldom + time.Second)
				s.userReboot(idA)
				pause(seldom)
				s.azure.SetFault(imdstest.Fault{Path: path, Status: 503, For: 20 * time.Second})
				pause(15 * time.Second) // the rule has approved it
				drain.say(always(errHang))
				s.postpone(idA, time.Minute)
				pause(30 * time.Second)
				wantIDs(t, stream.types(), "scheduled", "updated", "approved")
				var told bridge.ToldApproval
				for _, h := range stream.accepted() {
					told.Note(h.Event)
				}
				own := b.Status().Events[0]
				others := bridge.EventStatus{Known: own.Known}
				told.Tell(&others)
				if len(own.Rules) != 1 || len(others.Rules) != 1 || !strings.HasPrefix(others.Approval, own.Approval) {
					t.Errorf("the VM's status says %q, with the rules %+v; others know that %q, with %+v",
						own.Approval, own.Rules, others.Approval, others.Rules)
				}
			})
		})
	}
}
