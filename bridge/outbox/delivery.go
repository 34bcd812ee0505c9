package outbox

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
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

// A message is one CloudEvent that something refers to, with what all its deliveries have in common.
type message struct {
	seq                               uint64
	id, typ, group, change, azureType string
	bytes                             int
	transient, replaced               bool
	body                              []byte    // until it is on disk
	uses                              int       // pending deliveries, dead letters, and groups whose latest it is
	settled                           []settled // deliveries
}

// settled is what became of a delivery.
type settled struct {
	route string
	Outcome
}

// An entry is one pending delivery. It never changes: another takes its place.
type entry struct {
	*message
	route *route
	item  delivery.Item
	tried time.Time
	held  bool
	batch *batch // that makes it durable; nil when it is on disk

	gone    bool // from memory
	offered bool // to the reader of its route
	known   bool // to the reader, as the one before it
	index   int  // in the index by group
}

// since is when it began to be late if nobody takes it.
func (e *entry) since() time.Time { return later(e.item.Pending, e.item.Due) }

func (e *entry) key() string { return e.route.name + "/" + seqKey(e.seq) }

// copy is an entry that may be changed before it takes the place of e.
func (e *entry) copy() *entry {
	return &entry{message: e.message, route: e.route, item: e.item, tried: e.tried, held: e.held}
}

// record is the entry as the file and commands have it.
func (e *entry) record() Delivery {
	d := Delivery{
		Key: e.key(), Route: e.route.name, ID: e.id, Type: e.typ, Group: e.group, State: StatePending,
		Attempts: e.item.Attempts, Next: e.item.Next, Error: e.item.Error, Bytes: e.bytes, Pending: e.item.Pending,
		Tried: e.tried, Change: e.change, AzureType: e.azureType, NotBefore: e.item.NotBefore, Due: e.item.Due,
		Progress: e.item.Progress, Batch: e.item.Batch, Instead: e.item.Instead, FellBack: e.item.FellBack,
		Transient: e.transient,
	}
	if e.held {
		d.Held = d.Due
	}
	if d.Next.IsZero() {
		d.Next = d.Due
	}
	return d
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

// encode is the entry as the file has it.
func (e *entry) encode() []byte {
	d := e.record()
	return encode(pendingRecord{
		Attempts: d.Attempts, Next: e.item.Next, Error: d.Error, Pending: d.Pending, Tried: d.Tried, Held: d.Held,
		NotBefore: d.NotBefore, Due: d.Due, Progress: d.Progress, Batch: d.Batch, Instead: d.Instead, FellBack: d.FellBack,
	})
}

// A head is what all deliveries of a CloudEvent have in common, as the file has it.
type head struct {
	ID        string `json:"id"`
	Type      string `json:"type"`
	Group     string `json:"event,omitempty"`
	Change    string `json:"change,omitempty"`
	AzureType string `json:"azureType,omitempty"`
	Bytes     int    `json:"bytes"`
	Transient bool   `json:"transient,omitempty"`
	Replaced  bool   `json:"replaced,omitempty"`
}

func (m *message) head() head {
	return head{m.id, m.typ, m.group, m.change, m.azureType, m.bytes, m.transient, m.replaced}
}

// set takes over what a head says.
func (m *message) set(h head) {
	m.id, m.typ, m.group, m.change, m.azureType = h.ID, h.Type, h.Group, h.Change, h.AzureType
	m.bytes, m.transient, m.replaced = h.Bytes, h.Transient, h.Replaced
}

// entryOf is the pending delivery of a record; the message has what its deliveries have in common.
func entryOf(d Delivery, m *message, r *route) *entry {
	e := &entry{message: m, route: r, tried: d.Tried, held: !d.Held.IsZero(), item: delivery.Item{
		NotBefore: d.NotBefore, Pending: d.Pending, Due: later(d.Due, d.Held), Attempts: d.Attempts, Next: d.Next,
		Error: d.Error, Progress: d.Progress, Batch: d.Batch, Instead: d.Instead, FellBack: d.FellBack,
	}}
	if d.Attempts == 0 {
		e.item.Next = time.Time{}
	}
	return e
}

// complete fills in the item what is common to all deliveries of the CloudEvent.
func (e *entry) complete() {
	e.item.Seq, e.item.ID, e.item.Type, e.item.Group = e.seq, e.id, e.typ, e.group
	e.item.Change, e.item.AzureType, e.item.Transient, e.item.Replaced = e.change, e.azureType, e.transient, e.replaced
}

func (d Delivery) head() head {
	return head{
		ID: d.ID, Type: d.Type, Group: d.Group, Change: d.Change, AzureType: d.AzureType, Bytes: d.Bytes, Transient: d.Transient,
	}
}

// A deadLetter is a delivery that was given up.
type deadLetter struct {
	Delivery
	*message
	stored bool // it is on disk
	gone   bool
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

// An Outcome is what became of a delivery; State is "" when it never was pending.
type Outcome struct {
	State string
	At    time.Time // of the end, zero while it is pending
}

// seqKey is a sequence number as a key: 16 digits, so that keys sort by time.
func seqKey(seq uint64) string { return fmt.Sprintf("%016d", seq) }

// splitKey splits the key of a delivery.
func splitKey(key string) (route string, seq uint64, err error) {
	i := strings.LastIndexByte(key, '/')
	if i < 0 {
		return "", 0, fmt.Errorf("%q is no key", key)
	}
	seq, err = strconv.ParseUint(key[i+1:], 10, 64)
	return key[:i], seq, err
}

// encode is v as JSON. What the outbox keeps can always be encoded.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err))
	}
	return data
}

func encodeGroup(g Group) []byte { return append([]byte(seqKey(g.Latest)+" "), g.State...) }

func decodeGroup(data []byte) (g Group, err error) {
	latest, state, _ := strings.Cut(string(data), " ")
	g.State = []byte(state)
	g.Latest, err = strconv.ParseUint(latest, 10, 64)
	return g, err
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func bySeq(a, b *entry) int {
	return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.route.name, b.route.name))
}
