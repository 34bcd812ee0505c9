package imdstest

import (
	"regexp"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Schedule fills in missing fields as Azure would.
func TestScheduleFillsInMissingFields(t *testing.T) {
	now := time.Date(2026, 11, 21, 4, 10, 0, 0, time.UTC)
	s := New(Options{VMs: []string{"web-1", "web-2"}, Now: func() time.Time { return now }})
	for kind, notice := range map[string]time.Duration{
		"Freeze": 15 * time.Minute, "Reboot": 15 * time.Minute, "Redeploy": 10 * time.Minute,
		"Terminate": 5 * time.Minute, "Preempt": 30 * time.Second, "Unheard": 15 * time.Minute,
	} {
		e := s.Schedule(Event{Type: kind})
		if !regexp.MustCompile(`^[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}$`).MatchString(e.ID) {
			t.Errorf("ID %q, want a GUID in upper case", e.ID)
		}
		if e.Status != Scheduled || e.ResourceType != "VirtualMachine" || e.Source != "Platform" || *e.Duration != -1 ||
			!slices.Equal(e.Resources, []string{"web-1"}) || !e.NotBefore.Equal(now.Add(notice)) {
			t.Errorf("%s: %+v", kind, e)
		}
	}
	if e := s.Schedule(Event{Status: Started}); !e.NotBefore.IsZero() {
		t.Errorf("NotBefore of a started event is %v, want none", e.NotBefore)
	}
	e := s.Schedule(Event{Resources: []string{}, Duration: new(0)})
	if len(e.Resources) != 0 || *e.Duration != 0 {
		t.Errorf("%+v, want what was given", e)
	}
}

// An event replaces the one with the same ID.
func TestScheduleReplacesAnEventWithTheSameID(t *testing.T) {
	s := New(Options{})
	s.Schedule(Event{ID: "A"})
	s.Schedule(Event{ID: "B"})
	s.Schedule(Event{ID: "a", Type: "Freeze"})
	if got := s.Events(); len(got) != 2 || got[0].Type != "Freeze" || s.Incarnation() != 4 {
		t.Errorf("incarnation %d, %+v", s.Incarnation(), got)
	}
}

// The server shares no memory with its callers.
func TestEventsAreCopies(t *testing.T) {
	s := New(Options{})
	names := []string{"vm_0"}
	e := s.Schedule(Event{ID: "A", Resources: names})
	names[0], e.Resources[0], *e.Duration = "x", "x", 5
	s.Events()[0].Resources[0] = "x"
	if got, _ := s.Event("A"); got.Resources[0] != "vm_0" || *got.Duration != -1 {
		t.Errorf("%+v", got)
	}
}

// An event does not start at NotBefore unless AutoStart is on.
func TestEventStartsByItselfOnlyWithAutoStart(t *testing.T) {
	for _, auto := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := New(Options{AutoStart: auto, Speed: 10})
			e := s.Schedule(Event{Type: "Redeploy"})
			time.Sleep(time.Minute - 1)
			if got, _ := s.Event(e.ID); got.Status != Scheduled {
				t.Errorf("%s before NotBefore", got.Status)
			}
			time.Sleep(time.Nanosecond)
			if got, _ := s.Event(e.ID); (got.Status == Started) != auto {
				t.Errorf("%s at NotBefore, AutoStart %v", got.Status, auto)
			}
		})
	}
}

// A call with the ID of an unknown event changes nothing and returns false.
func TestUnknownEventsAreReported(t *testing.T) {
	s := New(Options{})
	if s.Start("A") || s.End("A") || s.Update("A", func(*Event) { t.Error("called") }) {
		t.Error("want false")
	}
	if _, ok := s.Event("A"); ok || s.Incarnation() != 1 {
		t.Errorf("incarnation %d", s.Incarnation())
	}
}

// After a reset the server is like new, except for its VMs.
func TestResetKeepsOnlyTheVMs(t *testing.T) {
	s := New(Options{VMs: []string{"a", "b"}})
	s.Schedule(Event{})
	s.SetFault(Fault{Status: 503})
	ask(s, "GET", eventsURL, "")
	s.Reset()
	if got := len(s.Requests()) + len(s.Approvals()) + len(s.Events()); got != 0 || s.Incarnation() != 1 {
		t.Errorf("%d things are left, incarnation %d", got, s.Incarnation())
	}
	if got := document(s, "2020-07-01"); got != none || len(s.VMs()) != 2 {
		t.Errorf("%s, VMs %v", got, s.VMs())
	}
}

// The incarnation can restart while the events stay.
func TestIncarnationRestarts(t *testing.T) {
	s := New(Options{})
	s.Schedule(Event{ID: "A"})
	s.ResetIncarnation()
	if len(s.Events()) != 1 || s.Incarnation() != 1 {
		t.Errorf("incarnation %d, %d events", s.Incarnation(), len(s.Events()))
	}
	s.Start("A")
	if got := s.Incarnation(); got != 2 {
		t.Errorf("incarnation %d, want 2", got)
	}
}

// Many goroutines can script, query and inspect a server at once.
func TestServerIsSafeForConcurrentUse(t *testing.T) {
	s := New(Options{AutoStart: true, RateLimit: 5})
	sc := Scenario{Name: "quick", Steps: []Step{{Schedule: &Change{Event: "A"}}, {End: "A"}, {Fault: &Fault{Status: 503, Times: 1}}}}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 20 {
				e := s.Schedule(Event{})
				s.Update(e.ID, func(e *Event) { e.Resources = append(e.Resources, "vm_1") })
				ask(s, "POST", eventsURL, `{"StartRequests":[{"EventId":"`+e.ID+`"}]}`)
				document(s, newest)
				control(s, "GET", "/state", "")
				if err := s.Play(t.Context(), sc, 1); err != nil {
					t.Error(err)
				}
				s.End(e.ID)
				s.SetDocument(nil)
				s.ClearFaults()
			}
		})
	}
	all.Wait()
	if got := s.Events(); len(got) != 0 {
		t.Errorf("%d events are left", len(got))
	}
}

// With the fault newId an event gets a new ID when it starts, by Start or by itself. Its old ID still finds it. Other
// events keep theirs, also if they have started.
func TestAnEventCanGetANewIDWhenItStarts(t *testing.T) {
	s := New(Options{})
	old, first, second := s.Schedule(Event{}), s.Schedule(Event{}), s.Schedule(Event{})
	s.Start(old.ID)
	s.SetFault(Fault{NewID: true})
	s.Start(old.ID)
	s.Start(first.ID)
	ids := func() (list []string) {
		for _, e := range s.Events() {
			list = append(list, e.ID)
		}
		return list
	}
	now := ids()
	if len(now) != 3 || now[0] != old.ID || now[1] == first.ID || now[2] != second.ID {
		t.Errorf("the ids are %v, want only that of %s changed", now, first.ID)
	}
	if e, ok := s.Event(first.ID); !ok || e.ID != now[1] || e.Status != Started {
		t.Errorf("under its old ID it is %+v, %v; want it started under its new one", e, ok)
	}
	s.ClearFaults()
	s.Start(second.ID)
	if !s.End(first.ID) || len(ids()) != 2 || ids()[1] != second.ID {
		t.Errorf("the ids are %v, want the first gone by its old ID and the second unchanged", ids())
	}
}
