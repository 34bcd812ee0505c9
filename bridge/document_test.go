package bridge_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// outboxOf makes the outbox of a run that kept this.
func (s *stage) outboxOf(kept outbox.Batch) {
	s.t.Helper()
	box, err := outbox.Open(s.dir, outbox.Options{})
	must(s.t, err)
	wait := box.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(kept) })
	must(s.t, errors.Join(wait(), box.Close()))
}

// An open event that can't be read is logged, and is new to the bridge if Azure still lists it.
func TestAnOpenEventThatCannotBeReadIsNew(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.outboxOf(outbox.Batch{Groups: map[string]*outbox.Group{
			idA: {State: []byte(`"nonsense"`), Latest: 1}, idB: {State: []byte("{}"), Latest: 2},
		}})
		s.reboot(idA)
		e := &recorder{}
		s.up(e.all("a"))
		wantIDs(t, e.ids(), idA+"-scheduled")
		s.wantLoggedTimes(2, "cannot read a part of the outbox")
	})
}

// What can't be read of what the last run kept is logged, and nothing else is.
func TestAValueThatCannotBeReadIsLogged(t *testing.T) {
	for value, errors := range map[string]int{`{"at":"2000-01-01T00:00:00Z"}`: 0, "nonsense": 1} {
		subtest(t, value, func(t *testing.T, s *stage) {
			s.outboxOf(outbox.Batch{Values: map[string][]byte{bridge.ValueAnswer: []byte(value)}})
			s.up((&recorder{}).all("a"))
			s.wantLoggedTimes(errors, "level=ERROR")
		})
	}
}

// An event that goes before its time was cancelled, if the bridge watched all along.
func TestAnEventThatGoesBeforeItsTimeWasCanceledUnlessNobodyWatched(t *testing.T) {
	for gap, outcome := range map[time.Duration]cloudevent.Outcome{
		0: cloudevent.OutcomeCanceled, 2 * time.Second: cloudevent.OutcomeCanceled, 30 * time.Second: cloudevent.OutcomeUnknown,
	} {
		subtest(t, fmt.Sprint(gap, " without an answer"), func(t *testing.T, s *stage) {
			e := &recorder{}
			s.up(e.all("a"))
			s.reboot(idA)
			pause(2 * time.Second)
			if gap > 0 {
				s.azure.SetFault(imdstest.Fault{Status: 503, For: gap})
				pause(gap + 20*time.Second)
			}
			s.azure.End(idA)
			pause(2 * time.Second)
			e.wantEnd(t, outcome)
		})
	}
}

// Nor was it surely cancelled if a document left it out and held an entry that cannot be read: in that it may have
// begun.
func TestAnEventThatMayHaveBegunInAnUnreadableEntryIsNeverCalledCanceled(t *testing.T) {
	for _, then := range []string{"it goes on", "it restarts", "it crashes after it"} {
		subtest(t, then, func(t *testing.T, s *stage) {
			e := &recorder{}
			b := s.up(e.all("a"))
			s.reboot(idA)
			pause(2 * time.Second)
			s.document(9, `{"EventStatus":"Started","EventType":"Reboot"}`)
			pause(3 * time.Second)
			switch then {
			case "it restarts":
				b.end()
				s.up(e.all("a"))
			case "it crashes after it":
				b.crash()
				s.azure.SetDocument(nil) // the event is listed again
				s.up(e.all("a"))
			}
			s.document(10)
			pause(2 * time.Second)
			d := e.wantEnd(t, cloudevent.OutcomeUnknown)
			wantEqual(t, "whileAway", d.WhileAway, then == "it restarts") // only then may it have gone while nobody watched
		})
	}
}

// What became pending before the clock was set back and the program restarted counts from the restart: for the fallback,
// and for status.
func TestAClockThatWasSetBackDelaysNoFallback(t *testing.T) {
	dir := t.TempDir()
	down := answering(errSinkDown).all("down").With(func(x *bridge.Terms) {
		x.Fallback = delivery.Fallback{Sink: "b", After: time.Minute}
	})
	bubble(t, func(t *testing.T, s *stage) {
		s.dir = dir
		pause(time.Hour)
		s.up(down, (&recorder{}).self("b"))
		s.redeploy(idA, 10*time.Hour)
		s.moveTo(idA, "vm-1")
		pause(2 * time.Second)
	})
	bubble(t, func(t *testing.T, s *stage) { // in which it is an hour earlier
		s.dir = dir
		s.azure.SetFault(imdstest.Fault{Status: 503})
		other := &recorder{}
		b := s.start(down, other.self("b"))
		pause(30 * time.Second)
		wantWithin(t, "seconds that the oldest waits", b.sink("down").OldestPendingSeconds, 20, 30)
		pause(time.Minute)
		wantIDs(t, other.ids(), idA+"-scheduled")
	})
}

// A filter decides once per Azure event: a sink that heard the beginning hears the end, whatever becomes of the event,
// of the bridge and of the filter. Only changes is asked each time.
func TestAFilterDecidesOncePerEvent(t *testing.T) {
	for _, how := range []string{"running", "restarted", "crashed", "reloaded"} {
		subtest(t, how, func(t *testing.T, s *stage) {
			self, ends, never := &recorder{}, &recorder{}, &recorder{}
			routes := func(vms string) []bridge.Route {
				a, b, c := self.self("self"), ends.self("ends"), never.self("never")
				a.Filter.Only.VMs, b.Filter.Only.VMs = vms, vms
				b.Filter.Only.Changes = []string{"vanished"}
				c.Filter.Only.Types = []string{"Freeze"}
				return []bridge.Route{a, b, c}
			}
			b := s.up(routes("self")...)
			s.reboot(idA)
			pause(2 * time.Second)
			switch how {
			case "restarted":
				b.end()
				s.start(routes("leader")...)
			case "crashed":
				b.crash()
				s.start(routes("leader")...)
			case "reloaded":
				b.Reload(routes("leader"), nil, bridge.SettingsInfo{})
			}
			pause(2 * time.Second)
			s.moveTo(idA, "vm-1")
			pause(2 * time.Second)
			s.azure.Start(idA)
			pause(2 * time.Second)
			s.azure.End(idA)
			pause(2 * time.Second)
			wantIDs(t, self.types(), "scheduled", "updated", "started", "vanished")
			wantIDs(t, ends.types(), "vanished")
			wantIDs(t, never.ids())
		})
	}
}

// An event that a filter refused is asked about again at its next change: from the first that it accepts on, the sink
// hears all.
func TestAFilterIsAskedUntilItAccepts(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		s.up(e.self("a"))
		s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-1"}})
		pause(2 * time.Second)
		wantIDs(t, e.ids())
		s.moveTo(idA, "vm-1", "vm-0")
		pause(2 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Second)
		wantIDs(t, e.types(), "updated", "vanished")
	})
}

// Each change has the number of the document that it was found in.
func TestAChangeNamesItsDocument(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		s.start(e.all("a"))
		s.document(5)
		pause(5 * time.Second)
		for n, status := range []string{"Scheduled", "Started"} {
			s.document(6+n, rebootEntry(idA, status))
			pause(5 * time.Second)
			all := e.accepted()
			wantSays(t, all[len(all)-1], map[string]any{"documentIncarnation": float64(6 + n)})
		}
	})
}

// However many VMs Azure names, the line about an event stays readable.
func TestALongListOfVMsIsCutInTheLog(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.up((&recorder{}).all("audit"))
		var vms []string
		for i := range 300 {
			vms = append(vms, fmt.Sprintf("vm-%06d", i))
		}
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Resources: vms})
		pause(1500 * time.Millisecond)
		b.end()
		for line := range strings.Lines(s.log.String()) {
			if _, list, is := strings.Cut(line, " resources="); is {
				list, _, _ = strings.Cut(list, " ")
				if len(list) != 1<<10 || !strings.HasPrefix(list, "vm-000000,vm-000001,") {
					t.Errorf("the log has %d bytes of the names, want the first 1,024", len(list))
				}
			}
		}
		s.wantLogged(" resources=vm-000000,")
	})
}

// The line about an event says when it begins, if Azure said that, and nothing of it if not.
func TestTheLogSaysWhenAnEventBeginsIfAzureDoes(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.up((&recorder{}).all("audit"))
		s.azure.SetDocument([]byte(`{"DocumentIncarnation":2,"Events":[
			{"EventId":"` + idA + `","EventType":"Reboot","EventStatus":"Scheduled","NotBefore":"Mon, 03 Jan 2000 04:05:06 GMT"},
			{"EventId":"` + idB + `","EventType":"Reboot","EventStatus":"Scheduled"}]}`))
		pause(2 * time.Second)
		b.end()
		for id, want := range map[string]string{idA: "2000-01-03T04:05:06.000Z", idB: ""} {
			got := "no line"
			for line := range strings.Lines(s.log.String()) {
				if strings.Contains(line, "change=scheduled event="+id) {
					_, got, _ = strings.Cut(strings.TrimSpace(line), " notBefore=")
				}
			}
			wantEqual(t, "when it begins, in the line about "+id, got, want)
		}
	})
}

// A log that is slow, such as a full pipe, delays only what writes to it: no line is written under a lock that others
// wait for.
func TestNothingIsLoggedUnderALock(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		var b atomic.Pointer[running]
		seen := map[string]bool{}
		var mu sync.Mutex
		free := func(lock *sync.Mutex) bool {
			for range 1_000_000 { // others may hold it for a moment
				if lock.TryLock() {
					lock.Unlock()
					return true
				}
				runtime.Gosched()
			}
			return false
		}
		s.logged = func(words string) {
			if b := b.Load(); b != nil && slices.ContainsFunc(b.Locks(), func(lock *sync.Mutex) bool { return !free(lock) }) {
				t.Errorf("%q is logged under a lock", words)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[words] = true
		}
		b.Store(s.up((&recorder{}).all("a").With(func(x *bridge.Terms) { x.Remind = []time.Duration{time.Minute} })))
		s.reboot(idA)
		pause(16 * time.Minute)
		if _, err := b.Load().Mute(bridge.Mute{Reason: "test", By: "root"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		b.Load().end()
		mu.Lock()
		defer mu.Unlock()
		for _, words := range []string{"azure event", "reminder due", "muted; deliveries wait"} {
			wantEqual(t, words+" is logged", seen[words], true)
		}
	})
}

// A partial document doesn't show whether an event is over that it doesn't list: after a start, nothing is begun about that
// until a document does, and nothing at all if it is over.
func TestAPartialFirstDocumentBeginsNothing(t *testing.T) {
	for over, heard := range map[bool]string{true: "vanished", false: "scheduled"} {
		subtest(t, fmt.Sprintf("over %t", over), func(t *testing.T, s *stage) {
			drain := answering(errSinkDown)
			acts := drain.all("drain").With(func(x *bridge.Terms) { x.Late, x.Acts = delivery.LateDrop, true })
			b := s.up(acts)
			s.userReboot(idA)
			pause(3 * time.Second)
			b.end()
			drain.say(nil)
			if over {
				s.azure.End(idA)
			}
			s.document(9, `{"EventId":7}`)
			s.start(acts)
			pause(30 * time.Second)
			wantIDs(t, drain.ids())
			s.azure.SetDocument(nil)
			pause(30 * time.Second)
			wantIDs(t, drain.types(), heard)
		})
	}
}

// A NotBefore at the edge of the times that can be written is told, and outlives a restart, whatever is taken from it.
func TestANotBeforeAtTheEndOfTimeIsTold(t *testing.T) {
	for _, notBefore := range []string{
		"0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59",
		"0000-01-01T00:00:00+23:59", "Fri, 31 Dec 9999 23:59:59 GMT", "Sat, 01 Jan 0000 00:00:01 GMT",
		"292277026596-01-01T00:00:00Z",
	} {
		subtest(t, notBefore, func(t *testing.T, s *stage) {
			e := &recorder{}
			lead := e.all("lead").With(func(x *bridge.Terms) { x.Lead = time.Hour })
			remind := e.all("remind").With(func(x *bridge.Terms) { x.Remind = []time.Duration{24 * time.Hour, time.Hour} })
			b := s.start(lead, remind)
			s.azure.SetDocument([]byte(`{"DocumentIncarnation":1,"Events":[{"EventId":"` + idA + `","EventType":"Reboot",
				"ResourceType":"VirtualMachine","Resources":["vm_0"],"EventStatus":"Scheduled","NotBefore":"` + notBefore + `"}]}`))
			pause(3 * time.Second)
			b.end()
			s.start(lead, remind)
			pause(2 * time.Minute)
			wantIn(t, "told", strings.Join(e.ids(), " "), idA+"-scheduled")
		})
	}
}
