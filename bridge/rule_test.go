package bridge

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// A ruleCase is a rule that is asked about an event.
type ruleCase struct {
	rule  Rule
	event imds.Event
	self  string                  // this VM
	told  func(string) acceptance // of the sinks that the rule waits for
}

// userReboot is a rule for reboots that a user asked for, and one of them, which the rule approves.
func userReboot() ruleCase {
	return ruleCase{
		rule: Rule{Only: Match{VMs: "self", Types: []string{"Reboot", "Redeploy"}, Sources: []string{"user"}}},
		event: imds.Event{
			ID: someEvent, Status: "Scheduled", Type: "Reboot", Source: "User", Resources: []string{"vm-0"},
			Duration: -1, Raw: json.RawMessage(`{"DurationInSeconds":-1}`),
		},
		self: "vm-0",
	}
}

// waitsFor makes the rule wait for a sink that accepted the event so long ago, or whose delivery is in this state.
func (c *ruleCase) waitsFor(state string, at time.Time) {
	c.rule.After, c.rule.Wait = []string{"drain"}, 30*time.Second
	c.told = func(string) acceptance { return acceptance{state: state, at: at} }
}

// exceptSources makes the rule one for all sources but these.
func (c *ruleCase) exceptSources(sources ...string) {
	c.rule.Only.Sources, c.rule.Except.Sources = nil, sources
}

// Every doubt means no: an approval is given only to what the rule names, when all are told that it waits for.
func TestEveryDoubtMeansNo(t *testing.T) {
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		claim   string
		change  func(c *ruleCase)
		outlook outlook
		why     string
	}{
		{"all is as the rule says", func(*ruleCase) {}, approves, ""},

		{"this VM's name is not known", func(c *ruleCase) { c.self = "" }, undecided, "name of this VM"},
		{"names ignore case, and this VM's may have the preview's underscore", func(c *ruleCase) {
			c.self, c.event.Resources = "_vm-0", []string{"VM-0"}
		}, approves, ""},
		{"a name has an underscore more than the preview's", func(c *ruleCase) {
			c.event.Resources = []string{"_vm-0"}
		}, never, "does not name this VM"},
		{"nobody knows whom it hits", func(c *ruleCase) { c.event.Resources = nil }, never, "names no VM"},
		{"it hits another VM", func(c *ruleCase) { c.event.Resources = []string{"vm-1"} }, never, "does not name this VM"},
		{"it hits another VM too", func(c *ruleCase) {
			c.event.Resources = []string{"vm-0", "vm-1"}
		}, never, "also names vm-1"},
		{"it names many more", func(c *ruleCase) {
			c.event.Resources = []string{"vm-0", "vm-1", "vm-2", "vm-3", "vm-4"}
		}, never, "it also names vm-1, vm-2, vm-3, and the rule"},
		{"others are allowed", func(c *ruleCase) {
			c.rule.Others, c.event.Resources = true, []string{"vm-1", "vm-0"}
		}, approves, ""},
		{"others are allowed, and it does not name this VM", func(c *ruleCase) {
			c.rule.Others, c.event.Resources = true, []string{"vm-1"}
		}, never, "does not name this VM"},
		{"the leader approves", func(c *ruleCase) {
			c.rule.Others, c.rule.Only.VMs, c.event.Resources = true, "leader", []string{"vm-0", "vm-1"}
		}, approves, ""},
		{"the second does not", func(c *ruleCase) {
			c.rule.Others, c.rule.Only.VMs, c.event.Resources = true, "leader", []string{"vm-1", "vm-0"}
		}, never, "it is left to vm-1, which Azure names first"},

		{"it has begun", func(c *ruleCase) { c.event.Status = "Started" }, never, "not Scheduled"},
		{"its status is unheard of", func(c *ruleCase) { c.event.Status = "Advisory" }, never, "not Scheduled"},
		{"it is in doubt", func(c *ruleCase) { c.event.Doubt = "it has a field twice" }, never, "it has a field twice"},
		{"it is in doubt, whatever the rule looks at", func(c *ruleCase) {
			c.rule.Only.Sources, c.rule.When, c.event.Doubt = nil, mustParseWhen(t, "true"), "it has a field twice"
		}, never, "it has a field twice"},
		{"a field of it is unclear", func(c *ruleCase) { c.event.Unclear = "NotBefore is 17" }, never, "NotBefore is 17"},

		{"its type is another", func(c *ruleCase) { c.event.Type = "Freeze" }, never, "only.types"},
		{"its type is unheard of", func(c *ruleCase) { c.event.Type = "Levitate" }, never, "only.types"},
		{"it is the one type that the rule names", func(c *ruleCase) {
			c.rule.Only.Types = []string{"Reboot"}
		}, approves, ""},
		{"its type is not the one that the rule names", func(c *ruleCase) {
			c.rule.Only.Types = []string{"Redeploy"}
		}, never, "only.types"},
		{"the rule names no types", func(c *ruleCase) { c.rule.Only.Types = nil }, never, "only.types"},
		{"the rule only says what it does not approve", func(c *ruleCase) {
			c.rule.Only.Types, c.rule.Except.Types = nil, []string{"Freeze"}
		}, never, "only.types"},
		{"Azure did not send its type", func(c *ruleCase) {
			c.rule.Only.Types, c.event.Type = []string{"", "Reboot"}, ""
		}, never, "only.types"},
		{"the rule names a type that is unheard of", func(c *ruleCase) {
			c.rule.Only.Types, c.event.Type = []string{"Levitate"}, "Levitate"
		}, never, "only.types"},
		{"it is excepted", func(c *ruleCase) { c.rule.Except.Types = []string{"reboot"} }, never, "except"},
		{"something else is excepted", func(c *ruleCase) { c.rule.Except.Types = []string{"Freeze"} }, approves, ""},
		{"its type is excepted, whichever VM it names first", func(c *ruleCase) {
			c.rule.Others, c.rule.Except.Types, c.event.Resources = true, []string{"Reboot"}, []string{"vm-1", "vm-0"}
		}, never, "except"},

		{"its source is another", func(c *ruleCase) { c.event.Source = "Platform" }, never, "only.sources"},
		{"Azure did not send its source", func(c *ruleCase) { c.event.Source = "" }, never, "only.sources"},
		{"the rule names no source", func(c *ruleCase) { c.rule.Only.Sources = nil }, approves, ""},
		{"neither the rule nor Azure names a source", func(c *ruleCase) {
			c.rule.Only.Sources, c.event.Source = nil, ""
		}, approves, ""},
		{"another source is excepted", func(c *ruleCase) { c.exceptSources("Platform") }, approves, ""},
		{"its source is excepted", func(c *ruleCase) {
			c.exceptSources("Platform")
			c.event.Source = "Platform"
		}, never, "except"},
		{"it may be excepted", func(c *ruleCase) {
			c.exceptSources("Platform")
			c.event.Source = ""
		}, never, "except"},
		{"its source is not known, and one is excepted", func(c *ruleCase) {
			c.exceptSources("Platform")
			c.event.Source = "Operator"
		}, never, "(except)"},

		{"when holds", func(c *ruleCase) { c.rule.When = mustParseWhen(t, "duration < 0") }, approves, ""},
		{"when does not hold", func(c *ruleCase) { c.rule.When = mustParseWhen(t, "duration > 0") }, never, "when"},
		{"when looks at what Azure did not send", func(c *ruleCase) {
			c.rule.When, c.event.Raw = mustParseWhen(t, "duration < 0"), nil
		}, never, "Azure does not say DurationInSeconds (when)"},
		{"when fails", func(c *ruleCase) { c.rule.When = mustParseWhen(t, `resources[9] == "vm-0"`) }, never, "when fails"},

		{"the sink accepted long enough ago", func(c *ruleCase) {
			c.waitsFor(outbox.StateAccepted, now.Add(-30*time.Second))
		}, approves, ""},
		{"the sink accepted just now", func(c *ruleCase) {
			c.waitsFor(outbox.StateAccepted, now.Add(-29*time.Second))
		}, onCourse, "waits until 04:00:01 UTC"},
		{"a reminder replaced it at the sink", func(c *ruleCase) {
			c.waitsFor(outbox.StateSuperseded, now.Add(-30*time.Second))
		}, approves, ""},
		{"the sink was not told yet", func(c *ruleCase) {
			c.waitsFor(outbox.StatePending, time.Time{})
		}, onCourse, `waits for sink "drain"`},
		{"the sink did not get it", func(c *ruleCase) { c.waitsFor("", time.Time{}) }, never, "did not get"},
		{"the sink refused it", func(c *ruleCase) {
			c.waitsFor(outbox.StateDead, time.Time{})
		}, never, `sink "drain" failed`},
		{"its wait lasts", func(c *ruleCase) { c.rule.Wait = 2 * time.Hour }, onCourse, "waits until 05:00:00 UTC"},
		{"the wait ends on another day", func(c *ruleCase) {
			c.rule.Wait = 24 * time.Hour
		}, onCourse, "waits until Sun 22 Nov, 03:00:00 UTC"},
	} {
		c := userReboot()
		tt.change(&c)
		fields := map[string]any{"duration": -1, "data": map[string]any{}}
		got := c.rule.rule(c.event, fields, c.self, c.told, now.Add(-time.Hour), now)
		if got.outlook != tt.outlook || !strings.Contains(got.reason(now, time.UTC), tt.why) {
			t.Errorf("%s: %+v, want the outlook %v, because of %q", tt.claim, got, tt.outlook, tt.why)
		}
	}
}

// A rule for other events says nothing about this one; a rule that is for it says why it does not approve.
func TestARuleSpeaksOnlyOfItsEvents(t *testing.T) {
	for _, tt := range []struct {
		claim    string
		change   func(c *ruleCase)
		duration int
		speaks   bool
	}{
		{"another type", func(c *ruleCase) { c.event.Type = "Freeze" }, -1, false},
		{"a type nobody knows, in a status nobody knows", func(c *ruleCase) {
			c.self, c.event.Type, c.event.Status = "", "Levitate", "Advisory"
		}, -1, false},
		{"another source", func(c *ruleCase) { c.event.Source = "Platform" }, -1, false},
		{"other VMs", func(c *ruleCase) { c.event.Resources = []string{"vm-1"} }, -1, false},
		{"excepted", func(c *ruleCase) { c.event.Resources = []string{"vm-0"} }, -1, false},
		{"excepted, though Azure does not say who asked", func(c *ruleCase) {
			c.event.Source, c.event.Resources = "", []string{"vm-0"}
		}, -1, false},
		{"when does not hold", func(*ruleCase) {}, 5, false},
		{"its source is excepted", func(c *ruleCase) { c.rule.Except = Match{Sources: []string{"User"}} }, -1, false},
		{"its source may be excepted", func(c *ruleCase) {
			c.rule.Except, c.event.Source = Match{Sources: []string{"User"}}, ""
		}, -1, true},
		{"no source", func(c *ruleCase) { c.event.Source = "" }, -1, true},
		{"no VMs", func(c *ruleCase) { c.event.Resources = nil }, -1, true},
		{"no name of this VM", func(c *ruleCase) { c.self, c.event.Resources = "", []string{"vm-0"} }, -1, true},
		{"others too", func(*ruleCase) {}, -1, true},
		{"a status nobody knows", func(c *ruleCase) { c.event.Status = "Advisory" }, -1, true},
	} {
		c := userReboot()
		c.event.Resources = []string{"vm-1", "vm-0"}
		c.rule.Only.VMs, c.rule.Except.VMs, c.rule.When = "", "leader", mustParseWhen(t, "duration < 0")
		tt.change(&c)
		got := c.rule.matchEvent(c.event, map[string]any{"duration": tt.duration}, c.self)
		if got.outlook == approves || (got.notFor == "") != tt.speaks {
			t.Errorf("%s: %+v, want no approval, and that it speaks of it: %v", tt.claim, got, tt.speaks)
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
