package bridge_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
)

// condition returns a compiled when.
func mustParseWhen(t *testing.T, src string) *bridge.When {
	t.Helper()
	w, err := bridge.ParseWhen(src)
	must(t, err)
	return w
}

// Each key of only, except and when decides as the settings say. What Azure did not send, and what nobody knows yet,
// passes: better twice than never.
func TestFilterDecidesAboutAnAzureEvent(t *testing.T) {
	const named, unnamed = "vm-0", ""
	only := func(o bridge.Only) bridge.Filter { return bridge.Filter{Only: o} }
	except := func(x bridge.Except) bridge.Filter { return bridge.Filter{Only: bridge.Only{VMs: "all"}, Except: x} }
	when := func(src string) bridge.Filter {
		return bridge.Filter{Only: bridge.Only{VMs: "all"}, When: mustParseWhen(t, src)}
	}
	leads := documentEntry()
	follows := documentEntry("Resources", `["vm-1","vm-0"]`)
	others := documentEntry("Resources", `["vm-1","vm-01","xvm-0"]`)
	nobody := documentEntry("Resources", "")
	shouted := documentEntry("Resources", `["VM-0"]`, "EventType", `"REBOOT"`, "EventSource", `"PLATFORM"`)
	for _, tt := range []struct {
		claim  string
		filter bridge.Filter
		event  string
		self   string
		key    string // that refuses; "" if the event passes
	}{
		{"without a key an event of this VM passes", bridge.Filter{}, follows, named, ""},
		{"without a key an event of others does not", bridge.Filter{}, others, named, "only.vms"},
		{"without a key an event of nobody passes", bridge.Filter{}, nobody, named, ""},
		{"without a key it passes when nobody knows the name", bridge.Filter{}, others, unnamed, ""},
		{"of nobody it does not depend on the name", bridge.Filter{}, nobody, unnamed, ""},

		{"self takes this VM", only(bridge.Only{VMs: "self"}), follows, named, ""},
		{"self takes it in any case", only(bridge.Only{VMs: "SELF"}), shouted, named, ""},
		{"self leaves others", only(bridge.Only{VMs: "self"}), others, named, "only.vms"},
		{"self leaves a VM whose name only looks like this one", only(bridge.Only{VMs: "self"}),
			documentEntry("Resources", `["\u1d65m-0"]`), named, "only.vms"},
		{"a source that only looks like another passes, as nobody knows it", only(bridge.Only{Sources: []string{"Platform"}}),
			documentEntry("EventSource", `"U\u017fer"`), named, ""},
		{"and none that is excepted", except(bridge.Except{Sources: []string{"User"}}),
			documentEntry("EventSource", `"U\u017fer"`), named, ""},
		{"a type that only looks like another is none that is excepted", except(bridge.Except{Types: []string{"Preempt"}}),
			documentEntry("EventType", `"\u0420reempt"`), named, ""},
		{"a severity takes that and higher", only(bridge.Only{VMs: "all", Severity: "warn"}),
			documentEntry("EventSource", `"Platform"`), named, ""},
		{"and none that is lower", only(bridge.Only{VMs: "all", Severity: "ERROR"}),
			documentEntry("EventSource", `"User"`), named, "only.severity"},
		{"when knows severities by their names", when("severity >= WARN and severity <= ERROR"),
			documentEntry("EventSource", `"Platform"`), named, ""},

		{"leader takes the first", only(bridge.Only{VMs: "leader"}), leads, named, ""},
		{"leader leaves the second", only(bridge.Only{VMs: "Leader"}), follows, named, "only.vms"},
		{"leader takes an event of nobody", only(bridge.Only{VMs: "leader"}), nobody, named, ""},
		{"leader passes when nobody knows the name", only(bridge.Only{VMs: "leader"}), follows, unnamed, ""},
		{"all takes others", only(bridge.Only{VMs: "all"}), others, named, ""},
		{"names takes a VM by its pattern, in any case", only(bridge.Only{VMs: "all", Names: []string{"DB-*", "xVM-*"}}), others, named,
			""},
		{"names leaves the others", only(bridge.Only{VMs: "all", Names: []string{"db-*"}}), others, named, "only.names"},
		{"names takes an event of nobody", only(bridge.Only{VMs: "all", Names: []string{"db-*"}}), nobody, named, ""},
		{"groups takes a group by its pattern, in any case", only(bridge.Only{VMs: "all", Groups: []string{"RG-*"}}), others, named,
			""},
		{"groups leaves the others", only(bridge.Only{VMs: "all", Groups: []string{"web"}}), others, named, "only.groups"},
		{"all in capitals takes others", only(bridge.Only{VMs: "ALL"}), others, named, ""},
		{"all does not depend on the name", only(bridge.Only{VMs: "all"}), others, unnamed, ""},

		{"types take what they name", only(bridge.Only{Types: []string{"Freeze", "reboot"}}), leads, named, ""},
		{"types take it in any case", only(bridge.Only{Types: []string{"Reboot"}}), shouted, named, ""},
		{"types leave the rest", only(bridge.Only{Types: []string{"Freeze"}}), leads, named, "only.types"},
		{"types let an unknown type pass", only(bridge.Only{Types: []string{"Freeze"}}),
			documentEntry("EventType", `"New"`), named, ""},
		{"types let an event without one pass", only(bridge.Only{Types: []string{"Freeze"}}),
			documentEntry("EventType", ""), named, ""},
		{"types let one that cannot be read pass", only(bridge.Only{Types: []string{"Freeze"}}),
			documentEntry("EventType", "7"), named, ""},
		{"sources take what they name", only(bridge.Only{Sources: []string{"user", "PLATFORM"}}), leads, named, ""},
		{"sources leave the rest", only(bridge.Only{Sources: []string{"User"}}), leads, named, "only.sources"},
		{"sources let an event without one pass", only(bridge.Only{Sources: []string{"User"}}),
			documentEntry("EventSource", ""), named, ""},
		{"sources let an unknown one pass", only(bridge.Only{Sources: []string{"User"}}),
			documentEntry("EventSource", `"Tenant"`), named, ""},
		{"all keys must hold, the first that does not is named",
			only(bridge.Only{Types: []string{"Freeze"}, Sources: []string{"User"}}), leads, named, "only.types"},
		{"a key that refuses needs no name", only(bridge.Only{Types: []string{"Freeze"}}), leads, unnamed, "only.types"},
		{"changes say nothing about the event", only(bridge.Only{Changes: []string{"vanished"}}), leads, named, ""},

		{"an empty except takes nothing away", except(bridge.Except{}), leads, named, ""},
		{"except types takes away what they name", except(bridge.Except{Types: []string{"reboot"}}), leads, named, "except"},
		{"except types leaves the rest", except(bridge.Except{Types: []string{"Freeze"}}), leads, named, ""},
		{"except types leaves what Azure did not send", except(bridge.Except{Types: []string{"Reboot"}}),
			documentEntry("EventType", ""), named, ""},
		{"except types leaves an unknown one", except(bridge.Except{Types: []string{"Reboot"}}),
			documentEntry("EventType", `"New"`), named, ""},
		{"except sources takes away what they name", except(bridge.Except{Sources: []string{"PLATFORM"}}), leads, named, "except"},
		{"except sources leaves what Azure did not send", except(bridge.Except{Sources: []string{"Platform"}}),
			documentEntry("EventSource", ""), named, ""},
		{"except takes away only what all its keys name", except(bridge.Except{Types: []string{"Reboot"}, Sources: []string{"User"}}),
			leads, named, ""},
		{"except takes away what all its keys name", except(bridge.Except{Types: []string{"Reboot"}, Sources: []string{"Platform"}}),
			leads, named, "except"},
		{"except self takes away this VM's", except(bridge.Except{VMs: "self"}), follows, named, "except"},
		{"except self leaves those of others", except(bridge.Except{VMs: "self"}), others, named, ""},
		{"except self leaves those of nobody", except(bridge.Except{VMs: "self"}), nobody, named, ""},
		{"except self leaves what nobody can decide", except(bridge.Except{VMs: "self"}), leads, unnamed, ""},
		{"except leader takes away what this VM leads", except(bridge.Except{VMs: "leader"}), leads, named, "except"},
		{"except leader leaves what another leads", except(bridge.Except{VMs: "leader"}), follows, named, ""},
		{"except self with types depends on the name only for these", except(bridge.Except{VMs: "self", Types: []string{"Freeze"}}),
			leads, unnamed, ""},
		{"except with changes is asked of each change", except(bridge.Except{Types: []string{"Reboot"}, Changes: []string{"started"}}),
			leads, named, ""},

		{"when takes what it accepts", when(`azeventtype == "Reboot" and severity >= 17`), leads, named, ""},
		{"when leaves what it refuses", when(`notice < 60`), leads, named, "when"},
		{"when sees into data", when(`data.event.Description contains "maintenance"`), leads, named, ""},
		{"when sees the list of names", when(`len(resources) == 2 and "vm-1" in resources`), leads, named, ""},
		{"when sees names that the language has functions for", when(`first and duration == -1 and type endsWith ".scheduled"`),
			leads, named, ""},
		{"when leaves what it asks for in vain", when(`data.test`), leads, named, "when"},
		{"when needs no name to refuse", bridge.Filter{When: mustParseWhen(t, `false`)}, leads, unnamed, "when"},
		{"when comes after the keys of only", bridge.Filter{
			Only: bridge.Only{Types: []string{"Freeze"}},
			When: mustParseWhen(t, `false`),
		}, leads, named, "only.types"},
		{"except takes away what when accepts", bridge.Filter{
			Except: bridge.Except{Types: []string{"Reboot"}},
			When:   mustParseWhen(t, `true`),
		}, leads, named, "except"},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			c := imds.Change{Kind: imds.Scheduled, Event: decodedEvent(t, tt.event)}
			self := imds.Observer{Name: tt.self, ResourceGroup: "rg-prod"}
			fields := cloudevent.Fields(said(t, c, cloudevent.Circumstances{Observer: self}))
			passes, key, err := tt.filter.MatchEvent(c, fields, tt.self)
			if passes != (tt.key == "") || key != tt.key || err != nil {
				t.Errorf("it passes: %t, refused by %q, %v, want that %q refuses", passes, key, err, tt.key)
			}
		})
	}
}

// scheduledAs is the first change of an event with that entry, and its CloudEvent's fields as vm-0 makes it.
func scheduledAs(t *testing.T, entry string) (imds.Change, map[string]any) {
	t.Helper()
	c := imds.Change{Kind: imds.Scheduled, Event: decodedEvent(t, entry)}
	return c, cloudevent.Fields(said(t, c, cloudevent.Circumstances{Observer: imds.Observer{Name: "vm-0"}}))
}

// A when that fails while it is asked lets the event pass, and says why.
func TestWhenThatFailsLetsTheEventPass(t *testing.T) {
	c, fields := scheduledAs(t, documentEntry())
	excepted := bridge.Except{Types: []string{"Reboot"}}
	for _, src := range []string{
		`data.event.Impact.level > 3`, `data.event.Resources[7] == "vm-0"`, `data.event.Description > 3`, `data.event.EventType`,
		`data.event`, `data.event.DurationInSeconds`, `int(data.event.Description) > 0`, `resources[9] == "x"`,
	} {
		when := mustParseWhen(t, src)
		passes, key, err := bridge.Filter{When: when}.MatchEvent(c, fields, "vm-0")
		if !passes || key != "" || err == nil {
			t.Errorf("%s: it passes: %t, refused by %q, %v, want that it passes with an error", src, passes, key, err)
		}
		passes, key, err = bridge.Filter{When: when, Except: excepted}.MatchEvent(c, fields, "vm-0")
		if passes || key != "except" || err == nil {
			t.Errorf("%s: with an except that fits it passes: %t, refused by %q, %v", src, passes, key, err)
		}
	}
}

// A when that cannot work is refused as soon as it is read.
func TestWhenThatCannotWorkIsRefused(t *testing.T) {
	for _, src := range []string{
		``, ` `, `severity >`, `severity`, `"true"`, `notice > "15m"`, `azeventtipe == "Reboot"`, `azeventtype = "Reboot"`,
		`azeventtype == 7`, `azself and severity`, `(true`, `resources == "vm-0"`, `unknown(3)`,
	} {
		w, err := bridge.ParseWhen(src)
		if err == nil || strings.TrimSpace(err.Error()) == "" {
			t.Errorf("%q is taken as %v, or refused without a word: %v", src, w, err)
		}
	}
	_, err := bridge.ParseWhen(`severity >= 17 and azeventtipe == "x"`)
	wantIn(t, "the error", fmt.Sprint(err), "azeventtipe")
}

// Every name that conditions may use can be used.
func TestWhenSeesEveryName(t *testing.T) {
	_, fields := scheduledAs(t, documentEntry())
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		w := mustParseWhen(t, name+` == `+name+` and (`+name+` != nil)`)
		if ok, err := w.Evaluate(fields); !ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
}

// only.changes and except.changes are asked of each change by itself.
func TestFilterDecidesAboutEachChange(t *testing.T) {
	was := decodedEvent(t, documentEntry())
	scheduled := imds.Change{Kind: imds.Scheduled, Event: was}
	updated := imds.Change{Kind: imds.Updated, Event: was, Previous: &was}
	started := imds.Change{Kind: imds.Started, Event: was, Previous: &was}
	sudden := imds.Change{Kind: imds.Started, Event: was}
	vanished := imds.Change{Kind: imds.Vanished, Event: was}
	only := func(changes ...string) bridge.Filter { return bridge.Filter{Only: bridge.Only{Changes: changes}} }
	except := func(x bridge.Except, changes ...string) bridge.Filter {
		x.Changes = changes
		return bridge.Filter{Except: x}
	}
	all := []imds.Change{scheduled, updated, started, sudden, vanished}
	for _, tt := range []struct {
		claim  string
		filter bridge.Filter
		self   string
		wants  []imds.Change
		key    string // that refuses the others
	}{
		{"without a key all are wanted", bridge.Filter{}, "vm-0", all, ""},
		{"the other keys say nothing about it", bridge.Filter{
			Only:   bridge.Only{VMs: "leader", Types: []string{"Freeze"}},
			Except: bridge.Except{Types: []string{"Reboot"}},
		}, "vm-9", all, ""},
		{"only scheduled", only("scheduled"), "vm-0", []imds.Change{scheduled}, "only.changes"},
		{"only started, from whatever it was", only("Started"), "vm-0", []imds.Change{started, sudden}, "only.changes"},
		{"only updated and vanished", only("UPDATED", "vanished"), "vm-0", []imds.Change{updated, vanished}, "only.changes"},
		{"only what comes first", only("first"), "vm-0", []imds.Change{scheduled, sudden}, "only.changes"},
		{"what comes first, and the end", only("First", "vanished"),
			"vm-0", []imds.Change{scheduled, sudden, vanished}, "only.changes"},
		{"all but vanished", except(bridge.Except{}, "Vanished"),
			"vm-0", []imds.Change{scheduled, updated, started, sudden}, "except.changes"},
		{"all but what comes first", except(bridge.Except{}, "first"),
			"vm-0", []imds.Change{updated, started, vanished}, "except.changes"},
		{"except with types, of these", except(bridge.Except{Types: []string{"reboot"}}, "updated"),
			"vm-0", []imds.Change{scheduled, started, sudden, vanished}, "except.changes"},
		{"except with types, of no other", except(bridge.Except{Types: []string{"Freeze"}}, "updated"), "vm-0", all, ""},
		{"except with sources, of these", except(bridge.Except{Sources: []string{"Platform"}}, "updated"),
			"vm-0", []imds.Change{scheduled, started, sudden, vanished}, "except.changes"},
		{"except with sources, of no other", except(bridge.Except{Sources: []string{"User"}}, "updated"), "vm-0", all, ""},
		{"except with self, of this VM", except(bridge.Except{VMs: "self"}, "started"),
			"vm-1", []imds.Change{scheduled, updated, vanished}, "except.changes"},
		{"except with self, of no other", except(bridge.Except{VMs: "self"}, "started"), "vm-9", all, ""},
		{"except with self, of nobody as long as there is no name", except(bridge.Except{VMs: "self"}, "started"), "", all, ""},
		{"both", bridge.Filter{
			Only:   bridge.Only{Changes: []string{"first", "vanished"}},
			Except: bridge.Except{Changes: []string{"started"}},
		}, "vm-0", []imds.Change{scheduled, vanished}, ""},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			for _, c := range all {
				want := slices.ContainsFunc(tt.wants, func(w imds.Change) bool { return w.Kind == c.Kind && w.Previous == c.Previous })
				ok, key := tt.filter.MatchChange(c, tt.self)
				if ok != want || ok && key != "" || !ok && tt.key != "" && key != tt.key {
					t.Errorf("%s with something before %v: %v by %q, want %v by %q", c.Kind, c.Previous != nil, ok, key, want, tt.key)
				}
			}
		})
	}
}

// About the bridge a route hears nothing, the trouble and its end, or all.
func TestLevelSaysWhatIsHeardOfTheBridge(t *testing.T) {
	trouble := []string{
		cloudevent.SinkBlocked, cloudevent.SinkRecovered, cloudevent.IMDSUnavailable, cloudevent.IMDSRecovered,
		cloudevent.OutboxUnwritable, cloudevent.OutboxWritable, cloudevent.DeliveryDeadLettered, cloudevent.ObserverSilent,
		cloudevent.ObserverBack,
	}
	rest := []string{
		cloudevent.BridgeStarted, cloudevent.BridgeStopping, cloudevent.BridgeHeartbeat, cloudevent.DeliveryDropped,
		cloudevent.SettingsLoaded, cloudevent.ChainHead,
	}
	for _, typ := range slices.Concat(trouble, rest) {
		isTrouble := slices.Contains(trouble, typ)
		for level, hears := range map[bridge.Level]bool{
			"": false, bridge.LevelNone: false, bridge.LevelTrouble: isTrouble, bridge.LevelAll: true,
		} {
			wantEqual(t, fmt.Sprintf("at the level %q it hears %s", level, typ), level.Hears(typ), hears)
		}
	}
}

// documentEntry returns an event as Azure sends it, with some fields replaced by others or, by "", left out.
func documentEntry(fields ...string) string {
	entry := map[string]json.RawMessage{
		"EventId": json.RawMessage(`"` + idA + `"`), "EventStatus": json.RawMessage(`"Scheduled"`),
		"EventType": json.RawMessage(`"Reboot"`), "ResourceType": json.RawMessage(`"VirtualMachine"`),
		"Resources": json.RawMessage(`["vm-0","vm-1"]`), "NotBefore": json.RawMessage(`"Sat, 21 Nov 2026 04:10:00 GMT"`),
		"Description": json.RawMessage(`"Host server is undergoing maintenance."`),
		"EventSource": json.RawMessage(`"Platform"`), "DurationInSeconds": json.RawMessage(`-1`),
	}
	for i := 0; i < len(fields); i += 2 {
		entry[fields[i]] = json.RawMessage(fields[i+1])
		if fields[i+1] == "" {
			delete(entry, fields[i])
		}
	}
	return string(imds.CompactJSON(entry))
}

// decodedEvent returns the event whose entry is raw.
func decodedEvent(t testing.TB, raw string) imds.Event {
	t.Helper()
	e, err := imds.UnmarshalEvent(json.RawMessage(raw))
	must(t, err)
	return e
}

// said returns the CloudEvent for a change.
func said(t testing.TB, c imds.Change, in cloudevent.Circumstances) event.Event {
	t.Helper()
	in.Time = time.Date(2026, 11, 21, 3, 55, 29, 0, time.UTC)
	ce, err := cloudevent.Wrap(c, in)
	must(t, err)
	return ce
}

// only.groups takes the events that an observer in one of the groups saw, and those of which the group is not known.
func TestOnlyGroupsAsksForTheGroupOfTheObserver(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		here, elsewhere, early := &recorder{}, &recorder{}, &recorder{}
		groups := func(e *recorder, name string, patterns ...string) bridge.Route {
			r := e.all(name)
			r.Filter.Only.Groups = patterns
			return r
		}
		s.metadata(imdstest.Fault{Status: 403}) // so that nobody knows the group
		b := s.start(groups(early, "early", "rg-prod"))
		s.reboot(idA)
		pause(5 * time.Second)
		wantIDs(t, early.ids(), idA+"-scheduled")
		b.end()
		s.azure.ClearFaults()
		s.start(groups(here, "here", "rg-prod", "EMU*"), groups(elsewhere, "elsewhere", "rg-prod"))
		pause(5 * time.Second)
		s.reboot(idB)
		pause(5 * time.Second)
		if !slices.Contains(here.ids(), idB+"-scheduled") || slices.Contains(elsewhere.ids(), idB+"-scheduled") {
			t.Errorf("the sink of this group heard %q, that of another %q", here.ids(), elsewhere.ids())
		}
	})
}
