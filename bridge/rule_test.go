package bridge

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// Every doubt means no: an approval is given only to what the rule names, when all are told that it waits for.
func TestEveryDoubtMeansNo(t *testing.T) {
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	event := func(change func(*imds.Event)) imds.Event {
		e := imds.Event{ID: someEvent, Status: "Scheduled", Type: "Reboot", Source: "User", Resources: []string{"vm-0"}, Duration: -1,
			Raw: json.RawMessage(`{"DurationInSeconds":-1}`)}
		change(&e)
		return e
	}
	as := func(*imds.Event) {}
	user := Rule{Only: Match{VMs: "self", Types: []string{"Reboot", "Redeploy"}, Sources: []string{"user"}}}
	with := func(change func(*Rule)) Rule {
		r := user
		change(&r)
		return r
	}
	accepted := func(ago time.Duration) func(string) acceptance {
		return func(string) acceptance { return acceptance{state: outbox.StateAccepted, at: now.Add(-ago)} }
	}
	state := func(s string) func(string) acceptance {
		return func(string) acceptance { return acceptance{state: s} }
	}
	types := func(types ...string) func(*Rule) { return func(r *Rule) { r.Only.Types = types } }
	after := func(r *Rule) { r.After, r.Wait = []string{"drain"}, 30*time.Second }
	for _, tt := range []struct {
		claim string
		rule  Rule
		event imds.Event
		self  string
		told  func(string) acceptance
		why   string // "" approves
		final bool
	}{
		{"all is as the rule says", user, event(as), "vm-0", nil, "", false},
		{"names ignore case, and this VM's may have the preview's underscore", user, event(func(e *imds.Event) { e.Resources = []string{"VM-0"} }), "_vm-0", nil, "", false},
		{"a name has an underscore more than the preview's", user, event(func(e *imds.Event) { e.Resources = []string{"_vm-0"} }), "vm-0", nil, "does not name this VM", true},
		{"this VM's name is not known", user, event(as), "", nil, "name of this VM", false},
		{"nobody knows whom it hits", user, event(func(e *imds.Event) { e.Resources = nil }), "vm-0", nil, "names no VM", true},
		{"it hits another VM", user, event(func(e *imds.Event) { e.Resources = []string{"vm-1"} }), "vm-0", nil, "does not name this VM", true},
		{"it hits another VM too", user, event(func(e *imds.Event) { e.Resources = []string{"vm-0", "vm-1"} }), "vm-0", nil, "also names vm-1", true},
		{"others are allowed", with(func(r *Rule) { r.Others = true }), event(func(e *imds.Event) { e.Resources = []string{"vm-1", "vm-0"} }), "vm-0", nil, "", false},
		{"others are allowed, and it does not name this VM", with(func(r *Rule) { r.Others = true }), event(func(e *imds.Event) { e.Resources = []string{"vm-1"} }), "vm-0", nil, "does not name this VM", true},
		{"the leader approves", with(func(r *Rule) { r.Others = true; r.Only.VMs = "leader" }), event(func(e *imds.Event) { e.Resources = []string{"vm-0", "vm-1"} }), "vm-0", nil, "", false},
		{"the second does not", with(func(r *Rule) { r.Others = true; r.Only.VMs = "leader" }), event(func(e *imds.Event) { e.Resources = []string{"vm-1", "vm-0"} }), "vm-0", nil, "it is left to vm-1, which Azure names first", true},
		{"it has begun", user, event(func(e *imds.Event) { e.Status = "Started" }), "vm-0", nil, "not Scheduled", true},
		{"its status is unheard of", user, event(func(e *imds.Event) { e.Status = "Advisory" }), "vm-0", nil, "not Scheduled", true},
		{"its type is another", user, event(func(e *imds.Event) { e.Type = "Freeze" }), "vm-0", nil, "only.types", true},
		{"it names many more", user, event(func(e *imds.Event) { e.Resources = []string{"vm-0", "vm-1", "vm-2", "vm-3", "vm-4"} }), "vm-0", nil,
			"it also names vm-1, vm-2, vm-3, and the rule", true},
		{"its type is unheard of", user, event(func(e *imds.Event) { e.Type = "Levitate" }), "vm-0", nil, "only.types", true},
		{"it is the one type that the rule names", with(types("Reboot")), event(as), "vm-0", nil, "", false},
		{"its type is not the one that the rule names", with(types("Redeploy")), event(as), "vm-0", nil, "only.types", true},
		{"the rule names no types", with(types()), event(as), "vm-0", nil, "only.types", true},
		{"the rule only says what it does not approve", with(func(r *Rule) {
			r.Only.Types, r.Except.Types = nil, []string{"Freeze"}
		}), event(as), "vm-0", nil, "only.types", true},
		{"Azure did not send its type", with(types("", "Reboot")), event(func(e *imds.Event) { e.Type = "" }), "vm-0", nil, "only.types", true},
		{"the rule names a type that is unheard of", with(types("Levitate")), event(func(e *imds.Event) { e.Type = "Levitate" }), "vm-0", nil, "only.types", true},
		{"its source is another", user, event(func(e *imds.Event) { e.Source = "Platform" }), "vm-0", nil, "only.sources", true},
		{"Azure did not send its source", user, event(func(e *imds.Event) { e.Source = "" }), "vm-0", nil, "only.sources", true},
		{"it is excepted", with(func(r *Rule) { r.Except.Types = []string{"reboot"} }), event(as), "vm-0", nil, "except", true},
		{"something else is excepted", with(func(r *Rule) { r.Except.Types = []string{"Freeze"} }), event(as), "vm-0", nil, "", false},
		{"it may be excepted", with(func(r *Rule) {
			r.Only.Sources, r.Except.Sources = nil, []string{"Platform"}
		}), event(func(e *imds.Event) { e.Source = "" }), "vm-0", nil, "except", true},
		{"another source is excepted", with(func(r *Rule) {
			r.Only.Sources, r.Except.Sources = nil, []string{"Platform"}
		}), event(as), "vm-0", nil, "", false},
		{"its source is excepted", with(func(r *Rule) {
			r.Only.Sources, r.Except.Sources = nil, []string{"Platform"}
		}), event(func(e *imds.Event) { e.Source = "Platform" }), "vm-0", nil, "except", true},
		{"its source is not known, and one is excepted", with(func(r *Rule) {
			r.Only.Sources, r.Except.Sources = nil, []string{"Platform"}
		}), event(func(e *imds.Event) { e.Source = "Operator" }), "vm-0", nil, "(except)", true},
		{"it is in doubt", user, event(func(e *imds.Event) { e.Doubt = "it has a field twice" }), "vm-0", nil, "it has a field twice", true},
		{"a field of it is unclear", user, event(func(e *imds.Event) { e.Unclear = "NotBefore is 17" }), "vm-0", nil, "NotBefore is 17", true},
		{"it is in doubt, whatever the rule looks at", with(func(r *Rule) {
			r.Only.Sources, r.When = nil, mustParseWhen(t, "true")
		}), event(func(e *imds.Event) { e.Doubt = "it has a field twice" }), "vm-0", nil, "it has a field twice", true},
		{"its type is excepted, whichever VM it names first", with(func(r *Rule) {
			r.Others, r.Except.Types = true, []string{"Reboot"}
		}), event(func(e *imds.Event) { e.Resources = []string{"vm-1", "vm-0"} }), "vm-0", nil, "except", true},
		{"the rule names no source", with(func(r *Rule) { r.Only.Sources = nil }), event(as), "vm-0", nil, "", false},
		{"neither the rule nor Azure names a source", with(func(r *Rule) { r.Only.Sources = nil }),
			event(func(e *imds.Event) { e.Source = "" }), "vm-0", nil, "", false},
		{"when holds", with(func(r *Rule) { r.When = mustParseWhen(t, "duration < 0") }), event(as), "vm-0", nil, "", false},
		{"when does not hold", with(func(r *Rule) { r.When = mustParseWhen(t, "duration > 0") }), event(as), "vm-0", nil, "when", true},
		{"when looks at what Azure did not send", with(func(r *Rule) { r.When = mustParseWhen(t, "duration < 0") }),
			event(func(e *imds.Event) { e.Raw = nil }), "vm-0", nil, "Azure does not say DurationInSeconds (when)", true},
		{"when fails", with(func(r *Rule) { r.When = mustParseWhen(t, `resources[9] == "vm-0"`) }), event(as), "vm-0", nil, "when fails", true},
		{"the sink accepted long enough ago", with(after), event(as), "vm-0", accepted(30 * time.Second), "", false},
		{"the sink accepted just now", with(after), event(as), "vm-0", accepted(29 * time.Second), "waits until 04:00:01 UTC", false},
		{"the wait ends on another day", with(func(r *Rule) { r.Wait = 24 * time.Hour }), event(as), "vm-0", nil,
			"waits until Sun 22 Nov, 03:00:00 UTC", false},
		{"a reminder replaced it at the sink", with(after), event(as), "vm-0", func(string) acceptance {
			return acceptance{state: outbox.StateSuperseded, at: now.Add(-30 * time.Second)}
		}, "", false},
		{"the sink was not told yet", with(after), event(as), "vm-0", state(outbox.StatePending), `waits for sink "drain"`, false},
		{"the sink did not get it", with(after), event(as), "vm-0", state(""), "did not get", true},
		{"the sink refused it", with(after), event(as), "vm-0", state(outbox.StateDead), `sink "drain" failed`, true},
	} {
		fields := map[string]any{"duration": -1, "data": map[string]any{}}
		got := tt.rule.rule(tt.event, fields, tt.self, tt.told, now.Add(-time.Hour), now)
		if (got.outlook == approves) != (tt.why == "") || (got.outlook == never) != tt.final || !strings.Contains(got.reason(now, time.UTC), tt.why) {
			t.Errorf("%s: %+v, want approval %v, final %v, because of %q", tt.claim, got, tt.why == "", tt.final, tt.why)
		}
	}
	waits := with(func(r *Rule) { r.Wait = time.Minute })
	if got := waits.rule(event(as), nil, "vm-0", nil, now.Add(-30*time.Second), now); got.outlook == approves || got.outlook == never {
		t.Errorf("30 s after the change, with a wait of a minute and nobody to wait for: %+v, want not yet", got)
	}
}

// A rule for other events says nothing about this one; a rule that is for it says why it does not approve.
func TestARuleSpeaksOnlyOfItsEvents(t *testing.T) {
	rule := Rule{Only: Match{Types: []string{"Reboot"}, Sources: []string{"User"}}, Except: Match{VMs: "leader"}, When: mustParseWhen(t, "duration < 0")}
	for _, tt := range []struct {
		claim    string
		event    imds.Event
		self     string
		duration int
		speaks   bool
	}{
		{"another type", imds.Event{Type: "Freeze", Source: "User", Resources: []string{"vm-1", "vm-0"}}, "vm-0", -1, false},
		{"a type nobody knows, in a status nobody knows", imds.Event{Type: "Levitate", Status: "Advisory", Source: "User"}, "", -1, false},
		{"another source", imds.Event{Source: "Platform", Resources: []string{"vm-1", "vm-0"}}, "vm-0", -1, false},
		{"other VMs", imds.Event{Source: "User", Resources: []string{"vm-1"}}, "vm-0", -1, false},
		{"excepted", imds.Event{Source: "User", Resources: []string{"vm-0"}}, "vm-0", -1, false},
		{"excepted, though Azure does not say who asked", imds.Event{Resources: []string{"vm-0"}}, "vm-0", -1, false},
		{"when does not hold", imds.Event{Source: "User", Resources: []string{"vm-1", "vm-0"}}, "vm-0", 5, false},
		{"no source", imds.Event{Resources: []string{"vm-1", "vm-0"}}, "vm-0", -1, true},
		{"no VMs", imds.Event{Source: "User"}, "vm-0", -1, true},
		{"no name of this VM", imds.Event{Source: "User", Resources: []string{"vm-0"}}, "", -1, true},
		{"others too", imds.Event{Source: "User", Resources: []string{"vm-1", "vm-0"}}, "vm-0", -1, true},
		{"a status nobody knows", imds.Event{Status: "Advisory", Source: "User", Resources: []string{"vm-1", "vm-0"}}, "vm-0", -1, true},
	} {
		tt.event.ID, tt.event.Type, tt.event.Status = someEvent, cmp.Or(tt.event.Type, "Reboot"), cmp.Or(tt.event.Status, "Scheduled")
		tt.event.Raw = json.RawMessage(`{"DurationInSeconds":-1}`)
		got := rule.matchEvent(tt.event, map[string]any{"duration": tt.duration}, tt.self)
		if got.outlook == approves || (got.notFor != "") == tt.speaks {
			t.Errorf("%s: %+v, want no approval, and that it speaks of it: %v", tt.claim, got, tt.speaks)
		}
	}
	rule.Except = Match{Sources: []string{"User"}}
	for source, speaks := range map[string]bool{"User": false, "": true} {
		e := imds.Event{ID: someEvent, Type: "Reboot", Status: "Scheduled", Source: source, Resources: []string{"vm-0"},
			Raw: json.RawMessage(`{"DurationInSeconds":-1}`)}
		got := rule.matchEvent(e, map[string]any{"duration": -1}, "vm-0")
		if got.outlook == approves || (got.notFor != "") == speaks {
			t.Errorf("with User excepted, of the source %q: %+v, want that it speaks of it: %v", source, got, speaks)
		}
	}
}

func (r ruling) String() string { return fmt.Sprintf("{%v %q}", r.outlook, r.why) }

// mustParseWhen returns a compiled when.
func mustParseWhen(t *testing.T, src string) *When {
	t.Helper()
	w, err := ParseWhen(src)
	if err != nil {
		t.Fatal(err)
	}
	return w
}
