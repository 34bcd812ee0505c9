package outbox_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// A new reader of a route is woken at once for what is pending, without another change.
func TestNewReaderIsWokenAtOnce(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		mustAdd(t, o, "A", "scheduled", "hook")
		for range 2 {
			q := o.Queue("hook")
			select {
			case <-q.Changed():
			default:
				t.Error("nothing wakes the new reader")
			}
			got, _ := changes(q)
			want(t, "the new reader hears", got, "A-scheduled")
		}
	})
}

// A report without a time gets the current one.
func TestReportWithoutATimeIsOfNow(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		mustAdd(t, o, "A", "scheduled", "hook", "other")
		time.Sleep(time.Hour)
		q := o.Queue("hook")
		q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending, Durable: true})
		now, walked := time.Now(), 0
		err := o.Walk(0, func(r outbox.Record) error {
			for _, e := range r.Deliveries {
				if e.Route == "hook" {
					walked++
					if !e.At.Equal(now) {
						t.Errorf("it ended at %v, want %v", e.At, now)
					}
				}
			}
			return nil
		})
		if err != nil || walked != 1 {
			t.Errorf("the history has %d deliveries to hook: %v", walked, err)
		}
	})
}

// The log says what to do about a disk that can't be written, and when it works again.
func TestLogSaysWhatToDoAboutTheDisk(t *testing.T) {
	for _, tt := range []struct {
		err  error
		hint string
	}{
		{&fs.PathError{Op: "write", Path: "outbox.db", Err: fs.ErrPermission}, "let the user that forewarn runs as write there"},
		{fmt.Errorf("write: %w", syscall.ENOSPC), "make room on the disk"},
		{fmt.Errorf("write: %w", syscall.EROFS), "mount it writable"},
		{fmt.Errorf("open: %w", syscall.ENOTDIR), "name a directory with the key state"},
		{errors.New("input/output error"), "it is tried again by itself"},
	} {
		var log lines
		inBubble(t, outbox.Options{Log: log.logger()}, func(t *testing.T, o *outbox.Outbox, d *disk) {
			d.set(func() { d.fail = tt.err })
			if _, err := add(o, "A", "scheduled", "hook"); err == nil {
				t.Errorf("%v: it is said to be on disk", tt.err)
			}
			d.set(func() { d.fail = nil })
			time.Sleep(time.Minute)
		})
		text := log.String()
		if !strings.Contains(text, `hint="`+tt.hint) || strings.Count(text, "hint=") != 1 {
			t.Errorf("%v: the log says\n%s\nwant one hint, %q", tt.err, text, tt.hint)
		}
		if !strings.Contains(text, "outbox written again") {
			t.Errorf("%v: the log doesn't say that it is over:\n%s", tt.err, text)
		}
	}
}

// Close fails only when deliveries are lost: not if nothing was pending, and not if everything is on disk but the file
// could not be closed.
func TestCloseIsQuietWhenNothingIsLost(t *testing.T) {
	for _, tt := range []struct {
		claim string
		harm  func(d *disk)
		add   bool
		want  string
	}{
		{"all is well", func(*disk) {}, true, ""},
		{"the disk is full and nothing is pending", func(d *disk) { d.fail = errFull }, false, ""},
		{"the disk is full", func(d *disk) { d.fail = errFull }, true, "1 delivery is lost, it was only in memory: no space left on device"},
		{"the file can't be closed", func(d *disk) { d.failClose = errFull }, true, ""},
	} {
		inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
			d.set(func() { tt.harm(d) })
			if tt.add {
				_, _ = add(o, "A", "scheduled", "hook")
			}
			if got := fmt.Sprint(o.Close()); got != tt.want && (tt.want != "" || got != "<nil>") {
				t.Errorf("%s: Close = %s, want %q", tt.claim, got, tt.want)
			}
		})
	}
}

// If Compact fails, the next write opens the file again and uses it.
func TestFileIsUsedAgainAfterFailedCompact(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		mustAdd(t, o, "A", "scheduled", "hook")
		d.set(func() { d.failCompact, d.opens = errFull, 0 })
		if err := <-o.Maintain(time.Now()); !errors.Is(err, errFull) {
			t.Errorf("Maintain = %v, want %v", err, errFull)
		}
		mustAdd(t, o, "B", "scheduled", "hook")
		if d.opens == 0 {
			t.Error("the file wasn't opened again")
		}
		want(t, "pending", pending(o, "hook"), "A-scheduled", "B-scheduled")
	})
}

// History on disk is bounded every ten minutes, and sooner once it has grown by a sixteenth of its bound.
func TestHistoryIsBoundedSoonerWhenItGrows(t *testing.T) {
	inBubble(t, outbox.Options{Bounds: outbox.Bounds{History: 160}}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		maintained := func(when string, more, kept int) {
			t.Helper()
			for range more {
				mustAdd(t, o, "", "test")
			}
			time.Sleep(time.Second)
			if err := <-o.Maintain(time.Now()); err != nil || d.count("events") != kept {
				t.Errorf("%s it keeps %d CloudEvents, want %d: %v", when, d.count("events"), kept, err)
			}
		}
		maintained("at first", 160, 160)
		maintained("with ten more", 10, 170)
		maintained("with eleven more", 1, 160)
		maintained("with two more", 2, 162)
		time.Sleep(10 * time.Minute)
		maintained("ten minutes later", 0, 160)
	})
}

// A mark counts how often its id was used, at once and after a restart. If a file returns, the larger count is kept,
// also when the smaller one is recorded again, or an id would be used twice.
func TestLargerCountOfAMarkIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		record := func(o *outbox.Outbox, times int) {
			_ = apply(o, time.Now(), outbox.Batch{Marks: map[string]outbox.Mark{
				"A-scheduled": {Times: times, Group: "A", At: time.Now()}}})
		}
		used := func(o *outbox.Outbox, times int) {
			t.Helper()
			record(o, times)
			if got := o.Mark("A", "A-scheduled").Times; got != times {
				t.Errorf("used %d times, it is marked %d times", times, got)
			}
		}
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		for times := range 3 {
			used(o, times+1)
		}
		o.Close()

		storage := &awayStorage{Storage: diskOf(d.batches)}
		storage.away.Store(true)
		o = open(t, t.TempDir(), outbox.Options{Storage: storage})
		used(o, 1)
		storage.away.Store(false)
		time.Sleep(10 * time.Second)
		joins(o)
		for _, when := range []string{"once the file is there", "after a restart", "after another one"} {
			if got := o.Mark("A", "A-scheduled").Times; got != 3 {
				t.Errorf("%s it is marked %d times, want 3", when, got)
			}
			record(o, 1)
			o.Close()
			o = open(t, t.TempDir(), outbox.Options{Storage: storage})
		}
		o.Close()
	})
}

// A reader that asks while a change is still being written is woken again once it is on disk.
func TestReaderIsWokenOnceAChangeIsOnDisk(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		q := o.Queue("hook")
		hang := make(chan struct{})
		d.set(func() { d.hang = hang })
		wait := submit(o, time.Now(), outbox.Batch{Add: []outbox.Addition{addition(o, "A", "scheduled", "hook")}})
		<-q.Changed()
		got, _ := changes(q)
		want(t, "before the disk has it a reader hears", got)
		d.set(func() { d.hang = nil })
		close(hang)
		if err := wait(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case <-q.Changed():
		default:
			t.Error("nothing wakes the reader")
		}
		got, _ = changes(q)
		want(t, "then it hears", got, "A-scheduled")
	})
}

// What a file holds of its owner is there after a restart, and is no returned file.
func TestTheStateOfTheOwnerIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		a := mustAdd(t, o, "A", "scheduled")
		for _, routes := range [][]outbox.Route{{{Name: "a"}, {Name: "b"}, {Name: "c"}}, {{Name: "a"}, {Name: "c"}}} {
			batch := outbox.Batch{Values: map[string][]byte{"x": []byte("1")}, Routes: routes}
			if err := apply(o, time.Now(), batch); err != nil {
				t.Fatal(err)
			}
		}
		o.Close()
		o = open(t, t.TempDir(), outbox.Options{Storage: d})
		added, back := newRoutes(o, []outbox.Route{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}})
		if !slices.Equal(added, []string{"d"}) || !slices.Equal(back, []string{"b"}) {
			t.Errorf("the routes %v are new, and %v return, want d and b", added, back)
		}
		all := o.Groups()
		if g := all["A"]; len(all) != 1 || g.Latest != a.Seq || string(g.State) != `"scheduled"` || string(o.Value("x")) != "1" {
			t.Errorf("stored are %+v and %q, want the group A and the value x", all, o.Value("x"))
		}
		if file := join(o); file.Groups != nil || file.Values != nil {
			t.Errorf("late came %+v, want nothing", file)
		}
		o.Close()
	})
}

// Maintain returns an error at once if the outbox is read-only or closed.
func TestReadOnlyOrClosedOutboxIsNotMaintained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		o := open(t, dir, outbox.Options{})
		mustAdd(t, o, "A", "scheduled", "a")
		o.Close()
		readOnly, err := outbox.OpenReadOnly(dir)
		if err != nil {
			t.Fatal(err)
		}
		for claim, o := range map[string]*outbox.Outbox{"closed": o, "read-only": readOnly} {
			select {
			case err := <-o.Maintain(time.Now()):
				if err == nil {
					t.Errorf("%s: got no error", claim)
				}
			default:
				t.Errorf("%s: nothing is said", claim)
			}
		}
		readOnly.Close()
	})
}

// A route with a backlog that was never in the settings counts as removed: its backlog is given up a day later. One
// without a backlog is not known.
func TestBacklogOfAnUnknownRouteIsGivenUp(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, _ *disk) {
		mustAdd(t, o, "A", "scheduled", "typo")
		o.Queue("idle")
		if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		want(t, "routes", routeNames(o), "a", "typo")
		if gone := o.Stats()["typo"].Gone; !gone.Equal(time.Now()) {
			t.Errorf("it is gone since %v, want now", gone)
		}
		for _, tt := range []struct {
			after         time.Duration
			pending, dead []string
		}{{24 * time.Hour, []string{"A-scheduled"}, nil}, {time.Second, nil, []string{"A-scheduled"}}} {
			time.Sleep(tt.after)
			o.Maintain(time.Now())
			want(t, "pending", pending(o, "typo"), tt.pending...)
			want(t, "dead", deadLetters(o, "typo"), tt.dead...)
		}
		if d := o.List(outbox.Selection{Route: "typo"}); d[0].Reason != delivery.ReasonRemoved {
			t.Errorf("the reason is %s, want %s", d[0].Reason, delivery.ReasonRemoved)
		}
		want(t, "routes", routeNames(o), "a", "typo")
		if _, err := drop(o, []string{o.List(outbox.Selection{})[0].Key}, "root"); err != nil {
			t.Fatal(err)
		}
		want(t, "once nothing of it is left, routes", routeNames(o), "a")
	})
}

// History that is dropped because of its bounds is counted, and nothing else is.
func TestDroppedHistoryIsCounted(t *testing.T) {
	for _, bounds := range []outbox.Bounds{{History: 5}, {HistoryBytes: 5 * len(body("E0-vanished"))}} {
		var log lines
		forgot := map[string]int{}
		inBubble(t, outbox.Options{Bounds: bounds, Log: log.logger()}, func(t *testing.T, o *outbox.Outbox, d *disk) {
			o.SetCallbacks(outbox.Callbacks{Forgot: func(what string, n int) { forgot[what] += n }})
			for i := range 9 {
				mustAdd(t, o, fmt.Sprint("E", i), "vanished")
			}
			for range 2 {
				time.Sleep(time.Second)
				if err := <-o.Maintain(time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			if n := d.count("events"); n != 5 || forgot[outbox.ForgotHistory] != 4 || len(forgot) != 1 {
				t.Errorf("%+v: %d CloudEvents are kept, and counted as dropped are %v; want 5, and 4 of the history", bounds, n, forgot)
			}
			time.Sleep(outbox.KeepHistory + time.Hour)
			if err := <-o.Maintain(time.Now()); err != nil {
				t.Fatal(err)
			}
			if n := d.count("events"); n != 0 || forgot[outbox.ForgotHistory] != 4 {
				t.Errorf("%+v: %d CloudEvents are kept after their time, and %v counted; age alone counts as no loss", bounds, n, forgot)
			}
		})
		if n := strings.Count(log.String(), "oldest history dropped"); n != 1 {
			t.Errorf("%+v: the log says it %d times, want once:\n%s", bounds, n, log.String())
		}
	}
}

// History that is exactly KeepHistory old is kept; what is older by a microsecond is not.
func TestHistoryIsKeptForItsWholeTime(t *testing.T) {
	for after, kept := range map[time.Duration]int{0: 1, time.Microsecond: 0} {
		inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
			a := mustAdd(t, o, "A", "vanished")
			end := time.UnixMicro(int64(a.Seq)).Add(outbox.KeepHistory)
			if err := <-o.Maintain(end.Add(after)); err != nil {
				t.Fatal(err)
			}
			if n := d.count("events"); n != kept {
				t.Errorf("%v after its time ends %d CloudEvents are kept, want %d", after, n, kept)
			}
		})
	}
}

// While the clock of the VM is wrong and says 1970, no history is old.
func TestHistoryIsKeptWhileTheClockSays1970(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		a := mustAdd(t, o, "A", "vanished", "hook")
		q := o.Queue("hook")
		q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending, Durable: true})
		if err := <-o.Maintain(time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
		if events, results := d.count("events"), d.count("settled"); events != 1 || results != 1 {
			t.Errorf("%d CloudEvents and %d results are kept, want those of %s", events, results, a.ID)
		}
	})
}

// Records being written when the disk begins to hang are bounded as soon as the write has failed, without another
// change.
func TestHistoryInFlightIsBoundedWhenTheDiskHangs(t *testing.T) {
	inBubble(t, outbox.Options{Bounds: outbox.Bounds{InMemory: 10}}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		hang := make(chan struct{})
		d.set(func() { d.hang = hang })
		var b outbox.Batch
		for i := range 200 {
			b.Add = append(b.Add, addition(o, "", fmt.Sprint("E", i)))
		}
		if err := apply(o, time.Now(), b); err == nil {
			t.Error("it is said to be on disk")
		}
		if n := len(bodies(o)); n != 200 {
			t.Errorf("while the disk may still take them there are %d CloudEvents, want 200", n)
		}
		d.set(func() { d.fail, d.hang = errFull, nil })
		close(hang)
		synctest.Wait()
		if n := len(bodies(o)); n != 20 {
			t.Errorf("when it has failed there are %d CloudEvents, want 20, twice what memory may hold", n)
		}
		d.set(func() { d.fail = nil })
		time.Sleep(10 * time.Second)
		if n := d.count("events"); n != 20 || o.Durable() != nil {
			t.Errorf("the disk has %d of them, want 20; Durable = %v", n, o.Durable())
		}
	})
}

// A dead letter has the time of its last attempt, their number, and since when and why it is dead.
func TestDeadLetterHasItsAttempts(t *testing.T) {
	for _, tt := range []struct {
		reason   string
		failed   bool // the report tells of the attempt by itself
		attempts int
	}{
		{delivery.ReasonRejected, false, 1}, {delivery.ReasonExpired, false, 1}, {delivery.ReasonRejected, true, 1},
		{delivery.ReasonExpired, true, 1}, {delivery.ReasonLate, false, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := diskOf(nil)
			o := open(t, t.TempDir(), outbox.Options{Storage: d})
			mustAdd(t, o, "A", "scheduled", "a")
			time.Sleep(time.Hour)
			q, now := o.Queue("a"), time.Now()
			r := delivery.Report{Now: now, Dead: q.Changes().Pending, Reason: tt.reason, Error: "gone away"}
			if tt.failed {
				r.Failed = r.Dead
			}
			q.Report(r)
			for _, when := range []string{"at once", "after a restart"} {
				l := o.List(outbox.Selection{})[0]
				if l.State != outbox.StateDead || l.Attempts != tt.attempts || l.LastAttempt.Equal(now) != (tt.attempts > 0) ||
					!l.DeadSince.Equal(now) || l.Reason != tt.reason || l.Error != "gone away" || !l.Next.IsZero() {
					t.Errorf("%s, told of by itself %v: %s it is %+v, want %d attempts, the last %v", tt.reason, tt.failed, when, l,
						tt.attempts, now)
				}
				if got := o.Delivery("a", l.Seq); got.State != outbox.StateDead || !got.DeadSince.Equal(now) {
					t.Errorf("%s: %s the outcome is %+v, want dead since %v", tt.reason, when, got, now)
				}
				time.Sleep(time.Hour)
				o.Close()
				o = open(t, t.TempDir(), outbox.Options{Storage: d})
			}
			o.Close()
		})
	}
}

// If a file turns out to be damaged while it is in use, the new file gets the open events and what became of their
// deliveries. What is over stays in the old one.
func TestOpenEventsOutliveADamagedFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		s := &breaking{Storage: d}
		o := open(t, t.TempDir(), outbox.Options{Storage: s})
		a := mustAdd(t, o, "A", "scheduled", "a", "b")
		over := mustAdd(t, o, "OVER", "vanished", "a")
		q := o.Queue("a")
		q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending, Durable: true})
		if err := apply(o, time.Now(), outbox.Batch{Groups: map[string]*outbox.Group{"OVER": nil}}); err != nil {
			t.Fatal(err)
		}
		s.breaks.Store(true)
		mustAdd(t, o, "B", "scheduled", "a")
		if len(d.aside) != 1 || d.aside[0] != "damaged" {
			t.Errorf("it was set aside as %q, want once, as damaged", d.aside)
		}
		for _, when := range []string{"at once", "after a restart"} {
			want(t, when+" pending", append(pending(o, "a"), pending(o, "b")...), "B-scheduled", "A-scheduled")
			if got := o.Delivery("a", a.Seq).State; got != outbox.StateAccepted {
				t.Errorf("%s the outcome is %q, want %s", when, got, outbox.StateAccepted)
			}
			told := 0
			err := o.Walk(0, func(r outbox.Record) error {
				for _, e := range r.Deliveries {
					if (r.Seq == a.Seq || r.Seq == over.Seq) && e.Route == "a" && e.State == outbox.StateAccepted {
						told++
					}
				}
				return nil
			})
			if err != nil || told != 1 || len(bodies(o)) != 2 {
				t.Errorf("%s the history tells of %d that were accepted, of %d CloudEvents: %v; want 1, of 2", when, told,
					len(bodies(o)), err)
			}
			o.Close()
			o = open(t, t.TempDir(), outbox.Options{Storage: s})
		}
		o.Close()
	})
}

// breaking is a storage in which one write finds the file damaged.
type breaking struct {
	outbox.Storage
	breaks atomic.Bool
}

func (s *breaking) Write(writes []outbox.Write) error {
	if s.breaks.CompareAndSwap(true, false) {
		return fmt.Errorf("%w: a page has no end", outbox.ErrDamaged)
	}
	return s.Storage.Write(writes)
}
