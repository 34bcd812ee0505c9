package outbox

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// format is the file format. It changes with the buckets and the JSON of their records.
const format = "6"

// open opens the storage, unless it is open, and takes in what it holds.
func (o *Outbox) open() error {
	opened, unwritable := o.storage.Open()
	if !opened || unwritable != nil && !errors.Is(unwritable, ErrReadOnly) {
		return unwritable
	}
	err := o.takeIn()
	if err != nil && !o.readOnly {
		_ = o.storage.Close() // or the next Open would not say that it may hold something else
	}
	return cmp.Or(err, unwritable)
}

// takeIn loads a file. If memory has all of one already, or the file is new, all of memory is written to it.
func (o *Outbox) takeIn() error {
	has, err := o.storage.Read(bucketMeta, metaFormat)
	if err != nil {
		return err
	}
	owner, err := o.storage.Read(bucketMeta, metaOwner)
	if err != nil {
		return err
	}
	foreign := checkOwner(string(owner), o.Owner())
	switch {
	case has != nil && string(has) != format:
		return fmt.Errorf("%s was %w: its format is %q, and this one reads only %q", o.path, errFormat, has, format)
	case has != nil && foreign != nil:
		return foreign
	case has != nil && !o.loaded:
		return o.load()
	}
	o.rewrite()
	o.loaded = true
	return nil
}

// checkOwner returns an error that wraps errForeign if a file of that owner is another VM's. An owner is "" if unknown.
func checkOwner(owner, vmID string) error {
	if owner == "" || vmID == "" || strings.EqualFold(owner, vmID) {
		return nil
	}
	return fmt.Errorf("%w: it belongs to vmId %s and this is %s; was this machine cloned?", errForeign, owner, vmID)
}

// load reads the file. If that is too late for Open, what it holds waits for Join. If some record can't be read, the others
// are written to a new file: what damaged it may have damaged more.
func (o *Outbox) load() error {
	m := newMemory()
	var damage error
	for _, t := range tables {
		err := o.storage.Walk(t.name(), "", func(key string, value []byte) error {
			o.diskAnswers()
			err := t.load(&m, key, value)
			if err != nil {
				o.log.Error("cannot read a record of the outbox", "bucket", t.name(), "key", key, "err", err)
				damage = fmt.Errorf("%w: it has a record that can't be read", ErrDamaged)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	err := o.loadBodies(&m)
	if err != nil {
		return err
	}
	m.assignMutes()
	m.given = m.last
	o.loaded = true
	o.mu.Lock()
	returned := o.state != opening
	if returned {
		o.returned = &m
		close(o.arrived)
	} else {
		o.memory = m
	}
	o.mu.Unlock()
	if returned || o.readOnly {
		return nil
	}
	return damage
}

// loadBodies reads the CloudEvents that stay in memory.
func (o *Outbox) loadBodies(m *memory) error {
	stay := map[uint64]*message{}
	m.eachMessage(func(msg *message) {
		if m.staysInMemory(msg) {
			stay[msg.Seq] = msg
		}
	})
	for seq, msg := range stay {
		body, err := o.storage.Read(bucketEvents, seqKey(seq))
		if err != nil {
			return err
		}
		o.diskAnswers()
		if json.Valid(body) {
			msg.body, msg.bytes = body, len(body)
		}
	}
	return nil
}

// rewrite queues the whole state of memory for a new file, in addition to the waiting records.
func (o *Outbox) rewrite() {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := Tx{memory: &o.memory, writes: o.waiting}
	c.saveAll()
}

// saveAll writes the whole state of memory.
func (tx *Tx) saveAll() {
	for _, t := range tables {
		t.save(tx)
	}
	tx.eachMessage(func(msg *message) {
		if msg.body != nil {
			tx.write(bucketEvents, seqKey(msg.Seq), msg.body)
		}
	})
}
