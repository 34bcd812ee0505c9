package outbox_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// A box is an outbox in a test. The test fails if something that it does with the box fails, or doesn't reach the disk,
// unless a method says otherwise.
type box struct {
	*outbox.Outbox
	t       testing.TB
	dir     string
	options outbox.Options
	disk    *disk          // nil if it has a file in dir
	log     systemtest.Log // of all its runs
}

// open opens an outbox that is closed at the end of the test.
func open(t testing.TB, dir string, options outbox.Options) *box {
	t.Helper()
	o := &box{t: t, dir: dir, options: options}
	o.options.Log = o.log.Logger()
	o.disk, _ = options.Storage.(*disk)
	o.reopen()
	t.Cleanup(func() { o.Close() })
	return o
}

// inBubble opens an outbox on a disk in memory, with fake time.
func inBubble(t *testing.T, bounds outbox.Bounds, f func(t *testing.T, o *box)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, open(t, t.TempDir(), outbox.Options{Storage: newDisk(), Bounds: bounds}))
	})
}

func (o *box) reopen() {
	o.t.Helper()
	opened, err := outbox.Open(o.dir, o.options)
	must(o.t, err)
	o.Outbox = opened
}

// restart closes the outbox and opens it again.
func (o *box) restart() {
	o.t.Helper()
	must(o.t, o.Close())
	o.reopen()
}

// wantDurable checks that everything is on disk.
func (o *box) wantDurable() {
	o.t.Helper()
	wantError(o.t, "Durable", o.Durable(), nil)
	equal(o.t, "deliveries in memory only", o.InMemory(), 0)
}

// diskRecovers makes the disk work, and waits until that was noticed.
func (o *box) diskRecovers() {
	o.disk.works()
	time.Sleep(10 * time.Second)
	synctest.Wait()
}

// restartOn closes the outbox and opens one on another disk.
func (o *box) restartOn(d *disk) {
	o.t.Helper()
	must(o.t, o.Close())
	o.disk, o.options.Storage = d, d
	o.reopen()
}

// restartLate restarts the outbox a minute later, on a disk that can't be opened before diskRecovers is called.
func (o *box) restartLate(d *disk) {
	o.t.Helper()
	must(o.t, o.Close())
	time.Sleep(time.Minute)
	d.fails("open", errIO)
	o.restartOn(d)
}

// join takes over a file that has returned, shows readers what it has, and waits until everything is written.
func (o *box) join() {
	o.takeOver()
	o.ShowJoined()
	synctest.Wait()
}

// takeOver takes over a file that has returned, but shows readers nothing of it.
func (o *box) takeOver() (file outbox.Stored) {
	o.Update(time.Now(), func(tx *outbox.Tx) { file = tx.Join() })
	return file
}

// own makes a VM the owner.
func (o *box) own(vmID string) (fresh bool) {
	o.Update(time.Now(), func(tx *outbox.Tx) { fresh = tx.Own(vmID) })
	return fresh
}

// setRoutes says which routes there are from now on.
func (o *box) setRoutes(routes ...outbox.Route) {
	o.t.Helper()
	o.apply(outbox.Batch{Routes: append([]outbox.Route{}, routes...)})
}

// routesAre is setRoutes, for routes with nothing but a name.
func (o *box) routesAre(names ...string) {
	o.t.Helper()
	o.setRoutes(named(names)...)
}

func named(names []string) (routes []outbox.Route) {
	for _, name := range names {
		routes = append(routes, outbox.Route{Name: name})
	}
	return routes
}

// newRoutes returns which of these routes would be new, and which would return.
func (o *box) newRoutes(names ...string) (added, back []string) {
	o.Update(time.Now(), func(tx *outbox.Tx) { added, back = tx.NewRoutes(named(names)) })
	return added, back
}

// submit makes a batch a change of its own.
func (o *box) submit(b outbox.Batch) (wait func() error) {
	return o.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(b) })
}

func (o *box) apply(b outbox.Batch) {
	o.t.Helper()
	must(o.t, o.submit(b)())
}

// reserve returns the next sequence number.
func (o *box) reserve(now time.Time) (seq uint64) {
	o.Update(now, func(tx *outbox.Tx) { seq = tx.Reserve() })
	return seq
}

// addition is one CloudEvent about the group for the routes. Its id is "group-change".
func (o *box) addition(group, change string, to ...string) outbox.Addition {
	id := strings.TrimPrefix(group+"-"+change, "-")
	return outbox.Addition{
		Message: delivery.Message{Seq: o.reserve(time.Now()), ID: id, Type: "t", Group: group, Change: change},
		Body:    body(id), To: append([]string{}, to...),
	}
}

// body returns a CloudEvent in the JSON format.
func body(id string) []byte {
	return fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"urn:test","type":"t","data":{}}`, id)
}

// changeOf is a batch with a change of its group, whose newest it becomes. With "vanished" the group is over.
func changeOf(a outbox.Addition) outbox.Batch {
	b := outbox.Batch{Add: []outbox.Addition{a}}
	if a.Group != "" {
		b.Groups = map[string]*outbox.Group{a.Group: groupWith(a)}
		b.Marks = map[string]outbox.Mark{a.ID: {Times: 1, Group: a.Group, At: time.Now()}}
	}
	if a.Change == "vanished" {
		b.Groups[a.Group] = nil
	}
	return b
}

// groupWith returns an open group with that latest change.
func groupWith(a outbox.Addition) *outbox.Group {
	return &outbox.Group{State: fmt.Appendf(nil, "%q", a.Change), Latest: a.Seq, CloudEvent: a.Body}
}

// tryAdd commits a change: see changeOf. The error is that of the disk.
func (o *box) tryAdd(group, change string, to ...string) (outbox.Addition, error) {
	a := o.addition(group, change, to...)
	return a, o.submit(changeOf(a))()
}

// add is tryAdd while the disk works.
func (o *box) add(group, change string, to ...string) outbox.Addition {
	o.t.Helper()
	a, err := o.tryAdd(group, change, to...)
	must(o.t, err)
	return a
}

// addInMemory is tryAdd while the disk doesn't work.
func (o *box) addInMemory(group, change string, to ...string) outbox.Addition {
	o.t.Helper()
	a, err := o.tryAdd(group, change, to...)
	if err == nil {
		o.t.Errorf("%s is said to be on disk", a.ID)
	}
	return a
}

// heartbeat adds a transient CloudEvent.
func (o *box) heartbeat(to ...string) outbox.Addition {
	o.t.Helper()
	a := o.addition("", "heartbeat", to...)
	a.Transient = true
	o.apply(outbox.Batch{Add: []outbox.Addition{a}})
	return a
}

// end ends groups. What is pending about them stays, but only the file has it.
func (o *box) end(groups ...string) {
	o.t.Helper()
	b := outbox.Batch{Groups: map[string]*outbox.Group{}}
	for _, group := range groups {
		b.Groups[group] = nil
	}
	o.apply(b)
}

// A reader delivers for a route.
type reader struct{ delivery.Queue }

func (o *box) reader(route string) reader { return reader{o.Queue(route)} }

// items returns the deliveries that became pending since the last call, or that changed.
func (r reader) items() []*delivery.Item { return r.Changes().Pending }

// isWoken reports whether something has woken the reader since the last call.
func (r reader) isWoken() bool {
	synctest.Wait()
	select {
	case <-r.Changed():
		return true
	default:
		return false
	}
}

// hears returns the ids of items.
func (r reader) hears() []string {
	all := []string{}
	for _, i := range r.items() {
		all = append(all, i.ID)
	}
	return all
}

func (r reader) accept(items ...*delivery.Item) {
	r.Report(delivery.Report{Now: time.Now(), Accepted: items, Durable: true})
}

func (r reader) reject(items ...*delivery.Item) {
	r.Report(delivery.Report{Now: time.Now(), Dead: items, Reason: delivery.ReasonRejected, Durable: true})
}

// accept reports that a destination has accepted everything that is pending for its route.
func (o *box) accept(route string) {
	r := o.reader(route)
	r.accept(r.items()...)
}

// reject reports that a destination has rejected everything that is pending for its route.
func (o *box) reject(route string) {
	r := o.reader(route)
	r.reject(r.items()...)
}

func (o *box) supersede(list ...outbox.Delivery) {
	o.t.Helper()
	must(o.t, o.Update(time.Now(), func(tx *outbox.Tx) {
		for _, d := range list {
			tx.Supersede(d)
		}
	})())
}

// refTo names a delivery.
func refTo(route string, seq uint64) outbox.Delivery {
	return outbox.Delivery{Route: route, Item: delivery.Item{Message: &delivery.Message{Seq: seq}}}
}

// keys returns the keys of deliveries.
func (o *box) keys(s outbox.Selection) (keys []string) {
	for _, d := range o.List(s) {
		keys = append(keys, d.Key)
	}
	return keys
}

// replay has root replay dead letters, for their own routes or for the route named to.
func (o *box) replay(to string, keys ...string) (replayed []outbox.Delivery, err error) {
	wait := o.Update(time.Now(), func(tx *outbox.Tx) { replayed, err = tx.Replay(keys, to, "root") })
	return replayed, cmp.Or(err, wait())
}

// replayAll replays all dead letters for their own routes.
func (o *box) replayAll() {
	o.t.Helper()
	_, err := o.replay("", o.keys(outbox.Selection{State: outbox.StateDead})...)
	must(o.t, err)
}

// drop has somebody drop deliveries.
func (o *box) drop(keys ...string) (dropped []outbox.Delivery, err error) {
	wait := o.Update(time.Now(), func(tx *outbox.Tx) { dropped, err = tx.Drop(keys, "somebody") })
	return dropped, cmp.Or(err, wait())
}

// maintain maintains the outbox now.
func (o *box) maintain() {
	o.t.Helper()
	must(o.t, <-o.Maintain(time.Now()))
}

// unreported returns the dead letters of a route that are to be reported.
func (o *box) unreported(route string) (list []outbox.Delivery) {
	o.Update(time.Now(), func(tx *outbox.Tx) { list = tx.Unreported(route) })
	return list
}

// pending returns the ids of what is pending for a route, or for any.
func (o *box) pending(route string) []string {
	return ids(o.List(outbox.Selection{Route: route, State: outbox.StatePending}))
}

// dead returns the ids of the dead letters of a route, or of any.
func (o *box) dead(route string) []string {
	return ids(o.List(outbox.Selection{Route: route, State: outbox.StateDead}))
}

func ids(list []outbox.Delivery) []string {
	all := []string{}
	for _, d := range list {
		all = append(all, d.ID)
	}
	return all
}

// body returns the CloudEvent of a delivery.
func (o *box) body(route string, seq uint64) ([]byte, error) {
	_, body, err := o.Show(fmt.Sprintf("%s/%016d", route, seq))
	return body, err
}

// history returns all stored CloudEvents.
func (o *box) history() (all []outbox.Record) {
	o.t.Helper()
	must(o.t, o.Walk(0, func(r outbox.Record) error {
		all = append(all, r)
		return nil
	}))
	return all
}

// holds reports whether the history has a CloudEvent.
func (o *box) holds(a outbox.Addition) bool {
	o.t.Helper()
	return slices.ContainsFunc(o.history(), func(r outbox.Record) bool { return r.Seq == a.Seq })
}

// results returns the state of every delivery in the history, as "route state".
func (o *box) results() (all []string) {
	o.t.Helper()
	for _, r := range o.history() {
		for _, d := range r.Deliveries {
			all = append(all, d.Route+" "+d.State)
		}
	}
	return all
}

func want(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// equal checks one thing.
func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %+v, want %+v", what, got, want)
	}
}

// wantError checks that an error is, or wraps, another.
func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
