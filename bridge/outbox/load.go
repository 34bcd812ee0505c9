package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// format is the number of the newest file format. It is counted up when an older program could no longer read the file.
const format = 2

// open makes the storage usable if it isn't, and reads it: loaded says so. What is damaged, or another VM's, is set
// aside. file is held.
func (o *Outbox) open() (loaded bool, err error) {
	if o.opened {
		return false, nil
	}
	loaded, err = o.openOnce()
	for why, cause := range map[string]error{"damaged": ErrDamaged, "foreign": errForeign} {
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
		o.known = false
		return false, unwritable
	case o.known && !opened:
		return false, unwritable
	}
	o.known = false
	number, err := o.storage.Read(bucketMeta, metaFormat)
	if err != nil {
		return false, err
	}
	owner, err := o.storage.Read(bucketMeta, metaOwner)
	if err != nil {
		return false, err
	}
	has, err := strconv.Atoi(string(number))
	o.mu.Lock()
	ours := o.owner
	o.mu.Unlock()
	switch {
	case number == nil: // it is new
		o.mu.Lock()
		o.merge(append(o.snapshot(), Write{bucketMeta, metaFormat, []byte(strconv.Itoa(format))}))
		o.mu.Unlock()
		o.known = true
		return false, unwritable
	case err != nil || has < 1:
		return false, fmt.Errorf("%w: its format is %q", ErrDamaged, number)
	case has > format:
		return false, fmt.Errorf("%w: %s has format %d and this one reads up to %d; install the newer version again, "+
			"or set another state directory", errNewer, o.path, has, format)
	case ours != "" && owner != nil && !strings.EqualFold(string(owner), ours):
		return false, fmt.Errorf("%w: it belongs to vmId %s and this is %s; was this machine cloned?", errForeign, owner,
			ours)
	}
	var all []Write
	if has < format {
		if all, err = migrate(o.storage); err == nil && unwritable == nil && !o.readOnly {
			err = o.storage.Write([][]Write{all})
		}
		if err != nil {
			return false, fmt.Errorf("migrate %s: %w", o.path, err)
		}
	}
	if all, err = o.read(all); err != nil {
		return false, err
	}
	o.load(all)
	o.known = true
	return true, unwritable
}

// read gives what the storage holds after the writes, but for CloudEvents and what became of deliveries of those that
// nothing refers to.
func (o *Outbox) read(all []Write) ([]Write, error) {
	for _, bucket := range []string{bucketMeta, bucketValues, bucketGroups, bucketHeads, bucketOver, bucketMarks,
		bucketReceipts, bucketRoutes, bucketPending, bucketDead} {
		err := o.storage.Walk(bucket, "", func(key string, value []byte) error {
			all = append(all, Write{bucket, key, slices.Clone(value)})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	used := map[string]bool{} // sequence numbers
	for _, w := range all {
		switch w.Bucket {
		case bucketHeads:
			used[w.Key] = true
		case bucketGroups:
			latest, _, _ := strings.Cut(string(w.Value), " ")
			used[latest] = true
		}
	}
	err := o.storage.Walk(bucketSettled, "", func(key string, value []byte) error {
		digits, _, _ := strings.Cut(key, "/")
		if _, err := seqOf(key); used[digits] || err != nil { // load says what is wrong
			all = append(all, Write{bucketSettled, key, slices.Clone(value)})
		}
		return nil
	})
	return all, err
}

// load takes what a file holds into memory. The file may come late: what memory knows, and what waits to be written,
// is newer. A record that can't be understood doesn't hide the others.
func (o *Outbox) load(all []Write) {
	o.mu.Lock()
	type place struct{ bucket, key string }
	newer := map[place]bool{}
	for _, b := range o.waiting {
		for _, w := range b.writes {
			newer[place{w.Bucket, w.Key}] = true
		}
	}
	bad := map[place]error{}
	for _, w := range all {
		at := place{w.Bucket, w.Key}
		if w.Value == nil || newer[at] {
			continue
		}
		if err := o.know(w); err != nil {
			bad[at] = err
		}
	}
	for seq, m := range o.messages {
		if m.uses == 0 && m.body == nil {
			delete(o.messages, seq)
		}
	}
	o.mu.Unlock()
	for at, err := range bad {
		o.log.Error("the outbox holds something that cannot be understood", "bucket", at.bucket, "key", at.key, "err", err)
	}
}

// know takes in one record of a file, unless memory has one of its key.
func (m *memory) know(w Write) (err error) {
	switch w.Bucket {
	case bucketMeta:
		switch {
		case w.Key == metaOwner && m.owner == "":
			m.owner = string(w.Value)
		case w.Key == metaLast:
			var last uint64
			last, err = seqOf(string(w.Value))
			m.last = max(m.last, last)
		}
	case bucketValues:
		if m.values[w.Key] == nil {
			m.values[w.Key] = w.Value
		}
	case bucketGroups:
		latest, state, _ := strings.Cut(string(w.Value), " ")
		seq, err := seqOf(latest)
		if g := m.group(w.Key); err == nil && g.latest == nil {
			g.state, g.latest = []byte(state), m.message(seq)
			g.latest.uses++
		}
		return err
	case bucketHeads:
		seq, err := seqOf(w.Key)
		if msg := m.message(seq); err == nil && msg.ID == "" {
			err = json.Unmarshal(w.Value, &msg.head)
		}
		return err
	case bucketOver:
		if g := m.group(w.Key); g.latest == nil && g.over.IsZero() {
			err = json.Unmarshal(w.Value, &g.over)
		}
	case bucketMarks:
		var mark Mark
		if err = json.Unmarshal(w.Value, &mark); err != nil {
			return err
		}
		if at, _ := m.group(mark.Group).mark(w.Key, mark.Group); at < 0 {
			m.setMark(w.Key, mark)
		}
	case bucketReceipts:
		if at := strings.LastIndexByte(w.Key, '/'); at >= 0 && m.groups[w.Key[:at]].receipt(w.Key[at+1:]) < 0 {
			m.setReceipt(w.Key[:at], w.Key[at+1:], w.Value)
		}
	case bucketRoutes:
		r := m.route(w.Key)
		if r.known {
			return nil
		}
		if r.known = true; len(w.Value) > 0 {
			err = r.gone.UnmarshalText(w.Value)
		}
	case bucketPending, bucketDead:
		return m.knowDelivery(w)
	case bucketSettled:
		var s settlement
		_, name, _ := strings.Cut(w.Key, "/")
		seq, err := seqOf(w.Key)
		if err == nil {
			err = json.Unmarshal(w.Value, &s)
		}
		if err == nil && m.outcome(name, seq).State == "" {
			m.message(seq).became(name, Outcome{s.State, s.At})
		}
		return err
	}
	return err
}

func (m *memory) knowDelivery(w Write) error {
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
	if known, _, _ := m.of(e); known[seq] != nil {
		return nil
	}
	m.put(e)
	if e.death == nil {
		e.route.reader.touch(seq)
	}
	return nil
}

// snapshot is all that memory knows. mu is held.
func (m *memory) snapshot() (all []Write) {
	add := func(bucket, key string, value []byte) { all = append(all, Write{bucket, key, value}) }
	add(bucketMeta, metaLast, []byte(seqKey(m.last)))
	if m.owner != "" {
		add(bucketMeta, metaOwner, []byte(m.owner))
	}
	for name, v := range m.values {
		add(bucketValues, name, v)
	}
	for id, g := range m.groups {
		if g.latest != nil {
			add(bucketGroups, id, g.encode())
		}
		if !g.over.IsZero() {
			add(bucketOver, id, encode(g.over))
		}
		for _, x := range g.marks {
			add(bucketMarks, x.id(id), encode(x.open(id)))
		}
		for _, r := range g.receipts {
			add(bucketReceipts, id+"/"+r.route, r.value)
		}
	}
	for name, r := range m.routes {
		if r.known {
			add(bucketRoutes, name, r.goneText())
		}
		for _, e := range r.pending {
			add(bucketPending, e.key(), e.encode())
		}
		for _, e := range r.dead {
			add(bucketDead, e.key(), e.encode())
		}
	}
	for seq, msg := range m.messages {
		if msg.ID != "" {
			add(bucketHeads, seqKey(seq), encode(msg.head))
		}
		if msg.body != nil {
			add(bucketEvents, seqKey(seq), msg.body)
		}
	}
	return all
}

// rescue has a damaged file set aside, and all that is known written into the next one, with what can be read of the
// history. file is held.
func (o *Outbox) rescue(cause error) error {
	b := &batch{}
	err := o.storage.Walk(bucketSettled, "", func(key string, value []byte) error {
		b.writes = append(b.writes, Write{bucketSettled, key, slices.Clone(value)})
		return nil
	})
	if err != nil {
		o.log.Error("what was delivered cannot all be read from the damaged outbox", "kept", len(b.writes), "err", err)
	}
	o.mu.Lock()
	b.number = o.stored
	var messages []*message
	for _, m := range o.messages {
		if m.body == nil {
			messages = append(messages, m)
		}
	}
	o.mu.Unlock()
	bodies := map[*message][]byte{}
	for _, m := range messages {
		if body, err := o.storage.Read(bucketEvents, seqKey(m.Seq)); err == nil && json.Valid(body) {
			bodies[m] = body
		}
	}
	o.mu.Lock()
	for m, body := range bodies {
		if m.body == nil && o.messages[m.Seq] == m {
			m.body = body
			b.bodies = append(b.bodies, m)
		}
	}
	o.waiting = slices.Insert(o.waiting, 0, b)
	o.mu.Unlock()
	o.opened = false
	if err := o.storage.SetAside("damaged", cause); err != nil {
		return err
	}
	_, err = o.open()
	return err
}
