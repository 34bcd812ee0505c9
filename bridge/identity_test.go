package bridge_test

import (
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

// While nobody knows this VM's name, the first document of an installation waits for it, for a minute at most. Nobody is
// told anything before, and all decide by the name then.
func TestTheFirstDocumentWaitsForTheNameOfThisVM(t *testing.T) {
	unknown := imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true}
	const passes = "VM name unknown; the event passes"
	subtest(t, "and passes when it doesn't come, which is said", func(t *testing.T, s *stage) {
		s.azure.SetFault(unknown)
		self, all := &recorder{}, &recorder{}
		began := time.Now()
		s.start(self.self("self"), all.all("all"))
		pause(10 * time.Second) // an empty document is no reason to decide about the next
		s.later(idA, "vm-1")
		pause(45 * time.Second)
		wantIDs(t, all.ids())
		wantIDs(t, self.ids())
		s.wantLogged("waiting for the VM name; until then sinks are told only of what begins within 15 minutes")
		s.wantLoggedTimes(0, passes)
		pause(10 * time.Second)
		wantIDs(t, all.ids(), idA+"-scheduled")
		wantIDs(t, self.ids(), idA+"-scheduled")
		for _, h := range self.accepted() {
			if d := h.at.Sub(began); d < bridge.NameForFilters || d > bridge.NameForFilters+2*time.Second {
				t.Errorf("waited for %v, want a minute", d)
			}
		}
		s.wantLogged(passes)
		s.azure.End(idA)
		pause(2 * time.Second)
		s.later(idB, "vm-1")
		pause(2 * time.Second)
		wantIDs(t, self.ids(), idA+"-scheduled", idA+"-vanished", idB+"-scheduled")
	})
	subtest(t, "and is decided about as soon as it comes", func(t *testing.T, s *stage) {
		s.opts.Random = func() float64 { return 0 } // it is asked for after 0, 0.5, 1.5, 3.5 and 7.5 seconds
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 7100 * time.Millisecond})
		s.later(idA, "vm-1", "vm-0")
		s.later(idB, "vm-1")
		self, leader := &recorder{}, &recorder{}
		lead := leader.self("leader")
		lead.Filter.Only.VMs = "leader"
		began := time.Now()
		s.start(self.self("self"), lead)
		pause(20 * time.Second)
		wantIDs(t, self.ids(), idA+"-scheduled")
		wantIDs(t, leader.ids())
		for _, h := range self.accepted() {
			if d := h.at.Sub(began); d > 7500*time.Millisecond+bridge.DefaultInterval {
				t.Errorf("it was told after %v, want it at the next poll", d)
			}
		}
		s.wantLoggedTimes(0, passes)
	})
	subtest(t, "and an event that ends meanwhile was nobody's", func(t *testing.T, s *stage) {
		s.azure.SetFault(unknown)
		all := &recorder{}
		s.start(all.all("all"))
		s.later(idA, "vm-0")
		pause(10 * time.Second)
		s.azure.End(idA)
		pause(2 * time.Minute)
		wantIDs(t, all.ids())
	})
	subtest(t, "across a crash", func(t *testing.T, s *stage) {
		s.azure.SetFault(unknown)
		self := &recorder{}
		b := s.start(self.self("self"))
		s.later(idA, "vm-0")
		s.later(idB, "vm-1")
		pause(10 * time.Second)
		b.crash()
		wantIDs(t, self.ids())
		s.azure.ClearFaults()
		b = s.start(self.self("self"))
		pause(10 * time.Second)
		wantIDs(t, self.ids(), idA+"-scheduled")
	})
	subtest(t, "once", func(t *testing.T, s *stage) {
		s.azure.SetFault(unknown)
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
			s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
			self := &recorder{}
			s.start(self.self("self"))
			s.later(idA, "vm-1")
			s.later(idB, "vm-1")
			pause(10 * time.Second)
			wantIDs(t, self.ids())
			s.azure.Update(idB, makeUrgent)
			pause(1500 * time.Millisecond)
			if got := self.ids(); len(got) != 2 {
				t.Errorf("heard %v, want both events", got)
			}
			s.wantLogged("VM name unknown; the event passes")
		})
	}
	subtest(t, "what comes near while it waits", func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		self, began := &recorder{}, time.Now()
		s.start(self.self("self"))
		s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-1"}, NotBefore: began.Add(15*time.Minute + 20*time.Second)})
		pause(30 * time.Second)
		wantIDs(t, self.ids(), idA+"-scheduled")
		for _, h := range self.accepted() {
			if d := h.at.Sub(began).Round(time.Second); d < 20*time.Second || d > 21*time.Second {
				t.Errorf("it was told after %v, want it 15 minutes ahead", d)
			}
		}
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
			tt.fault.Path = imdstest.InstanceFacts
			s.azure.SetFault(tt.fault)
			self := &recorder{}
			began := time.Now()
			b := s.start(self.self("self"))
			s.later(idA, "vm-1")
			if tt.least == time.Minute {
				pause(30 * time.Second)
				warned := strings.Join(b.Status().Warnings, " ")
				if !strings.Contains(warned, "waiting for the VM name until 00:01:00 UTC") || !strings.Contains(warned, "imds.vm_name") {
					t.Errorf("the status warns of %q, want what it waits for", warned)
				}
			}
			pause(70 * time.Second)
			wantIDs(t, self.ids(), idA+"-scheduled")
			if d := self.accepted()[0].at.Sub(began); d < tt.least || d > tt.most {
				t.Errorf("it passed after %v, want %v to %v", d, tt.least, tt.most)
			}
			s.wantLogged("imds.vm_name")
			s.wantLogged("instance metadata gave no identity")
			if warned := strings.Join(b.Status().Warnings, " "); !strings.Contains(warned, "sinks get the events of every VM") || !strings.Contains(warned, "imds.vm_name") {
				t.Errorf("the status warns of %q, want what it means and what helps", warned)
			}
			s.azure.ClearFaults()
			pause(2 * time.Minute)
			if st := b.Status(); st.Observer.Name != "vm-0" || len(st.Warnings) != 0 {
				t.Errorf("once it is answered the name is %q, with the warnings %q", st.Observer.Name, st.Warnings)
			}
		})
	}
}

// A host that says for a moment that there is nothing, as after it moved a VM, is waited for.
func TestANameThatComesSoonIsWaitedFor(t *testing.T) {
	for _, fault := range []imdstest.Fault{{Status: 404}, {Status: 410}} {
		bubble(t, func(t *testing.T, s *stage) {
			fault.Path, fault.Times = imdstest.InstanceFacts, 2
			s.azure.SetFault(fault)
			self := &recorder{}
			s.start(self.self("self"))
			s.later(idA, "vm-1")
			s.later(idB, "vm-0")
			pause(70 * time.Second)
			wantIDs(t, self.ids(), idB+"-scheduled")
		})
	}
}

// Nor is one given up that says so again after something else: each time begins anew.
func TestAHostThatSaysAgainThatThereIsNothingIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		instance := func(status int) {
			s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: status})
		}
		instance(404)
		self := &recorder{}
		s.start(self.self("self"))
		s.later(idA, "vm-1")
		s.later(idB, "vm-0")
		pause(time.Second)
		instance(503)
		pause(10 * time.Second)
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 404, Times: 1})
		pause(time.Minute)
		wantIDs(t, self.ids(), idB+"-scheduled")
	})
}

// The name of this VM that was learnt last is kept, and one that is set is not asked for.
func TestTheNameOfThisVMIsKeptOrSet(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start((&recorder{}).self("a"))
		pause(2 * time.Second)
		b.end()
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		e := &recorder{}
		b = s.start(e.self("a"))
		pause(10 * time.Second)
		s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-1"}})
		s.azure.Schedule(imdstest.Event{ID: idB, Resources: []string{"vm-0"}})
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idB+"-scheduled")
		s.wantLoggedTimes(0, "VM name unknown")
	})
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.VMName = "vm-1"
		e := &recorder{}
		b := s.start(e.self("a"))
		s.azure.Schedule(imdstest.Event{ID: idA, Resources: []string{"vm-1"}})
		s.azure.Schedule(imdstest.Event{ID: idB, Resources: []string{"vm-0"}})
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
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		e := &recorder{}
		s.start(e.all("a").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelAll }))
		s.reboot(idA)
		pause(10 * time.Second)
		for _, h := range e.accepted() {
			if got := h.Event.Source(); got != "urn:forewarn:host-0" {
				t.Errorf("the source of %s is %s", h.Event.ID(), got)
			}
			observer, _ := tellingOf(t, h.Event)["observer"].(map[string]any)
			if got := observer["osType"]; got != imds.ThisOS {
				t.Errorf("%s names the system %v, want %s", h.Event.ID(), got, imds.ThisOS)
			}
		}
		if len(e.ids()) != 2 {
			t.Errorf("heard %v", e.ids())
		}
	})
}

// Until instance metadata has had time to answer, the status warns of nothing.
func TestTheFirstMomentWarnsOfNoName(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		b := s.start((&recorder{}).self("self"))
		pause(time.Second)
		if w := b.Status().Warnings; len(w) > 0 {
			t.Errorf("the status warns of %q", w)
		}
	})
}

// That the VM's name will not come is said once, and not where the settings have it.
func TestThatTheNameIsUnknownIsLoggedOnce(t *testing.T) {
	for name, want := range map[string]int{"": 1, "vm-0": 0} {
		bubble(t, func(t *testing.T, s *stage) {
			s.opts.VMName = name
			s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 403})
			s.start((&recorder{}).self("self"))
			pause(10 * time.Minute)
			s.wantLoggedTimes(want, "VM name unknown; sinks get the events of every VM")
		})
	}
}

// What is urgent waits 3 s for the name of this VM after the first answer, and no longer.
func TestWhatIsUrgentWaitsThreeSecondsForTheName(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		s.reboot(idA)
		e, began := &recorder{}, time.Now()
		s.start(e.all("a"))
		pause(10 * time.Second)
		if all := e.accepted(); len(all) != 1 || all[0].at.Sub(began).Truncate(time.Second) != 3*time.Second {
			t.Errorf("told %v after %v, want one after 3 s", idsOf(all), all[0].at.Sub(began))
		}
	})
}

// Whom a change reaches because the wait for the VM's name is over hears the rest of that event, even if it turns out
// to be another VM's.
func TestWhoWasToldForWantOfANameHearsTheEnd(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = 100 * time.Millisecond
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		e := &recorder{}
		route := e.self("self")
		route.Filter.Only.Changes = []string{"started", "vanished"}
		s.start(route)
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
