package imdstest

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// The statuses that the document knows. Events that are over are left out of it.
const (
	Scheduled = "Scheduled"
	Started   = "Started"
)

// An Event is one entry of the document. Schedule fills in what is missing.
type Event struct {
	ID           string    // a random GUID in upper case when ""
	Status       string    // Scheduled when ""
	Type         string    // Reboot when ""; any word is taken, known to Azure or not
	ResourceType string    // VirtualMachine when ""
	Resources    []string  // the first VM when nil
	NotBefore    time.Time // shown as "" when zero; for a scheduled event filled with now and the type's Notice
	Description  string
	Source       string // Platform when ""
	Duration     *int   // seconds; -1, unknown, when nil
}

// Notice is the shortest time that Azure documents between the announcement of an event of that type and its
// NotBefore. A type that is not documented gets a reboot's.
func Notice(eventType string) time.Duration {
	switch eventType {
	case "Redeploy":
		return 10 * time.Minute
	case terminate:
		return 5 * time.Minute
	case "Preempt":
		return 30 * time.Second
	}
	return 15 * time.Minute
}

// An entry is an event and what will make it start by itself.
type entry struct {
	Event
	formerly string    // the ID under which it was announced, when it has another since it started
	auto     bool      // at NotBefore
	approved time.Time // then; zero when nobody approved it
}

// starts returns when an event starts by itself; zero when it does not.
func (s *Server) starts(e *entry) time.Time {
	if e.Status != Scheduled {
		return time.Time{}
	}
	at := e.approved
	if e.Type == terminate && !at.IsZero() {
		at = s.allApproved()
	}
	if e.auto && !e.NotBefore.IsZero() && (at.IsZero() || e.NotBefore.Before(at)) {
		at = e.NotBefore
	}
	return at
}

const terminate = "Terminate"

// allApproved returns when the last of the deletions that are to come was approved; zero when one was not. A scale set
// deletes its instances only when all of them are approved, or when their time has come.
func (s *Server) allApproved() (last time.Time) {
	for _, e := range s.events {
		switch {
		case e.Type != terminate || e.Status != Scheduled:
		case e.approved.IsZero():
			return time.Time{}
		case e.approved.After(last):
			last = e.approved
		}
	}
	return last
}

// start begins an event. While a fault says so, it goes on under another ID.
func (s *Server) start(e *entry) {
	if e.Status == Started {
		return
	}
	e.Status, e.NotBefore = Started, time.Time{}
	s.expire()
	if f := s.faults[ScheduledEvents]; f != nil && f.NewID {
		e.formerly, e.ID = e.ID, strings.ToUpper(uuid.NewString())
	}
	s.incarnation++
}

// clone returns the event with nothing shared.
func (e Event) clone() Event {
	e.Resources = slices.Clone(e.Resources)
	if e.Duration != nil {
		e.Duration = new(*e.Duration)
	}
	return e
}

// Schedule puts e into the document, with what is missing filled in as Azure would, and returns it so. One that is
// there with the same ID is replaced.
func (s *Server) Schedule(e Event) Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	return s.schedule(e, s.opts.AutoStart)
}

// schedule is Schedule while the lock is held, for an event that may start by itself.
func (s *Server) schedule(e Event, auto bool) Event {
	e = e.clone()
	fill := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	fill(&e.ID, strings.ToUpper(uuid.NewString()))
	fill(&e.Status, Scheduled)
	fill(&e.Type, "Reboot")
	fill(&e.ResourceType, "VirtualMachine")
	fill(&e.Source, "Platform")
	if e.Resources == nil {
		e.Resources = []string{s.vms[0]}
	}
	if e.NotBefore.IsZero() && e.Status == Scheduled {
		e.NotBefore = s.opts.Now().Add(scale(Notice(e.Type), s.opts.Speed))
	}
	if e.Duration == nil {
		e.Duration = new(-1)
	}

	if i := s.index(e.ID); i >= 0 {
		s.events[i] = &entry{Event: e, auto: auto}
	} else {
		s.events = append(s.events, &entry{Event: e, auto: auto})
	}
	s.incarnation++
	return e.clone()
}

// Update lets change alter the event of that ID and reports whether there is one. Nothing is filled in: a zero
// NotBefore is shown as "". A change that alters nothing does not count.
func (s *Server) Update(id string, change func(*Event)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	i := s.index(id)
	if i < 0 {
		return false
	}
	next := s.events[i].clone()
	change(&next)
	if !reflect.DeepEqual(next, s.events[i].Event) {
		s.events[i].Event = next.clone()
		s.incarnation++
	}
	return true
}

// Start begins the event of that ID, its NotBefore becomes "", and reports whether there is one. One that has started
// stays as it is.
func (s *Server) Start(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	i := s.index(id)
	if i >= 0 {
		s.start(s.events[i])
	}
	return i >= 0
}

// End leaves the event of that ID out of the document from now on, which is how Azure says that it is over or
// cancelled, and reports whether there was one.
func (s *Server) End(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	i := s.index(id)
	if i < 0 {
		return false
	}
	s.events = slices.Delete(s.events, i, i+1)
	s.incarnation++
	return true
}

// Events returns the events of the document in its order.
func (s *Server) Events() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	list := make([]Event, 0, len(s.events))
	for _, e := range s.events {
		list = append(list, e.clone())
	}
	return list
}

// Event returns the event of that ID.
func (s *Server) Event(id string) (Event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	if i := s.index(id); i >= 0 {
		return s.events[i].clone(), true
	}
	return Event{}, false
}

// index returns the place of the event of that ID, whatever its case; -1 when there is none. The one under which it was
// announced finds it too.
func (s *Server) index(id string) int {
	return slices.IndexFunc(s.events, func(e *entry) bool {
		return strings.EqualFold(e.ID, id) || strings.EqualFold(e.formerly, id)
	})
}

// settle starts the events whose time has come, each a new incarnation.
func (s *Server) settle() {
	now := s.opts.Now()
	for again := true; again; { // one that starts may be what another has waited for
		again = false
		for _, e := range s.events {
			if at := s.starts(e); !at.IsZero() && !at.After(now) {
				s.start(e)
				again = true
			}
		}
	}
}
