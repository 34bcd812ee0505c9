package outbox

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Record is one CloudEvent that is still kept, with what became of each of its deliveries.
type Record struct {
	Seq        uint64
	Body       json.RawMessage
	Deliveries []Result // by route
}

// A Result is what became of one delivery, or how it stands.
type Result struct {
	Route    string
	State    string    // StateAccepted, StateSuperseded, StateDropped, StatePending or StateDead
	At       time.Time // of the end; of the last attempt while it is pending
	Attempts int
	Answer   string // what the destination said
	AnswerID string
	Reason   string
	Error    string
}

// walkStep is how many records Walk reads at a time.
const walkStep = 500

var errEnough = errors.New("enough")

// Walk calls f for every CloudEvent that is kept, from the sequence number on, oldest first, until f fails. It sees
// what was there when it began; what changes meanwhile it may see or not.
func (o *Outbox) Walk(first uint64, f func(Record) error) error {
	o.mu.Lock()
	waiting := o.waitingLayer()
	o.mu.Unlock()
	for from := seqKey(first); ; {
		var step []Record
		err := waiting.walk(o.storage, bucketEvents, from, func(key string, value []byte) error {
			if len(step) == walkStep {
				return errEnough
			}
			from = key + "\x00"
			if seq, err := strconv.ParseUint(key, 10, 64); err == nil {
				step = append(step, Record{Seq: seq, Body: slices.Clone(value)})
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			o.damaged(err)
			return err
		}
		last := err == nil
		if err := o.complete(step, waiting); err != nil {
			return err
		}
		for _, r := range step {
			if err := f(r); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
	}
}

// complete adds what became of the deliveries of records, which are in order.
func (o *Outbox) complete(records []Record, waiting layer) error {
	if len(records) == 0 {
		return nil
	}
	index := make(map[uint64]*Record, len(records))
	for i := range records {
		index[records[i].Seq] = &records[i]
	}
	last := records[len(records)-1].Seq
	err := waiting.walk(o.storage, bucketSettled, seqKey(records[0].Seq), func(key string, value []byte) error {
		digits, route, _ := strings.Cut(key, "/")
		seq, err := strconv.ParseUint(digits, 10, 64)
		if err == nil && seq > last {
			return errEnough
		}
		var s settlement
		if r := index[seq]; r != nil && json.Unmarshal(value, &s) == nil { // what can't be read must not hide the others
			r.Deliveries = append(r.Deliveries, Result{Route: strings.Clone(route), State: s.How, At: s.At,
				Attempts: s.Attempts, Answer: s.Status, AnswerID: s.AnswerID})
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		o.damaged(err)
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range records {
		r := &records[i]
		for name, route := range o.routes {
			if e := route.pending[r.Seq]; e != nil {
				r.set(Result{Route: name, State: StatePending, At: e.tried, Attempts: e.item.Attempts, Error: e.item.Error})
			} else if d := o.dead[name+"/"+seqKey(r.Seq)]; d != nil {
				r.set(Result{Route: name, State: StateDead, At: d.DeadSince, Attempts: d.Attempts, Reason: d.Reason,
					Error: d.Error})
			}
		}
		slices.SortFunc(r.Deliveries, func(a, b Result) int { return strings.Compare(a.Route, b.Route) })
	}
	return nil
}

// set says how a delivery stands now, whatever became of it once.
func (r *Record) set(now Result) {
	r.Deliveries = slices.DeleteFunc(r.Deliveries, func(d Result) bool { return d.Route == now.Route })
	r.Deliveries = append(r.Deliveries, now)
}
