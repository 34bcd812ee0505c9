package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	var why string
	switch {
	case o.readOnly:
	case errors.Is(err, ErrDamaged):
		why = "damaged"
	case errors.Is(err, errForeign):
		why = "foreign"
	}
	if why != "" {
		if err = o.storage.SetAside(why, err); err == nil {
			loaded, err = o.openOnce()
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
	has, owner, err := o.look()
	o.mu.Lock()
	ours := o.owner
	o.mu.Unlock()
	switch {
	case err != nil:
		return false, err
	case has > format:
		return false, fmt.Errorf("%w: %s has format %d and this one reads up to %d; install the newer version again, "+
			"or set another state directory", errNewer, o.path, has, format)
	case ours != "" && owner != "" && !strings.EqualFold(owner, ours):
		return false, fmt.Errorf("%w: it belongs to vmId %s and this is %s; was this machine cloned?", errForeign, owner,
			ours)
	case has == 0:
		o.renew()
		o.known = true
		return false, unwritable
	}
	var migrated layer
	if has < format {
		writes, err := migrate(o.storage)
		if err == nil && unwritable == nil && !o.readOnly {
			err = o.storage.Write([][]Write{writes})
		}
		if err != nil {
			return false, fmt.Errorf("migrate %s: %w", o.path, err)
		}
		migrated = layerOf(writes)
	}
	i, err := o.read(migrated)
	if err != nil {
		return false, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.takeIn(i)
	o.known = true
	return true, unwritable
}

// look finds in what format the storage is, 0 for none yet, and whose it is.
func (o *Outbox) look() (format int, owner string, err error) {
	number, err := o.storage.Read(bucketMeta, metaFormat)
	if err != nil || number == nil {
		return 0, "", err
	}
	if format, err = strconv.Atoi(string(number)); err != nil || format < 1 {
		return 0, "", fmt.Errorf("%w: its format is %q", ErrDamaged, number)
	}
	id, err := o.storage.Read(bucketMeta, metaOwner)
	return format, string(id), err
}

// takeIn takes what a file holds into memory. The file may come late: what memory knows, and what waits to be written,
// is newer. mu is held.
func (o *Outbox) takeIn(i *image) {
	newer := o.waitingLayer()
	o.last = max(o.last, i.last)
	if o.owner == "" {
		o.owner = i.owner
	}
	fill(o.values, i.values, newer[bucketValues])
	fill(o.over, i.over, newer[bucketOver])
	fill(o.marks, i.marks, newer[bucketMarks])
	for key, receipt := range i.receipts {
		at := strings.LastIndexByte(key, '/')
		if at < 0 || newer.has(bucketReceipts, key) {
			continue
		}
		if group, name := key[:at], key[at+1:]; o.receipts[group][name] == nil {
			o.setReceipt(group, name, receipt)
		}
	}
	for name, gone := range i.routes {
		if r := o.route(name); !r.known && !newer.has(bucketRoutes, name) {
			r.known, r.gone = true, gone
		}
	}
	for seq, m := range i.messages {
		if have := o.messages[seq]; have != nil {
			if have.id == "" {
				have.set(m.head())
			}
			for _, s := range m.settled {
				if o.outcome(s.route, seq).State == "" {
					have.became(s.route, s.Outcome)
				}
			}
			continue
		}
		o.messages[seq] = m
	}
	for id, g := range i.groups {
		if o.groups[id] == nil && !newer.has(bucketGroups, id) {
			o.groups[id] = &g
			o.useLatest(&g)
		}
	}
	for _, e := range i.pending {
		e.route, e.message = o.route(e.route.name), o.messages[e.seq]
		if e.route.pending[e.seq] == nil && !newer.has(bucketPending, e.key()) {
			o.put(e)
			e.offered = true
			e.route.reader.give(e)
		}
	}
	for _, d := range i.dead {
		d.message = o.messages[d.seq]
		if o.dead[d.Key] == nil && !newer.has(bucketDead, d.Key) {
			o.putDead(d)
		}
	}
	for seq, m := range i.messages {
		if m.uses == 0 && o.messages[seq] == m {
			delete(o.messages, seq)
		}
	}
}

// fill takes what is missing, unless something newer is known of its key.
func fill[T any](into, from map[string]T, newer map[string][]byte) {
	for key, v := range from {
		_, have := into[key]
		if _, known := newer[key]; !have && !known {
			into[key] = v
		}
	}
}

// renew has a storage that holds nothing yet get all that is known, instead of only what waits.
func (o *Outbox) renew() {
	o.mu.Lock()
	defer o.mu.Unlock()
	whole := o.mergeWaiting(append(o.snapshot(), Write{bucketMeta, metaFormat, []byte(strconv.Itoa(format))}))
	whole.number = max(whole.number, o.stored)
}

// snapshot is all that memory knows. mu is held.
func (o *Outbox) snapshot() (all []Write) {
	add := func(bucket, key string, value []byte) { all = append(all, Write{bucket, key, value}) }
	add(bucketMeta, metaLast, []byte(seqKey(o.last)))
	if o.owner != "" {
		add(bucketMeta, metaOwner, []byte(o.owner))
	}
	for name, v := range o.values {
		add(bucketValues, name, v)
	}
	for id, g := range o.groups {
		add(bucketGroups, id, encodeGroup(*g))
	}
	for id, since := range o.over {
		add(bucketOver, id, encode(since))
	}
	for id, m := range o.marks {
		add(bucketMarks, id, encode(m))
	}
	for group, receipts := range o.receipts {
		for name, receipt := range receipts {
			add(bucketReceipts, group+"/"+name, receipt)
		}
	}
	for name, r := range o.routes {
		if r.known {
			add(bucketRoutes, name, r.goneText())
		}
		for _, e := range r.pending {
			add(bucketPending, e.key(), e.encode())
		}
	}
	for key, d := range o.dead {
		add(bucketDead, key, encode(d.Delivery))
	}
	for seq, m := range o.messages {
		if m.id != "" {
			add(bucketHeads, seqKey(seq), encode(m.head()))
		}
		if m.body != nil {
			add(bucketEvents, seqKey(seq), m.body)
		}
	}
	return all
}

// rescue has a damaged file set aside, and all that is known written into the next one. file is held.
func (o *Outbox) rescue(cause error) error {
	o.mu.Lock()
	seqs := slices.Collect(maps.Keys(o.messages))
	o.mu.Unlock()
	bodies := map[uint64][]byte{}
	for _, seq := range seqs {
		if body, err := o.storage.Read(bucketEvents, seqKey(seq)); err == nil && json.Valid(body) {
			bodies[seq] = body
		}
	}
	var history []Write
	err := o.storage.Walk(bucketSettled, "", func(key string, value []byte) error {
		history = append(history, Write{bucketSettled, strings.Clone(key), slices.Clone(value)})
		return nil
	})
	if err != nil {
		o.log.Error("what was delivered cannot all be read from the damaged outbox", "kept", len(history), "err", err)
	}
	o.mu.Lock()
	b := &batch{number: o.stored, released: true, writes: history}
	for seq, body := range bodies {
		if m := o.messages[seq]; m != nil && m.body == nil {
			m.body = body
			b.bodies = append(b.bodies, m)
		}
	}
	o.waiting = slices.Insert(o.waiting, 0, b)
	o.writes += len(history)
	o.mu.Unlock()
	o.opened = false
	if err := o.storage.SetAside("damaged", cause); err != nil {
		return err
	}
	_, err = o.open()
	return err
}
