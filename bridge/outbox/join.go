package outbox

import (
	"maps"
	"time"
)

// Stored is the owner's state in a returned file.
type Stored struct {
	Values map[string][]byte
	Groups map[string]Group // without those that ended before the file returned
}

// Returned returns a channel that is closed when a returned file was read: one that Open could not read. What it holds
// waits for Join, and nothing is written until then.
func (o *Outbox) Returned() <-chan struct{} { return o.arrived }

// Join adds the records of a returned file to memory, which is newer, and returns the owner's state in the file. Then
// only the routes in the file count as known: the next change of routes must set them all. Readers see what the file
// has pending when show is called, or before something new of the same group. If the file is another VM's, it is set
// aside. If no file has returned, Join does nothing.
func (o *Outbox) Join() (file Stored, show func()) {
	o.Update(time.Now(), func(tx *Tx) {
		returned := o.returned
		o.returned = nil
		if returned != nil {
			file = o.merge(tx, returned)
		}
	})
	wake(o.kick)
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
	for _, e := range m.hidden[group] {
		e.route.reader.touch(e.Seq)
	}
	delete(m.hidden, group)
}

// merge adds the records of a returned file to memory: records in memory, and those still to be written, are newer.
func (o *Outbox) merge(tx *Tx, returned *memory) Stored {
	err := checkOwner(returned.owner, o.owner)
	if err != nil { // the owner was set since the file was read
		o.unusable = err
		return Stored{}
	}
	tx.forgetRoutes()
	newer := Tx{memory: tx.memory, writes: records{}}
	newer.saveAll()
	maps.Copy(newer.writes, tx.writes)
	for _, t := range tables {
		t.join(tx, returned, newer.writes)
	}
	returned.eachMessage(func(msg *message) {
		mine := tx.message(msg.Seq)
		if mine != nil && mine.Group == "" {
			mine.body = msg.body
		}
	})
	o.given = o.last
	tx.hideBacklog(returned, newer.writes)
	tx.assignMutes()
	file := Stored{Values: returned.values, Groups: returned.openGroups()}
	maps.DeleteFunc(file.Groups, func(id string, _ Group) bool {
		mine, known := newer.writes[address{bucketGroups, id}]
		return known && mine == nil
	})
	return file
}

// hideBacklog hides what a returned file has pending, and supersedes what of it is out of date, because a newer change
// of its group was committed before the file returned. A route that delivers every change still gets that, but for
// reminders.
func (tx *Tx) hideBacklog(returned *memory, newer records) {
	pendingTable.each(returned, func(key string, d *Delivery) {
		e := tx.pendingEntry(d.Route, d.Seq)
		_, decided := newer[address{bucketPending, key}]
		if e == nil || decided {
			return
		}
		_, overtaken := newer[address{bucketGroups, e.Group}]
		if overtaken && !e.Replayed && (e.route.newestCounts() || e.Reminds()) {
			tx.supersede(e, "")
			return
		}
		tx.hidden[e.Group] = append(tx.hidden[e.Group], e)
	})
}

// forgetRoutes forgets which routes are in the settings.
func (tx *Tx) forgetRoutes() {
	for name, r := range tx.routes {
		r.configured, r.removed = false, time.Time{}
		delete(tx.writes, address{bucketRoutes, name})
	}
}
