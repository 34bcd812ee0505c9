package page

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/fleet"
	"forewarn/cmd/forewarn/internal/wording"
)

// pageFacts are the facts that the page shows, at one time.
type pageFacts struct {
	Status        bridge.Status
	Histories     []bridge.EventHistory // events of at least the last 30 days, oldest first
	MoreHistories bool                  // there are older ones
	Dead          []outbox.Delivery     // the newest dead letters, oldest first
	MoreDead      int                   // number of older dead letters
	Err           error                 // of reading the history
	Filter        fleet.Filter          // what of a fleet is shown
}

// pageView is the content of the page, ready for its template.
type pageView struct {
	Live  bool // the script fills in the countdowns
	Build string
	Title string
	Name  string // of the VM
	Place string
	// Filter says which part of a fleet is shown; "" for all of it, and of a bridge.
	Filter string
	Now    moment
	Ready  bool
	Needs  string // how many troubles there are, in words; "" for none
	Lost   string // how many dead letters there are, in words; "" for none
	Plans  string // what Azure announces, in one line; "" if unknown

	Troubles  []troubleView
	Dead      []deadView
	MoreDead  int // number left out of Dead
	Events    []eventView
	MoreRows  []eventRow // the events that are left out of Events
	OfFleet   bool       // the page is a relay's
	More      int        // number of events in neither
	Note      string     // why there are no events, or how old they are
	Timeline  timelineView
	Sinks     []sinkView
	MoreSinks int // number left out of Sinks
	Mutes     []muteView
	VMs       []fleetVM
	MoreVMs   int // number left out of VMs
	Started   moment
	Version   string
	Endpoint  string
	Answering string
	Outbox    string
	Settings  string
	Loaded    moment
}

// A deadView is a dead letter.
type deadView struct {
	Key, What, Why string
	Since          moment
}

// A muteView is a mute and the command that ends it.
type muteView struct{ Note, Command string }

// A sinkView is one sink.
type sinkView struct {
	Name, Kind, Class, State, Error string

	Pending     int
	Oldest      countdown
	Delivered   int
	DeadLetters int
	Accepted    moment
	Next        countdown
}

// Limits of the lists on the page.
const (
	shownDead   = 10
	shownEvents = 10 // as cards
	shownRows   = 50
	shownSinks  = 200
)

// A pageWriter turns facts into the content of the page.
type pageWriter struct {
	now  time.Time
	zone *time.Location
	live bool // leave countdowns to the script
}

// view returns the content of the page for f.
func (p pageWriter) view(f pageFacts) pageView {
	f.Status, f.Histories = f.Filter.Status(f.Status), f.Filter.Histories(f.Histories)
	s := f.Status
	v := pageView{
		Live: p.live, Name: p.name(s.Observer.Name), Now: p.moment(p.now),
		Version: wording.Printable(s.Version), Started: p.moment(s.StartedAt),
		Endpoint: wording.Printable(s.IMDS.Endpoint) + ", api-version " + wording.Printable(s.IMDS.APIVersion),
		Outbox:   fmt.Sprintf("%d KiB", s.Outbox.Bytes>>10),
		Settings: wording.Printable(s.Settings.Hash), Loaded: p.moment(s.Settings.LoadedAt),
	}
	var place []string
	for _, part := range []string{s.Observer.ResourceGroup, s.Observer.ScaleSet, s.Observer.Location} {
		if part != "" {
			place = append(place, wording.Printable(part))
		}
	}
	v.Place = strings.Join(place, " · ")
	v.Answering = "Azure answers"
	switch {
	case s.IMDS.LastAnswer.IsZero():
		v.Answering = "Azure has not answered yet"
	case s.IMDS.LastError != "":
		v.Answering = "Azure does not answer; last answer at " + p.moment(s.IMDS.LastAnswer).Text
	}
	if s.Relay != nil {
		v.OfFleet = true
		p.fleet(&v, s.Relay)
		v.Filter = filtered(f.Filter)
	}
	v.Troubles = p.troubles(f)
	for _, e := range slices.Backward(f.Dead) { // the newest first
		v.Dead = append(v.Dead, p.dead(e))
	}
	v.Dead = wording.First(v.Dead, shownDead)
	v.MoreDead = f.MoreDead + len(f.Dead) - len(v.Dead)
	byUrgency := wording.ByUrgency(s.Events)
	cards := wording.First(byUrgency, shownEvents)
	for _, e := range cards {
		v.Events = append(v.Events, p.event(e, s.Observer, f.Histories))
	}
	v.MoreRows, v.More = p.eventRows(byUrgency[len(cards):])
	sort.SliceStable(v.Events, func(i, j int) bool { // what has begun first, then the nearest
		a, b := v.Events[i], v.Events[j]
		return cmp.Or(-cmp.Compare(boolToInt(a.Begun), boolToInt(b.Begun)), cmp.Compare(soon(a), soon(b))) < 0
	})
	v.Note = p.note(s)
	v.Timeline = p.timeline(f)
	for _, k := range wording.First(wording.ByNeed(s.Sinks, p.now), shownSinks) {
		v.Sinks = append(v.Sinks, p.sink(k))
	}
	v.MoreSinks = len(s.Sinks) - len(v.Sinks)
	for _, m := range wording.First(s.Mutes, shownRows) {
		v.Mutes = append(v.Mutes, muteView{wording.MuteNote(*m, s.Sinks, p.now, p.zone), wording.Sudo + "forewarn unmute " + m.ID})
	}
	v.Ready, v.Plans = s.Ready, p.plans(s)
	if n := len(v.Troubles); n > 0 {
		v.Needs = wording.Plural(n, "thing needs you", "things need you")
	}
	if n := len(f.Dead) + f.MoreDead; n > 0 {
		v.Lost = wording.Plural(n, "message is a dead letter", "messages are dead letters")
	}
	v.Title = v.Name + " · forewarn"
	if n := len(s.Events); n > 0 {
		v.Title = wording.Plural(n, "event", "events") + " · " + v.Title
	}
	if len(v.Troubles)+len(v.Dead) > 0 {
		v.Title = "needs you · " + v.Title
	}
	return v
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (p pageWriter) name(vm string) string {
	return cmp.Or(wording.Printable(vm), "This VM")
}

// sink formats a sink.
func (p pageWriter) sink(k bridge.SinkStatus) sinkView {
	state, class := wording.SinkState(k, p.now, p.zone)
	v := sinkView{
		Name: wording.Printable(k.Name), Kind: wording.Printable(k.Kind), Class: class, State: capitalize(state),
		Error: wording.SinkError(k), Pending: k.Pending, Delivered: k.Delivered, DeadLetters: k.DeadLetters,
		Accepted: p.moment(k.LastAccepted),
	}
	v.Oldest = p.since(k.OldestPending)
	if !k.NextAttempt.IsZero() && k.LastError != "" {
		v.Next = p.until(k.NextAttempt)
	}
	return v
}

// dead formats a dead letter.
func (p pageWriter) dead(e outbox.Delivery) deadView {
	v := deadView{Key: wording.Printable(e.Key), Since: p.moment(e.DeadSince)}
	v.What = wording.Printable(strings.TrimPrefix(e.Type, cloudevent.BridgePrefix)) + ", about forewarn itself"
	if e.Group != "" {
		v.What = fmt.Sprintf("%s %s (event %.8s)", cmp.Or(wording.Printable(e.AzureType), "Event"),
			changeWord(imds.ChangeKind(e.Change), ""), e.Group)
	}
	v.Why = map[string]string{
		delivery.ReasonRejected: "refused by the destination", delivery.ReasonExpired: "too old",
		delivery.ReasonLate: "its time had passed", delivery.ReasonOverflow: "too many pending deliveries",
		delivery.ReasonRemoved: "the sink is gone from the settings",
		delivery.ReasonLost:    "its CloudEvent can't be read any more",
		delivery.ReasonSubject: "published on another's subject",
	}[e.Reason]
	if e.Overtaken {
		v.Why = "replaced by a newer change"
	}
	v.Why = cmp.Or(v.Why, wording.Printable(e.Reason))
	if e.Error != "" {
		v.Why += ": " + wording.ErrorWords(e.Error)
	}
	return v
}
