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
	"testing/synctest"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
)

// An open event that can't be read is logged, and is new to the bridge if Azure still lists it.
func TestAnOpenEventThatCannotBeReadIsNew(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		box, err := outbox.Open(s.dir, outbox.Options{})
		must(t, err)
		broken := map[string]*outbox.Group{idA: {State: []byte(`"nonsense"`), Latest: 1}, idB: {State: []byte("{}"), Latest: 2}}
		wait := box.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(outbox.Batch{Groups: broken}) })
		must(t, errors.Join(wait(), box.Close()))
		s.reboot(idA)
		e := &recorder{}
		b := s.up(e.all("a"))
		b.end()
		wantIDs(t, e.ids(), idA+"-scheduled")
		s.wantLoggedTimes(2, "cannot read a part of the outbox")
	})
}

// What can't be read of what the last run kept is logged, and nothing else is.
func TestAValueThatCannotBeReadIsLogged(t *testing.T) {
	for value, want := range map[string]int{`{"at":"2000-01-01T00:00:00Z"}`: 0, "nonsense": 1} {
		bubble(t, func(t *testing.T, s *stage) {
			box, err := outbox.Open(s.dir, outbox.Options{})
			must(t, err)
			kept := outbox.Batch{Values: map[string][]byte{bridge.ValueAnswer: []byte(value)}}
			wait := box.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(kept) })
			must(t, errors.Join(wait(), box.Close()))
			b := s.up((&recorder{}).all("a"))
			b.end()
			s.wantLoggedTimes(want, "level=ERROR")
		})
	}
}

// An event that goes before its time was cancelled, if the bridge watched all along.
func TestAnEventThatGoesBeforeItsTimeWasCanceledUnlessNobodyWatched(t *testing.T) {
	for _, tt := range []struct {
		gap  time.Duration
		want cloudevent.Outcome
	}{{0, cloudevent.OutcomeCanceled}, {2 * time.Second, cloudevent.OutcomeCanceled}, {30 * time.Second, cloudevent.OutcomeUnknown}} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &recorder{}
			b := s.up(e.all("a"))
			s.reboot(idA)
			pause(2 * time.Second)
			if tt.gap > 0 {
				s.azure.SetFault(imdstest.Fault{Status: 503, For: tt.gap})
				pause(tt.gap + 20*time.Second)
			}
			s.azure.End(idA)
			pause(2 * time.Second)
			b.end()
			if d := e.last(t); d.Outcome != tt.want {
				t.Errorf("after %v without an answer: outcome %s, want %s", tt.gap, d.Outcome, tt.want)
			}
		})
	}
}

// Nor was it surely cancelled if a document left it out and held an entry that cannot be read: in that it may have
// begun.
func TestAnEventThatMayHaveBegunInAnUnreadableEntryIsNeverCalledCanceled(t *testing.T) {
	for _, then := range []string{"it goes on", "it restarts", "it crashes after it"} {
		bubble(t, func(t *testing.T, s *stage) {
			e := &recorder{}
			b := s.up(e.all("a"))
			s.reboot(idA)
			pause(2 * time.Second)
			s.azure.SetDocument([]byte(`{"DocumentIncarnation":9,"Events":[{"EventStatus":"Started","EventType":"Reboot"}]}`))
			pause(3 * time.Second)
			switch then {
			case "it restarts":
				b.end()
				b = s.up(e.all("a"))
			case "it crashes after it":
				b.crash()
				s.azure.SetDocument(nil) // the event is listed again
				b = s.up(e.all("a"))
			}
			s.azure.SetDocument([]byte(`{"DocumentIncarnation":10,"Events":[]}`))
			pause(2 * time.Second)
			b.end()
			d := e.last(t)
			if d.Change != imds.Vanished || d.Outcome != cloudevent.OutcomeUnknown {
				t.Errorf("%s: told %s, outcome %s; want %s, %s", then, d.Change, d.Outcome, imds.Vanished,
					cloudevent.OutcomeUnknown)
			}
			if want := then == "it restarts"; d.WhileAway != want { // only then may it have gone while nobody watched
				t.Errorf("%s: told as while away %t, want %t", then, d.WhileAway, want)
			}
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
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.dir = dir
		pause(time.Hour)
		s.up(down, (&recorder{}).self("b"))
		s.redeploy(idA, 10*time.Hour)
		s.moveTo(idA, "vm-1")
		pause(2 * time.Second)
	})
	synctest.Test(t, func(t *testing.T) { // in which it is an hour earlier
		s := newStage(t)
		s.dir = dir
		s.azure.SetFault(imdstest.Fault{Status: 503})
		other := &recorder{}
		b := s.start(down, other.self("b"))
		pause(30 * time.Second)
		if st := b.Status().Sinks; st[1].Name != "down" || st[1].OldestPendingSeconds < 20 {
			t.Errorf("after half a minute the status is %+v", st)
		}
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
				b = s.start(routes("leader")...)
			case "crashed":
				b.crash()
				b = s.start(routes("leader")...)
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
			b.end()
			wantEqual(t, "the sink that wants this VM's events heard", strings.Join(self.types(), " "), "scheduled updated started vanished")
			wantEqual(t, "the sink that wants their ends heard", strings.Join(ends.types(), " "), "vanished")
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
		wantEqual(t, "heard", strings.Join(e.types(), " "), "updated vanished")
	})
}

// Each change has the number of the document that it was found in.
func TestAChangeNamesItsDocument(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		s.start(e.all("a"))
		for n := range 3 {
			s.azure.SetDocument(fmt.Appendf(nil, `{"DocumentIncarnation":%d,"Events":[%s]}`, 5+n, []string{"",
				`{"EventId":"` + idA + `","EventType":"Reboot","EventStatus":"Scheduled"}`,
				`{"EventId":"` + idA + `","EventType":"Reboot","EventStatus":"Started"}`}[n]))
			pause(5 * time.Second)
		}
		var got []any
		for _, h := range e.accepted() {
			got = append(got, tellingOf(t, h.Event)["documentIncarnation"])
		}
		if want := []any{6.0, 7.0}; !slices.Equal(got, want) {
			t.Errorf("the changes are of the documents %v, want %v", got, want)
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
			if got != want {
				t.Errorf("the line about %s says %q of when it begins, want %q", id, got, want)
			}
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
			if !seen[words] {
				t.Errorf("%q was not logged", words)
			}
		}
	})
}
