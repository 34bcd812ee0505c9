package outbox_test

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// walk reads the whole history.
func walk(o *box, _ uint64) error { return o.Walk(0, ignore) }

func ignore(outbox.Record) error { return nil }

// show reads one CloudEvent.
func show(o *box, seq uint64) error {
	_, err := o.body("a", seq)
	return err
}

// A CloudEvent that can't be read at the moment is not lost, nor is the history. If a read finds the file damaged, the
// file is set aside and everything in memory is written to a new one. CloudEvents of what is over are only in the old
// one.
func TestFailedReadLaterLosesNothing(t *testing.T) {
	maintain := func(o *box, _ uint64) error { return <-o.Maintain(time.Now()) }
	read := func(o *box, seq uint64) error {
		_, err := o.Queue("a").Read(&delivery.Item{Message: &delivery.Message{Seq: seq}})
		return err
	}
	for _, tt := range []struct {
		claim    string
		readsOne bool // CloudEvent
		read     func(o *box, seq uint64) error
	}{
		{"Walk", false, walk},
		{"Maintain", false, maintain},
		{"Show", true, show},
		{"Read", true, read},
	} {
		for cause, aside := range map[error][]string{errIO: nil, errDamage: {"damaged"}} {
			inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
				a := o.add("A", "scheduled", "a")
				o.end("A")
				o.disk.failsRead(0, cause)
				if err := tt.read(o, a.Seq); !errors.Is(err, cause) || errors.Is(err, delivery.ErrLost) {
					t.Errorf("%s = %v, want %v", tt.claim, err, cause)
				}
				time.Sleep(10 * time.Second)
				want(t, tt.claim+": set aside", o.disk.setAside(), aside...)
				equal(t, tt.claim+": what a crash would leave", o.disk.count("pending"), 1)
				lost := cause == errDamage && tt.readsOne
				if err := tt.read(o, a.Seq); errors.Is(err, delivery.ErrLost) != lost || !lost && err != nil {
					t.Errorf("%s, again = %v, want that it is lost: %v", tt.claim, err, lost)
				}
				o.wantDurable()
				o.restart()
				want(t, tt.claim+": after a restart pending", o.pending("a"), "A-scheduled")
			})
		}
	}
}

// A read that finds damage only after the file was set aside says nothing about the next file: what was stored there
// since stays.
func TestDamageThatIsFoundLateIsNotTheNextFiles(t *testing.T) {
	for call, read := range map[string]func(o *box, seq uint64) error{"walk": walk, "read": show} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			a := o.add("A", "scheduled", "a")
			o.end("A")
			hang, found := make(chan struct{}), make(chan error)
			o.disk.on(call, func() error {
				o.disk.on(call, nil)
				<-hang
				return errDamage
			})
			go func() { found <- read(o, a.Seq) }()
			synctest.Wait()
			o.disk.failsOnce("write", errDamage)
			b := o.add("B", "scheduled", "a")
			o.end("B")
			close(hang)
			wantError(t, "the "+call+" that was under way", <-found, outbox.ErrDamaged)
			time.Sleep(10 * time.Second)
			want(t, call+": set aside", o.disk.setAside(), "damaged")
			wantError(t, call+": Show of what was stored in the new file", show(o, b.Seq), nil)
			o.disk.failsOnce(call, errDamage)
			wantError(t, "a "+call+" of the new file", read(o, a.Seq), outbox.ErrDamaged)
			time.Sleep(10 * time.Second)
			want(t, call+": set aside, once one of the new file finds damage,", o.disk.setAside(), "damaged", "damaged")
		})
	}
}

// A file that takes the place of one while a read of that ends with damage counts as sound.
func TestAFileIsSoundAfterADamagedOne(t *testing.T) {
	s := outbox.File(t.TempDir(), slog.New(slog.DiscardHandler))
	defer s.Close()
	_, err := s.Open()
	must(t, errors.Join(err, s.Write([]outbox.Write{{Bucket: "events", Key: "1", Value: []byte("{}")}})))
	replaced := make(chan error, 1)
	replace := sync.OnceFunc(func() {
		go func() {
			err := s.SetAside("damaged", outbox.ErrDamaged)
			_, openErr := s.Open()
			replaced <- errors.Join(err, openErr)
		}()
	})
	_ = s.Walk("events", "", func(string, []byte) error {
		return damageThat(func() {
			replace()
			time.Sleep(100 * time.Millisecond) // it may have to wait for the read
		})
	})
	must(t, <-replaced)
	if opened, err := s.Open(); opened || err != nil {
		t.Errorf("it is opened again: %t, %v; want that it stays open", opened, err)
	}
}

// damageThat is damage, and is called when somebody asks whether it is.
type damageThat func()

func (d damageThat) Error() string { return "a page has no end" }

func (d damageThat) Is(target error) bool {
	d()
	return target == outbox.ErrDamaged
}

// A file in which a read has found damage is not compacted: bbolt could hang when it closes it.
func TestADamagedFileIsNotCompacted(t *testing.T) {
	dir := t.TempDir()
	s := outbox.File(dir, slog.New(slog.DiscardHandler))
	defer s.Close()
	var writes, deletes []outbox.Write
	for i := range 20 {
		key := fmt.Sprintf("%02d", i)
		writes = append(writes, outbox.Write{Bucket: "events", Key: key, Value: make([]byte, 1<<20)})
		deletes = append(deletes, outbox.Write{Bucket: "events", Key: key})
	}
	_, err := s.Open()
	must(t, errors.Join(err, s.Write(writes), s.Write(deletes[1:])))
	before := s.Size()
	_ = s.Walk("events", "", func(string, []byte) error { return outbox.ErrDamaged })
	wantError(t, "Compact", s.Compact(), outbox.ErrDamaged)
	equal(t, "its size", s.Size(), before)
	left, err := filepath.Glob(filepath.Join(dir, "*.compact"))
	must(t, err)
	want(t, "left are", left)
}

// If a file turns out to be damaged while it is in use, the new file gets what memory holds, whenever that was added:
// the open events with what became of their deliveries, and what is about no event, which has nothing that could take
// its place. What is over stays in the old one.
func TestWhatMemoryHoldsOutlivesADamagedFile(t *testing.T) {
	for claim, before := range map[string]func(o *box){
		"this run added it":      func(*box) {},
		"an earlier run left it": func(o *box) { o.restart() },
		"its file was read late": func(o *box) {
			o.restartLate(o.disk)
			o.diskRecovers()
			o.join()
		},
	} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			open := o.add("OPEN", "scheduled", "a", "b")
			over := o.add("OVER", "vanished", "a")
			o.accept("a")
			report := o.add("", "report", "b")
			before(o)
			o.disk.failsOnce("write", errDamage)
			o.add("NEW", "scheduled", "a")
			want(t, claim+": set aside", o.disk.setAside(), "damaged")
			for _, when := range []string{"at once", "after a restart"} {
				when = claim + ": " + when
				want(t, when+" pending", o.pending(""), "OPEN-scheduled", "report", "NEW-scheduled")
				want(t, when+" results", o.results(), "a accepted", "b pending", "b pending", "a pending")
				equal(t, when+" the outcome", o.Delivery("a", open.Seq).State, outbox.StateAccepted)
				equal(t, when+" it holds what is over", o.holds(over), false)
				body, err := o.body("b", report.Seq)
				must(t, err)
				equal(t, when+" what is about no event", string(body), string(report.Body))
				o.restart()
			}
		})
	}
}

// A pending CloudEvent that the file has lost is replaced by the latest change of its group, under the id of that
// change. Only what is over is lost, what somebody gave up, and what a route that acts was not given.
func TestALostCloudEventIsReplacedByTheLatestChange(t *testing.T) {
	const scheduled, started, reminder = "A-scheduled", "A-started", "A-reminder"
	none := func(*box) {}
	over := func(o *box) { o.end("A") }
	accept := func(o *box) {
		a := o.reader("a")
		a.accept(a.items()[0])
	}
	reject := func(o *box) {
		a := o.reader("a")
		a.reject(a.items()[0])
	}
	drop := func(o *box) { _, _ = o.drop(o.keys(outbox.Selection{Route: "a"})[0]) }
	for _, tt := range []struct {
		claim string
		late  delivery.Late
		lost  string       // what the file has lost
		to    string       // the route of the latest change; the other deliveries are all for a
		then  func(o *box) // with the latest change, which is first
		want  []string     // pending in the end
		dead  []string
	}{
		{"the latest change is pending too", delivery.LateSend, scheduled, "a", none, []string{started}, nil},
		{"also for a route that acts", delivery.LateDrop, scheduled, "a", none, []string{started}, nil},
		{"the route didn't want the latest change", delivery.LateSend, scheduled, "b", none, []string{started}, nil},
		{"a route that acts didn't want it", delivery.LateDrop, scheduled, "b", none, nil, []string{scheduled}},
		{"a reminder of a change that was accepted", delivery.LateLatest, reminder, "a", accept, []string{started}, nil},
		{"the same of a route that acts", delivery.LateDrop, reminder, "a", accept, nil, []string{reminder}},
		{"the latest change was dropped", delivery.LateSend, reminder, "a", drop, nil, []string{reminder}},
		{"the latest change is a dead letter", delivery.LateSend, reminder, "a", reject, nil, []string{started, reminder}},
		{"the event is over", delivery.LateSend, scheduled, "a", over, []string{started}, []string{scheduled}},
		{"the latest change itself is never lost", delivery.LateSend, started, "a", none, []string{scheduled, started}, nil},
	} {
		inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
			o.setRoutes(outbox.Route{Name: "a", Late: tt.late}, outbox.Route{Name: "b"})
			if tt.lost != reminder {
				o.add("A", "scheduled", "a")
			}
			o.add("A", "started", tt.to)
			if tt.lost == reminder {
				o.apply(outbox.Batch{Add: []outbox.Addition{o.addition("A", "reminder", "a")}})
			}
			tt.then(o)
			o.disk.loses("events", tt.lost)
			a := o.reader("a")
			for _, i := range a.items() {
				if _, err := a.Read(i); errors.Is(err, delivery.ErrLost) {
					a.lose(i)
				}
			}
			want(t, tt.claim+": pending", o.pending("a"), tt.want...)
			want(t, tt.claim+": dead", o.dead("a"), tt.dead...)
			replaced := len(tt.dead) == 0 && tt.lost != started
			equal(t, tt.claim+": the log says that one is replaced", o.log.Count("a pending CloudEvent is lost") > 0, replaced)
		})
	}
}

// lose reports that CloudEvents are lost.
func (r reader) lose(items ...*delivery.Item) {
	r.Report(delivery.Report{Now: time.Now(), Dead: items, Reason: delivery.ReasonLost})
}

// What takes the place of a lost CloudEvent is for whom that was: a fallback is told whose it is, and what somebody
// replayed stays that.
func TestWhatReplacesALostCloudEventIsForTheSame(t *testing.T) {
	inBubble(t, outbox.Bounds{}, func(t *testing.T, o *box) {
		o.setRoutes(outbox.Route{Name: "a", Fallback: "b"}, outbox.Route{Name: "b"})
		o.add("A", "scheduled", "a")
		o.reject("a")
		o.replayAll()
		o.add("A", "started")
		o.disk.loses("events", "")
		for _, name := range []string{"a", "b"} {
			r := o.reader(name)
			r.lose(r.items()...)
			want(t, name, o.pending(name), "A-started")
		}
		byUser, fellBack := o.List(outbox.Selection{Route: "a"})[0], o.List(outbox.Selection{Route: "b"})[0]
		if byUser.ReplayedBy != "root" || !byUser.Replayed || byUser.FallbackFor != nil {
			t.Errorf("what was replayed is now %+v", byUser)
		}
		if fellBack.Replayed || fellBack.FallbackFor == nil || fellBack.FallbackFor.Sink != "a" {
			t.Errorf("what the fallback had is now %+v", fellBack)
		}
	})
}
