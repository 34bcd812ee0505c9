package cloudevent

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/imds"
)

// A Sample is a typical change, to try settings and templates with.
type Sample struct {
	Name   string
	Change imds.Change
	End    End // of a Vanished
}

// SampleNames are the samples there are.
var SampleNames = []string{"reboot", "redeploy", "freeze", "preempt", "terminate", "user-reboot", "canceled",
	"updated", "unknown"}

// NewSample makes the sample of that name as the VM would see it at the time; ok is false for a name that is none.
func NewSample(name, vm string, now time.Time) (s Sample, ok bool) {
	azure := sampleEvent{
		EventID: "602D9444-D2CD-49C7-8624-8643E7171297", EventStatus: imds.StatusScheduled, EventType: "Reboot",
		ResourceType: "VirtualMachine", Resources: []string{vm}, Description: "Host server is undergoing maintenance.",
		EventSource: "Platform", Duration: -1,
	}
	notice := 15 * time.Minute
	s = Sample{Name: name, Change: imds.Change{Kind: imds.Scheduled}}
	switch name {
	case "reboot":
	case "redeploy":
		azure.EventType, notice = "Redeploy", 10*time.Minute
	case "freeze":
		azure.EventType, azure.Duration = "Freeze", 5
		azure.Description = "Virtual machine is being paused because of a memory-preserving Live Migration operation."
	case "preempt":
		azure.EventType, azure.Description, notice = "Preempt", "", 30*time.Second
	case "terminate":
		azure.EventType, azure.Description, azure.EventSource, notice = "Terminate", "", "User", 5*time.Minute
	case "user-reboot":
		azure.EventSource = "User"
		azure.Description = "Virtual machine is going to be restarted as requested by authorized user."
	case "canceled":
		s.Change.Kind, s.End.Outcome = imds.Vanished, OutcomeCanceled
	case "updated":
		s.Change.Kind, s.Change.Fields = imds.Updated, []string{"NotBefore"}
		was := azure.at(now.Add(notice))
		s.Change.Previous = &was
		notice = 30 * time.Minute
	case "unknown":
		azure.EventType, azure.EventStatus, azure.Description = "SpotRebalanceRecommendation", "Advisory", ""
		notice = 0
	default:
		return Sample{}, false
	}
	var at time.Time
	if notice > 0 {
		at = now.Add(notice)
	}
	s.Change.Event = azure.at(at)
	return s, true
}

// CloudEvent says the sample as the observer would.
func (s Sample) CloudEvent(o imds.Observer, now time.Time) (event.Event, error) {
	return Wrap(s.Change, Circumstances{Observer: o, Time: now, Announced: now, Incarnation: "7", End: s.End})
}

// sampleEvent is an event in Azure's names and order.
type sampleEvent struct {
	EventID      string `json:"EventId"`
	EventStatus  string
	EventType    string
	ResourceType string
	Resources    []string
	NotBefore    string
	Description  string
	EventSource  string
	Duration     int `json:"DurationInSeconds"`
}

func (e sampleEvent) at(notBefore time.Time) imds.Event {
	e.NotBefore = ""
	if !notBefore.IsZero() {
		e.NotBefore = notBefore.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT")
	}
	raw, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings and numbers only
	}
	decoded, _ := imds.UnmarshalEvent(raw)
	return decoded
}

// Test says the sample as a CloudEvent of type BridgeTest: laid out as the real one would be, told apart by its type,
// by an id of its own and by test: true in data.
func (s Sample) Test(o imds.Observer, now time.Time) (event.Event, error) {
	ce, err := s.CloudEvent(o, now)
	if err != nil {
		return ce, err
	}
	marked, err := WrapBridge(BridgeTest, nil, o, now)
	if err != nil {
		return ce, err
	}
	ce.SetID(marked.ID())
	ce.SetType(marked.Type())
	ce.SetSource(marked.Source())
	ce.SetSubject(marked.Subject())
	var data map[string]json.RawMessage
	if err := json.Unmarshal(ce.Data(), &data); err != nil {
		return ce, fmt.Errorf("sample %s: %w", s.Name, err)
	}
	data["test"] = json.RawMessage("true")
	setData(&ce, data)
	return ce, ce.Validate()
}
