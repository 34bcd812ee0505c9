package relay

import (
	"strings"
	"time"

	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// maxSettled is how many results a record keeps: those of the deliveries that were settled last.
const maxSettled = 1000

// maxWaiting is how many deliveries may wait in a record, which is one message.
const maxWaiting = 1000

// A record is all that a sink remembers of an Azure event, or of a CloudEvent about a bridge. It is written before the
// first delivery that it calls waiting is attempted.
type record struct {
	// Matched means that the sink's filter let one of the event's changes pass. The sink gets all later ones.
	Matched bool               `json:"matched,omitempty"`
	Settled map[string]result  `json:"settled,omitempty"` // by streams.Message.DeliveryID
	Waiting map[string]waiting `json:"waiting,omitempty"` // likewise: accepted by the filter, and not settled
	Receipt []byte             `json:"receipt,omitempty"`
	// Decided is the sequence number of the last message about the event that was decided, and DecidedAt when the stream
	// stored it. One before it that is neither settled nor waiting was refused. A message with a lower number that was
	// stored later is of another stream, or has the number of a message that was lost.
	Decided   uint64    `json:"decided,omitempty"`
	DecidedAt time.Time `json:"decidedAt,omitzero"`
	// Answer is the sequence number of the last message about the event's approval since its latest change; 0 for none.
	Answer uint64 `json:"answer,omitempty"`
	streams.Stage
}

// decided reports whether it was decided before what becomes of a message.
func (r *record) decided(m streams.Message) bool {
	return m.Seq <= r.Decided && !m.Stored.After(r.DecidedAt)
}

// decide records that it is decided what becomes of a message.
func (r *record) decide(m streams.Message) {
	if !r.decided(m) {
		r.Decided, r.DecidedAt = m.Seq, m.Stored
	}
}

// moveOn moves the stage on to a change. What came of the approval before it no longer counts.
func (r *record) moveOn(m streams.Message) {
	was := r.ID
	r.Update(m)
	if r.ID != was {
		r.Answer = 0
	}
}

// answer takes in what came of the approval of the event, unless it was decided before. Once the event has begun, what a
// VM says of one that hasn't comes late.
func (r *record) answer(m streams.Message) {
	late := r.Kind == imds.Started && m.Change.Event.Status != imds.StatusStarted
	if m.OnlySink == "" && m.Change.Kind == imds.Approved && !late && !r.decided(m) {
		r.Answer = m.Seq
	}
}

// knows reports whether a delivery waits or was settled.
func (r *record) knows(id string) bool {
	_, accepted := r.Waiting[id]
	_, settled := r.Settled[id]
	return accepted || settled
}

// hasAccepted reports whether the sink has accepted a CloudEvent, also as a replay.
func (r *record) hasAccepted(ce string) bool {
	for id, was := range r.Settled {
		if of, _, _ := strings.Cut(id, "."); was.State == resultAccepted && of == streams.Token(ce) {
			return true
		}
	}
	return false
}

// A result is how a delivery was settled.
type result struct {
	At       time.Time `json:"at"`
	State    string    `json:"state"`              // resultAccepted, resultSuperseded or resultDead
	Answer   string    `json:"answer,omitempty"`   // of the destination, or why it became a dead letter
	Attempts int       `json:"attempts,omitempty"` // number of attempts
	Error    string    `json:"error,omitempty"`    // of a dead letter: that of its last attempt
}

// The values of result.State.
const (
	resultAccepted   = "accepted"
	resultSuperseded = "superseded"
	resultDead       = "dead"
)

// A waiting is the state of a delivery that isn't settled, as far as the next relay needs it.
type waiting struct {
	Attempts int       `json:"attempts,omitempty"`
	Next     time.Time `json:"next,omitzero"`
	Error    string    `json:"error,omitempty"`
	Progress []byte    `json:"progress,omitempty"`
	Batch    uint64    `json:"batch,omitempty"`
	FellBack bool      `json:"fellBack,omitempty"`
}

// settle records the result of a delivery, and forgets its attempts.
func (r *record) settle(id string, m result) {
	if r.Settled == nil {
		r.Settled = map[string]result{}
	}
	r.Settled[id] = m
	delete(r.Waiting, id)
	if len(r.Settled) > maxSettled {
		oldest := id
		for other, m := range r.Settled {
			if m.At.Before(r.Settled[oldest].At) {
				oldest = other
			}
		}
		delete(r.Settled, oldest)
	}
}

// accept records the state of a delivery that isn't settled.
func (r *record) accept(id string, w waiting) {
	if r.Waiting == nil {
		r.Waiting = map[string]waiting{}
	}
	r.Waiting[id] = w
}

// A group is a record in memory, with the deliveries that belong to it. The queue's mu guards all but entry.
type group struct {
	entry           streams.Entry // guarded by queue.saving, and so is
	failedAt        time.Time     // when the record last could not be written; zero if it could
	rec             record
	version         int               // number of changes made to rec
	savedVersion    int               // the version in the bucket
	requiredVersion int               // the version that must be in the bucket before the group's next delivery
	pending         map[string]uint64 // sequence numbers by streams.Message.DeliveryID
	settled         []settlement      // those since the last save
}

// A settlement is a message that is settled in a record that isn't saved yet.
type settlement struct {
	seq   uint64
	reply string // see streams.Raw
	sent  bool   // the sink has accepted it
}

// recordKey returns the key of a record in the bucket: record.<sink>.<id>.<subscription>.<group>.<set>, with the id of an
// Azure event or a CloudEvent.
func recordKey(sink, group string) string {
	return "record." + streams.Token(sink) + "." + recordSuffix(group)
}

// recordSuffix returns what a record's key has behind the sink.
func recordSuffix(group string) string {
	id, set := streams.CutGroup(group)
	return streams.Token(id) + "." + set
}
