package outbox_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// lines is a log that tests read.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// open opens an outbox that is closed at the end of the test.
func open(t testing.TB, dir string, options outbox.Options) *outbox.Outbox {
	t.Helper()
	o, err := outbox.Open(dir, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// submit makes a batch a change of its own.
func submit(o *outbox.Outbox, now time.Time, b outbox.Batch) (wait func() error) {
	return o.Update(now, func(tx *outbox.Tx) { tx.Apply(b) })
}

// apply makes a batch a change of its own, and waits for the disk.
func apply(o *outbox.Outbox, now time.Time, b outbox.Batch) error { return submit(o, now, b)() }

func reserve(o *outbox.Outbox, now time.Time) (seq uint64) {
	o.Update(now, func(tx *outbox.Tx) { seq = tx.Reserve() })
	return seq
}

func own(o *outbox.Outbox, vmID string) (fresh bool, err error) {
	o.Update(time.Now(), func(tx *outbox.Tx) { fresh = tx.Own(vmID) })
	return fresh, o.Durable()
}

func newRoutes(o *outbox.Outbox, routes []outbox.Route) (added, back []string) {
	o.Update(time.Now(), func(tx *outbox.Tx) { added, back = tx.NewRoutes(routes) })
	return added, back
}

func unreportedOf(o *outbox.Outbox, route string) (list []outbox.Delivery) {
	o.Update(time.Now(), func(tx *outbox.Tx) { list = tx.Unreported(route) })
	return list
}

func replay(o *outbox.Outbox, keys []string, to, by string) (replayed []outbox.Delivery, err error) {
	wait := o.Update(time.Now(), func(tx *outbox.Tx) { replayed, err = tx.Replay(keys, to, by) })
	return replayed, cmp.Or(err, wait())
}

func drop(o *outbox.Outbox, keys []string, by string) (dropped []outbox.Delivery, err error) {
	wait := o.Update(time.Now(), func(tx *outbox.Tx) { dropped, err = tx.Drop(keys, by) })
	return dropped, cmp.Or(err, wait())
}

func supersede(o *outbox.Outbox, list ...outbox.Delivery) error {
	return o.Update(time.Now(), func(tx *outbox.Tx) {
		for _, d := range list {
			tx.Supersede(d)
		}
	})()
}

// refTo names a delivery.
func refTo(route string, seq uint64) outbox.Delivery {
	return outbox.Delivery{Route: route, Item: delivery.Item{Message: &delivery.Message{Seq: seq}}}
}

// routeNames returns the names of all routes that the outbox knows or has deliveries of.
func routeNames(o *outbox.Outbox) []string { return slices.Sorted(maps.Keys(o.Stats())) }

// bodyOf returns the CloudEvent of a delivery.
func bodyOf(o *outbox.Outbox, route string, seq uint64) ([]byte, error) {
	_, body, err := o.Show(fmt.Sprintf("%s/%016d", route, seq))
	return body, err
}

// body returns a CloudEvent in the JSON format.
func body(id string) []byte {
	return fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"urn:test","type":"t","data":{}}`, id)
}

// addition is one CloudEvent about the group for the routes.
func addition(o *outbox.Outbox, group, change string, to ...string) outbox.Addition {
	id := strings.TrimPrefix(group+"-"+change, "-")
	a := outbox.Addition{Body: body(id), Message: delivery.Message{Seq: reserve(o, time.Now()), ID: id, Type: "t",
		Group: group, Change: change}}
	a.To = append(a.To, to...)
	return a
}

// groupOf returns the group that an id belongs to.
func groupOf(id string) string {
	group, _, _ := strings.Cut(id, "-")
	return group
}

// add commits a change of the group, whose newest it becomes.
func add(o *outbox.Outbox, group, change string, to ...string) (outbox.Addition, error) {
	a := addition(o, group, change, to...)
	b := outbox.Batch{Add: []outbox.Addition{a}}
	if group != "" {
		b.Groups = map[string]*outbox.Group{group: groupWith(a)}
		b.Marks = map[string]outbox.Mark{a.ID: {Times: 1, Group: group, At: time.Now()}}
		if change == "vanished" {
			b.Groups[group] = nil
		}
	}
	return a, apply(o, time.Now(), b)
}

// groupWith returns an open group with that latest change.
func groupWith(a outbox.Addition) *outbox.Group {
	return &outbox.Group{State: fmt.Appendf(nil, "%q", a.Change), Latest: a.Seq, CloudEvent: a.Body}
}

// end ends groups. What is pending about them stays, but only the file has it.
func end(t testing.TB, o *outbox.Outbox, groups ...string) {
	t.Helper()
	b := outbox.Batch{Groups: map[string]*outbox.Group{}}
	for _, group := range groups {
		b.Groups[group] = nil
	}
	if err := apply(o, time.Now(), b); err != nil {
		t.Fatal(err)
	}
}

// mustAdd is add on a disk that works.
func mustAdd(t testing.TB, o *outbox.Outbox, group, change string, to ...string) outbox.Addition {
	t.Helper()
	a, err := add(o, group, change, to...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// setRoutes says which routes there are from now on, as Batch.Routes does.
func setRoutes(o *outbox.Outbox, now time.Time, routes ...outbox.Route) (added, back []string, err error) {
	added, back = newRoutes(o, routes)
	return added, back, apply(o, now, outbox.Batch{Routes: append([]outbox.Route{}, routes...)})
}

// ids returns the ids of deliveries.
func ids(list []outbox.Delivery) []string {
	all := []string{}
	for _, d := range list {
		all = append(all, d.ID)
	}
	return all
}

func pending(o *outbox.Outbox, route string) []string {
	return ids(o.List(outbox.Selection{Route: route, State: outbox.StatePending}))
}

func deadLetters(o *outbox.Outbox, route string) []string {
	return ids(o.List(outbox.Selection{Route: route, State: outbox.StateDead}))
}

func want(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// changes returns the ids of deliveries that became pending since the last call, and the sequence numbers of those
// gone.
func changes(q delivery.Queue) (ids []string, gone []uint64) {
	c := q.Changes()
	ids = []string{}
	for _, i := range c.Pending {
		ids = append(ids, i.ID)
	}
	return ids, c.Gone
}

// After a restart the committed state is there: pending deliveries, dead letters, groups, marks, values, receipts, and
// CloudEvents.
func TestCommittedStateIsThereAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		o := open(t, dir, outbox.Options{})
		now := time.Now()
		if added, back, err := setRoutes(o, now, []outbox.Route{{Name: "a"}, {Name: "b"}}...); err != nil || len(added) != 2 ||
			len(back) != 0 {
			t.Fatal(added, back, err)
		}
		if fresh, err := own(o, "vmid-0"); fresh || err != nil {
			t.Fatal(fresh, err)
		}
		first := mustAdd(t, o, "A", "scheduled", "a", "b")
		second := mustAdd(t, o, "A", "started", "a", "b")
		replaced := addition(o, "B", "vanished", "a")
		replaced.Replaced = true
		if err := apply(o, now, outbox.Batch{Values: map[string][]byte{"observer": []byte("vm-0")}, Add: []outbox.Addition{replaced}}); err != nil {
			t.Fatal(err)
		}
		qa, qb := o.Queue("a"), o.Queue("b")
		a, b := qa.Changes().Pending, qb.Changes().Pending
		qa.Report(delivery.Report{Now: now, Accepted: a[:1], Answer: delivery.Answer{Status: "204", ID: "x",
			Receipt: []byte("thread")}})
		qb.Report(delivery.Report{Now: now, Failed: b[:1], Error: "down", Next: now.Add(time.Second),
			Answer: delivery.Answer{Progress: []byte("half")}, Batch: 7})
		qb.Report(delivery.Report{Now: now, Dead: b[1:], Reason: delivery.ReasonRejected, Error: "no"})
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}

		var log lines
		o = open(t, dir, outbox.Options{Log: log.logger()})
		if log := log.String(); log != "" {
			t.Errorf("the log says of a good file:\n%s", log)
		}
		want(t, "pending for a", pending(o, "a"), "A-started", "B-vanished")
		want(t, "pending for b", pending(o, "b"), "A-scheduled")
		want(t, "dead for b", deadLetters(o, "b"), "A-started")
		if got := o.Delivery("a", second.Seq); got.State != outbox.StatePending {
			t.Errorf("the newest is %v for a", got)
		}
		if got := o.Delivery("b", second.Seq); got.State != outbox.StateDead || !got.DeadSince.Equal(now) {
			t.Errorf("the newest is %v for b", got)
		}
		if g := o.Groups()["A"]; string(g.State) != `"started"` || g.Latest != second.Seq {
			t.Errorf("the group is %+v", g)
		}
		if m := o.Mark("A", "A-scheduled"); m.Times != 1 || m.Group != "A" || !m.At.Equal(now) {
			t.Errorf("the mark is %+v", m)
		}
		if v := o.Value("observer"); string(v) != "vm-0" {
			t.Errorf("the value is %q", v)
		}
		if o.Owner() != "vmid-0" {
			t.Errorf("it belongs to %q", o.Owner())
		}
		qa, qb = o.Queue("a"), o.Queue("b")
		items := qa.Changes().Pending
		i := items[0]
		if i.Replaced || !items[1].Replaced {
			t.Errorf("the items are %+v, want only the second to be replaced", items)
		}
		d, err := qa.Read(i)
		if err != nil || d.Event.ID() != "A-started" || string(d.Receipt) != "thread" {
			t.Errorf("Read = %+v, %v", d, err)
		}
		i = qb.Changes().Pending[0]
		if i.Seq != first.Seq || i.Attempts != 1 || i.Error != "down" || string(i.Progress) != "half" || i.Batch != 7 ||
			!i.Next.Equal(now.Add(time.Second)) {
			t.Errorf("the item is %+v", i)
		}
		if added, back := newRoutes(o, []outbox.Route{{Name: "a"}, {Name: "c"}}); !slices.Equal(added, []string{"c"}) ||
			back != nil {
			t.Errorf("new routes are %v, back are %v", added, back)
		}
		if got := reserve(o, now.Add(-time.Hour)); got <= second.Seq {
			t.Errorf("the sequence number went back to %d", got)
		}
	})
}

// Only one process can have an outbox open. Meanwhile no other can read it.
func TestOnlyOneProcessOpensAnOutbox(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	mustAdd(t, o, "A", "scheduled", "a")
	if _, err := outbox.Open(dir, outbox.Options{}); !errors.Is(err, outbox.ErrLocked) {
		t.Errorf("Open = %v, want ErrLocked", err)
	}
	if _, err := outbox.OpenReadOnly(dir); !errors.Is(err, outbox.ErrLocked) {
		t.Errorf("OpenReadOnly = %v, want ErrLocked", err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r, err := outbox.OpenReadOnly(dir)
		if err != nil {
			t.Fatal(err)
		}
		want(t, "pending", pending(r, "a"), "A-scheduled")
		if err := apply(r, time.Now(), outbox.Batch{}); err == nil {
			t.Error("it can be changed")
		}
		defer r.Close()
	}
}
