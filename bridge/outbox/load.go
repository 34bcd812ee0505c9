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

// format is the file format. It changes with the buckets and the JSON of their records.
const format = "5"

// open opens the storage, unless it is open, and reads its records. A file that is damaged, another VM's or of another
// format is set aside.
func (o *Outbox) open() error {
	if o.opened {
		return nil
	}
	err := o.openOnce()
	for why, cause := range map[string]error{"damaged": ErrDamaged, "foreign": errForeign, "format": errFormat} {
		if !o.readOnly && errors.Is(err, cause) {
			if err = o.storage.SetAside(why, err); err == nil {
				err = o.openOnce()
			}
			break
		}
	}
	o.opened = err == nil
	return err
}

func (o *Outbox) openOnce() error {
	opened, unwritable := o.storage.Open()
	switch {
	case unwritable != nil && !errors.Is(unwritable, ErrReadOnly):
		o.known = false
		return unwritable
	case o.known && !opened:
		return unwritable
	}
	o.known = false
	has, err := o.storage.Read(bucketMeta, metaFormat)
	if err != nil {
		return err
	}
	owner, err := o.storage.Read(bucketMeta, metaOwner)
	if err != nil {
		return err
	}
	o.mu.Lock()
	foreign := o.checkOwner(owner)
	o.mu.Unlock()
	switch {
	case has == nil: // the storage is new
		o.rewrite()
		o.known, o.loaded = true, true
		return unwritable
	case string(has) != format:
		return fmt.Errorf("%s was %w: its format is %q, and this one reads only %q", o.path, errFormat, has, format)
	case foreign != nil:
		return foreign
	}
	if o.loaded { // memory has all of it, and is newer
		o.rewrite()
	} else if err := o.load(); err != nil {
		return err
	}
	o.known = true
	return unwritable
}

// checkOwner returns an error that wraps errForeign if a file with that owner is another VM's. The caller holds mu.
func (m *memory) checkOwner(owner []byte) error {
	if m.owner == "" || owner == nil || strings.EqualFold(string(owner), m.owner) {
		return nil
	}
	return fmt.Errorf("%w: it belongs to vmId %s and this is %s; was this machine cloned?", errForeign, owner, m.owner)
}

// read returns the records of the storage, except outcomes of CloudEvents that only the history has, and except
// CloudEvents themselves: open groups contain theirs.
func (o *Outbox) read() (all []Write, err error) {
	used := map[string]bool{} // sequence numbers
	for _, bucket := range []string{bucketMeta, bucketValues, bucketGroups, bucketEnded, bucketMarks,
		bucketReceipts, bucketRoutes, bucketMutes, bucketPending, bucketDead, bucketSettled} {
		err := o.storage.Walk(bucket, "", func(key string, value []byte) error {
			o.diskAnswers()
			digits, _, _ := strings.Cut(key, "/")
			switch bucket {
			case bucketPending, bucketDead:
				used[digits] = true
			case bucketSettled:
				if _, err := seqOf(key); !used[digits] && err == nil { // load reports a bad key
					return nil
				}
			}
			all = append(all, Write{bucket, key, slices.Clone(value)})
			return nil
		})
		if err == nil && bucket == bucketGroups {
			err = o.readLatest(all, used)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// readLatest adds its CloudEvent to each open group, and notes the sequence number.
func (o *Outbox) readLatest(all []Write, used map[string]bool) error {
	for i, w := range all {
		var g storedGroup
		if w.Bucket != bucketGroups || json.Unmarshal(w.Value, &g) != nil { // load reports the error
			continue
		}
		key := seqKey(g.Latest)
		body, err := o.storage.Read(bucketEvents, key)
		if err != nil {
			return err
		}
		if json.Valid(body) {
			g.CloudEvent = body
		}
		all[i].Value, used[key] = encode(&g), true
	}
	return nil
}

// load reads the file. If that is too late for Open, the records wait for Join. If some record can't be read, the others
// are written to a new file: what damaged it may have damaged more.
func (o *Outbox) load() error {
	all, err := o.read()
	if err != nil {
		return err
	}
	m := newMemory()
	var damage error
	all = slices.DeleteFunc(all, func(w Write) bool {
		if w.Value == nil {
			return true
		}
		err := m.loadRecord(w)
		if err != nil {
			o.log.Error("cannot read a record of the outbox", "bucket", w.Bucket, "key", w.Key, "err", err)
			damage = fmt.Errorf("%w: it has a record that can't be read", ErrDamaged)
		}
		return err != nil
	})
	m.assignMutes()
	o.loaded = true
	o.mu.Lock()
	late := o.started
	if late {
		o.late = all
		close(o.arrived)
	} else {
		m.tried = m.last
		o.memory = m
	}
	o.mu.Unlock()
	if late || o.readOnly {
		return nil
	}
	return damage
}

// loadRecord puts one record of a file into memory, which has none with that key.
func (m *memory) loadRecord(w Write) (err error) {
	switch w.Bucket {
	case bucketMeta:
		switch w.Key {
		case metaOwner:
			m.owner = string(w.Value)
		case metaLast:
			var last uint64
			last, err = seqOf(string(w.Value))
			m.last = max(m.last, last)
		}
	case bucketValues:
		m.values[w.Key] = w.Value
	case bucketGroups:
		var was storedGroup
		if err = json.Unmarshal(w.Value, &was); err != nil {
			return err
		}
		g := m.group(w.Key)
		g.state, g.cloudEvent, was.Message.Seq = was.State, was.CloudEvent, was.Latest
		latest := m.message(was.Latest)
		if latest == nil {
			latest = &message{Message: was.Message, bytes: len(was.CloudEvent)}
		}
		m.setLatest(g, latest)
	case bucketEnded:
		if g := m.group(w.Key); g.latest == nil {
			err = json.Unmarshal(w.Value, &g.ended)
		}
	case bucketMarks:
		var mark Mark
		if err = json.Unmarshal(w.Value, &mark); err == nil {
			m.setMark(w.Key, mark)
		}
	case bucketReceipts:
		if at := strings.LastIndexByte(w.Key, '/'); at >= 0 {
			m.setReceipt(w.Key[:at], w.Key[at+1:], w.Value, time.Time{})
		}
	case bucketRoutes:
		r := m.route(w.Key)
		r.configured = true
		if len(w.Value) > 0 {
			err = r.removed.UnmarshalText(w.Value)
		}
	case bucketMutes:
		var mute delivery.Mute
		if err = json.Unmarshal(w.Value, &mute); err == nil {
			m.setMute(mute)
		}
	case bucketPending, bucketDead:
		return m.loadDelivery(w)
	case bucketSettled:
		var s settlement
		_, name, _ := strings.Cut(w.Key, "/")
		seq, err := seqOf(w.Key)
		if err == nil {
			err = json.Unmarshal(w.Value, &s)
		}
		if msg := m.message(seq); err == nil && msg != nil && m.outcome(name, seq).State == "" {
			msg.setOutcome(name, Outcome{s.State, s.At})
		}
		return err
	}
	return err
}

func (m *memory) loadDelivery(w Write) error {
	var d Delivery
	_, name, _ := strings.Cut(w.Key, "/")
	seq, err := seqOf(w.Key)
	if err == nil {
		err = json.Unmarshal(w.Value, &d)
	}
	switch {
	case err != nil:
		return err
	case d.Message == nil:
		return errors.New("it says nothing of its CloudEvent")
	}
	m.last = max(m.last, seq)
	msg := m.message(seq)
	if msg == nil {
		msg = &message{Message: *d.Message, bytes: d.Bytes}
		msg.Seq = seq
	}
	e := entryOf(d, msg, m.route(name), w.Bucket == bucketDead)
	if now := time.Now().UTC(); e.PendingSince.After(now) { // the clock was set back since
		e.PendingSince = now
	}
	m.put(e)
	return nil
}

// rewrite queues the whole state of memory for a new file, in addition to the waiting records.
func (o *Outbox) rewrite() {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := change{memory: &o.memory, writes: o.waiting}
	c.write(bucketMeta, metaFormat, []byte(format))
	c.write(bucketMeta, metaLast, []byte(seqKey(c.last)))
	c.writeAll()
}

// writeAll adds the whole state of memory to the change.
func (c *change) writeAll() {
	if c.owner != "" {
		c.write(bucketMeta, metaOwner, []byte(c.owner))
	}
	for name, v := range c.values {
		c.write(bucketValues, name, v)
	}
	for _, m := range c.mutes {
		c.write(bucketMutes, m.ID, *m)
	}
	for id, g := range c.groups {
		if g.latest != nil {
			c.write(bucketGroups, id, g.stored())
			if g.cloudEvent != nil {
				c.write(bucketEvents, seqKey(g.latest.Seq), g.cloudEvent)
			}
			c.writeOutcomes(g.latest)
		}
		if !g.ended.IsZero() {
			c.write(bucketEnded, id, g.ended)
		}
		for _, x := range g.marks {
			c.write(bucketMarks, id+x.rest, x.unpack(id))
		}
		for _, r := range g.receipts {
			c.write(bucketReceipts, id+"/"+r.route, r.value)
		}
	}
	for name, r := range c.routes {
		if r.configured {
			c.write(bucketRoutes, name, r.removedText())
		}
		for _, e := range r.pending {
			c.write(bucketPending, e.storedKey(), e)
		}
		for _, e := range r.dead {
			c.write(bucketDead, e.storedKey(), e)
		}
	}
}

// writeOutcomes adds what became of the deliveries of a CloudEvent, without the answers: those wait to be written, or
// only the file has them.
func (c *change) writeOutcomes(m *message) {
	for _, s := range m.settled {
		key := deliveryKey(m.Seq, s.route)
		if c.writes[place{bucketSettled, key}] == nil {
			c.write(bucketSettled, key, &settlement{ID: m.ID, Group: m.Group, Result: Result{State: s.State, At: s.At}})
		}
	}
}

// replaceDamaged sets a damaged file aside and starts a new one with everything in memory. The history stays in the old
// one, and so do CloudEvents that are pending: for those of an open event its latest change is delivered.
func (o *Outbox) replaceDamaged(cause error) error {
	o.opened = false
	if err := o.storage.SetAside("damaged", cause); err != nil {
		return err
	}
	return o.open()
}
