package outbox

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
)

// A Record is one stored CloudEvent, with the results of its deliveries.
type Record struct {
	Seq        uint64
	Body       json.RawMessage
	Deliveries []Result // by route
}

// A Result is the state of one delivery. Commands print its JSON; the file holds that of a settled one, without what the
// key contains.
type Result struct {
	Route    string    `json:"sink,omitempty"`
	State    string    `json:"state"`       // StateAccepted, StateSuperseded, StateDropped, StatePending or StateDead
	At       time.Time `json:"at,omitzero"` // when it ended; while it is pending, when it was last attempted
	Attempts int       `json:"attempts"`
	Answer   string    `json:"answer,omitempty"` // what the destination said
	AnswerID string    `json:"answerId,omitempty"`
	Reason   string    `json:"reason,omitempty"` // of a dead letter
	Error    string    `json:"error,omitempty"`  // of the last attempt
	// ReplayedBy is the user who last made a dead letter pending again; "" for none.
	ReplayedBy string `json:"replayedBy,omitempty"`
	// Fallback is the route in whose place this one got it; "" for none.
	Fallback string `json:"fallbackFor,omitempty"`
}

// pageSize is how many records Walk reads at a time.
const pageSize = 500

var errEnough = errors.New("enough")

// Walk calls f for every stored CloudEvent from the sequence number on, oldest first, until f fails. It may or may not
// see changes made meanwhile.
func (o *Outbox) Walk(first uint64, f func(Record) error) error {
	unwritten := records{}
	o.mu.Lock()
	for _, r := range []records{o.inFlight, o.waiting} {
		for p, v := range r {
			if isHistory(p.bucket) {
				unwritten[p] = v
			}
		}
	}
	o.mu.Unlock()
	waiting := unwritten.encode()
	for from := seqKey(first); from != ""; {
		p, next, unread := o.readPage(from, waiting)
		for _, key := range slices.Sorted(maps.Keys(p.bodies)) {
			if p.bodies[key] == nil {
				continue // it waits to be deleted
			}
			if err := f(o.recordOf(key, p)); err != nil {
				return err
			}
		}
		if unread != nil {
			return unread
		}
		from = next
	}
	return nil
}

// ReadHistory calls f for every CloudEvent in the file of an outbox that was set aside, as Walk does. Of a damaged file f
// gets what comes before the damage, and the error says what that is.
func ReadHistory(path string, f func(Record) error) error {
	db, fd, err := openBolt(path, true)
	if err != nil {
		return err
	}
	o := newOutbox("", Options{})
	stored := newFile(path, true, o.log)
	stored.db, stored.fd = db, fd
	o.storage, o.readOnly = salvage{stored}, true
	return errors.Join(o.Walk(0, f), stored.Close())
}

// A page is a part of the history, by the keys of CloudEvents.
type page struct {
	bodies  map[string][]byte
	settled map[string][]Result
}

// readPage reads a part of the history, starting at a key, as if the waiting records were written. next is the key of the
// next page, "" if there is none. Beside an error the part is what comes before the damage.
func (o *Outbox) readPage(from string, waiting []Write) (p page, next string, err error) {
	p = page{map[string][]byte{}, map[string][]Result{}}
	file := o.fileNumber()
	err = o.storage.Walk(bucketEvents, from, func(key string, value []byte) error {
		if len(p.bodies) == pageSize {
			next = key
			return errEnough
		}
		p.add(Write{bucketEvents, key, value})
		return nil
	})
	if err != nil && err != errEnough && !o.readOnly { // a file in use is read no further: see verify
		return page{}, "", o.noteDamage(file, err)
	}
	known := "" // all results of what comes before it
	damage := o.storage.Walk(bucketSettled, from, func(key string, value []byte) error {
		if next != "" && key >= next {
			return errEnough
		}
		known, _, _ = strings.Cut(key, "/")
		p.add(Write{bucketSettled, key, value})
		return nil
	})
	if damage != nil && damage != errEnough {
		maps.DeleteFunc(p.bodies, func(key string, _ []byte) bool { return key >= known })
		err = damage
	}
	if err != nil && err != errEnough {
		return p, "", o.noteDamage(file, err)
	}
	for _, w := range waiting {
		if w.Key >= from && (next == "" || w.Key < next) {
			p.add(w)
		}
	}
	return p, next, nil
}

func (p page) add(w Write) {
	if w.Bucket == bucketEvents {
		p.bodies[w.Key] = slices.Clone(w.Value)
		return
	}
	key, route, _ := strings.Cut(w.Key, "/")
	r, err := decode[Result](w.Value)
	if err == nil { // an unreadable result must not hide the others
		r.Route = route
		p.settled[key] = append(p.settled[key], r)
	}
}

// recordOf returns the CloudEvent with the results of its settled deliveries and the state of the others.
func (o *Outbox) recordOf(key string, p page) Record {
	results := map[string]Result{}
	for _, r := range p.settled[key] {
		results[r.Route] = r
	}
	seq, _ := seqOf(key)
	o.mu.Lock()
	for name, route := range o.routes {
		e := route.delivery(seq)
		if e != nil {
			d := e.record()
			results[name] = Result{Route: name, State: d.State, At: later(d.LastAttempt, d.DeadSince), Attempts: d.Attempts,
				ReplayedBy: d.ReplayedBy, Reason: d.Reason, Error: d.Error}
		}
	}
	o.mu.Unlock()
	all := slices.Collect(maps.Values(results))
	slices.SortFunc(all, func(a, b Result) int { return strings.Compare(a.Route, b.Route) })
	return Record{Seq: seq, Body: p.bodies[key], Deliveries: all}
}

// maxFollowLag is how many CloudEvents a follower may be behind.
const maxFollowLag = 1000

// Follow returns a channel with the JSON of every CloudEvent that is added from now on, until stop is called. The
// channel is closed if its reader falls too far behind.
func (o *Outbox) Follow() (events <-chan json.RawMessage, stop func()) {
	c := make(chan json.RawMessage, maxFollowLag)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.followers[c] = true
	return c, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.followers, c)
	}
}

// publish gives followers a CloudEvent. The caller holds mu.
func (o *Outbox) publish(body json.RawMessage) {
	for c := range o.followers {
		select {
		case c <- body:
		default:
			delete(o.followers, c)
			close(c)
		}
	}
}
