package outbox_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// History and dead letters are kept for 90 days; marks and receipts for 30 days after their group has ended. Open
// groups and pending deliveries are kept whatever their age.
func TestRetention(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		if _, _, err := setRoutes(o, time.Now(), []outbox.Route{{Name: "a"}, {Name: "b"}}...); err != nil {
			t.Fatal(err)
		}
		deliver := func(name string) {
			q := o.Queue(name)
			q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending,
				Answer: delivery.Answer{Receipt: []byte("r")}})
		}
		mustAdd(t, o, "A", "scheduled", "a", "b") // stays open, and pending for b
		mustAdd(t, o, "B", "scheduled", "a")      // is over
		mustAdd(t, o, "B", "vanished", "a")
		deliver("a")
		mustAdd(t, o, "D", "vanished", "a")
		q := o.Queue("a")
		q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
		check := func(days, marks, receipts, settled, events, dead int) {
			t.Helper()
			if err := <-o.Maintain(time.Now()); err != nil {
				t.Fatal(err)
			}
			got := []int{d.count("marks"), d.count("receipts"), d.count("settled"), d.count("events"), d.count("dead")}
			if want := []int{marks, receipts, settled, events, dead}; !slices.Equal(got, want) {
				t.Errorf("after %d days: marks, receipts, settled, events, dead = %v, want %v", days, got, want)
			}
		}
		day := 24 * time.Hour
		time.Sleep(time.Second)
		check(0, 4, 2, 3, 4, 1)
		time.Sleep(29 * day)
		check(29, 4, 2, 3, 4, 1)
		time.Sleep(2 * day)
		check(31, 1, 1, 3, 4, 1)
		time.Sleep(58 * day)
		check(89, 1, 1, 3, 4, 1)
		time.Sleep(2 * day)
		check(91, 1, 1, 1, 1, 0) // the outcome of A's latest change is still asked for
		mustAdd(t, o, "A", "vanished", "a", "b")
		deliver("a")
		want(t, "pending", pending(o, "b"), "A-scheduled", "A-vanished")
		q = o.Queue("b")
		for _, i := range q.Changes().Pending {
			if _, err := q.Read(i); err != nil {
				t.Errorf("what is pending for 91 days: %v", err)
			}
		}
	})
}

// The history is bounded by number too, except CloudEvents that something refers to.
func TestHistoryIsBounded(t *testing.T) {
	inBubble(t, outbox.Options{Bounds: outbox.Bounds{History: 5}}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		mustAdd(t, o, "FIRST", "vanished", "b") // which never takes it
		for i := range 19 {
			mustAdd(t, o, fmt.Sprint("E", i), "vanished", "a")
		}
		q := o.Queue("a")
		for _, i := range q.Changes().Pending {
			q.Report(delivery.Report{Now: time.Now(), Accepted: []*delivery.Item{i}})
		}
		time.Sleep(time.Second)
		if err := <-o.Maintain(time.Now()); err != nil {
			t.Fatal(err)
		}
		if n, m := d.count("events"), d.count("settled"); n != 6 || m != 5 {
			t.Errorf("%d CloudEvents and %d settled deliveries are kept, want 5 and the one that is pending, and 5", n, m)
		}
		q = o.Queue("b")
		if _, err := q.Read(q.Changes().Pending[0]); err != nil {
			t.Error(err)
		}
	})
}

// History that something still refers to is neither dropped nor counted as dropped.
func TestReferencedHistoryIsNotCountedAsDropped(t *testing.T) {
	forgot := 0
	inBubble(t, outbox.Options{Bounds: outbox.Bounds{History: 5}}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		o.SetCallbacks(outbox.Callbacks{Forgot: func(_ string, n int) { forgot += n }})
		mustAdd(t, o, "FIRST", "vanished", "b") // which never takes it
		for i := range 5 {
			mustAdd(t, o, fmt.Sprint("E", i), "vanished")
		}
		for range 3 {
			time.Sleep(10 * time.Minute)
			<-o.Maintain(time.Now())
		}
		if n := d.count("events"); n+forgot != 6 {
			t.Errorf("of 6 CloudEvents %d are kept, and %d were counted as dropped", n, forgot)
		}
	})
}

// Heartbeats leave no history.
func TestTransientMessagesLeaveNoHistory(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		if _, _, err := setRoutes(o, time.Now(), []outbox.Route{{Name: "a", Fallback: "b"}}...); err != nil {
			t.Fatal(err)
		}
		h := addition(o, "", "heartbeat", "a", "b")
		h.Transient = true
		if err := apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{h}}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} {
			q := o.Queue(name)
			q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending, Durable: true})
			if name == "a" && !bodies(o)[h.Seq] {
				t.Error("its CloudEvent is gone before all have it")
			}
		}
		if d.count("events")+d.count("settled")+d.count("pending") != 0 {
			t.Error("something of it is left")
		}
	})
}

// A new heartbeat takes the place of the one that is pending for its route, and of nothing else.
func TestATransientMessageReplacesTheOneBefore(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		mustAdd(t, o, "", "started", "a")
		beat := func(routes ...string) uint64 {
			h := addition(o, "", "heartbeat", routes...)
			h.Transient = true
			if err := apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{h}}); err != nil {
				t.Fatal(err)
			}
			return h.Seq
		}
		kept := beat("b")
		for range 3 {
			beat("a")
		}
		last := beat("a")
		a, b := o.Queue("a").Changes().Pending, o.Queue("b").Changes().Pending
		if len(a) != 2 || a[0].Transient || a[1].Seq != last || len(b) != 1 || b[0].Seq != kept {
			t.Errorf("pending are %v for a and %v for b, want the last heartbeat of each", a, b)
		}
		if n := d.count("pending"); n != 3 {
			t.Errorf("%d records are stored, want 3", n)
		}
	})
}

// A selection picks by route, state and the beginning of the group. Show returns the CloudEvent too.
func TestListAndShow(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		mustAdd(t, o, "AAA", "scheduled", "a", "b")
		mustAdd(t, o, "BBB", "scheduled", "a")
		q := o.Queue("b")
		q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected})
		for _, tt := range []struct {
			sel  outbox.Selection
			want []string
		}{
			{outbox.Selection{}, []string{"a AAA", "a BBB", "b AAA"}},
			{outbox.Selection{Route: "a"}, []string{"a AAA", "a BBB"}},
			{outbox.Selection{State: outbox.StateDead}, []string{"b AAA"}},
			{outbox.Selection{Group: "bb"}, []string{"a BBB"}},
			{outbox.Selection{Route: "b", Group: "bb"}, nil},
			{outbox.Selection{Group: "AAAA"}, nil},
		} {
			var got []string
			for _, d := range o.List(tt.sel) {
				got = append(got, d.Route+" "+d.Group)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%+v picks %v, want %v", tt.sel, got, tt.want)
			}
		}
		for _, d := range o.List(outbox.Selection{}) {
			got, ce, err := o.Show(d.Key)
			if err != nil || got.ID != d.ID || !strings.Contains(string(ce), `"id":"`+d.ID+`"`) {
				t.Errorf("Show(%s) = %v %s %v", d.Key, got.ID, ce, err)
			}
			var public struct {
				Key, Sink, ID, Type, Event, State string
				Attempts, Bytes                   *int
			}
			data, _ := json.Marshal(d)
			if err := json.Unmarshal(data, &public); err != nil || public.Key == "" || public.Sink == "" || public.Event == "" ||
				public.State == "" || public.Attempts == nil || *public.Bytes != len(ce) {
				t.Errorf("as JSON it is %s", data)
			}
		}
		if _, _, err := o.Show("a/0000000000000001"); !errors.Is(err, outbox.ErrUnknownKey) {
			t.Errorf("Show of a key that is none = %v", err)
		}
	})
}

// A follower gets every CloudEvent that is added. Its channel is closed when it falls too far behind.
func TestFollow(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		events, stop := o.Follow()
		slow, _ := o.Follow()
		mustAdd(t, o, "A", "scheduled", "a")
		if got := <-events; !strings.Contains(string(got), "A-scheduled") {
			t.Errorf("it sees %s", got)
		}
		stop()
		if err := apply(o, time.Now(), wave(o, 1200, "a")); err != nil {
			t.Fatal(err)
		}
		n := 0
		for range slow {
			n++
		}
		if n != 1000 || len(events) != 0 {
			t.Errorf("the slow one saw %d, the one that stopped %d", n, len(events))
		}
	})
}

// However long the history is, Walk returns each CloudEvent once, with the results of its deliveries.
func TestWalkOfALongHistory(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	const n = 1200
	batch := outbox.Batch{}
	for i := range n {
		batch.Add = append(batch.Add, addition(o, "", fmt.Sprintf("E%04d", i), "a", "b"))
	}
	if err := apply(o, time.Now(), batch); err != nil {
		t.Fatal(err)
	}
	q := o.Queue("a")
	q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending, Durable: true})
	for _, from := range []int{0, n - 501, n - 500, n - 499} {
		var seqs []uint64
		err := o.Walk(batch.Add[from].Seq, func(r outbox.Record) error {
			seqs = append(seqs, r.Seq)
			if len(r.Deliveries) != 2 || r.Deliveries[0].State != outbox.StateAccepted ||
				r.Deliveries[1].State != outbox.StatePending {
				t.Fatalf("of %d it says %+v", r.Seq, r.Deliveries)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(seqs) != n-from || !slices.IsSorted(seqs) || len(slices.Compact(seqs)) != n-from {
			t.Errorf("from %d on it has %d, want %d in order", from, len(seqs), n-from)
		}
	}
}

// Page returns one end of a list, and how many more there are.
func TestPage(t *testing.T) {
	o := open(t, t.TempDir(), outbox.Options{})
	for i := range 3 {
		mustAdd(t, o, fmt.Sprintf("E%d", i), "scheduled", "a")
	}
	for n, more := range map[int]int{0: 3, 2: 1, 3: 0, 4: 0} {
		first, rest := o.Page(outbox.Selection{}, n)
		if want := pending(o, "a")[:3-more]; rest != more || !slices.Equal(ids(first), want) {
			t.Errorf("the first %d are %v and %d more", n, ids(first), rest)
		}
		last, rest := o.Page(outbox.Selection{Last: true}, n)
		if want := pending(o, "a")[more:]; rest != more || !slices.Equal(ids(last), want) {
			t.Errorf("the last %d are %v and %d more", n, ids(last), rest)
		}
	}
}

// awayStorage cannot be opened while it is away. Something may happen while it is read.
type awayStorage struct {
	outbox.Storage
	away atomic.Bool
	read func()
}

func (s *awayStorage) Walk(bucket, from string, visit func(key string, value []byte) error) error {
	if s.read != nil {
		s.read()
	}
	return s.Storage.Walk(bucket, from, visit)
}

func (s *awayStorage) Open() (bool, error) {
	if s.away.Load() {
		return false, errors.New("not mounted")
	}
	return s.Storage.Open()
}

// The history of a damaged file whose pages lead in a circle ends too, with an error.
func TestTheHistoryOfAFileWithACircleEnds(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir, outbox.Options{})
	for i := range 300 {
		_, _ = add(o, fmt.Sprintf("E%04d", i), "scheduled")
	}
	path := o.Path()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size, circles := os.Getpagesize(), 0
	for at := 2 * size; at < len(data); at += size {
		page := data[at:]
		if binary.NativeEndian.Uint64(page) == uint64(at/size) && binary.NativeEndian.Uint16(page[8:]) == 1 { // a branch
			binary.NativeEndian.PutUint64(page[16+8:], uint64(at/size))
			circles++
		}
	}
	if circles == 0 {
		t.Fatal("the file has no branches")
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	err = outbox.ReadHistory(path, func(outbox.Record) error { return nil })
	if !errors.Is(err, outbox.ErrDamaged) {
		t.Errorf("ReadHistory = %v, want that it is damaged", err)
	}
}
