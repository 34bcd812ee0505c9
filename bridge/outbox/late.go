package outbox

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/delivery"
)

// Stored is the owner's state in a late file.
type Stored struct {
	Values map[string][]byte
	Groups map[string]Group // without those that ended before the file came
}

// Late returns a channel that is closed when a file was read that could not be read by Open. It waits for Join, and
// nothing is written until then.
func (o *Outbox) Late() <-chan struct{} { return o.arrived }

// Join adds the records of a late file to memory, which is newer, and returns the owner's state in the file. Then only
// the routes in the file count as known: the next Batch must set them all. Readers see what the file has pending when show
// is called, or before something new of the same group. If the file is another VM's, it is set aside. If there is no late
// file, Join does nothing.
func (o *Outbox) Join() (file Stored, show func()) {
	o.submit(time.Now(), func(c *change) {
		all := o.late
		o.late = nil
		if all != nil {
			file = o.merge(c, all)
		}
	})
	return file, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		for group := range o.hidden {
			o.show(group)
		}
	}
}

// show shows readers what is hidden of a group.
func (m *memory) show(group string) {
	for _, ref := range m.hidden[group] {
		m.route(ref.Route).reader.touch(ref.Seq)
	}
	delete(m.hidden, group)
}

// merge adds the records of a late file to memory: records in memory, and those still to be written, are newer.
func (o *Outbox) merge(c *change, all []Write) Stored {
	owner := slices.IndexFunc(all, func(w Write) bool { return place{w.Bucket, w.Key} == place{bucketMeta, metaOwner} })
	if owner >= 0 && o.checkOwner(all[owner].Value) != nil { // the owner was set since the file was read
		o.broken = errForeign
		return Stored{}
	}
	newer := change{memory: c.memory, writes: records{}}
	newer.writeAll()
	maps.Copy(newer.writes, c.writes)
	c.forgetRoutes()
	last := place{bucketMeta, metaLast}
	file := Stored{Values: map[string][]byte{}, Groups: map[string]Group{}}
	for _, w := range all {
		at := place{w.Bucket, w.Key}
		mine, known := newer.writes[at]
		if !known || mine != nil { // else it was deleted before the file came
			file.add(w)
		}
		switch {
		case !known, at == last, w.Bucket == bucketRoutes: // of the last numbers the larger counts
			_ = c.loadRecord(w) // load has tried it
		case w.Bucket == bucketMarks:
			c.raiseMark(w)
		}
	}
	if c.writes[last] != nil {
		c.write(bucketMeta, metaLast, []byte(seqKey(c.last)))
	}
	o.tried = o.last
	c.hideBacklog(all, newer.writes)
	c.assignMutes()
	return file
}

// add adds a record, if it is the owner's.
func (s *Stored) add(w Write) {
	switch w.Bucket {
	case bucketValues:
		s.Values[w.Key] = w.Value
	case bucketGroups:
		var g Group
		_ = json.Unmarshal(w.Value, &g) // load has tried it
		s.Groups[w.Key] = g
	}
}

// hideBacklog hides what a late file has pending, and supersedes what of it is out of date, because a newer change of its
// group was committed before the file came. A route that delivers every change still gets that, but for reminders.
func (c *change) hideBacklog(all []Write, newer records) {
	for _, w := range all {
		_, name, _ := strings.Cut(w.Key, "/")
		seq, err := seqOf(w.Key)
		ref := Ref{name, seq}
		e := c.entry(ref)
		_, decided := newer[place{w.Bucket, w.Key}]
		if w.Bucket != bucketPending || err != nil || e == nil || decided {
			continue
		}
		_, overtaken := newer[place{bucketGroups, e.Group}]
		latest := e.route.late == delivery.LateLatest || e.route.late == delivery.LateDrop
		if overtaken && !e.Replayed && (latest || e.Reminds()) {
			c.supersede(e, "")
			continue
		}
		c.hidden[e.Group] = append(c.hidden[e.Group], ref)
	}
}

// forgetRoutes forgets which routes are in the settings.
func (c *change) forgetRoutes() {
	for name, r := range c.routes {
		r.configured, r.removed = false, time.Time{}
		delete(c.writes, place{bucketRoutes, name})
	}
}

// raiseMark raises the count of a mark in memory to that of a late file. With the smaller one, an id would be used twice.
func (c *change) raiseMark(w Write) {
	var was Mark
	if json.Unmarshal(w.Value, &was) != nil {
		return
	}
	g := c.group(was.Group)
	at := g.markIndex(w.Key, was.Group)
	if at < 0 {
		return // it was deleted from memory
	}
	if now := g.marks[at].unpack(was.Group); now.Times < was.Times {
		now.Times = was.Times
		c.setMark(w.Key, now)
		c.write(bucketMarks, w.Key, now)
	}
}
