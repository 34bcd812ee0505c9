package bridge

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
)

// condition returns a compiled when.
func condition(t *testing.T, src string) *When {
	t.Helper()
	w, err := ParseWhen(src)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Each key of only, except and when decides as the settings say. What Azure did not send, and what nobody knows yet,
// passes: better twice than never.
func TestFilterDecidesAboutAnAzureEvent(t *testing.T) {
	const named, unnamed, over = "vm-0", "", "-" // over: no name, and the wait for one is over
	only := func(m Match) Filter { return Filter{Only: m} }
	except := func(m Match) Filter { return Filter{Only: Match{VMs: "all"}, Except: m} }
	when := func(src string) Filter { return Filter{Only: Match{VMs: "all"}, When: condition(t, src)} }
	leads, follows, others := entry(), entry("Resources", `["vm-1","vm-0"]`), entry("Resources", `["vm-1","vm-01","xvm-0"]`)
	nobody, shouted := entry("Resources", ""), entry("Resources", `["VM-0"]`, "EventType", `"REBOOT"`, "EventSource", `"PLATFORM"`)
	for _, tt := range []struct {
		claim  string
		filter Filter
		event  string
		self   string
		want   Verdict
		key    string
	}{
		{"without a key an event of this VM passes", Filter{}, follows, named, Accepted, ""},
		{"without a key an event of others does not", Filter{}, others, named, Refused, "only.vms"},
		{"without a key an event of nobody passes", Filter{}, nobody, named, Accepted, ""},
		{"without a key it depends on the name", Filter{}, leads, unnamed, Undecided, ""},
		{"without a key it passes when there is no name to wait for", Filter{}, others, over, Accepted, ""},
		{"of nobody it does not depend on the name", Filter{}, nobody, unnamed, Accepted, ""},

		{"self takes this VM", only(Match{VMs: "self"}), follows, named, Accepted, ""},
		{"self takes it in any case", only(Match{VMs: "SELF"}), shouted, named, Accepted, ""},
		{"self leaves others", only(Match{VMs: "self"}), others, named, Refused, "only.vms"},
		{"self leaves a VM whose name only looks like this one", only(Match{VMs: "self"}), entry("Resources", `["\u1d65m-0"]`), named, Refused, "only.vms"},
		{"a source that only looks like another passes, as nobody knows it", only(Match{Sources: []string{"Platform"}}),
			entry("EventSource", `"U\u017fer"`), named, Accepted, ""},
		{"and none that is excepted", except(Match{Sources: []string{"User"}}), entry("EventSource", `"U\u017fer"`), named, Accepted, ""},
		{"a type that only looks like another is none that is excepted", except(Match{Types: []string{"Preempt"}}),
			entry("EventType", `"\u0420reempt"`), named, Accepted, ""},
		{"leader takes the first", only(Match{VMs: "leader"}), leads, named, Accepted, ""},
		{"leader leaves the second", only(Match{VMs: "Leader"}), follows, named, Refused, "only.vms"},
		{"leader takes an event of nobody", only(Match{VMs: "leader"}), nobody, named, Accepted, ""},
		{"leader depends on the name", only(Match{VMs: "leader"}), follows, unnamed, Undecided, ""},
		{"leader passes when there is no name to wait for", only(Match{VMs: "leader"}), follows, over, Accepted, ""},
		{"all takes others", only(Match{VMs: "all"}), others, named, Accepted, ""},
		{"names takes a VM by its pattern, in any case", only(Match{VMs: "all", Names: []string{"DB-*", "xVM-*"}}), others, named,
			Accepted, ""},
		{"names leaves the others", only(Match{VMs: "all", Names: []string{"db-*"}}), others, named, Refused, "only.names"},
		{"names takes an event of nobody", only(Match{VMs: "all", Names: []string{"db-*"}}), nobody, named, Accepted, ""},
		{"groups takes a group by its pattern, in any case", only(Match{VMs: "all", Groups: []string{"RG-*"}}), others, named,
			Accepted, ""},
		{"groups leaves the others", only(Match{VMs: "all", Groups: []string{"web"}}), others, named, Refused, "only.groups"},
		{"all in capitals takes others", only(Match{VMs: "ALL"}), others, named, Accepted, ""},
		{"all does not depend on the name", only(Match{VMs: "all"}), others, unnamed, Accepted, ""},

		{"types take what they name", only(Match{Types: []string{"Freeze", "reboot"}}), leads, named, Accepted, ""},
		{"types take it in any case", only(Match{Types: []string{"Reboot"}}), shouted, named, Accepted, ""},
		{"types leave the rest", only(Match{Types: []string{"Freeze"}}), leads, named, Refused, "only.types"},
		{"types let an unknown type pass", only(Match{Types: []string{"Freeze"}}), entry("EventType", `"New"`), named, Accepted, ""},
		{"types let an event without one pass", only(Match{Types: []string{"Freeze"}}), entry("EventType", ""), named, Accepted, ""},
		{"types let one that cannot be read pass", only(Match{Types: []string{"Freeze"}}), entry("EventType", "7"), named, Accepted, ""},
		{"sources take what they name", only(Match{Sources: []string{"user", "PLATFORM"}}), leads, named, Accepted, ""},
		{"sources leave the rest", only(Match{Sources: []string{"User"}}), leads, named, Refused, "only.sources"},
		{"sources let an event without one pass", only(Match{Sources: []string{"User"}}), entry("EventSource", ""), named, Accepted, ""},
		{"sources let an unknown one pass", only(Match{Sources: []string{"User"}}), entry("EventSource", `"Tenant"`), named, Accepted, ""},
		{"all keys must hold, the first that does not is named", only(Match{Types: []string{"Freeze"}, Sources: []string{"User"}}), leads, named, Refused, "only.types"},
		{"a key that refuses needs no name", only(Match{Types: []string{"Freeze"}}), leads, unnamed, Refused, "only.types"},
		{"changes say nothing about the event", only(Match{Changes: []string{"vanished"}}), leads, named, Accepted, ""},

		{"an empty except takes nothing away", except(Match{}), leads, named, Accepted, ""},
		{"except types takes away what they name", except(Match{Types: []string{"reboot"}}), leads, named, Refused, "except"},
		{"except types leaves the rest", except(Match{Types: []string{"Freeze"}}), leads, named, Accepted, ""},
		{"except types leaves what Azure did not send", except(Match{Types: []string{"Reboot"}}), entry("EventType", ""), named, Accepted, ""},
		{"except types leaves an unknown one", except(Match{Types: []string{"Reboot"}}), entry("EventType", `"New"`), named, Accepted, ""},
		{"except sources takes away what they name", except(Match{Sources: []string{"PLATFORM"}}), leads, named, Refused, "except"},
		{"except sources leaves what Azure did not send", except(Match{Sources: []string{"Platform"}}), entry("EventSource", ""), named, Accepted, ""},
		{"except takes away only what all its keys name", except(Match{Types: []string{"Reboot"}, Sources: []string{"User"}}), leads, named, Accepted, ""},
		{"except takes away what all its keys name", except(Match{Types: []string{"Reboot"}, Sources: []string{"Platform"}}), leads, named, Refused, "except"},
		{"except self takes away this VM's", except(Match{VMs: "self"}), follows, named, Refused, "except"},
		{"except self leaves those of others", except(Match{VMs: "self"}), others, named, Accepted, ""},
		{"except self leaves those of nobody", except(Match{VMs: "self"}), nobody, named, Accepted, ""},
		{"except self depends on the name", except(Match{VMs: "self"}), leads, unnamed, Undecided, ""},
		{"except self leaves what nobody can decide", except(Match{VMs: "self"}), leads, over, Accepted, ""},
		{"except leader takes away what this VM leads", except(Match{VMs: "leader"}), leads, named, Refused, "except"},
		{"except leader leaves what another leads", except(Match{VMs: "leader"}), follows, named, Accepted, ""},
		{"except all with types takes them away from everyone", except(Match{VMs: "all", Types: []string{"Reboot"}}), others, named, Refused, "except"},
		{"except all with types takes them away from nobody too", except(Match{VMs: "all", Types: []string{"Reboot"}}), nobody, unnamed, Refused, "except"},
		{"except self with types depends on the name only for these", except(Match{VMs: "self", Types: []string{"Freeze"}}), leads, unnamed, Accepted, ""},
		{"except with changes is asked of each change", except(Match{Types: []string{"Reboot"}, Changes: []string{"started"}}), leads, named, Accepted, ""},

		{"when takes what it accepts", when(`azeventtype == "Reboot" and severity >= 17`), leads, named, Accepted, ""},
		{"when leaves what it refuses", when(`notice < 60`), leads, named, Refused, "when"},
		{"when sees into data", when(`data.event.Description contains "maintenance"`), leads, named, Accepted, ""},
		{"when sees the list of names", when(`len(resources) == 2 and "vm-1" in resources`), leads, named, Accepted, ""},
		{"when sees names that the language has functions for", when(`first and duration == -1 and type endsWith ".scheduled"`), leads, named, Accepted, ""},
		{"when leaves what it asks for in vain", when(`data.test`), leads, named, Refused, "when"},
		{"when needs no name to refuse", Filter{When: condition(t, `false`)}, leads, unnamed, Refused, "when"},
		{"when does not replace a name", Filter{When: condition(t, `true`)}, leads, unnamed, Undecided, ""},
		{"when comes after the keys of only", Filter{Only: Match{Types: []string{"Freeze"}}, When: condition(t, `false`)}, leads, named, Refused, "only.types"},
		{"except takes away what when accepts", Filter{Except: Match{Types: []string{"Reboot"}}, When: condition(t, `true`)}, leads, named, Refused, "except"},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			c := imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, tt.event)}
			self := strings.TrimPrefix(tt.self, over)
			fields := cloudevent.Fields(said(t, c, cloudevent.Circumstances{Observer: imds.Observer{Name: self, ResourceGroup: "rg-prod"}}))
			v, key, err := tt.filter.Event(c, fields, self, tt.self == over)
			if v != tt.want || key != tt.key || err != nil {
				t.Errorf("verdict %v by %q, %v, want %v by %q", v, key, err, tt.want, tt.key)
			}
		})
	}
}

// A when that fails while it is asked lets the event pass, and says why.
func TestWhenThatFailsLetsTheEventPass(t *testing.T) {
	c := imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, entry())}
	fields := cloudevent.Fields(said(t, c, cloudevent.Circumstances{Observer: imds.Observer{Name: "vm-0"}}))
	for _, src := range []string{
		`data.event.Impact.level > 3`, `data.event.Resources[7] == "vm-0"`, `data.event.Description > 3`, `data.event.EventType`,
		`data.event`, `data.event.DurationInSeconds`, `int(data.event.Description) > 0`, `resources[9] == "x"`,
	} {
		v, key, err := Filter{When: condition(t, src)}.Event(c, fields, "vm-0", false)
		if v != Accepted || key != "" || err == nil {
			t.Errorf("%s: verdict %v by %q, %v, want that it passes with an error", src, v, key, err)
		}
	}
	freezes := Filter{When: condition(t, `azeventtype == "Freeze"`)}
	const unread = "the CloudEvent can't be read"
	if v, _, err := freezes.Event(c, nil, "vm-0", false); v != Accepted || fmt.Sprint(err) != unread {
		t.Errorf("without the fields: verdict %v, %v, want that it passes, and %s", v, err, unread)
	}
	f := Filter{When: condition(t, `data.event`), Except: Match{Types: []string{"Reboot"}}}
	if v, key, err := f.Event(c, fields, "vm-0", false); v != Refused || key != "except" || err == nil {
		t.Errorf("with an except that fits: verdict %v by %q, %v", v, key, err)
	}
}

// A when that cannot work is refused as soon as it is read.
func TestWhenThatCannotWorkIsRefused(t *testing.T) {
	for _, src := range []string{
		``, ` `, `severity >`, `severity`, `"true"`, `notice > "15m"`, `azeventtipe == "Reboot"`, `azeventtype = "Reboot"`,
		`azeventtype == 7`, `azself and severity`, `(true`, `resources == "vm-0"`, `unknown(3)`,
	} {
		if w, err := ParseWhen(src); err == nil {
			t.Errorf("%q is taken: %v", src, w)
		} else if strings.TrimSpace(err.Error()) == "" {
			t.Errorf("%q is refused without a word", src)
		}
	}
	if _, err := ParseWhen(`severity >= 17 and azeventtipe == "x"`); err == nil || !strings.Contains(err.Error(), "azeventtipe") {
		t.Errorf("the error does not say what is wrong: %v", err)
	}
}

// Every name that conditions may use can be used.
func TestWhenSeesEveryName(t *testing.T) {
	fields := cloudevent.Fields(said(t, imds.Change{Kind: imds.Scheduled, Event: azureEvent(t, entry())}, cloudevent.Circumstances{Observer: imds.Observer{Name: "vm-0"}}))
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		w := condition(t, name+` == `+name+` and (`+name+` != nil)`)
		if ok, err := w.holds(fields); !ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
}

// only.changes and except.changes are asked of each change by itself.
func TestFilterDecidesAboutEachChange(t *testing.T) {
	was := azureEvent(t, entry())
	scheduled := imds.Change{Kind: imds.Scheduled, Event: was}
	updated := imds.Change{Kind: imds.Updated, Event: was, Previous: &was}
	started := imds.Change{Kind: imds.Started, Event: was, Previous: &was}
	sudden := imds.Change{Kind: imds.Started, Event: was}
	vanished := imds.Change{Kind: imds.Vanished, Event: was}
	only := func(changes ...string) Filter { return Filter{Only: Match{Changes: changes}} }
	except := func(m Match, changes ...string) Filter { m.Changes = changes; return Filter{Except: m} }
	all := []imds.Change{scheduled, updated, started, sudden, vanished}
	for _, tt := range []struct {
		claim  string
		filter Filter
		self   string
		wants  []imds.Change
		key    string // that refuses the others
	}{
		{"without a key all are wanted", Filter{}, "vm-0", all, ""},
		{"the other keys say nothing about it", Filter{Only: Match{VMs: "leader", Types: []string{"Freeze"}}, Except: Match{Types: []string{"Reboot"}}}, "vm-9", all, ""},
		{"only scheduled", only("scheduled"), "vm-0", []imds.Change{scheduled}, "only.changes"},
		{"only started, from whatever it was", only("Started"), "vm-0", []imds.Change{started, sudden}, "only.changes"},
		{"only updated and vanished", only("UPDATED", "vanished"), "vm-0", []imds.Change{updated, vanished}, "only.changes"},
		{"only what comes first", only("first"), "vm-0", []imds.Change{scheduled, sudden}, "only.changes"},
		{"what comes first, and the end", only("First", "vanished"), "vm-0", []imds.Change{scheduled, sudden, vanished}, "only.changes"},
		{"all but vanished", except(Match{}, "Vanished"), "vm-0", []imds.Change{scheduled, updated, started, sudden}, "except.changes"},
		{"all but what comes first", except(Match{}, "first"), "vm-0", []imds.Change{updated, started, vanished}, "except.changes"},
		{"except with types, of these", except(Match{Types: []string{"reboot"}}, "updated"), "vm-0", []imds.Change{scheduled, started, sudden, vanished}, "except.changes"},
		{"except with types, of no other", except(Match{Types: []string{"Freeze"}}, "updated"), "vm-0", all, ""},
		{"except with sources, of these", except(Match{Sources: []string{"Platform"}}, "updated"), "vm-0", []imds.Change{scheduled, started, sudden, vanished}, "except.changes"},
		{"except with sources, of no other", except(Match{Sources: []string{"User"}}, "updated"), "vm-0", all, ""},
		{"except with self, of this VM", except(Match{VMs: "self"}, "started"), "vm-1", []imds.Change{scheduled, updated, vanished}, "except.changes"},
		{"except with self, of no other", except(Match{VMs: "self"}, "started"), "vm-9", all, ""},
		{"except with self, of nobody as long as there is no name", except(Match{VMs: "self"}, "started"), "", all, ""},
		{"except with all, of every VM", except(Match{VMs: "all"}, "started"), "", []imds.Change{scheduled, updated, vanished}, "except.changes"},
		{"both", Filter{Only: Match{Changes: []string{"first", "vanished"}}, Except: Match{Changes: []string{"started"}}}, "vm-0", []imds.Change{scheduled, vanished}, ""},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			for _, c := range all {
				want := slices.ContainsFunc(tt.wants, func(w imds.Change) bool { return w.Kind == c.Kind && w.Previous == c.Previous })
				ok, key := tt.filter.Change(c, tt.self)
				if ok != want || ok && key != "" || !ok && tt.key != "" && key != tt.key {
					t.Errorf("%s with something before %v: %v by %q, want %v by %q", c.Kind, c.Previous != nil, ok, key, want, tt.key)
				}
			}
		})
	}
}

// About the bridge a route hears nothing, the trouble and its end, or all.
func TestLevelSaysWhatIsHeardOfTheBridge(t *testing.T) {
	trouble := []string{cloudevent.SinkBlocked, cloudevent.SinkRecovered, cloudevent.IMDSUnavailable, cloudevent.IMDSRecovered, cloudevent.OutboxUnwritable, cloudevent.OutboxWritable, cloudevent.DeliveryDeadLettered, cloudevent.ObserverSilent, cloudevent.ObserverBack}
	rest := []string{cloudevent.BridgeStarted, cloudevent.BridgeStopping, cloudevent.BridgeHeartbeat, cloudevent.DeliveryDropped, cloudevent.SettingsLoaded,
		cloudevent.ChainHead}
	for level, want := range map[Level]struct{ trouble, rest bool }{
		"": {}, LevelNone: {}, LevelTrouble: {trouble: true}, LevelAll: {trouble: true, rest: true},
	} {
		for _, typ := range trouble {
			if got := level.Hears(typ); got != want.trouble {
				t.Errorf("%q hears %s: %v", level, typ, got)
			}
		}
		for _, typ := range rest {
			if got := level.Hears(typ); got != want.rest {
				t.Errorf("%q hears %s: %v", level, typ, got)
			}
		}
	}
}

// entry returns an event as Azure sends it, with some fields replaced by others or, by "", left out.
func entry(fields ...string) string {
	f := map[string]string{
		"EventId": `"` + idA + `"`, "EventStatus": `"Scheduled"`, "EventType": `"Reboot"`, "ResourceType": `"VirtualMachine"`,
		"Resources": `["vm-0","vm-1"]`, "NotBefore": `"Sat, 21 Nov 2026 04:10:00 GMT"`,
		"Description": `"Host server is undergoing maintenance."`, "EventSource": `"Platform"`, "DurationInSeconds": `-1`,
	}
	order := []string{"EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore", "Description", "EventSource", "DurationInSeconds"}
	for i := 0; i < len(fields); i += 2 {
		if _, ok := f[fields[i]]; !ok {
			order = append(order, fields[i])
		}
		f[fields[i]] = fields[i+1]
	}
	var members []string
	for _, name := range order {
		if f[name] != "" {
			members = append(members, fmt.Sprintf("%q:%s", name, f[name]))
		}
	}
	return "{" + strings.Join(members, ",") + "}"
}

// azureEvent returns the event whose entry is raw.
func azureEvent(t testing.TB, raw string) imds.Event {
	t.Helper()
	e, err := imds.UnmarshalEvent(json.RawMessage(raw))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// said returns the CloudEvent for a change.
func said(t testing.TB, c imds.Change, in cloudevent.Circumstances) event.Event {
	t.Helper()
	in.Time = time.Date(2026, 11, 21, 3, 55, 29, 0, time.UTC)
	ce, err := cloudevent.Wrap(c, in)
	if err != nil {
		t.Fatal(err)
	}
	return ce
}

// only.groups takes the events that an observer in one of the groups saw, and those of which the group is not known.
func TestOnlyGroupsAsksForTheGroupOfTheObserver(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		here, elsewhere, early := &ear{}, &ear{}, &ear{}
		groups := func(e *ear, name string, patterns ...string) Route {
			r := e.all(name)
			r.Filter.Only.Groups = patterns
			return r
		}
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 403}) // so that nobody knows the group
		b := s.start(groups(early, "early", "rg-prod"))
		s.reboot(idA)
		pause(5 * time.Second)
		wantIDs(t, early.ids(), idA+"-scheduled")
		b.end()
		s.azure.ClearFaults()
		b = s.start(groups(here, "here", "rg-prod", "EMU*"), groups(elsewhere, "elsewhere", "rg-prod"))
		pause(5 * time.Second)
		s.reboot(idB)
		pause(5 * time.Second)
		if !slices.Contains(here.ids(), idB+"-scheduled") || slices.Contains(elsewhere.ids(), idB+"-scheduled") {
			t.Errorf("the sink of this group heard %q, that of another %q", here.ids(), elsewhere.ids())
		}
		b.end()
	})
}
