package bridge_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// later has Azure announce a reboot of these VMs in an hour.
func (s *stage) later(id string, vms ...string) {
	s.azure.Schedule(imdstest.Event{ID: id, Type: "Reboot", Resources: vms, NotBefore: time.Now().Add(time.Hour)})
}

const (
	waitsForName = "waiting for the VM name; until then sinks are told only of what begins within 15 minutes"
	eventPasses  = "VM name unknown; the event passes"
)

// What begins soon waits for the name of this VM too at the first document, but for three seconds at most, and longer
// only where the outbox may turn out to be another VM's.
func TestTheFirstDocumentWaitsForTheNameButNotLong(t *testing.T) {
	for _, tt := range []struct {
		claim  string
		fault  imdstest.Fault
		wait   time.Duration
		logged int
	}{
		{"metadata answers", imdstest.Fault{}, 0, 0},
		{"metadata answers late", imdstest.Fault{Delay: 2 * time.Second}, 2 * time.Second, 0},
		{"metadata hangs", imdstest.Fault{Hang: true}, 3 * time.Second, 1},
		{"metadata refuses to answer", imdstest.Fault{Status: 403}, 0, 0},
		{"metadata has no answer", imdstest.Fault{Status: 404}, 3 * time.Second, 1},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			s.metadata(tt.fault)
			s.reboot(idA)
			e, began := &recorder{}, time.Now()
			s.start(e.all("a"))
			pause(12 * time.Second)
			wantIDs(t, e.ids(), idA+"-scheduled")
			wantEqual(t, "the wait", e.delay(began), tt.wait)
			s.wantLoggedTimes(tt.logged, waitsForName)
		})
	}
	subtest(t, "metadata answers late, and the event begins meanwhile", func(t *testing.T, s *stage) {
		s.metadata(imdstest.Fault{Delay: 2 * time.Second})
		s.reboot(idA)
		time.AfterFunc(time.Second, func() { s.azure.Start(idA) })
		e := &recorder{}
		s.start(e.all("a"))
		pause(12 * time.Second)
		wantIDs(t, e.ids(), idA+"-started") // the document of before is too old by then
	})
	subtest(t, "metadata hangs, and something of a past run is pending", func(t *testing.T, s *stage) {
		b := s.up(answering(errSinkDown).all("a"))
		s.reboot(idA)
		pause(2 * time.Second)
		s.azure.End(idA) // so no event is open
		pause(2 * time.Second)
		b.end()
		s.nameless()
		e, began := &recorder{}, time.Now()
		s.start(e.all("a"))
		pause(12 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-vanished")
		wantEqual(t, "the wait", e.delay(began), 10*time.Second)
	})
	subtest(t, "metadata never answered, so what is pending can't be another VM's", func(t *testing.T, s *stage) {
		s.nameless()
		s.reboot(idA)
		b := s.start(answering(errSinkDown).all("a"))
		pause(10 * time.Second)
		b.end()
		e, began := &recorder{}, time.Now()
		s.start(e.all("a"))
		pause(12 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled")
		wantEqual(t, "the wait", e.delay(began), 3*time.Second)
	})
	subtest(t, "the endpoint comes up a minute after the start, and metadata with it", func(t *testing.T, s *stage) {
		up := time.Now().Add(70 * time.Second)
		s.later(idA, "vm-1")
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				if time.Now().Before(up) {
					return nil, errSinkDown
				}
				return next.RoundTrip(r)
			})
		}
		self, all := &recorder{}, &recorder{}
		s.start(self.self("self"), all.all("all"))
		pause(2 * time.Minute)
		wantIDs(t, all.ids(), idA+"-scheduled")
		wantIDs(t, self.ids()) // it is known by then that this is vm-0
	})
}

// While nobody knows this VM's name, what begins later waits for it, for a minute at most from the first document of an
// installation on. Nobody is told anything before, and all decide by the name then.
func TestTheFirstDocumentWaitsForTheNameOfThisVM(t *testing.T) {
	subtest(t, "and passes when it doesn't come, which is said", func(t *testing.T, s *stage) {
		s.nameless()
		self, all, began := &recorder{}, &recorder{}, time.Now()
		b := s.up(self.self("self"), all.all("all"))
		wantIDs(t, b.Status().Warnings) // metadata has hardly had time to answer
		pause(10 * time.Second)         // an empty document is no reason to decide about the next
		s.later(idA, "vm-1")
		pause(45 * time.Second)
		wantIDs(t, all.ids())
		wantIDs(t, self.ids())
		s.wantLogged(waitsForName)
		s.wantLoggedTimes(0, eventPasses)
		pause(10 * time.Second)
		wantIDs(t, all.ids(), idA+"-scheduled")
		wantIDs(t, self.ids(), idA+"-scheduled")
		wantWithin(t, "the wait", self.delay(began), bridge.NameForFilters, bridge.NameForFilters+2*time.Second)
		s.wantLogged(eventPasses)
		s.azure.End(idA)
		pause(2 * time.Second)
		s.later(idB, "vm-1")
		pause(2 * time.Second)
		wantIDs(t, self.ids(), idA+"-scheduled", idA+"-vanished", idB+"-scheduled")
	})
	subtest(t, "and is decided about as soon as it comes", func(t *testing.T, s *stage) {
		s.opts.Random = func() float64 { return 0 } // it is asked for after 0, 0.5, 1.5, 3.5 and 7.5 seconds
		s.metadata(imdstest.Fault{Status: 503, For: 7100 * time.Millisecond})
		s.later(idA, "vm-1", "vm-0")
		s.later(idB, "vm-1")
		self, leader, began := &recorder{}, &recorder{}, time.Now()
		s.start(self.self("self"), leader.leader("leader"))
		pause(20 * time.Second)
		wantIDs(t, self.ids(), idA+"-scheduled")
		wantIDs(t, leader.ids())
		wantWithin(t, "the wait", self.delay(began), 0, 7500*time.Millisecond+bridge.DefaultInterval)
		s.wantLoggedTimes(0, eventPasses)
	})
	subtest(t, "and an event that ends meanwhile was nobody's", func(t *testing.T, s *stage) {
		s.nameless()
		all := &recorder{}
		s.start(all.all("all"))
		s.later(idA, "vm-0")
		pause(10 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Minute)
		wantIDs(t, all.ids())
	})
	subtest(t, "across a crash", func(t *testing.T, s *stage) {
		s.nameless()
		self := &recorder{}
		b := s.start(self.self("self"))
		s.later(idA, "vm-0")
		s.later(idB, "vm-1")
		pause(10 * time.Second)
		b.crash()
		wantIDs(t, self.ids())
		s.azure.ClearFaults()
		s.start(self.self("self"))
		pause(10 * time.Second)
		wantIDs(t, self.ids(), idA+"-scheduled")
	})
	subtest(t, "once", func(t *testing.T, s *stage) {
		s.nameless()
		b := s.start((&recorder{}).self("self"))
		pause(2 * time.Minute)
		b.end()
		s.later(idA, "vm-1")
		self := &recorder{}
		s.start(self.self("self"))
		pause(5 * time.Second)
		wantIDs(t, self.ids(), idA+"-scheduled")
	})
}

// What is urgent doesn't wait for the name of this VM, nor does what the same document lists beside it.
func TestWhatIsUrgentDoesNotWaitForTheName(t *testing.T) {
	for claim, makeUrgent := range map[string]func(e *imdstest.Event){
		"a Preempt":                     func(e *imdstest.Event) { e.Type = "Preempt" },
		"what begins within 15 minutes": func(e *imdstest.Event) { e.NotBefore = time.Now().Add(14 * time.Minute) },
		"what Azure gives no time for":  func(e *imdstest.Event) { e.NotBefore = time.Time{} },
		"what has begun":                func(e *imdstest.Event) { e.Status = imdstest.Started },
	} {
		subtest(t, claim, func(t *testing.T, s *stage) {
			s.nameless()
			self := &recorder{}
			s.start(self.self("self"))
			s.later(idA, "vm-1")
			s.later(idB, "vm-1")
			pause(10 * time.Second)
			wantIDs(t, self.ids())
			s.azure.Update(idB, makeUrgent)
			pause(1500 * time.Millisecond)
			wantEqual(t, "events heard of", len(self.ids()), 2)
			s.wantLogged(eventPasses)
		})
	}
	subtest(t, "what comes near while it waits", func(t *testing.T, s *stage) {
		s.nameless()
		self, began := &recorder{}, time.Now()
		s.start(self.self("self"))
		s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-1"}, NotBefore: began.Add(15*time.Minute + 20*time.Second)})
		pause(30 * time.Second)
		wantIDs(t, self.ids(), idA+"-scheduled")
		wantWithin(t, "the wait", self.delay(began), 20*time.Second, 21*time.Second)
	})
}

// An answer that will stay the same ends the wait for this VM's name: a refusal at once, one that a host gives for a
// moment after some seconds. Until then the status says what it waits for, then what that means, and what helps.
func TestNobodyWaitsForANameThatWillNotCome(t *testing.T) {
	systemtest.Alone(t)
	for _, tt := range []struct {
		claim       string
		fault       imdstest.Fault
		least, most time.Duration
	}{
		{"a refusal", imdstest.Fault{Status: 403}, 0, 2 * time.Second},
		{"a malformed request", imdstest.Fault{Status: 400}, 0, 2 * time.Second},
		{"not found", imdstest.Fault{Status: 404}, 3 * time.Second, 4600 * time.Millisecond},
		{"gone", imdstest.Fault{Status: 410}, 3 * time.Second, 4600 * time.Millisecond},
		{"something else", imdstest.Fault{HTML: true}, 3 * time.Second, 4600 * time.Millisecond},
		{"too many requests", imdstest.Fault{Status: 429}, time.Minute, 62 * time.Second},
		{"an error of the service", imdstest.Fault{Status: 500}, time.Minute, 62 * time.Second},
		{"no answer", imdstest.Fault{Hang: true}, time.Minute, 62 * time.Second},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			s.opts.Random = func() float64 { return 0 } // it is asked after 0, 0.5, 1.5 and 3.5 seconds
			s.metadata(tt.fault)
			self, began := &recorder{}, time.Now()
			b := s.start(self.self("self"))
			s.later(idA, "vm-1")
			warned := func(words ...string) {
				t.Helper()
				for _, w := range words {
					wantIn(t, "the warnings", strings.Join(b.Status().Warnings, " "), w)
				}
			}
			if tt.least == time.Minute {
				pause(30 * time.Second)
				warned("waiting for the VM name until 00:01:00 UTC", "imds.vm_name")
			}
			pause(70 * time.Second)
			wantIDs(t, self.ids(), idA+"-scheduled")
			wantWithin(t, "the wait", self.delay(began), tt.least, tt.most)
			s.wantLogged("imds.vm_name")
			s.wantLogged("instance metadata gave no identity")
			warned("sinks get the events of every VM", "imds.vm_name")
			s.azure.ClearFaults()
			pause(2 * time.Minute)
			wantEqual(t, "the name, once it is answered", b.Status().Observer.Name, "vm-0")
			wantIDs(t, b.Status().Warnings)
		})
	}
}

// A host that says for a moment that there is nothing, as after it moved a VM, is waited for; also one that says so again
// after something else, because each time begins anew.
func TestANameThatComesSoonIsWaitedFor(t *testing.T) {
	nothing := func(status int) func(*stage) {
		return func(s *stage) { s.metadata(imdstest.Fault{Status: status, Times: 2}) }
	}
	for claim, happens := range map[string]func(*stage){
		"not found": nothing(404), "gone": nothing(410),
		"again": func(s *stage) {
			s.metadata(imdstest.Fault{Status: 404})
			pause(time.Second)
			s.metadata(imdstest.Fault{Status: 503})
			pause(10 * time.Second)
			s.metadata(imdstest.Fault{Status: 404, Times: 1})
		},
	} {
		subtest(t, claim, func(t *testing.T, s *stage) {
			s.later(idA, "vm-1")
			s.later(idB, "vm-0")
			self := &recorder{}
			s.start(self.self("self"))
			happens(s)
			pause(70 * time.Second)
			wantIDs(t, self.ids(), idB+"-scheduled")
		})
	}
}

// The name of this VM that was learnt last is kept, and one that is set is not asked for.
func TestTheNameOfThisVMIsKeptOrSet(t *testing.T) {
	subtest(t, "kept", func(t *testing.T, s *stage) {
		s.up((&recorder{}).self("a")).end()
		s.nameless()
		e := &recorder{}
		s.start(e.self("a"))
		pause(10 * time.Second)
		s.notSelf(idA)
		s.reboot(idB)
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idB+"-scheduled")
		s.wantLoggedTimes(0, "VM name unknown")
	})
	subtest(t, "set", func(t *testing.T, s *stage) {
		s.opts.VMName = "vm-1"
		e := &recorder{}
		b := s.start(e.self("a"))
		s.notSelf(idA)
		s.reboot(idB)
		pause(10 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled")
		if o := b.Status().Observer; o.Name != "vm-1" || o.VMID == "" {
			t.Errorf("the observer is %+v, want the name that was set and the vmId that was learnt", o)
		}
	})
}

// What the bridge knows of itself when nobody tells it stands in the CloudEvents: the host in their source, and the
// operating system in what they say of the observer.
func TestTheHostStandsInForAName(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.nameless()
		e := &recorder{}
		s.start(e.all("a").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelAll }))
		s.reboot(idA)
		pause(10 * time.Second)
		wantEqual(t, "CloudEvents", len(e.ids()), 2)
		for _, h := range e.accepted() {
			wantEqual(t, "the source", h.Event.Source(), "urn:forewarn:host-0")
			observer, _ := tellingOf(t, h.Event)["observer"].(map[string]any)
			wantEqual[any](t, "the system", observer["osType"], imds.ThisOS)
		}
	})
}

// That the VM's name will not come is said once, and not where the settings have it.
func TestThatTheNameIsUnknownIsLoggedOnce(t *testing.T) {
	for name, times := range map[string]int{"": 1, "vm-0": 0} {
		subtest(t, "with the name "+name, func(t *testing.T, s *stage) {
			s.opts.VMName = name
			s.metadata(imdstest.Fault{Status: 403})
			s.start((&recorder{}).self("self"))
			pause(10 * time.Minute)
			s.wantLoggedTimes(times, "VM name unknown; sinks get the events of every VM")
		})
	}
}

// Whom a change reaches because the wait for the VM's name is over hears the rest of that event, even if it turns out
// to be another VM's.
func TestWhoWasToldForWantOfANameHearsTheEnd(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = 100 * time.Millisecond
		s.nameless()
		e := &recorder{}
		s.start(e.self("self").OnlyChanges("started", "vanished"))
		pause(5 * time.Second)
		s.later(idA, "vm-1")
		pause(bridge.NameForFilters)
		wantIDs(t, e.types())
		s.azure.Start(idA)
		pause(500 * time.Millisecond)
		wantIDs(t, e.types(), "started")
		s.azure.ClearFaults()
		pause(5 * time.Minute)
		s.azure.End(idA)
		pause(5 * time.Second)
		wantIDs(t, e.types(), "started", "vanished")
	})
}
