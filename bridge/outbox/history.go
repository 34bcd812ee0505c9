package outbox

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"time"
)

// A Record is one CloudEvent that is still kept, with what became of each of its deliveries.
type Record struct {
	Seq        uint64
	Body       json.RawMessage
	Deliveries []Result // by route
}

// A Result is what became of one delivery, or how it stands. Its JSON is how the file keeps the end of one.
type Result struct {
	Route    string    `json:"-"`
	State    string    `json:"how"` // StateAccepted, StateSuperseded, StateDropped, StatePending or StateDead
	At       time.Time `json:"at"`  // of the end; of the last attempt while it is pending
	Attempts int       `json:"attempts"`
	Answer   string    `json:"status,omitempty"` // what the destination said
	AnswerID string    `json:"answerId,omitempty"`
	Reason   string    `json:"-"`
	Error    string    `json:"-"`
}

// walkStep is how many records Walk reads at a time.
const walkStep = 500

var errEnough = errors.New("enough")

// Walk calls f for every CloudEvent that is kept, from the sequence number on, oldest first, until f fails. It sees
// what was there when it began; what changes meanwhile it may see or not.
func (o *Outbox) Walk(first uint64, f func(Record) error) error {
	o.mu.Lock()
	var waiting []Write
	for _, b := range o.waiting {
		waiting = append(waiting, b.writes...)
	}
	o.mu.Unlock()
	for from, to := seqKey(first), ""; from != ""; from = to {
		events, next, err := o.span(waiting, bucketEvents, from, "", walkStep)
		if err != nil {
			return err
		}
		to = next
		settled, _, err := o.span(waiting, bucketSettled, from, to, math.MaxInt)
		if err != nil {
			return err
		}
		for _, w := range events {
			n := slices.IndexFunc(settled, func(s *Write) bool { return s.Key > w.Key+"0" })
			if n < 0 {
				n = len(settled)
			}
			if err := f(o.recordOf(w, settled[:n])); err != nil {
				return err
			}
			settled = settled[n:]
		}
	}
	return nil
}

// span reads a bucket as if what waits were written, in order, from one key to before another, "" for the end. After so
// many records of the storage it stops: next is the key to go on from, "" if there are no more.
func (o *Outbox) span(waiting []Write, bucket, from, to string, most int) (list []*Write, next string, err error) {
	var stored []Write
	next = to
	err = o.storage.Walk(bucket, from, func(key string, value []byte) error {
		if to != "" && key >= to {
			return errEnough
		}
		if len(stored) == most {
			next = key
			return errEnough
		}
		stored = append(stored, Write{bucket, key, slices.Clone(value)})
		return nil
	})
	if err != nil && err != errEnough {
		return nil, "", o.damaged(err)
	}
	for _, w := range waiting {
		if w.Bucket == bucket && w.Key >= from && (next == "" || w.Key < next) {
			stored = append(stored, w)
		}
	}
	list = inKeyOrder([][]Write{stored})
	return slices.DeleteFunc(list, func(w *Write) bool { return w.Value == nil }), next, nil
}

// recordOf is the CloudEvent with what became of its deliveries, and how they stand.
func (o *Outbox) recordOf(event *Write, settlements []*Write) Record {
	seq, _ := seqOf(event.Key)
	r := Record{Seq: seq, Body: event.Value}
	results := map[string]Result{}
	for _, w := range settlements {
		var s settlement
		name, ours := strings.CutPrefix(w.Key, event.Key+"/")
		if ours && json.Unmarshal(w.Value, &s) == nil { // what can't be read must not hide the others
			s.Route = name
			results[name] = s.Result
		}
	}
	o.mu.Lock()
	for name, route := range o.routes {
		if e := route.pending[seq]; e != nil {
			results[name] = Result{Route: name, State: StatePending, At: e.tried, Attempts: e.Attempts, Error: e.Error}
		} else if e := route.dead[seq]; e != nil {
			results[name] = Result{Route: name, State: StateDead, At: e.death.at, Attempts: e.Attempts,
				Reason: e.death.reason, Error: e.Error}
		}
	}
	o.mu.Unlock()
	for _, result := range results {
		r.Deliveries = append(r.Deliveries, result)
	}
	slices.SortFunc(r.Deliveries, func(a, b Result) int { return strings.Compare(a.Route, b.Route) })
	return r
}

// followAhead is how many CloudEvents a follower may be behind.
const followAhead = 1000

// Follow gives every CloudEvent that is added from now on, in the JSON format, until stop is called. The channel is
// closed when its reader falls too far behind.
func (o *Outbox) Follow() (events <-chan json.RawMessage, stop func()) {
	c := make(chan json.RawMessage, followAhead)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.followers[c] = true
	return c, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.followers, c)
	}
}

// show gives followers a CloudEvent. mu is held.
func (o *Outbox) show(body json.RawMessage) {
	for c := range o.followers {
		select {
		case c <- body:
		default:
			delete(o.followers, c)
			close(c)
		}
	}
}
