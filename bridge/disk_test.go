package bridge_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// pendingIDs returns the ids that are pending for the sink, in order.
func pendingIDs(o *outbox.Outbox, sink string) []string {
	ids := []string{}
	for _, d := range o.List(outbox.Selection{Route: sink, State: outbox.StatePending}) {
		ids = append(ids, d.ID)
	}
	return ids
}

func deadIDs(o *outbox.Outbox) (ids []string) {
	for _, d := range o.List(outbox.Selection{State: outbox.StateDead}) {
		ids = append(ids, d.ID)
	}
	return ids
}

// Where no file can be made the program works from memory, is not ready, says so, and catches up when it can.
func TestWithoutADiskTheProgramWorksFromMemory(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.dir = notADirectory(t)
		e, down := &recorder{}, answering(errSinkDown)
		b := s.up(e.all("a"), down.all("down"))
		s.reboot(idA)
		pause(2 * time.Second)
		s.azure.Start(idA)
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started")
		wantEqual(t, "ready", b.Status().Ready, false)
		wantEqual(t, "durable", b.Status().Outbox.Durable, false)
		wantIn(t, "the reasons", strings.Join(b.Status().Reasons, " "), "outbox")
		s.wantLogged("running from memory")
		s.wantLoggedTimes(1, "level=ERROR")

		must(t, os.Remove(filepath.Dir(s.dir)))
		pause(diskRetry + time.Second)
		wantEqual(t, "ready", b.Status().Ready, true)
		b.wantDurable()
		s.wantLogged("outbox written again")
		b.crash()
		s.start(e.all("a"), down.all("down"))
		down.say(nil)
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started")
		wantIDs(t, down.ids(), idA+"-scheduled", idA+"-started")
	})
}

// While nothing changes the disk is left alone, but for the time of the last answer, once a minute: it is searched for
// what is too old once in ten minutes only, and not made smaller.
func TestPollsThatBringNothingLeaveTheDiskAlone(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.start((&recorder{}).all("a"))
		s.reboot(idA)
		pause(10 * time.Second)
		before := s.disk.counted()
		pause(5 * time.Minute)
		after := s.disk.counted()
		wantWithin(t, "writes in five minutes", after.writes-before.writes, 4, 6)
		wantEqual(t, "searches in five minutes", after.walks-before.walks, 0)
		wantEqual(t, "compactions in five minutes", after.compactions-before.compactions, 0)
		pause(6 * time.Minute)
		wantWithin(t, "searches in eleven minutes", s.disk.counted().walks-before.walks, 1, 10)
	})
}

// A stop that loses deliveries says how many, and that what is still open is told again at the next start, which it is.
func TestAStopSaysWhatBecomesOfWhatItLoses(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.up(answering(errSinkDown).all("down"))
		s.disk.fail(errFull)
		s.reboot("EVENT")
		pause(2 * time.Second)
		b.cancel()
		err := <-b.done
		if err == nil || !strings.Contains(err.Error(), "lost") ||
			!strings.HasSuffix(err.Error(), "; events that are still open are told again at the next start") {
			t.Errorf("Run = %v", err)
		}
		e := &recorder{}
		s.up(e.all("down"))
		wantIDs(t, e.ids(), "EVENT-scheduled")
	})
}

// A disk that fails stops nothing. What only memory has is bounded; what the disk had is not touched; and everything is
// on disk when it is back.
func TestAFailingDiskStopsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e, down := &recorder{}, answering(errSinkDown)
		s.bounds.InMemory = 5
		b := s.up(e.all("a"), down.all("down"))
		s.reboot("ON-DISK")
		pause(2 * time.Second)
		s.disk.fail(errFull)
		want := []string{"ON-DISK-scheduled"}
		for i := range 8 {
			id := fmt.Sprintf("EVENT-%d", i)
			s.reboot(id)
			want = append(want, id+"-scheduled")
			pause(1100 * time.Millisecond)
		}
		wantIDs(t, e.ids(), want...)
		wantEqual(t, "Durable is that the disk is full", errors.Is(b.Outbox.Durable(), errFull), true)
		wantEqual(t, "ready", b.Status().Ready, false)
		wantIn(t, "the reasons", strings.Join(b.Status().Reasons, " "), errFull.Error())
		wantIDs(t, pendingIDs(b.Outbox, "down"), append([]string{"ON-DISK-scheduled"}, want[5:]...)...) // the other sink's is the fifth
		b.wantDead(delivery.ReasonOverflow, want[1:5]...)
		s.disk.fail(nil)
		pause(diskRetry + time.Second)
		b.wantDurable()
		for i := 8; i < 16; i++ { // and memory has room again
			s.reboot(fmt.Sprintf("EVENT-%d", i))
			pause(1100 * time.Millisecond)
		}
		b.crash()
		o := stored(t, s.dir)
		wantEqual(t, "pending on disk to the sink that is down", len(pendingIDs(o, "down")), 13)
		wantEqual(t, "dead letters on disk", len(deadIDs(o)), 4)
		wantIDs(t, pendingIDs(o, "a"))
	})
}

// A disk that hangs delays a commit by its patience, once, and is caught up with when it is back.
func TestAHangingDiskDelaysOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		b := s.up(e.all("a"))
		release := s.disk.block()
		began := time.Now()
		s.reboot(idA)
		pause(7 * time.Second)
		s.reboot(idB)
		pause(1500 * time.Millisecond)
		wantIDs(t, e.ids(), idA+"-scheduled", idB+"-scheduled")
		wantWithin(t, "the first was sent after", e.accepted()[0].at.Sub(began), diskPatience, diskPatience+time.Second)
		wantIn(t, "Durable", fmt.Sprint(b.Outbox.Durable()), "too long")
		n := s.polls()
		pause(10 * time.Second)
		wantEqual(t, "polls in ten seconds", s.polls()-n, 10)
		release()
		pause(time.Second)
		b.wantDurable()
		b.crash()
		wantIDs(t, pendingIDs(stored(t, s.dir), "a"))
	})
	bubble(t, func(t *testing.T, s *stage) { // and a stop does not wait for it
		b := s.up(answering(errSinkDown).all("a"))
		release := s.disk.block()
		s.reboot(idA)
		pause(7 * time.Second)
		began := time.Now()
		b.cancel()
		if err := <-b.done; err == nil || time.Since(began) > 3*diskPatience {
			t.Errorf("Run = %v after %v, want that a delivery is lost, soon", err, time.Since(began))
		}
		release()
		synctest.Wait()
		must(t, s.disk.Close()) // the program would end here
	})
}

// A file that is damaged while it is in use is set aside, and what is known is in the next one. Whatever happens to it, a
// sink that was down hears the latest change of every event that is still open, after a crash too.
func TestDamageWhileRunningLosesNoOpenEvent(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not let a mapped file be cut")
	}
	page := int64(os.Getpagesize())
	for claim, damage := range map[string]func(f *os.File, size int64, older []byte) error{
		"it is emptied":            func(f *os.File, _ int64, _ []byte) error { return f.Truncate(0) },
		"it is cut in half":        func(f *os.File, size int64, _ []byte) error { return f.Truncate(size / 2) },
		"it is cut to one page":    func(f *os.File, _ int64, _ []byte) error { return f.Truncate(page) },
		"its meta pages are gone":  func(f *os.File, _ int64, _ []byte) error { return zero(f, 0, 2*page) },
		"its other pages are gone": func(f *os.File, size int64, _ []byte) error { return zero(f, 2*page, size) },
		"all of it is gone":        func(f *os.File, size int64, _ []byte) error { return zero(f, 0, size) },
		"an older one is written over it": func(f *os.File, _ int64, older []byte) error {
			_, err := f.WriteAt(older, 0)
			return err
		},
	} {
		for _, crashes := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, crashes: %t", claim, crashes), func(t *testing.T) {
				if claim != "it is cut in half" {
					systemtest.Alone(t)
				}
				bubble(t, func(t *testing.T, s *stage) {
					down, up := answering(errSinkDown), &recorder{}
					b := s.up(down.all("down"), up.all("up"))
					older, err := os.ReadFile(b.Outbox.Path())
					must(t, err)
					s.reboot(idA)
					s.reboot(idB)
					pause(5 * time.Second)
					info, err := os.Stat(b.Outbox.Path())
					must(t, err)
					f, err := os.OpenFile(b.Outbox.Path(), os.O_RDWR, 0)
					must(t, err)
					must(t, errors.Join(damage(f, info.Size(), older), f.Close()))
					s.azure.Start(idA)
					pause(30 * time.Second)
					wantIDs(t, up.ids(), idA+"-scheduled", idB+"-scheduled", idA+"-started")
					b.wantDurable()
					if crashes {
						b.crash()
						b = s.start(down.all("down"), up.all("up"))
					}
					down.say(nil)
					pause(10 * time.Minute)
					heard := strings.Join(down.ids(), " ") // the latest change of both events
					wantIn(t, "heard", heard, idA+"-started")
					wantIn(t, "heard", heard, idB+"-scheduled")
					wantIDs(t, deadIDs(b.Outbox))
					wantIDs(t, pendingIDs(b.Outbox, "down"))
				})
			})
		}
	}
}

// Nor does it lose an announcement that waits for its lead, or what came of an approval, when a newer change has followed.
func TestDamageLosesNoAnnouncementThatWaitsForItsLead(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not let a mapped file be cut")
	}
	bubble(t, func(t *testing.T, s *stage) {
		drain := &recorder{}
		b := s.up(drain.leads("drain", 10*time.Minute, "scheduled"))
		s.redeploy(idA, 70*time.Minute)
		pause(5 * time.Second)
		s.postpone(idA, 5*time.Minute)
		pause(5 * time.Second)
		must(t, os.Truncate(b.Outbox.Path(), 0))
		s.reboot(idB) // what is written then finds the damage
		pause(70 * time.Minute)
		wantIn(t, "heard", strings.Join(drain.ids(), " "), idA+"-scheduled")
		wantIDs(t, deadIDs(b.Outbox))
	})
}

// zero overwrites a part of a file with zeros.
func zero(f *os.File, from, to int64) error {
	_, err := f.WriteAt(make([]byte, to-from), from)
	return err
}

// The outbox is compacted, and searched for what is too old, after the first answer, which that must not delay. Then it
// is compacted once a day.
func TestTheOutboxIsCompactedOnceADay(t *testing.T) {
	systemtest.LeftToGate(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = time.Minute
		s.azure.SetFault(imdstest.Fault{Status: 503, For: 5 * time.Minute})
		began := time.Now()
		s.start()
		pause(500 * time.Millisecond)
		walks := s.disk.counted().walks
		for _, tt := range []struct {
			after time.Duration
			want  int
		}{{4 * time.Minute, 0}, {10 * time.Minute, 1}, {23 * time.Hour, 1}, {25 * time.Hour, 2}} {
			pause(time.Until(began.Add(tt.after)))
			now := s.disk.counted()
			wantEqual(t, fmt.Sprint("compactions after ", tt.after), now.compactions, tt.want)
			wantEqual(t, fmt.Sprint("searched after ", tt.after), now.walks > walks, tt.want > 0)
		}
	})
}

// A history that grows quickly is bounded at once, not only at the next of the regular times, ten minutes apart.
func TestTheHistoryIsBoundedWhenItGrows(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = time.Minute
		s.bounds = outbox.Bounds{History: 32}
		b := s.start((&recorder{}).all("a"))
		pause(2 * time.Minute)
		each := func(do func(id string)) {
			for i := range 60 {
				do(fmt.Sprintf("%08d-0000-4000-8000-000000000000", i))
			}
			pause(62 * time.Second)
		}
		each(s.reboot)
		each(func(id string) { s.azure.End(id) }) // what is open is kept
		changes := 0
		count := func(outbox.Record) error {
			changes++
			return nil
		}
		must(t, b.Outbox.Walk(0, count))
		wantWithin(t, "changes in the history two seconds after 60 events", changes, 32, 40)
	})
}

// While the disk hangs in reads too, a change that is in memory is told by a sink that waits for an old delivery's.
func TestAChangeDoesNotWaitForAReadOfTheDisk(t *testing.T) {
	for _, timeout := range []time.Duration{0, 10 * time.Second} {
		subtest(t, fmt.Sprint("attempts within ", timeout), func(t *testing.T, s *stage) {
			e := answering(errSinkDown)
			s.up(e.all("a").With(func(x *bridge.Terms) { x.Timeout = timeout }))
			s.redeploy(idB, 72*time.Hour)
			pause(10 * time.Second)
			s.azure.End(idB) // what is pending about it is on the disk only
			pause(time.Minute)
			release := s.disk.hang()
			e.say(nil)
			pause(10 * time.Minute) // longer than any backoff
			wantIDs(t, e.ids())
			s.redeploy(idA, 10*time.Minute)
			pause(12 * time.Second)
			wantIDs(t, e.ids(), idA+"-scheduled")
			release()
			pause(10 * time.Minute)
			wantIDs(t, e.ids()[:3], idA+"-scheduled", idB+"-scheduled", idB+"-vanished")
		})
	}
}

// Whenever it crashes after a start, the next start still knows how long nobody had watched before: an answer counts once
// what follows from it is on disk.
func TestACrashAfterAStartHidesNoGap(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		all := func(e *recorder) bridge.Route {
			return e.all("a").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelAll })
		}
		b := s.start(all(&recorder{}))
		s.reboot(idA)
		pause(3 * time.Second)
		b.end()
		stopped := time.Now()
		pause(time.Hour)
		s.azure.Start(idA)
		file, images := filepath.Join(s.dir, "outbox.db"), []string{}
		s.wrote = func() {
			images = append(images, filepath.Join(t.TempDir(), "image"))
			copyFile(t, file, images[len(images)-1])
		}
		b = s.start(all(answering(errSinkDown)))
		pause(5 * time.Second)
		s.wrote = nil
		b.end()
		for n, image := range images {
			copyFile(t, image, file)
			pause(time.Minute)
			e := &recorder{}
			b = s.start(all(e))
			pause(5 * time.Second)
			b.end()
			known := 0
			for _, h := range e.accepted() {
				var data struct {
					NotEarlierThan time.Time
					Gap            struct{ From time.Time }
				}
				must(t, json.Unmarshal(h.Event.Data(), &data))
				for _, from := range []time.Time{data.Gap.From, data.NotEarlierThan} {
					if !from.IsZero() && !from.After(stopped) {
						known++
					}
				}
			}
			if known < 2 {
				t.Errorf("after write %d of %d: heard %v, without that nobody had watched since %v", n+1, len(images), e.types(), stopped)
			}
		}
		wantWithin(t, "writes", len(images), 3, 100)
	})
}
