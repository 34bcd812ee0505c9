package bridge_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Times in a simulation are counted from its beginning, in true time. Machines may have a clock that is wrong.
var epoch = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)

// An azureEvent is one event as Azure lists it. Two that are equal have the same content.
type azureEvent struct {
	id        string // a GUID in upper case
	status    string
	kind      string        // EventType
	source    string        // EventSource
	text      string        // Description
	machines  string        // Resources, joined by commas
	notBefore time.Duration // below 0 for none
	seconds   int           // DurationInSeconds
	alike     bool          // it has a field too that looks like EventSource
}

func (e azureEvent) notBeforeTime() time.Time {
	if e.notBefore < 0 {
		return time.Time{}
	}
	return epoch.Add(e.notBefore).Truncate(time.Second)
}

func (e azureEvent) resources() []string {
	if e.machines == "" {
		return []string{}
	}
	return strings.Split(e.machines, ",")
}

// fields returns those of the JSON object that Azure sends.
func (e azureEvent) fields() map[string]any {
	f := map[string]any{
		"EventId": e.id, "EventStatus": e.status, "EventType": e.kind, "ResourceType": "VirtualMachine",
		"Resources": e.resources(), "NotBefore": "", "Description": e.text, "EventSource": e.source,
		"DurationInSeconds": e.seconds,
	}
	if e.source == unsaid {
		delete(f, "EventSource")
	}
	if e.alike {
		f[alikeField] = "Platform"
	}
	if e.notBefore >= 0 {
		f["NotBefore"] = e.notBeforeTime().Format("Mon, 02 Jan 2006 15:04:05 GMT")
	}
	return f
}

// azure is the truth: what Azure lists at the moment.
type azure struct {
	incarnation int
	order       []string // ids, in the order of the document
	events      map[string]azureEvent
	kept        bool                       // an answer has it too, so that it stays as it is
	other       bool                       // the same content is written in another way
	begun       map[string][]begin         // when events were Started
	ended       map[string][]time.Duration // when they were listed no more
	version     int                        // counts changes of what would be served
	body        []byte                     // of the document; nil when it is not made yet
}

// A begin is when an event was Started, and by when whoever polls must have seen it.
type begin struct{ at, visible time.Duration }

func newAzure() *azure {
	return &azure{
		incarnation: 1, events: map[string]azureEvent{}, begun: map[string][]begin{}, ended: map[string][]time.Duration{},
	}
}

// put lists an event, or changes it. quiet leaves the incarnation as it is, which some hosts do.
func (a *azure) put(e azureEvent, at time.Duration, quiet bool) {
	if _, ok := a.events[e.id]; !ok {
		a.order = append(a.order, e.id)
	}
	if e.notBefore >= 0 {
		e.notBefore = e.notBefore.Truncate(time.Second)
	}
	a.unshare()
	a.events[e.id] = e
	if e.status == "Started" {
		visible := at + 10*time.Second
		if quiet { // until then, a poll that names the incarnation is told that nothing changed
			visible = at + 70*time.Second
		}
		a.begun[e.id] = append(a.begun[e.id], begin{at, visible})
	}
	a.changed(quiet)
}

func (a *azure) remove(id string, at time.Duration) {
	a.ended[id] = append(a.ended[id], at)
	a.order = slices.DeleteFunc(slices.Clone(a.order), func(s string) bool { return s == id })
	a.unshare()
	delete(a.events, id)
	a.changed(false)
}

// unshare makes what is listed another map than that of earlier answers.
func (a *azure) unshare() {
	if a.kept {
		a.events, a.kept = maps.Clone(a.events), false
	}
}

func (a *azure) changed(quiet bool) {
	a.version++
	a.body = nil
	if !quiet {
		a.incarnation++
	}
}

// document returns what the endpoint serves.
func (a *azure) document() []byte {
	if a.body != nil {
		return a.body
	}
	list := make([]map[string]any, 0, len(a.order))
	for _, id := range a.order {
		f := a.events[id].fields()
		if a.other { // the EventId in another case, the time in another form
			f["EventId"] = strings.ToLower(id)
			if at := a.events[id].notBeforeTime(); !at.IsZero() {
				f["NotBefore"] = at.Format(time.RFC3339)
			}
		}
		list = append(list, f)
	}
	a.body = mustJSON(map[string]any{"DocumentIncarnation": a.incarnation, "Events": list})
	return a.body
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	panicOn(err)
	return b
}

// The acts of Azure.

// list makes Azure list an event, or change what it lists.
type list struct {
	event azureEvent
	quiet bool // under the same incarnation
}

func (x list) do(w *world) { w.azure.put(x.event, w.now(), x.quiet) }

// unlist ends an event.
type unlist struct{ id string }

func (x unlist) do(w *world) {
	if _, ok := w.azure.events[x.id]; ok {
		w.azure.remove(x.id, w.now())
	}
}

// restyle makes Azure write the same content in another way.
type restyle struct{}

func (restyle) do(w *world) {
	w.azure.other = !w.azure.other
	w.azure.changed(true)
}

// reset makes Azure count incarnations anew.
type reset struct{}

func (reset) do(w *world) {
	w.azure.incarnation = 0
	w.azure.changed(false)
}

// name returns the short form of an EventId.
func name(id string) string { return strings.TrimLeft(id[len(id)-4:], "0") }

func short(d time.Duration) string { return d.Round(time.Second).String() }

// timeline makes up the lives of one simulation's events.
func timeline(r *rand.Rand, length time.Duration) (steps []step) {
	n := 1 + r.IntN(6)
	switch x := r.IntN(1000); {
	case x < 1 && length < 24*time.Hour: // each end is a document of its own
		n = 3000
	case x < 50:
		n = 30 + r.IntN(70)
	}
	wave, kind := time.Duration(-1), "" // when all of them come at once, and what they are; "" for any
	if n > 10 {
		wave, kind = during(r, length/2), pick(r, "", "Reboot", "Freeze")
	}
	for i := range n {
		at := wave
		if wave < 0 {
			at = during(r, length*3/4)
		}
		steps = append(steps, life(r, fmt.Sprintf("A0000000-0000-4000-8000-%012X", i+1), at, length, kind, n > 10)...)
	}
	for range r.IntN(3) {
		steps = append(steps, step{during(r, length), pick[any](r, reset{}, restyle{})})
	}
	return steps
}

// life returns that of one event from when it is first listed. It may end before length, and come back.
func life(r *rand.Rand, id string, at, length time.Duration, kind string, simple bool) (steps []step) {
	e := azureEvent{
		id: id, status: "Scheduled", text: "Host server is undergoing maintenance", seconds: pick(r, -1, 5, 9, 30),
		kind:     pick(r, "Freeze", "Reboot", "Redeploy", "Preempt", "Terminate", "Reboot", "Freeze", "Levitate"),
		source:   pick(r, "Platform", "Platform", "User", ""),
		machines: pick(r, "vm-0", "vm-0", "vm-0", "VM-0", "vm-1", "vm-0,vm-1", "vm-1,vm-0", ""),
	}
	if kind != "" {
		e.kind = kind
	}
	say := func() { steps = append(steps, step{at, list{e, r.IntN(12) == 0}}) }
	notice := pick(r, 30*time.Second, 10*time.Minute, 15*time.Minute, 40*time.Minute, 70*time.Minute)
	e.notBefore = at + notice
	if r.IntN(8) == 0 {
		e.notBefore = -1
	}
	if r.IntN(10) == 0 {
		e.status = "Started" // nobody saw it Scheduled
	}
	say()
	if simple {
		if r.IntN(3) == 0 {
			at += during(r, length/4)
			e.status = "Started"
			say()
		}
		return append(steps, step{at + during(r, length/3), unlist{id}})
	}
	for range r.IntN(4) {
		at += during(r, 15*time.Minute)
		switch r.IntN(6) {
		case 0:
			e.text = pick(r, "moved", "moved again", "Host server is undergoing maintenance")
		case 1:
			e.machines = pick(r, "vm-0", "vm-1", "vm-0,vm-1")
		case 2:
			e.notBefore = -1
		default:
			e.notBefore = at + pick(r, time.Minute, 10*time.Minute, 40*time.Minute, 70*time.Minute)
		}
		say()
	}
	if r.IntN(3) > 0 { // it begins, most often at its time
		at += time.Minute
		if e.notBefore > at && r.IntN(4) > 0 {
			at = e.notBefore
		}
		e.status, e.notBefore = "Started", -1
		say()
	}
	if r.IntN(6) == 0 {
		return steps // it never ends
	}
	at += during(r, 20*time.Minute)
	steps = append(steps, step{at, unlist{id}})
	if r.IntN(5) == 0 { // it comes back
		steps = append(steps, life(r, id, at+during(r, 20*time.Minute), length, kind, false)...)
	}
	return steps
}

// during returns a time before d, never a whole second: polls are at those, and no step shall meet one.
func during(r *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(max(d, 2*time.Second)/time.Second)))*time.Second + 137*time.Millisecond
}

func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }
