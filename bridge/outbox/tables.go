package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/delivery"
)

// A table is one kind of record: its bucket in the file, and its part of memory. R is a record in the form that encode
// takes. What loads a file, writes all of memory to a new one, or merges a returned one does so table by table.
type table[R any] struct {
	bucket string
	each   func(m *memory, f func(key string, r R)) // calls f with every record of memory
	put    func(m *memory, key string, r R) error   // adds a record to memory, or replaces it
	skip   func(m *memory, key string) bool         // what memory doesn't need of a file; nil: it needs everything
	larger bool                                     // put keeps the larger of two records
}

// tables are all tables that a file is loaded by, in this order: what comes later refers to what came before.
var tables = []interface {
	name() string
	load(m *memory, key string, value []byte) error
	save(c *Tx)
	join(c *Tx, returned *memory, newer records)
}{
	&metaTable, &valueTable, &groupTable, &endedTable, &markTable, &receiptTable, &routeTable, &muteTable, &pendingTable,
	&deadTable, &settledTable,
}

func (t *table[R]) name() string { return t.bucket }

// load puts one record of a file into memory.
func (t *table[R]) load(m *memory, key string, value []byte) error {
	if t.skip != nil && t.skip(m, key) {
		return nil
	}
	r, err := decode[R](value)
	if err != nil {
		return err
	}
	return t.put(m, key, r)
}

// save writes every record of memory.
func (t *table[R]) save(tx *Tx) {
	t.each(tx.memory, func(key string, r R) { tx.write(t.bucket, key, r) })
}

// set puts a record into memory and writes it.
func (t *table[R]) set(tx *Tx, key string, r R) {
	_ = t.put(tx.memory, key, r) // only a file holds what it can't take
	tx.write(t.bucket, key, r)
}

// join adds the records of a returned file to memory. Those that newer has are in memory, or were deleted from it.
func (t *table[R]) join(tx *Tx, returned *memory, newer records) {
	t.each(returned, func(key string, r R) {
		_, known := newer[address{t.bucket, key}]
		if !known || t.larger {
			_ = t.put(tx.memory, key, r) // it has been in memory
		}
	})
	if !t.larger {
		return
	}
	t.each(tx.memory, func(key string, r R) {
		if tx.writes[address{t.bucket, key}] != nil {
			tx.write(t.bucket, key, r)
		}
	})
}

// encode returns a record as the file stores it; nil for a deleted one. Every record of the outbox can be encoded.
func encode(record any) []byte {
	switch r := record.(type) {
	case nil:
		return nil
	case []byte:
		return r
	case *Delivery: // without what its bucket and key say
		d := *r
		d.Route, d.State = "", ""
		record = &d
	case Result:
		r.Route = ""
		record = r
	}
	data, err := json.Marshal(record)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", record, err))
	}
	return data
}

// decode returns the record that encode encoded.
func decode[R any](data []byte) (r R, err error) {
	raw, is := any(&r).(*[]byte)
	if is {
		*raw = slices.Clone(data)
		return r, nil
	}
	err = json.Unmarshal(data, &r)
	return r, err
}

var metaTable = table[[]byte]{
	bucket: bucketMeta,
	each: func(m *memory, f func(string, []byte)) {
		f(metaFormat, []byte(format))
		f(metaLast, []byte(seqKey(m.last)))
		if m.owner != "" {
			f(metaOwner, []byte(m.owner))
		}
	},
	put: func(m *memory, key string, value []byte) error {
		switch key {
		case metaOwner:
			m.owner = string(value)
		case metaLast:
			last, err := seqOf(string(value))
			m.last = max(m.last, last)
			return err
		}
		return nil
	},
	larger: true,
}

var valueTable = table[[]byte]{
	bucket: bucketValues,
	each: func(m *memory, f func(string, []byte)) {
		for name, v := range m.values {
			f(name, v)
		}
	},
	put: func(m *memory, name string, v []byte) error {
		m.values[name] = v
		return nil
	},
}

// A storedGroup is an open group as the file stores it.
type storedGroup struct {
	Group
	Message delivery.Message `json:"message"` // its latest change
}

// groupTable holds the open groups. Their CloudEvents are with all others, and load reads them from there.
var groupTable = table[storedGroup]{
	bucket: bucketGroups,
	each: func(m *memory, f func(string, storedGroup)) {
		for id, g := range m.groups {
			if g.latest != nil {
				f(id, g.stored())
			}
		}
	},
	put: func(m *memory, id string, r storedGroup) error {
		latest := m.message(r.Latest)
		if latest == nil {
			latest = &message{Message: r.Message, bytes: len(r.CloudEvent)}
			latest.Seq = r.Latest
		}
		m.openGroup(m.group(id), r.Group, latest)
		return nil
	},
}

// endedTable holds when groups ended.
var endedTable = table[time.Time]{
	bucket: bucketEnded,
	each: func(m *memory, f func(string, time.Time)) {
		for id, g := range m.groups {
			if !g.ended.IsZero() {
				f(id, g.ended)
			}
		}
	},
	put: func(m *memory, id string, at time.Time) error {
		g := m.group(id)
		if g.latest == nil {
			g.ended = at
		}
		return nil
	},
}

var markTable = table[Mark]{
	bucket: bucketMarks,
	each: func(m *memory, f func(string, Mark)) {
		for id, mark := range m.marks {
			f(id, mark)
		}
	},
	put: func(m *memory, id string, mark Mark) error {
		m.setMark(id, mark)
		return nil
	},
	larger: true, // with the smaller one, an id would be used twice
}

// receiptTable have the keys group/route.
var receiptTable = table[[]byte]{
	bucket: bucketReceipts,
	each: func(m *memory, f func(string, []byte)) {
		for id, g := range m.groups {
			for route, value := range g.receipts {
				f(id+"/"+route, value)
			}
		}
	},
	put: func(m *memory, key string, value []byte) error {
		at := strings.LastIndexByte(key, '/')
		if at < 0 {
			return errors.New("it says nothing of its route")
		}
		m.group(key[:at]).receipts[key[at+1:]] = value
		return nil
	},
}

// A storedRoute is a route that is in the settings, or was removed from them less than keepOrphans ago.
type storedRoute struct {
	Removed time.Time `json:"removed,omitzero"` // zero while it is in the settings
}

var routeTable = table[storedRoute]{
	bucket: bucketRoutes,
	each: func(m *memory, f func(string, storedRoute)) {
		for name, r := range m.routes {
			if r.configured {
				f(name, storedRoute{r.removed})
			}
		}
	},
	put: func(m *memory, name string, s storedRoute) error {
		r := m.route(name)
		r.configured, r.removed = true, s.Removed
		return nil
	},
}

// muteTable are assigned to routes by assignMutes, when all are there.
var muteTable = table[delivery.Mute]{
	bucket: bucketMutes,
	each: func(m *memory, f func(string, delivery.Mute)) {
		for _, mute := range m.mutes {
			f(mute.ID, *mute)
		}
	},
	put: func(m *memory, _ string, mute delivery.Mute) error {
		m.setMute(mute)
		return nil
	},
}

var pendingTable = table[*Delivery]{
	bucket: bucketPending,
	each: func(m *memory, f func(string, *Delivery)) {
		m.eachEntry(func(r *route) ordered { return r.pending }, f)
	},
	put: func(m *memory, key string, d *Delivery) error { return m.putStored(StatePending, key, d) },
}

var deadTable = table[*Delivery]{
	bucket: bucketDead,
	each: func(m *memory, f func(string, *Delivery)) {
		m.eachEntry(func(r *route) ordered { return r.dead }, f)
	},
	put: func(m *memory, key string, d *Delivery) error { return m.putStored(StateDead, key, d) },
}

// settledTable holds the results of settled deliveries. Memory has those of CloudEvents that message knows.
var settledTable = table[Result]{
	bucket: bucketSettled,
	each: func(m *memory, f func(string, Result)) {
		m.eachMessage(func(msg *message) {
			for _, r := range msg.settled {
				f(deliveryKey(msg.Seq, r.Route), r)
			}
		})
	},
	put: func(m *memory, key string, r Result) error {
		seq, name, err := splitStored(key)
		if err != nil {
			return err
		}
		msg := m.message(seq)
		if msg != nil {
			r.Route = name
			msg.setResult(r)
		}
		return nil
	},
	skip: func(m *memory, key string) bool {
		seq, _, err := splitStored(key)
		return err == nil && m.message(seq) == nil
	},
}
