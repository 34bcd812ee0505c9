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
// has pending when ShowJoined is called, or before something new about the same group. If the file is another VM's, it is
// set aside. If no file has returned, Join does nothing.
func (tx *Tx) Join() (file Stored) {
	o := tx.outbox
	returned := o.returned
	if returned == nil {
		return Stored{}
	}
	o.returned = nil
	wake(o.kick)
	err := checkOwner(returned.owner, tx.owner)
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
	tx.given, tx.joined = tx.last, true
	tx.supersedeJoined(returned, newer.writes)
	tx.assignMutes()
	file = Stored{Values: returned.values, Groups: returned.openGroups()}
	maps.DeleteFunc(file.Groups, func(id string, _ Group) bool {
		mine, known := newer.writes[address{bucketGroups, id}]
		return known && mine == nil
	})
	return file
}

// supersedeJoined supersedes what a returned file has pending of a group of which a newer change was committed before the
// file returned. A route that delivers every change still gets that, but for reminders.
func (tx *Tx) supersedeJoined(returned *memory, newer records) {
	pendingTable.each(returned, func(key string, d *Delivery) {
		e := tx.pendingEntry(d.Route, d.Seq)
		_, decided := newer[address{bucketPending, key}]
		if e == nil || decided {
			return
		}
		_, overtaken := newer[address{bucketGroups, e.Group}]
		if overtaken && !e.Replayed && (e.route.newestCounts() || e.Reminds()) {
			tx.supersede(e, "")
		}
	})
}

// ShowJoined shows readers what Join has added.
func (o *Outbox) ShowJoined() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.joined = false
	for _, r := range o.routes {
		for _, e := range r.pending {
			r.reader.touch(e.Seq)
		}
	}
}

// showOlder shows readers what is pending of a group, if Join may have added it.
func (m *memory) showOlder(group string) {
	if !m.joined {
		return
	}
	for e := range m.group(group).pending {
		e.route.reader.touch(e.Seq)
	}
}

// forgetRoutes forgets which routes are in the settings.
func (tx *Tx) forgetRoutes() {
	for name, r := range tx.routes {
		r.configured, r.removed = false, time.Time{}
		delete(tx.writes, address{bucketRoutes, name})
	}
}
