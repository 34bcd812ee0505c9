package imds

import (
	"slices"
	"strings"
	"time"
)

// ChangeKind says what was learned about an event between two documents.
type ChangeKind string

// The four changes. Azure has no status for an end: an event that is over, or was cancelled, leaves the document.
const (
	Scheduled ChangeKind = "scheduled" // first seen, not Started
	Updated   ChangeKind = "updated"   // a field differs
	Started   ChangeKind = "started"   // first seen as Started, or now Started
	Vanished  ChangeKind = "vanished"  // no longer listed

	Approved ChangeKind = "approved" // not Azure's: what came of approving it
	Reminder ChangeKind = "reminder" // not Azure's: how long is left
)

// OfAzure says whether Azure's document showed it.
func (k ChangeKind) OfAzure() bool { return k != Approved && k != Reminder }

// A Change is one difference between two documents.
type Change struct {
	Kind     ChangeKind
	Event    Event    // as it is now; on Vanished as it was last seen
	Previous *Event   // as it was before; nil when first seen and on Vanished
	Fields   []string // the fields that differ, sorted; nil when first seen and on Vanished

	// Replaced, of a Vanished, says that the document lists another event of its type for one of its VMs instead: Azure's
	// own mock gives an event a new id when it starts, so this one was not cancelled.
	Replaced bool

	Lead time.Duration // of a Reminder: how long before NotBefore it is due
}

// Diff tells what turns the events known so far into those of the document: the changes of listed events in the
// document's order, then what vanished in the order it was known. What vanished because another event took its place
// comes before all. It is pure, and linear in the number of events.
//
// Content alone counts; the incarnation number is not looked at, because Azure starts it over and some hosts change
// the content under one number. A partial document makes nothing vanish. Neither does one that was asked with an
// api-version that cannot show the event's type. A field that a later version brought is no difference when one side
// lacks it: each known event is as it was last told, whichever version, older or newer than the last one asked, showed
// it then.
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
		fields := slices.DeleteFunc(differing(*was, now), func(f string) bool {
			return since[f] != "" && (fieldsOf(was.Raw)[f] == nil || fieldsOf(now.Raw)[f] == nil)
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
	fresh := make(map[machineEvent]bool) // of the changes
	for _, c := range changes {
		if before[c.Event.ID] == nil {
			for _, m := range machineEvents(c.Event) {
				fresh[m] = true
			}
		}
	}
	var replaced, gone []Change
	for _, was := range known {
		switch {
		case listed[was.ID] || !showsType(doc.APIVersion, was.Type):
		case slices.ContainsFunc(machineEvents(was), func(m machineEvent) bool { return fresh[m] }):
			replaced = append(replaced, Change{Kind: Vanished, Event: was, Replaced: true})
		default:
			gone = append(gone, Change{Kind: Vanished, Event: was})
		}
	}
	return slices.Concat(replaced, changes, gone)
}

// A machineEvent is what happens to one machine. Two events that have one in common may be the same maintenance.
type machineEvent struct{ typ, vm string }

func machineEvents(e Event) []machineEvent {
	list := make([]machineEvent, len(e.Resources))
	for i, r := range e.Resources {
		list[i] = machineEvent{strings.ToLower(e.Type), strings.ToLower(strings.TrimPrefix(r, "_"))}
	}
	return list
}

// The statuses that Azure documents.
const (
	StatusScheduled = "Scheduled"
	StatusStarted   = "Started"
)

// since holds the api-version that first served each later field and event type.
// Source: Azure Scheduled Events, "Version and Region Availability".
var since = map[string]string{
	"Preempt":           "2017-11-01",
	"Terminate":         "2019-01-01",
	"Description":       "2019-04-01",
	"EventSource":       "2019-08-01",
	"DurationInSeconds": "2020-07-01",
}

// showsType compares versions as dates, which their form allows; an unknown version shows everything.
func showsType(version, typ string) bool { return version == "" || version >= since[typ] }
