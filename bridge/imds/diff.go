package imds

import (
	"slices"
	"time"
)

// A ChangeKind is a kind of change of an event.
type ChangeKind string

// The kinds of changes. Azure has no status for an end: an event that is over or cancelled disappears from the
// document.
const (
	Scheduled ChangeKind = "scheduled" // first seen, not Started
	Updated   ChangeKind = "updated"   // a field differs
	Started   ChangeKind = "started"   // first seen as Started, or now Started
	Vanished  ChangeKind = "vanished"  // no longer listed

	Approved ChangeKind = "approved" // not from Azure: the result of an approval
	Reminder ChangeKind = "reminder" // not from Azure: a reminder of an event
)

// Announces reports whether the change says that the event is still to come.
func (k ChangeKind) Announces() bool { return k == Scheduled || k == Updated }

// OfAzure reports whether the change comes from Azure's document.
func (k ChangeKind) OfAzure() bool {
	return k == Scheduled || k == Updated || k == Started || k == Vanished
}

// A Change is one difference between two documents.
type Change struct {
	Kind     ChangeKind
	Event    Event    // the present state; for Vanished the last one seen
	Previous *Event   // the previous state; nil when first seen and for Vanished
	Fields   []string // the fields that differ, sorted; nil when first seen and for Vanished

	// Replaced, for Vanished, means that the document lists a new event of the same type for one of its VMs. Microsoft's
	// mock gives an event a new id when it starts, so this event may not have been cancelled.
	Replaced bool

	Lead time.Duration // for Reminder: the time before NotBefore
}

// Diff returns the changes from the known events to those of the document: first Vanished events that were Replaced,
// then the changes of listed events in the order of the document, then other Vanished events in the order of known. It
// is pure, and linear in the number of events.
//
// Diff compares only content. It ignores the incarnation, because Azure restarts it and some hosts change the content
// without it. A partial document makes nothing vanish, and neither does a document whose api-version cannot show the
// type of the event. A field of a later api-version is no difference if one side lacks it, because the known event may
// come from another api-version than the document.
func Diff(known []Event, doc Document) []Change {
	before := make(map[string]*Event, len(known))
	for i := range known {
		before[known[i].ID] = &known[i]
	}
	var changes []Change
	listed := make(map[string]bool, len(doc.Events))
	for _, now := range doc.Events {
		listed[now.ID] = true
		was, ok := before[now.ID]
		if !ok {
			kind := Scheduled
			if now.Status == StatusStarted {
				kind = Started
			}
			changes = append(changes, Change{Kind: kind, Event: now})
			continue
		}
		if string(was.Raw) == string(now.Raw) {
			continue
		}
		fields := slices.DeleteFunc(DifferingFields(*was, now), func(f string) bool {
			return firstVersions[f] != "" && (fieldsOf(was.Raw)[f] == nil || fieldsOf(now.Raw)[f] == nil)
		})
		if len(fields) == 0 {
			continue
		}
		kind := Updated
		if now.Status == StatusStarted && was.Status != StatusStarted {
			kind = Started
		}
		changes = append(changes, Change{Kind: kind, Event: now, Previous: was, Fields: fields})
	}
	if doc.Partial {
		return changes
	}
	fresh := make(map[machineEvent]bool) // events that are new in the document
	for _, c := range changes {
		if before[c.Event.ID] == nil {
			for _, m := range machineEvents(c.Event) {
				fresh[m] = true
			}
		}
	}
	var replaced, vanished []Change
	for _, was := range known {
		switch {
		case listed[was.ID] || !showsType(doc.APIVersion, was.Type):
		case slices.ContainsFunc(machineEvents(was), func(m machineEvent) bool { return fresh[m] }):
			replaced = append(replaced, Change{Kind: Vanished, Event: was, Replaced: true})
		default:
			vanished = append(vanished, Change{Kind: Vanished, Event: was})
		}
	}
	return slices.Concat(replaced, changes, vanished)
}

// A machineEvent is a type of event on one VM. Two events with a common machineEvent may be the same maintenance.
type machineEvent struct{ typ, vm string }

func machineEvents(e Event) []machineEvent {
	list := make([]machineEvent, len(e.Resources))
	for i, r := range e.Resources {
		list[i] = machineEvent{Upper(e.Type), Upper(r)}
	}
	return list
}

// The statuses that Azure documents.
const (
	StatusScheduled = "Scheduled"
	StatusStarted   = "Started"
)

// firstVersions holds the api-version in which each later field and event type first appeared.
// Source: Azure Scheduled Events, "Version and Region Availability".
var firstVersions = map[string]string{
	"Preempt":           "2017-11-01",
	"Terminate":         "2019-01-01",
	"Description":       "2019-04-01",
	"EventSource":       "2019-08-01",
	"DurationInSeconds": "2020-07-01",
}

// showsType compares versions as dates, which their form allows; an unknown version shows everything.
func showsType(version, typ string) bool { return version == "" || version >= firstVersions[typ] }
