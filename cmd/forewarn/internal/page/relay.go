package page

import (
	"net/http"
	"strings"

	"forewarn/bridge"
	"forewarn/cmd/forewarn/internal/wording"
)

// shownVMs limits the list of VMs on the page.
const shownVMs = 200

// A fleetVM is one VM of a fleet.
type fleetVM struct {
	Name, Set, Group string
	Event            string // the first that names it, "" for none
	More             int    // number of further events
	Started          bool
	When             moment // the nearest NotBefore
	Heard            moment
}

// fleet adds what a relay's page has beside a bridge's.
func (p pageWriter) fleet(v *pageView, r *bridge.RelayStatus) {
	var relays []string
	for _, peer := range r.Relays {
		relays = append(relays, wording.Printable(peer.Name))
	}
	v.Name, v.Endpoint, v.Outbox = "Relay "+wording.Printable(r.Name), "", ""
	v.Place = wording.Plural(len(r.VMs), "VM", "VMs")
	v.Answering = "Stream " + wording.Printable(r.Stream) + ", relays " + strings.Join(relays, ", ")
	for _, vm := range wording.First(r.VMs, shownVMs) {
		row := fleetVM{Name: wording.Printable(vm.Name), Set: wording.Printable(vm.Set), Group: wording.Printable(vm.Group),
			Started: vm.Started, When: p.moment(vm.NotBefore), Heard: p.moment(vm.Heard)}
		if len(vm.Events) > 0 {
			row.Event, row.More = wording.Printable(vm.Events[0]), len(vm.Events)-1
		}
		v.VMs = append(v.VMs, row)
	}
	v.MoreVMs = len(r.VMs) - len(v.VMs)
}

// A Relay is a Source that knows the events of a fleet.
type Relay interface {
	Source
	// Histories returns the events of the last days, oldest first, and whether there are older ones.
	Histories(bridge.Period) (histories []bridge.EventHistory, more bool)
}

// RelayHandler serves what Handler does, for a relay.
func RelayHandler(r Relay, metrics http.Handler, listen string) http.Handler {
	return handler(r, func() pageFacts {
		f := pageFacts{Status: r.Status()}
		f.Histories, f.MoreHistories = r.Histories(bridge.Period{})
		return f
	}, metrics, listen)
}
