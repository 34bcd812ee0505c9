package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/delivery"
)

// format is the file format. It changes with the buckets and the JSON of their records.
const format = "4"

// open opens the storage, unless it is open, and loads its records; loaded reports whether it did. A file that is
// damaged, another VM's or of another format is set aside.
func (o *Outbox) open() (loaded bool, err error) {
	if o.opened {
		return false, nil
	}
	loaded, err = o.openOnce()
	for why, cause := range map[string]error{"damaged": ErrDamaged, "foreign": errForeign, "format": errFormat} {
		if !o.readOnly && errors.Is(err, cause) {
			if err = o.storage.SetAside(why, err); err == nil {
				loaded, err = o.openOnce()
			}
			break
		}
	}
	o.opened = err == nil
	return loaded, err
}

func (o *Outbox) openOnce() (loaded bool, err error) {
	opened, unwritable := o.storage.Open()
	switch {
	case unwritable != nil && !errors.Is(unwritable, ErrReadOnly):
		o.merged = false
		return false, unwritable
	case o.merged && !opened:
		if o.hasParts() && unwritable == nil && !o.readOnly {
			unwritable = o.removeParts(true)
		}
		return false, unwritable
	}
	o.merged = false
	has, err := o.storage.Read(bucketMeta, metaFormat)
	if err != nil {
		return false, err
	}
	owner, err := o.storage.Read(bucketMeta, metaOwner)
	if err != nil {
		return false, err
	}
	o.mu.Lock()
	foreign := o.checkOwner(owner)
	o.mu.Unlock()
	writable := unwritable == nil && !o.readOnly
	switch {
	case has == nil: // the storage is new
		if err := o.removeParts(writable); err != nil {
			return false, err
		}
		o.rewrite()
		o.merged, o.written = true, 0
		return false, unwritable
	case string(has) != format:
		return false, fmt.Errorf("%s was %w: its format is %q, and this one reads only %q", o.path, errFormat, has, format)
	case foreign != nil:
		return false, foreign
	}
	err = o.removeParts(writable)
	switch {
	case err != nil && o.hasParts() && !errors.Is(err, ErrDamaged): // the file can still be read
		writable, unwritable = false, err
	case err != nil:
		return false, err
	}
	all, err := o.read()
	if err != nil {
		return false, err
	}
	if err := o.load(all, owner); err != nil {
		return false, err
	}
	o.mu.Lock()
	o.written = o.last
	o.mu.Unlock()
	o.merged = true
	return true, unwritable
}

// removeParts removes the parts of an unfinished change from the storage: a crash came before its last part was
// written. Parts that can't be removed are ignored when the storage is read: see hasParts.
func (o *Outbox) removeParts(writable bool) error {
	ahead, err := o.storage.Read(bucketMeta, metaAhead)
	var last uint64
	if err == nil && ahead != nil {
		if last, err = seqOf(string(ahead)); err != nil {
			err = fmt.Errorf("%w: it is written ahead of %q", ErrDamaged, ahead)
		}
	}
	if err != nil {
		return err
	}
	o.mu.Lock()
	if o.partsFrom = 0; ahead != nil {
		o.partsFrom = last + 1
	}
	o.mu.Unlock()
	if ahead == nil || !writable {
		return nil
	}
	var deletes []Write
	for _, bucket := range []string{bucketEvents, bucketHeads, bucketMeta, bucketPending} { // in order
		err := o.storage.Walk(bucket, "", func(key string, _ []byte) error {
			p := place{bucket, key}
			if p.added() > last || p == (place{bucketMeta, metaAhead}) {
				deletes = append(deletes, Write{bucket, key, nil})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := o.storage.Write(deletes); err != nil {
		return err
	}
	o.mu.Lock()
	o.partsFrom = 0
	o.mu.Unlock()
	return nil
}

// hasParts reports whether the storage holds parts of an unfinished change that removeParts could not remove.
func (o *Outbox) hasParts() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.partsFrom > 0
}

// checkOwner returns an error that wraps errForeign if a file with that owner is another VM's. The caller holds mu.
func (m *memory) checkOwner(owner []byte) error {
	if m.owner == "" || owner == nil || strings.EqualFold(string(owner), m.owner) {
		return nil
	}
	return fmt.Errorf("%w: it belongs to vmId %s and this is %s; was this machine cloned?", errForeign, owner, m.owner)
}

// read returns the records of the storage, except CloudEvents, and except outcomes of CloudEvents that nothing refers to.
func (o *Outbox) read() (all []Write, err error) {
	used := map[string]bool{} // sequence numbers
	for _, bucket := range []string{bucketHeads, bucketMeta, bucketValues, bucketGroups, bucketEnded, bucketMarks,
		bucketReceipts, bucketRoutes, bucketMutes, bucketPending, bucketDead, bucketSettled} {
		err := o.storage.Walk(bucket, "", func(key string, value []byte) error {
			o.diskAnswers()
			digits, _, _ := strings.Cut(key, "/")
			used[digits] = used[digits] || bucket == bucketHeads
			if o.partsFrom > 0 && (place{bucket, key}).added() >= o.partsFrom {
				return nil
			}
			if _, err := seqOf(key); bucket != bucketSettled || used[digits] || err != nil { // load reports a bad key
				all = append(all, Write{bucket, key, slices.Clone(value)})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// load puts the records of a file into memory. A record that can't be read is logged and skipped.
func (o *Outbox) load(all []Write, owner []byte) error {
	unreadable, err := o.merge(all, owner)
	for at, err := range unreadable {
		o.log.Error("cannot read a record of the outbox", "bucket", at.bucket, "key", at.key, "err", err)
	}
	return err
}

// merge adds the records of a file to memory. The file may be read late, or a second time: records in memory, and those
// still to be written, are newer.
func (o *Outbox) merge(all []Write, owner []byte) (unreadable map[place]error, err error) {
	if deciding := o.currentCallbacks().Deciding; deciding != nil {
		deciding.Lock()
		defer deciding.Unlock()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.checkOwner(owner); err != nil { // the owner was set while the file was read
		return nil, err
	}
	newer := change{memory: &o.memory, writes: records{}}
	newer.writeAll()
	maps.Copy(newer.writes, o.waiting)
	last := place{bucketMeta, metaLast}
	delete(newer.writes, last) // the larger of the two counts, or a sequence number would be used twice
	unreadable = map[place]error{}
	o.fileState = Stored{Values: map[string][]byte{}, Groups: map[string]Group{}, Routes: map[string]bool{}}
	for _, w := range all {
		at := place{w.Bucket, w.Key}
		if w.Value == nil {
			continue
		}
		switch w.Bucket {
		case bucketValues:
			o.fileState.Values[w.Key] = w.Value
		case bucketGroups:
			var g Group
			if json.Unmarshal(w.Value, &g) == nil { // loadRecord reports another
				o.fileState.Groups[w.Key] = g
			}
		case bucketRoutes:
			o.fileState.Routes[w.Key] = len(w.Value) == 0
		}
		if _, known := newer.writes[at]; known {
			if w.Bucket == bucketMarks {
				o.raiseMark(w)
			}
			continue
		}
		if err := o.loadRecord(w, o.started); err != nil {
			unreadable[at] = err
		}
	}
	o.tried = o.last
	if o.waiting[last] != nil {
		o.waiting[last] = []byte(seqKey(o.last))
	}
	if o.settings != nil { // routes of the file that are not among them were removed while it could not be read
		c := change{memory: &o.memory, now: time.Now(), writes: o.waiting}
		c.setRoutes(o.settings)
	}
	o.assignMutes(0)
	if o.started && o.takingUp == nil {
		o.takingUp = make(chan struct{})
	}
	for seq, m := range o.messages {
		if m.refs == 0 && m.body == nil {
			delete(o.messages, seq)
		}
	}
	return unreadable, nil
}

// raiseMark raises the count of a mark in memory to that of a file read late: with the smaller one, an id would be used
// twice. The caller holds mu.
func (o *Outbox) raiseMark(w Write) {
	var was Mark
	if json.Unmarshal(w.Value, &was) != nil {
		return
	}
	g := o.group(was.Group)
	at := g.markIndex(w.Key, was.Group)
	if at < 0 {
		return // it was deleted from memory
	}
	if now := g.marks[at].unpack(was.Group); now.Times < was.Times {
		now.Times = was.Times
		o.setMark(w.Key, now)
		o.waiting[place{w.Bucket, w.Key}] = now
	}
}

// releaseLoaded shows readers the deliveries of a file that was read late. It is called after Callbacks.Loaded has
// returned.
func (o *Outbox) releaseLoaded() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.routes {
		for _, e := range r.pending {
			if e.late {
				e.late = false
				r.reader.touch(e.Seq)
			}
		}
	}
	if o.takingUp != nil {
		close(o.takingUp)
		o.takingUp = nil
	}
	wake(o.kick)
}

// TakenUp returns a channel that is closed when Callbacks.Loaded has returned; nil if it need not be waited for, because
// no file was read later than by Open. Until then Mark knows the file's marks, but the owner may not know its groups.
func (o *Outbox) TakenUp() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.takingUp
}

// loadRecord puts one record of a file into memory, which has none with that key.
func (m *memory) loadRecord(w Write, late bool) (err error) {
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
		var was Group
		if err = json.Unmarshal(w.Value, &was); err != nil {
			return err
		}
		g := m.group(w.Key)
		g.state, g.latest, g.cloudEvent = was.State, m.message(was.Latest), was.CloudEvent
		g.latest.refs++
	case bucketHeads:
		seq, err := seqOf(w.Key)
		if err != nil {
			return err
		}
		return json.Unmarshal(w.Value, &m.message(seq).head)
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
		if r.configured = true; len(w.Value) > 0 {
			err = r.removed.UnmarshalText(w.Value)
		}
	case bucketMutes:
		var mute delivery.Mute
		if err = json.Unmarshal(w.Value, &mute); err == nil {
			m.setMute(mute)
		}
	case bucketPending, bucketDead:
		return m.loadDelivery(w, late)
	case bucketSettled:
		var s settlement
		_, name, _ := strings.Cut(w.Key, "/")
		seq, err := seqOf(w.Key)
		if err == nil {
			err = json.Unmarshal(w.Value, &s)
		}
		if err == nil && m.outcome(name, seq).State == "" {
			m.message(seq).setOutcome(name, Outcome{s.State, s.At})
		}
		return err
	}
	return err
}

func (m *memory) loadDelivery(w Write, late bool) error {
	var d Delivery
	name, seq, err := splitKey(w.Key)
	if err == nil {
		err = json.Unmarshal(w.Value, &d)
	}
	if err != nil {
		return err
	}
	m.last = max(m.last, seq)
	e := entryOf(d, m.message(seq), m.route(name), w.Bucket == bucketDead)
	e.late = late
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
			c.write(bucketGroups, id, g.record())
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
			c.write(bucketPending, e.key(), e)
		}
		for _, e := range r.dead {
			c.write(bucketDead, e.key(), e)
		}
	}
	for seq, m := range c.messages {
		if m.ID != "" {
			c.write(bucketHeads, seqKey(seq), &m.head)
		}
		if body := c.body(seq); body != nil {
			c.write(bucketEvents, seqKey(seq), body)
		}
	}
}

// readBodies reads the CloudEvents that something refers to into memory, before the file that holds them is given up.
func (o *Outbox) readBodies() {
	var bodiless []*message
	o.mu.Lock()
	for seq, m := range o.messages {
		if o.body(seq) == nil {
			bodiless = append(bodiless, m)
		}
	}
	o.mu.Unlock()
	for _, m := range bodiless {
		body, err := o.storage.Read(bucketEvents, seqKey(m.Seq))
		o.mu.Lock()
		if err == nil && json.Valid(body) && o.messages[m.Seq] == m {
			m.body = body
		}
		o.mu.Unlock()
	}
}

// maxRescued is how many bytes of history are taken from a damaged file at most, as they are in memory all at once.
const maxRescued = 16 << 20

// readHistory returns the newest part of the history that can still be read: CloudEvents, and what became of their
// deliveries and of those of CloudEvents that something refers to.
func (o *Outbox) readHistory() (kept records, err error) {
	kept = records{}
	var newest []place // of the CloudEvents
	bytes := 0
	err = o.storage.Walk(bucketEvents, "", func(key string, value []byte) error {
		o.diskAnswers()
		if !json.Valid(value) {
			return nil
		}
		p := place{bucketEvents, key}
		kept[p], newest, bytes = slices.Clone(value), append(newest, p), bytes+len(value)
		for ; bytes > maxRescued; newest = newest[1:] {
			bytes -= len(kept[newest[0]].([]byte))
			delete(kept, newest[0])
		}
		return nil
	})
	return kept, errors.Join(err, o.storage.Walk(bucketSettled, "", func(key string, value []byte) error {
		o.diskAnswers()
		p := place{bucketSettled, key}
		o.mu.Lock()
		used := o.messages[p.seq()] != nil
		o.mu.Unlock()
		if used || kept[place{bucketEvents, seqKey(p.seq())}] != nil {
			kept[p] = slices.Clone(value)
		}
		return nil
	}))
}

// salvage takes what only the file holds into memory, before it is given up: CloudEvents, and the newest history up to a
// bound.
func (o *Outbox) salvage() {
	kept, err := o.readHistory()
	if err != nil {
		o.log.Error("part of the history in the outbox is lost", "kept", len(kept), "err", err)
	}
	o.readBodies()
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.Copy(kept, o.waiting)
	o.waiting = kept
}

// rescue sets a damaged file aside and starts a new one, with everything in memory and, up to a bound, the newest
// history that can still be read.
func (o *Outbox) rescue(cause error) error {
	o.salvage()
	o.opened = false
	if err := o.storage.SetAside("damaged", cause); err != nil {
		return err
	}
	_, err := o.open()
	return err
}
