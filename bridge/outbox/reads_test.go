package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

var errIO = errors.New("input/output error")

// misreading is a storage in which one read fails.
type misreading struct {
	outbox.Storage
	mu    sync.Mutex
	after int // reads that succeed before that; below 0 none fails any more
	err   error
}

// set makes the n-th read from now on fail.
func (s *misreading) set(n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after, s.err = n, err
}

// failed reports whether that read has failed, and lets all later ones succeed.
func (s *misreading) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.after = -1 }()
	return s.after < 0
}

func (s *misreading) fail() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.after--; s.after == -1 {
		return s.err
	}
	return nil
}

func (s *misreading) Read(bucket, key string) ([]byte, error) {
	if err := s.fail(); err != nil {
		return nil, err
	}
	return s.Storage.Read(bucket, key)
}

func (s *misreading) Walk(bucket, from string, f func(key string, value []byte) error) error {
	if err := s.fail(); err != nil {
		return err
	}
	return s.Storage.Walk(bucket, from, f)
}

// A file that takes the place of the open one, and can't be read at first, is read before anything is written to it.
func TestFileThatIsReplacedIsReadBeforeItIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		s := &misreading{Storage: d, after: -1}
		o := open(t, t.TempDir(), outbox.Options{Storage: s})
		mustAdd(t, o, "A", "scheduled", "a")
		d.set(func() { d.open, d.data, d.failIn = false, map[string]map[string][]byte{}, 1 })
		s.set(0, errIO)
		_, _ = add(o, "B", "scheduled", "a")
		time.Sleep(time.Minute) // it may be read only when the writer tries again
		if !s.failed() {
			t.Fatal("nothing was read")
		}
		if err := o.Durable(); err != nil {
			t.Errorf("Durable = %v", err)
		}
		o.Close()
		o = open(t, t.TempDir(), outbox.Options{Storage: d})
		want(t, "pending after a restart", pending(o, "a"), "A-scheduled", "B-scheduled")
		o.Close()
	})
}

// Whichever read fails when the outbox is opened, it works from memory until everything can be read, and loads it then.
// Only a damaged file is set aside.
func TestFailedReadAtTheStartLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		own(o, "vm-0")
		mustAdd(t, o, "A", "scheduled", "a")
		mustAdd(t, o, "B", "scheduled", "a")
		mute(t, o, delivery.Mute{ID: "m", Sink: "z", Since: time.Now(), Until: time.Now().Add(time.Hour)})
		q := o.Queue("a")
		q.Report(delivery.Report{Now: time.Now(), Accepted: q.Changes().Pending[:1], Durable: true})
		o.Close()
		time.Sleep(time.Second)
		reached := 0
		for n := 0; n == reached; n++ {
			for _, cause := range []error{errIO, fmt.Errorf("%w: a page has no end", outbox.ErrDamaged)} {
				left := diskOf(d.recorded())
				s := &misreading{Storage: left}
				s.set(n, cause)
				o := open(t, t.TempDir(), outbox.Options{Storage: s})
				late, _ := add(o, "C", "scheduled", "a")
				time.Sleep(10 * time.Second)
				joins(o)
				if !s.failed() { // there are no more reads
					o.Close()
					break
				}
				reached = n + 1
				if err := o.Durable(); err != nil {
					t.Errorf("read %d: %v: then Durable = %v", n, cause, err)
				}
				if cause == errIO {
					want(t, fmt.Sprint("read ", n, ": pending"), pending(o, "a"), "B-scheduled", "C-scheduled")
					if g := o.Groups(); len(left.aside) != 0 || o.Owner() != "vm-0" || len(o.Mutes()) != 1 ||
						len(g) != 3 || o.Delivery("a", g["A"].Latest).State != outbox.StateAccepted {
						t.Errorf("read %d: aside %v, it is %q's, has the groups %v and %d mutes, and what was accepted is %q", n, left.aside, o.Owner(), g, len(o.Mutes()), o.Delivery("a", g["A"].Latest).State)
					}
				} else {
					want(t, fmt.Sprint("read ", n, " finds damage: pending"), pending(o, "a"), "C-scheduled")
					want(t, fmt.Sprint("read ", n, " finds damage: aside"), left.aside, "damaged")
				}
				if _, err := bodyOf(o, "a", late.Seq); err != nil {
					t.Errorf("read %d: %v: what was added meanwhile: %v", n, cause, err)
				}
				o.Close()
			}
		}
		if reached < 13 {
			t.Errorf("it was opened with %d reads, which leaves something out", reached)
		}
	})
}

// A CloudEvent that can't be read at the moment is not lost, nor is the history. If a read finds the file damaged, the
// file is set aside and everything in memory is written to a new one. CloudEvents of what is over are only in the old one.
func TestFailedReadLaterLosesNothing(t *testing.T) {
	for claim, read := range map[string]func(o *outbox.Outbox, seq uint64) error{
		"Walk":     func(o *outbox.Outbox, _ uint64) error { return o.Walk(0, func(outbox.Record) error { return nil }) },
		"Maintain": func(o *outbox.Outbox, _ uint64) error { return <-o.Maintain(time.Now()) },
		"Show":     func(o *outbox.Outbox, seq uint64) error { _, err := bodyOf(o, "a", seq); return err },
		"Read": func(o *outbox.Outbox, seq uint64) error {
			_, err := o.Queue("a").Read(&delivery.Item{Message: &delivery.Message{Seq: seq}})
			return err
		},
	} {
		for _, cause := range []error{errIO, fmt.Errorf("%w: a page has no end", outbox.ErrDamaged)} {
			synctest.Test(t, func(t *testing.T) {
				d := diskOf(nil)
				s := &misreading{Storage: d}
				s.set(-1, nil)
				o := open(t, t.TempDir(), outbox.Options{Storage: s})
				a := mustAdd(t, o, "A", "scheduled", "a")
				end(t, o, "A")
				s.set(0, cause)
				if err := read(o, a.Seq); !errors.Is(err, cause) || errors.Is(err, delivery.ErrLost) {
					t.Errorf("%s = %v, want %v", claim, err, cause)
				}
				time.Sleep(10 * time.Second)
				aside := []string{}
				if cause != errIO {
					aside = append(aside, "damaged")
				}
				d.set(func() {
					want(t, claim+": aside", d.aside, aside...)
					if len(d.data["pending"]) != 1 {
						t.Errorf("%s: after %v a crash now would lose what is pending", claim, cause)
					}
				})
				err := read(o, a.Seq)
				lost := cause != errIO && claim != "Walk" && claim != "Maintain"
				if errors.Is(err, delivery.ErrLost) != lost || o.Durable() != nil {
					t.Errorf("%s, again = %v; Durable = %v", claim, err, o.Durable())
				}
				o.Close()
				o = open(t, t.TempDir(), outbox.Options{Storage: s})
				want(t, claim+": after a restart pending", pending(o, "a"), "A-scheduled")
				o.Close()
			})
		}
	}
}

// A read that finds damage only after the file was set aside says nothing about the next file: what was stored there since
// stays.
func TestDamageThatIsFoundLateIsNotTheNextFiles(t *testing.T) {
	for claim, read := range map[string]func(o *outbox.Outbox, seq uint64) error{
		"Walk": func(o *outbox.Outbox, _ uint64) error { return o.Walk(0, func(outbox.Record) error { return nil }) },
		"Show": func(o *outbox.Outbox, seq uint64) error { _, err := bodyOf(o, "a", seq); return err },
	} {
		t.Run(claim, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := diskOf(nil)
				s := &lateDamage{breaking: breaking{Storage: d}, release: make(chan struct{})}
				o := open(t, t.TempDir(), outbox.Options{Storage: s})
				a := mustAdd(t, o, "A", "scheduled", "a")
				end(t, o, "A")
				s.late.Store(true)
				found := make(chan error)
				go func() { found <- read(o, a.Seq) }()
				synctest.Wait()
				s.breaks.Store(true)
				b := mustAdd(t, o, "B", "scheduled", "a")
				end(t, o, "B")
				close(s.release)
				if err := <-found; !errors.Is(err, outbox.ErrDamaged) {
					t.Errorf("the read that was under way = %v, want that it finds damage", err)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				want(t, "aside", d.aside, "damaged")
				if _, err := bodyOf(o, "a", b.Seq); err != nil {
					t.Errorf("what was stored in the new file: %v", err)
				}
				s.late.Store(true)
				if err := read(o, a.Seq); !errors.Is(err, outbox.ErrDamaged) {
					t.Errorf("a read of the new file = %v, want that it finds damage", err)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				want(t, "aside, once a read of the new file finds damage", d.aside, "damaged", "damaged")
				o.Close()
			})
		})
	}
}

// lateDamage is a storage in which one read waits for release, and then finds the file damaged.
type lateDamage struct {
	breaking
	late    atomic.Bool
	release chan struct{}
}

func (s *lateDamage) found() error {
	if !s.late.CompareAndSwap(true, false) {
		return nil
	}
	<-s.release
	return fmt.Errorf("%w: a page has no end", outbox.ErrDamaged)
}

func (s *lateDamage) Read(bucket, key string) ([]byte, error) {
	if err := s.found(); err != nil {
		return nil, err
	}
	return s.Storage.Read(bucket, key)
}

func (s *lateDamage) Walk(bucket, from string, f func(key string, value []byte) error) error {
	if err := s.found(); err != nil {
		return err
	}
	return s.Storage.Walk(bucket, from, f)
}

// A file that takes the place of one while a read of that ends with damage counts as sound.
func TestAFileIsSoundAfterADamagedOne(t *testing.T) {
	s := outbox.File(t.TempDir(), slog.New(slog.DiscardHandler))
	defer s.Close()
	_, err := s.Open()
	if err := errors.Join(err, s.Write([]outbox.Write{{Bucket: "events", Key: "1", Value: []byte("{}")}})); err != nil {
		t.Fatal(err)
	}
	replaced := make(chan error, 1)
	replace := func() {
		err := s.SetAside("damaged", outbox.ErrDamaged)
		_, openErr := s.Open()
		replaced <- errors.Join(err, openErr)
	}
	var once sync.Once
	_ = s.Walk("events", "", func(string, []byte) error {
		return damageThat(func() {
			once.Do(func() { go replace() })
			time.Sleep(100 * time.Millisecond) // it may have to wait for the read
		})
	})
	if err := <-replaced; err != nil {
		t.Fatal(err)
	}
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
		w := outbox.Write{Bucket: "events", Key: fmt.Sprintf("%02d", i), Value: make([]byte, 1<<20)}
		writes, deletes = append(writes, w), append(deletes, outbox.Write{Bucket: w.Bucket, Key: w.Key})
	}
	_, err := s.Open()
	if err := errors.Join(err, s.Write(writes), s.Write(deletes[1:])); err != nil {
		t.Fatal(err)
	}
	before := s.Size()
	_ = s.Walk("events", "", func(string, []byte) error { return outbox.ErrDamaged })
	if err := s.Compact(); !errors.Is(err, outbox.ErrDamaged) || s.Size() != before {
		t.Errorf("Compact = %v, and %d bytes became %d; want that it is damaged, and stays", err, before, s.Size())
	}
	if list, _ := filepath.Glob(filepath.Join(dir, "*.compact")); len(list) != 0 {
		t.Errorf("%q is left", list)
	}
}

// Walk ends with the error of its callback. It includes records that are not on disk yet.
func TestWalkEndsWithTheErrorOfItsCallback(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		first := mustAdd(t, o, "A", "scheduled", "a")
		mustAdd(t, o, "B", "scheduled", "a")
		d.set(func() { d.fail = errFull })
		_, _ = add(o, "C", "scheduled", "a")
		enough := errors.New("enough")
		for n, wantSeen := range []int{1, 2, 3, 3} {
			var seen []string
			err := o.Walk(first.Seq, func(r outbox.Record) error {
				seen = append(seen, string(r.Body))
				if len(seen) == n+1 {
					return enough
				}
				return nil
			})
			if len(seen) != wantSeen || (n < 3) != errors.Is(err, enough) {
				t.Errorf("of 3 it was shown %d, Walk = %v; want %d", len(seen), err, wantSeen)
			}
		}
		seen := 0
		if err := o.Walk(first.Seq+1, func(outbox.Record) error { seen++; return nil }); err != nil || seen != 2 {
			t.Errorf("behind the first it was shown %d, want 2: %v", seen, err)
		}
	})
}

// A change of a delivery that is no longer pending, or never was, has no effect; nor has adding a CloudEvent again for
// a route that has it.
func TestOnlyPendingDeliveriesChange(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		a := mustAdd(t, o, "A", "scheduled", "a", "b")
		q := o.Queue("a")
		q.Report(delivery.Report{Now: time.Now(), Failed: q.Changes().Pending, Error: "down", Next: time.Now().Add(time.Hour),
			Durable: true})
		before := shown(t, o)
		again := a
		again.Body, again.To = nil, []string{"a"}
		err := errors.Join(supersede(o, refTo("c", a.Seq), refTo("a", a.Seq+1)),
			apply(o, time.Now(), outbox.Batch{Add: []outbox.Addition{again}}))
		if err != nil {
			t.Fatal(err)
		}
		if got := shown(t, o); got != before {
			t.Errorf("it shows\n%s\nwant\n%s", got, before)
		}
		if n := d.count("settled"); n != 0 {
			t.Errorf("%d outcomes are on disk, want none", n)
		}
	})
}

// An accepted delivery counts and is recorded even if it is no longer pending.
func TestAcceptedDeliveryIsRecordedEvenIfSuperseded(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		a := mustAdd(t, o, "A", "vanished", "a")
		q := o.Queue("a")
		items := q.Changes().Pending
		if err := supersede(o, refTo("a", a.Seq)); err != nil {
			t.Fatal(err)
		}
		q.Report(delivery.Report{Now: time.Now(), Accepted: items, Durable: true})
		d.set(func() {
			for _, outcome := range d.data["settled"] {
				if !strings.Contains(string(outcome), `"accepted"`) {
					t.Errorf("on record is %s, want that it was accepted", outcome)
				}
			}
		})
		if s := o.Stats()["a"]; d.count("settled") != 1 || s.Pending != 0 {
			t.Errorf("%d outcomes are on record, want one; the figures are %+v", d.count("settled"), s)
		}
	})
}

// An attempt that came to nothing, because the sink put it off or the CloudEvent could not be read, doesn't count when a newer
// change takes the delivery's place later.
func TestAnAttemptThatWasNotMadeDoesNotCountLater(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		a := mustAdd(t, o, "A", "scheduled", "a")
		sink := sinkFunc(func() error { return &delivery.NotYet{Until: time.Now().Add(time.Minute)} })
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			delivery.NewWorker(delivery.Config{Route: "a", Sink: sink, Queue: o.Queue("a")}).Run(t.Context(), stop, nil)
		}()
		time.Sleep(time.Second)
		if err := supersede(o, refTo("a", a.Seq)); err != nil {
			t.Fatal(err)
		}
		err := o.Walk(0, func(r outbox.Record) error {
			if got := r.Deliveries; len(got) != 1 || got[0].State != outbox.StateSuperseded || got[0].Attempts != 0 {
				t.Errorf("on record is %+v, want that it was superseded and never attempted", got)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		close(stop)
		<-done
	})
}

// A sinkFunc answers with an error.
type sinkFunc func() error

func (f sinkFunc) Deliver(context.Context, []delivery.Delivery) (delivery.Answer, error) {
	return delivery.Answer{}, f()
}

// After Close no change is reported as being on disk.
func TestChangesAfterCloseAreNotOnDisk(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		o.Close()
		before := d.transactions()
		if _, err := add(o, "A", "scheduled", "a"); err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("Apply = %v, want that it is closed", err)
		}
		o.Maintain(time.Now())
		time.Sleep(time.Minute)
		if n := d.transactions() - before; n != 0 {
			t.Errorf("%d transactions were written, want none", n)
		}
	})
}

// A disk that hangs when the outbox is opened doesn't keep its owner from starting: the outbox works from memory, and
// takes the file up once the disk answers.
func TestADiskThatHangsAtTheStartIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		mustAdd(t, o, "OLD", "scheduled", "a")
		o.Close()

		release := d.hangReads()
		began := time.Now()
		o = open(t, t.TempDir(), outbox.Options{Storage: d})
		if took := time.Since(began); took != 15*time.Second {
			t.Errorf("it took %v to open, want 15s", took)
		}
		if o.Durable() == nil {
			t.Error("it counts as durable")
		}
		if _, err := add(o, "NEW", "scheduled", "a"); err == nil {
			t.Error("a change counts as on disk")
		}
		want(t, "pending meanwhile", pending(o, "a"), "NEW-scheduled")

		release()
		<-o.Returned()
		joins(o)
		want(t, "pending once the disk is back", pending(o, "a"), "OLD-scheduled", "NEW-scheduled")
		if err := o.Durable(); err != nil {
			t.Errorf("once the disk is back Durable = %v", err)
		}
	})
}

// A start waits for a disk that is only slow, however long that takes: from memory it would tell again what was told.
func TestASlowDiskIsWaitedForAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := diskOf(nil)
		o := open(t, t.TempDir(), outbox.Options{Storage: d})
		for i := range 10 {
			mustAdd(t, o, fmt.Sprint("OLD", i), "scheduled", "a")
		}
		o.Close()
		d.set(func() { d.walks = 10 * time.Second })
		began := time.Now()
		o = open(t, t.TempDir(), outbox.Options{Storage: d})
		d.set(func() { d.walks = 0 })
		if took := time.Since(began); took < time.Minute || o.Durable() != nil || len(pending(o, "a")) != 10 {
			t.Errorf("it took %v; Durable = %v, and %d are pending", took, o.Durable(), len(pending(o, "a")))
		}
	})
}

// What waits in memory while the disk hangs at the start is still there when the disk is back: the bound for a disk that
// fails gives none of it up.
func TestWhatWaitsForADiskThatHangsAtTheStartIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, fresh := range []bool{true, false} {
			d := diskOf(nil)
			if !fresh {
				o := open(t, t.TempDir(), outbox.Options{Storage: d})
				mustAdd(t, o, "OLD", "scheduled", "a")
				o.Close()
			}
			release := d.hangReads()
			log := &lines{}
			o := open(t, t.TempDir(), outbox.Options{
				Storage: d, Bounds: outbox.Bounds{InMemory: 2}, Log: log.logger(),
			})
			for i := range 5 {
				_, _ = add(o, fmt.Sprint("NEW", i), "scheduled", "a")
			}
			release()
			time.Sleep(10 * time.Second)
			_, _ = add(o, "LAST", "scheduled", "a")
			joins(o)
			want(t, "dead", deadLetters(o, "a"))
			if n := len(pending(o, "a")); n != 6 && fresh || n != 7 && !fresh {
				t.Errorf("%d are pending", n)
			}
			if err := o.Durable(); err != nil || strings.Count(log.String(), "outbox written again") != 1 {
				t.Errorf("Durable = %v, and the log is\n%s", err, log.String())
			}
		}
	})
}

// Another process may have the file open where the disk hangs at the start. Once it has ended, the file is taken up.
func TestAFileThatIsLockedAfterTheStartIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &lockedDisk{disk: diskOf(nil), until: time.Now().Add(time.Minute)}
		log := &lines{}
		o := open(t, t.TempDir(), outbox.Options{Storage: d, Log: log.logger()})
		time.Sleep(20 * time.Second)
		if err := o.Durable(); !errors.Is(err, outbox.ErrLocked) {
			t.Errorf("Durable = %v, want that it is locked", err)
		}
		if said := log.String(); strings.Count(said, "locked by another forewarn") != 1 {
			t.Errorf("the log does not say once that it is locked:\n%s", said)
		}
		time.Sleep(time.Minute)
		if err := o.Durable(); err != nil {
			t.Errorf("Durable = %v once nobody else has it open", err)
		}
	})
}

// A lockedDisk hangs at first, and is then locked until some time.
type lockedDisk struct {
	*disk
	until time.Time
}

func (d *lockedDisk) Open() (bool, error) {
	if d.opens == 0 {
		d.opens++
		time.Sleep(20 * time.Second)
	}
	if time.Now().Before(d.until) {
		return false, outbox.ErrLocked
	}
	return d.disk.Open()
}
