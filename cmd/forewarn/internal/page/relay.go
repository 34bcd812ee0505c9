package page

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/bridge/relay"
	"forewarn/cmd/forewarn/internal/fleet"
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
	SetURL, GroupURL string // the page of the set, and of the group, alone
	State            string // silent, stopped, or ""
}

// filterOf reads the filter of a page from its address: ?set=PATTERN&group=PATTERN.
func filterOf(q url.Values) fleet.Filter {
	return fleet.Filter{Set: imds.CutText(q.Get("set"), maxPattern), Group: imds.CutText(q.Get("group"), maxPattern)}
}

// maxPattern is more than any name that Azure permits, in bytes.
const maxPattern = 200

// filterURL is the address of the page with a filter.
func filterURL(f fleet.Filter) string {
	q := url.Values{}
	for name, value := range map[string]string{"set": f.Set, "group": f.Group} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return "/?" + q.Encode()
}

// filtered says what a page with a filter shows; "" without one.
func filtered(f fleet.Filter) string {
	var parts []string
	for _, part := range []struct{ name, value string }{{"set", f.Set}, {"resource group", f.Group}} {
		if part.value != "" {
			parts = append(parts, part.name+" "+wording.Printable(part.value))
		}
	}
	return strings.Join(parts, ", ")
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
			Started: vm.Started, When: p.moment(vm.NotBefore), Heard: p.moment(vm.LastHeard)}
		row.SetURL, row.GroupURL = filterURL(fleet.Filter{Set: vm.Set}), filterURL(fleet.Filter{Group: vm.Group})
		switch {
		case vm.Silent:
			row.State = "silent"
		case vm.Stopped:
			row.State = "stopped"
		}
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
	// Histories returns the events of the last days, oldest first, and whether there are older ones. After an error they
	// lack their deliveries.
	Histories(context.Context, bridge.Period) (histories []bridge.EventHistory, more bool, err error)
	// List returns at most n of the selected deliveries, oldest first, and how many more there are.
	List(ctx context.Context, sel relay.Selection, n int) (list []relay.Entry, more int, err error)
}

// RelayHandler serves what Handler does, for a relay.
func RelayHandler(r Relay, metrics http.Handler, listen string) http.Handler {
	dead := lastDead{relay: r}
	history := newPast(func(time.Time) ([]bridge.EventHistory, bool, error) {
		ctx, cancel := context.WithTimeout(context.Background(), relayTimeout)
		defer cancel()
		return r.Histories(ctx, bridge.Period{})
	})
	return handler(r, func() pageFacts {
		f := pageFacts{Status: r.Status()}
		history.show(&f, time.Now().String()) // another relay may have delivered something
		f.Dead, f.MoreDead = dead.read(f.Status.Outbox.DeadLetters)
		return f
	}, metrics, listen)
}

// lastDead are the newest dead letters of a relay. They are in a stream, so they are read again only when their number
// has changed, or now and then.
type lastDead struct {
	relay Relay

	mu    sync.Mutex // guards the fields below
	count int
	at    time.Time
	last  []outbox.Delivery
	more  int
}

const (
	relayTimeout = 5 * time.Second // for what the page shows of JetStream
	deadAge      = time.Minute     // how long dead letters are shown without a look whether they are others
)

func (d *lastDead) read(count int) (last []outbox.Delivery, more int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if count == d.count && time.Since(d.at) < deadAge {
		return d.last, d.more
	}
	d.count, d.at, d.last, d.more = count, time.Now(), nil, 0
	if count == 0 {
		return nil, 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), relayTimeout)
	defer cancel()
	all, _, err := d.relay.List(ctx, relay.Selection{State: outbox.StateDead}, math.MaxInt)
	if err != nil {
		return nil, 0 // the status says what is wrong with the servers
	}
	d.more = max(0, len(all)-shownDead)
	for _, e := range all[d.more:] {
		d.last = append(d.last, outbox.Delivery{Key: e.Key, Route: e.Sink, Item: e.Item, State: e.State, Reason: e.Reason,
			Overtaken: e.Overtaken, DeadSince: e.DeadSince})
	}
	return d.last, d.more
}
