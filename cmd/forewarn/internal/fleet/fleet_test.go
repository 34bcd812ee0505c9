package fleet_test

import (
	"strings"
	"testing"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/fleet"
)

// A relay shows of the fleet the scale sets and resource groups that are asked for, and changes nothing of what it was
// given.
func TestOfAFleetWhatIsAskedForIsShown(t *testing.T) {
	s := bridge.Status{
		Events: []bridge.EventStatus{{Known: imds.Event{ID: "E1"}, Set: "web-1", Group: "prod"}, {Known: imds.Event{ID: "E2"}, Set: "db", Group: "prod"},
			{Known: imds.Event{ID: "E3"}}},
		Relay: &bridge.RelayStatus{VMs: []bridge.FleetVM{{Name: "a", Set: "web-1", Group: "prod"}, {Name: "b", Set: "Web-2", Group: "test"},
			{Name: "c", Set: "db", Group: "prod"}, {Name: "d"}}},
	}
	lives := []bridge.EventHistory{{Event: "E1", Set: "web-1", Group: "prod"}, {Event: "E2", Set: "db", Group: "prod"}, {Event: "E3"}}
	for _, tt := range []struct {
		filter            fleet.Filter
		vms, events, past string
	}{
		{fleet.Filter{}, "a b c d", "E1 E2 E3", "E1 E2 E3"},
		{fleet.Filter{Set: "web*"}, "a b", "E1", "E1"},
		{fleet.Filter{Group: "PROD"}, "a c", "E1 E2", "E1 E2"},
		{fleet.Filter{Set: "web*", Group: "test"}, "b", "", ""},
		{fleet.Filter{Set: "web"}, "", "", ""},
	} {
		got := tt.filter.Status(s)
		var vms, events, past []string
		for _, v := range got.Relay.VMs {
			vms = append(vms, v.Name)
		}
		for _, e := range got.Events {
			events = append(events, e.Known.ID)
		}
		for _, h := range tt.filter.Histories(lives) {
			past = append(past, h.Event)
		}
		if a, b, c := strings.Join(vms, " "), strings.Join(events, " "), strings.Join(past, " "); a != tt.vms || b != tt.events || c != tt.past {
			t.Errorf("%+v shows the VMs %q, the events %q and the histories %q; want %q, %q and %q", tt.filter, a, b, c, tt.vms, tt.events, tt.past)
		}
	}
	if len(s.Relay.VMs) != 4 || len(s.Events) != 3 || len(lives) != 3 || s.Relay.VMs[3].Name != "d" || lives[2].Event != "E3" {
		t.Errorf("what was given is now %+v, %+v, %+v", s.Relay.VMs, s.Events, lives)
	}
	s.Relay = nil // of a bridge
	if got := (fleet.Filter{Set: "web*"}).Status(s); len(got.Events) != 3 || got.Relay != nil {
		t.Errorf("of a bridge it shows the events %+v, want all", got.Events)
	}
}
