package bridge_test

import (
	"context"
	"fmt"
	"testing"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// What a program that embeds the bridge gets wrong is an error of New and of Reload. Nothing of it is ignored, because a
// route that is left out is silent, and a condition that is left out approves more than was meant.
func TestRoutesAndRulesThatCannotBeUsedAreRefused(t *testing.T) {
	ops := (&recorder{}).all("ops")
	route := func(change func(*bridge.Route)) []bridge.Route {
		r := (&recorder{}).all("chat")
		change(&r)
		return []bridge.Route{ops, r}
	}
	rule := func(vms, except string) []bridge.Rule {
		return []bridge.Rule{{Name: "drain first", Only: bridge.Match{VMs: vms, Types: []string{"Reboot"}}, Except: bridge.Match{VMs: except}}}
	}
	for name, tt := range map[string]struct {
		routes []bridge.Route
		rules  []bridge.Rule
		why    string
	}{
		"two routes of one name": {route(func(r *bridge.Route) { r.Name = "ops" }), nil, `route "ops": there are two`},
		"a name with a space":    {route(func(r *bridge.Route) { r.Name = "the ops" }), nil, `route "the ops": a name consists of`},
		"no sink":                {route(func(r *bridge.Route) { r.Sink = nil }), nil, `route "chat" has no sink`},
		"unknown VMs":            {route(func(r *bridge.Route) { r.Filter.Only.VMs = "slef" }), nil, `only.vms is "slef"`},
		"except all VMs":         {route(func(r *bridge.Route) { r.Filter.Except.VMs = "all" }), nil, `except.vms is "all"`},
		"a rule for unknown VMs": {nil, rule("slef", ""), `only.vms is "slef"`},
		"a rule for all VMs":     {nil, rule("all", ""), `rule "drain first": only.vms is "all"`},
		"except unknown VMs":     {nil, rule("self", "others"), `except.vms is "others"`},
		"a rule but for an unknown type": {nil, []bridge.Rule{{Except: bridge.Match{Types: []string{"Restart"}}}},
			`except.types has "Restart"`},
		"a rule but for an unknown source": {nil, []bridge.Rule{{Except: bridge.Match{Sources: []string{"Azure"}}}},
			`except.sources has "Azure"`},
		"an unknown type":        {route(func(r *bridge.Route) { r.Filter.Only.Types = []string{"Restart"} }), nil, `only.types has "Restart"`},
		"an unknown source":      {route(func(r *bridge.Route) { r.Filter.Only.Sources = []string{"Azure"} }), nil, `only.sources has "Azure"`},
		"an unknown change":      {route(func(r *bridge.Route) { r.Filter.Only.Changes = []string{"First", "schedule"} }), nil, `only.changes has "schedule"`},
		"except unknown changes": {route(func(r *bridge.Route) { r.Filter.Except.Changes = []string{"end"} }), nil, `except.changes has "end"`},
		"a malformed name":       {route(func(r *bridge.Route) { r.Filter.Only.Names = []string{"vm-*", "vm-["} }), nil, `only.names has "vm-["`},
		"an empty name":          {route(func(r *bridge.Route) { r.Filter.Only.Names = []string{""} }), nil, `only.names has ""`},
		"a malformed group":      {route(func(r *bridge.Route) { r.Filter.Only.Groups = []string{"[a-"} }), nil, `only.groups has "[a-"`},
		"an unknown level":       {route(func(r *bridge.Route) { r.Terms.Bridge = "troble" }), nil, `bridge is "troble"`},
		"an unknown late":        {route(func(r *bridge.Route) { r.Terms.Late = "latests" }), nil, `late is "latests"`},
	} {
		t.Run(name, func(t *testing.T) {
			box, err := outbox.Open(t.TempDir(), outbox.Options{})
			must(t, err)
			defer box.Close()
			client := imds.NewClient("http://azure.test", imds.DefaultAPIVersion, nil, nil)
			_, err = bridge.New(bridge.Options{Client: client, Outbox: box, Routes: tt.routes, Rules: tt.rules})
			wantIn(t, "New", fmt.Sprint(err), tt.why)
			b, err := bridge.New(bridge.Options{Client: client, Outbox: box, Routes: []bridge.Route{ops}})
			must(t, err)
			canceled, cancel := context.WithCancel(t.Context())
			cancel() // the bridge doesn't run, so nothing ends the wait of a reload that is not refused
			wantIn(t, "Reload", fmt.Sprint(b.Reload(canceled, tt.routes, tt.rules, bridge.SettingsInfo{})), tt.why)
		})
	}
	client := imds.NewClient("http://azure.test", imds.DefaultAPIVersion, nil, nil)
	_, err := bridge.New(bridge.Options{Client: client, Outbox: new(outbox.Outbox), Interval: -1})
	wantIn(t, "New with a negative interval", fmt.Sprint(err), "the interval is -1ns")
	_, err = bridge.New(bridge.Options{})
	wantIn(t, "New without a client", fmt.Sprint(err), "a Client and an Outbox")
}
