package outbox

import (
	"maps"
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
	o.Update(time.Now(), func(tx *Tx) {
		late := o.late
		o.late = nil
		if late != nil {
			file = o.merge(tx, late)
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

// merge adds the records of a late file to memory: records in memory, and those still to be written, are newer.
func (o *Outbox) merge(tx *Tx, late *memory) Stored {
	err := checkOwner(late.owner, o.owner)
	if err != nil { // the owner was set since the file was read
		o.unusable = err
		return Stored{}
	}
	tx.forgetRoutes()
	newer := Tx{memory: tx.memory, writes: records{}}
	newer.saveAll()
	maps.Copy(newer.writes, tx.writes)
	for _, t := range tables {
		t.join(tx, late, newer.writes)
	}
	o.given = o.last
	tx.hideBacklog(late, newer.writes)
	tx.assignMutes()
	file := Stored{Values: late.values, Groups: late.openGroups()}
	maps.DeleteFunc(file.Groups, func(id string, _ Group) bool {
		mine, known := newer.writes[place{bucketGroups, id}]
		return known && mine == nil
	})
	return file
}

// hideBacklog hides what a late file has pending, and supersedes what of it is out of date, because a newer change of its
// group was committed before the file came. A route that delivers every change still gets that, but for reminders.
func (tx *Tx) hideBacklog(late *memory, newer records) {
	pendingTable.each(late, func(key string, d *Delivery) {
		e := tx.pendingEntry(d.Route, d.Seq)
		_, decided := newer[place{bucketPending, key}]
		if e == nil || decided {
			return
		}
		_, overtaken := newer[place{bucketGroups, e.Group}]
		latest := e.route.late == delivery.LateLatest || e.route.late == delivery.LateDrop
		if overtaken && !e.Replayed && (latest || e.Reminds()) {
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
		delete(tx.writes, place{bucketRoutes, name})
	}
}
