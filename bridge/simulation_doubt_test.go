package bridge_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A doubt makes Azure's documents say two things of events for a while, or no longer all that they said.
type doubt struct {
	how string
	end time.Duration
}

func (x doubt) do(w *world) { w.doubt = x }
func (x doubt) String() string {
	return fmt.Sprintf("documents in doubt until %s: %s", short(x.end), x.how)
}

// What documents may be like. Each says something else at each look.
const (
	asksNobody = "nobody asked"      // EventSource is missing
	oddRunes   = "odd runes"         // EventSource is spelled with characters that look like letters
	oddFields  = "odd fields"        // another field is spelled like EventSource with such characters
	twice      = "twice"             // each event is listed before with other content
	changing   = "another each time" // or as it is
)

// unsaid is the source of an event of which Azure's document doesn't say who asked for it.
const unsaid = "(unsaid)"

// alikeField is a field that some readers of JSON take for EventSource.
const alikeField = "Eventſource"

// oddly spells a source with characters that Unicode takes for its letters, or that nobody sees.
func oddly(source string) string {
	return strings.ReplaceAll(source, "s", "ſ") + "\u200b"
}

// now returns how the document of a request is in doubt; "" if it isn't.
func (x doubt) now(at time.Duration, request int) string {
	switch {
	case x.end <= at:
		return ""
	case x.how == changing:
		return []string{"", asksNobody, "", oddRunes, oddFields, twice}[request%6]
	}
	return x.how
}

// doubtful returns a document in which each event is in doubt, what a reader of its last entries takes the events for,
// and a number that tells it from other documents.
func (a *azure) doubtful(how string) (body []byte, events map[string]azureEvent, version int) {
	kinds := []string{"", asksNobody, oddRunes, oddFields, twice}
	version = a.version*len(kinds) + slices.Index(kinds, how)
	if how == "" {
		return a.document(), a.events, version
	}
	events = maps.Clone(a.events)
	for id, e := range events {
		switch how {
		case asksNobody:
			e.source = unsaid
		case oddRunes:
			e.source = oddly(e.source)
		case oddFields:
			e.alike = true
		}
		events[id] = e
	}
	var list []map[string]any
	for _, id := range a.order {
		if how == twice {
			list = append(list, map[string]any{"EventId": strings.ToLower(id), "EventType": "Terminate",
				"EventStatus": "Scheduled", "Resources": []string{"vm-0", "vm-9"}})
		}
		list = append(list, events[id].fields())
	}
	if list == nil {
		return a.document(), events, version
	}
	return mustJSON(map[string]any{"DocumentIncarnation": a.incarnation, "Events": list}), events, version
}

// is reports whether it is the same event as far as both documents say what it is.
func (e azureEvent) is(other azureEvent) bool {
	if e.source == unsaid || other.source == unsaid {
		e.source, other.source = unsaid, unsaid
	}
	return e == other
}

// doubted reports whether a request follows only documents that left it in doubt what Azure lists. A look is followed by
// its request within the time that there is for both. That nobody is said to have asked is no doubt of an event that was
// told so: only a rule with sources asks for it.
func (o *oracle) doubted(p *post, b belief) bool {
	seen := false
	var told azureEvent
	if last := o.lastTold(p, b); last >= 0 {
		told = b.changes[last].event
	}
	for _, a := range o.answers {
		if a.polled || a.what != "document" || a.boot != p.boot || a.seq > p.seq || p.at-a.at > 30*time.Second {
			continue
		}
		if !a.doubtful || told.source == unsaid && a.events[p.id] == told {
			return false
		}
		seen = true
	}
	return seen
}

// doubtSteps make up when documents are in doubt.
func doubtSteps(seed uint64, length time.Duration) (steps []step) {
	r := rand.New(rand.NewPCG(seed, 5))
	if r.IntN(4) > 0 {
		return nil
	}
	for range 1 + r.IntN(3) {
		at := during(r, length)
		lasts := pick(r, 4*time.Second, 12*time.Second, time.Minute, 7*time.Minute)
		steps = append(steps, step{at, doubt{pick(r, asksNobody, oddRunes, oddFields, twice, changing), at + lasts}})
	}
	return steps
}
