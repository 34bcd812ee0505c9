package outbox

import (
	"encoding/json"
	"fmt"
	"time"

	"forewarn/bridge/delivery"
)

// A Delivery is one CloudEvent for one route: pending, or a dead letter. Its JSON is what commands print.
type Delivery struct {
	Key       string            `json:"key"`   // route/sequence number
	Route     string            `json:"sink"`  // has no slash
	ID        string            `json:"id"`    // of the CloudEvent
	Type      string            `json:"type"`  // of the CloudEvent
	Group     string            `json:"event"` // the Azure event's id; "" when it is about the bridge
	State     string            `json:"state"` // StatePending or StateDead
	Reason    string            `json:"reason,omitempty"`
	Attempts  int               `json:"attempts"`
	Next      time.Time         `json:"next,omitzero"` // attempt, no earlier than this
	Error     string            `json:"error,omitempty"`
	Bytes     int               `json:"bytes"` // of the CloudEvent
	Pending   time.Time         `json:"owed"`  // since when
	Tried     time.Time         `json:"tried,omitzero"`
	Held      time.Time         `json:"held,omitzero"` // waits until then for a decision of the owner
	Change    string            `json:"change,omitempty"`
	AzureType string            `json:"azureType,omitempty"`
	NotBefore time.Time         `json:"notBefore,omitzero"`
	Due       time.Time         `json:"due,omitzero"`
	Progress  []byte            `json:"progress,omitempty"`
	Batch     uint64            `json:"batch,omitempty"`
	Instead   *delivery.Instead `json:"instead,omitempty"`
	FellBack  bool              `json:"fellBack,omitempty"`
	Transient bool              `json:"transient,omitempty"`
	DeadSince time.Time         `json:"deadSince,omitzero"`
}

// Seq is the sequence number of the CloudEvent.
func (d Delivery) Seq() uint64 {
	_, seq, _ := splitKey(d.Key)
	return seq
}

// The states of a delivery.
const (
	StatePending    = "pending"
	StateDead       = "dead"
	StateAccepted   = "accepted"   // settled: the destination has it
	StateSuperseded = "superseded" // settled: a newer one stood for it
	StateDropped    = "dropped"    // settled: somebody gave it up
)

// An Outcome is what became of a delivery; State is "" when it never was pending.
type Outcome struct {
	State string
	At    time.Time // of the end, zero while it is pending
}

// A head is what all deliveries of a CloudEvent have in common, as the file has it.
type head struct {
	delivery.Message
	Bytes int `json:"bytes"`
}

// pendingRecord is a pending delivery as the file has it, beside the head of its CloudEvent.
type pendingRecord struct {
	Attempts  int               `json:"attempts,omitempty"`
	Next      time.Time         `json:"next,omitzero"`
	Error     string            `json:"error,omitempty"`
	Pending   time.Time         `json:"owed"`
	Tried     time.Time         `json:"tried,omitzero"`
	Held      time.Time         `json:"held,omitzero"`
	NotBefore time.Time         `json:"notBefore,omitzero"`
	Due       time.Time         `json:"due,omitzero"`
	Progress  []byte            `json:"progress,omitempty"`
	Batch     uint64            `json:"batch,omitempty"`
	Instead   *delivery.Instead `json:"instead,omitempty"`
	FellBack  bool              `json:"fellBack,omitempty"`
}

// settlement is a settled delivery as the file has it.
type settlement struct {
	At       time.Time `json:"at"`
	How      string    `json:"how"`
	ID       string    `json:"id"`
	Group    string    `json:"event,omitempty"`
	Status   string    `json:"status,omitempty"` // what the destination answered
	AnswerID string    `json:"answerId,omitempty"`
	Attempts int       `json:"attempts"`
}

// record is the delivery as commands have it, and the file when it is dead.
func (e *entry) record() Delivery {
	d := Delivery{
		Key: e.key(), Route: e.route.name, ID: e.ID, Type: e.Type, Group: e.Group, State: StatePending,
		Attempts: e.Attempts, Next: e.Next, Error: e.Error, Bytes: e.message.Bytes, Pending: e.Pending, Tried: e.tried,
		Change: e.Change, AzureType: e.AzureType, NotBefore: e.NotBefore, Due: e.Due, Progress: e.Progress,
		Batch: e.Batch, Instead: e.Instead, FellBack: e.FellBack, Transient: e.Transient,
	}
	switch {
	case e.death != nil:
		d.State, d.Reason, d.DeadSince = StateDead, e.death.reason, e.death.at
	case e.Next.IsZero():
		d.Next = e.Due
	}
	if e.held {
		d.Held = e.Due
	}
	return d
}

// encode is the delivery as the file has it.
func (e *entry) encode() []byte {
	d := e.record()
	if e.death != nil {
		return encode(d)
	}
	return encode(pendingRecord{
		Attempts: d.Attempts, Next: e.Next, Error: d.Error, Pending: d.Pending, Tried: d.Tried, Held: d.Held,
		NotBefore: d.NotBefore, Due: d.Due, Progress: d.Progress, Batch: d.Batch, Instead: d.Instead, FellBack: d.FellBack,
	})
}

// entryOf is the delivery of a record.
func entryOf(d Delivery, m *message, r *route, dead bool) *entry {
	e := &entry{message: m, route: r, tried: d.Tried, held: !d.Held.IsZero(), Item: delivery.Item{
		Message: &m.Message, NotBefore: d.NotBefore, Pending: d.Pending, Due: later(d.Due, d.Held), Attempts: d.Attempts,
		Next: d.Next, Error: d.Error, Progress: d.Progress, Batch: d.Batch, Instead: d.Instead, FellBack: d.FellBack,
	}}
	if d.Attempts == 0 {
		e.Next = time.Time{}
	}
	if dead {
		e.death = &death{d.Reason, d.DeadSince}
	}
	return e
}

// encode is v as JSON. What the outbox keeps can always be encoded.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err))
	}
	return data
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
