package page

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/fleet"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
	"forewarn/templates"
)

// An eventView is an open event, ready for the template.
type eventView struct {
	ID, ShortID, Class, Headline, State string

	Begun   bool
	Due     bool      // its time has passed, and it has not begun
	Count   countdown // to NotBefore, or since it began
	When    moment
	NoTime  string // what is said when there is no NotBefore
	Why     string
	Effect  string
	HowLong string
	VMs     []vmView
	MoreVMs int
	YouCan  string
	Command string // approves the event; "" for none
	// Bound says what When is while it is to come: at the earliest or, if a rule will approve the event, at the latest.
	Bound string
	// Approval is the result of an approval, or why the rules do not approve it; "" without rules.
	Approval    string
	Seen        moment
	DeliveredTo string           // the sinks by the state of the latest change; "" while unknown
	Links       []templates.Link // into the Azure portal
}

// deliveryWords lists the sinks that accepted a change, those for which it is pending, and those with a dead letter.
func deliveryWords(deliveries []bridge.HistoryDelivery) string {
	by := map[string][]string{}
	for _, d := range deliveries {
		state := d.State
		switch {
		case state == outbox.StateSuperseded && d.Answer == delivery.EventOver:
			continue // nobody was told, and nobody has to be
		case state == outbox.StateSuperseded: // a newer message included it
			state = outbox.StateAccepted
		}
		by[state] = append(by[state], wording.Printable(d.Route))
	}
	var parts []string
	for _, s := range []struct{ state, words string }{
		{outbox.StateAccepted, ""}, {outbox.StatePending, "pending: "}, {outbox.StateDead, "dead letter: "},
	} {
		if names := by[s.state]; len(names) > 0 {
			parts = append(parts, s.words+strings.Join(names, ", "))
		}
	}
	return strings.Join(parts, "; ")
}

// An eventRow stands for the events of one type in one set.
type eventRow struct {
	Type, Set, SetURL string
	Events, Begun     int
	When              moment // the nearest NotBefore
}

// eventRows returns a row for each set and type of events, which come by urgency, and the number of events for which
// there was no row.
func (p pageWriter) eventRows(events []bridge.EventStatus) (rows []eventRow, more int) {
	at := map[[3]string]int{}
	for _, e := range events {
		azure, _ := imds.UnmarshalEvent(e.Event) // it was decoded before
		key := [3]string{e.Group, e.Set, azure.Type}
		n, known := at[key]
		switch {
		case !known && len(rows) == shownRows:
			more++
			continue
		case !known:
			n, at[key] = len(rows), len(rows)
			rows = append(rows, eventRow{
				Type: wording.Printable(azure.Type), Set: wording.Printable(e.Set),
				SetURL: filterURL(fleet.Filter{Set: e.Set, Group: e.Group}),
			})
		}
		r := &rows[n]
		r.Events++
		if azure.Status == imds.StatusStarted {
			r.Begun++
		} else if r.When.Machine == "" {
			r.When = p.moment(e.NotBefore)
		}
	}
	return rows, more
}

// A vmView is a VM that an event names.
type vmView struct {
	Name string
	Self bool
}

// event formats an open event.
func (p pageWriter) event(e bridge.EventStatus, o imds.Observer, histories []bridge.EventHistory) eventView {
	azure, err := imds.UnmarshalEvent(e.Event)
	if err != nil { // cannot happen: it was decoded before
		return eventView{Headline: "An event that cannot be read"}
	}
	var seen, begun time.Time // zero if the history cannot be read
	var newest bridge.HistoryChange
	if i := slices.IndexFunc(histories, func(l bridge.EventHistory) bool { return l.Event == azure.ID }); i >= 0 {
		times := timesOf(histories[i])
		seen, begun = times.announced, times.begun
		newest = histories[i].Changes[len(histories[i].Changes)-1]
	}
	change := imds.Change{Kind: imds.Scheduled, Event: azure}
	if azure.Status == wording.Started {
		change.Kind = imds.Started
	}
	ce, _ := cloudevent.Wrap(change, cloudevent.Circumstances{Observer: o, Time: p.now, Rules: e.Rules, Asked: e.Asked}) // an invalid one is shown too
	f := sinks.MessageFields(delivery.Delivery{Event: ce, Attempt: 1}, p.zone, p.now)

	links, _ := templates.Links(f) // the embedded words don't fail on it
	v := eventView{
		ID: azure.ID, ShortID: p.renderText("shortID", f), Class: typeClass(azure.Type), Headline: p.renderText("fact", f),
		State: "Announced", When: p.moment(e.NotBefore), Why: p.renderText("why", f), Effect: p.renderText("effect", f),
		HowLong: p.renderText("howLong", f), Seen: p.moment(seen),
		DeliveredTo: deliveryWords(newest.Deliveries), Links: links,
	}
	switch {
	case e.Asked != nil && azure.Status == wording.Started:
		v.Approval = p.renderText("askedBy", f) + "."
	case e.Asked != nil: // which stands below what can be done
	case e.Approval != "" && (e.NotYet || len(e.Rules) > 0):
		v.Approval = "Not approved yet: " + wording.Printable(e.Approval) + "."
	case e.Approval != "":
		v.Approval = "Not approved: " + wording.Printable(e.Approval) + "."
	}
	switch {
	case azure.Status == wording.Started:
		v.Begun, v.State = true, "Has begun"
		v.Headline = p.renderText("who", f) + ": " + p.renderText("what", f) + " has begun"
		v.When = p.moment(begun)
		v.Count = p.since(begun)
	case e.NotBefore.IsZero():
		v.NoTime = p.renderText("noTime", f["data"].(map[string]any)["event"].(map[string]any)) + "."
	default:
		v.Count, v.Due = p.until(e.NotBefore), p.renderText("isDue", f) != ""
		if !v.Due {
			v.Bound = p.renderText("bound", f)
		}
	}
	for _, name := range azure.Resources { // this VM first, so that it is never left out
		vm := vmView{Name: wording.Printable(name), Self: imds.Event{Resources: []string{name}}.Affects(o.Name)}
		if vm.Self {
			v.VMs = append([]vmView{vm}, v.VMs...)
		} else {
			v.VMs = append(v.VMs, vm)
		}
	}
	v.MoreVMs = max(0, len(v.VMs)-wording.ShownVMs)
	v.VMs = v.VMs[:len(v.VMs)-v.MoreVMs]
	if !v.Begun {
		v.YouCan = p.renderText("youCan", f)
		if v.YouCan != "" {
			v.Command = p.renderText("command", f)
		} else {
			v.YouCan = p.renderText("cannot", f)
		}
	}
	return v
}

// changeWord names a change for people.
func changeWord(c imds.ChangeKind, o cloudevent.Outcome) string {
	switch c {
	case imds.Scheduled:
		return "announced"
	case imds.Updated:
		return "changed"
	case imds.Started:
		return "begun"
	case imds.Vanished:
		switch o {
		case cloudevent.OutcomeCompleted:
			return "over"
		case cloudevent.OutcomeCanceled:
			return "cancelled"
		}
		return "no longer listed"
	}
	return wording.Printable(string(c))
}

// typeClass returns the CSS class of a type of event.
func typeClass(typ string) string {
	for _, known := range bridge.TypesValues {
		if imds.SameWord(known, typ) {
			return strings.ToLower(known)
		}
	}
	return "other"
}

// soon returns the sort key of an event: when it is due, and last if that is unknown.
func soon(e eventView) string { return cmp.Or(e.When.Machine, "~") }
