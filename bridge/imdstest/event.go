package imdstest

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// The statuses in a document. It has no event that has ended.
const (
	Scheduled = "Scheduled"
	Started   = "Started"
)

// An Event is one entry of the document. Schedule fills in what is missing.
type Event struct {
	ID           string    // a random GUID in upper case when ""
	Status       string    // Scheduled when ""
	Type         string    // Reboot when ""; any word is accepted, known to Azure or not
	ResourceType string    // VirtualMachine when ""
	Resources    []string  // the first VM when nil
	NotBefore    time.Time // shown as "" when zero; filled in for a scheduled event: now and the type's Notice
	Description  string
	Source       string // Platform when ""
	Duration     *int   // seconds; -1, unknown, when nil
}

// Notice is the shortest time that Azure documents from the announcement of an event of that type to its NotBefore. An
// undocumented type has that of a reboot.
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

// An entry is an event and what the server tracks about it.
type entry struct {
	Event
	announcedID string    // its ID before it started, if the fault NewID gave it another
	auto        bool      // it starts at NotBefore
	approved    time.Time // when its approval takes effect; zero if not approved
}

// startTime returns when an event starts by itself; zero means never.
func (s *Server) startTime(e *entry) time.Time {
	if e.Status != Scheduled {
		return time.Time{}
	}
	at := e.approved
	if e.Type == terminate && !at.IsZero() {
		at = s.lastApproval()
	}
	if e.auto && !e.NotBefore.IsZero() && (at.IsZero() || e.NotBefore.Before(at)) {
		at = e.NotBefore
	}
	return at
}

const terminate = "Terminate"

// lastApproval returns the latest approval time of the scheduled deletions, or zero while one is not approved. A scale
// set deletes its instances only when all the deletions are approved, or at NotBefore.
func (s *Server) lastApproval() (last time.Time) {
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

// start begins an event. With the fault NewID it gets another ID.
func (s *Server) start(e *entry) {
	if e.Status == Started {
		return
	}
	e.Status, e.NotBefore = Started, time.Time{}
	s.removeExpiredFaults()
	if f := s.faults[ScheduledEvents]; f != nil && f.NewID {
		e.announcedID, e.ID = e.ID, strings.ToUpper(uuid.NewString())
	}
	s.incarnation++
}

// clone returns a deep copy.
func (e Event) clone() Event {
	e.Resources = slices.Clone(e.Resources)
	if e.Duration != nil {
		e.Duration = new(*e.Duration)
	}
	return e
}

// Schedule puts e into the document, with missing fields filled in as Azure would, and returns it. It replaces an event
// with the same ID.
func (s *Server) Schedule(e Event) Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startDue()
	return s.schedule(e, s.opts.AutoStart)
}

// schedule is Schedule for a caller that holds the lock. With auto the event starts at NotBefore.
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

// Update calls change with the event of that ID and reports whether there is one. Nothing is filled in: a zero
// NotBefore is shown as "". If change changes nothing, the incarnation stays.
func (s *Server) Update(id string, change func(*Event)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startDue()
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

// Start begins the event of that ID, which clears its NotBefore, and reports whether there is one. An event that has
// started stays as it is.
func (s *Server) Start(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startDue()
	i := s.index(id)
	if i >= 0 {
		s.start(s.events[i])
	}
	return i >= 0
}

// End removes the event of that ID from the document, as Azure does with one that is completed or cancelled. It reports
// whether there was one.
func (s *Server) End(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startDue()
	i := s.index(id)
	if i < 0 {
		return false
	}
	s.events = slices.Delete(s.events, i, i+1)
	s.incarnation++
	return true
}

// Events returns the events of the document, in its order.
func (s *Server) Events() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startDue()
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
	s.startDue()
	if i := s.index(id); i >= 0 {
		return s.events[i].clone(), true
	}
	return Event{}, false
}

// index returns the index of the event of that ID, in any case, or -1. Its announcedID finds it too.
func (s *Server) index(id string) int {
	return slices.IndexFunc(s.events, func(e *entry) bool {
		return strings.EqualFold(e.ID, id) || strings.EqualFold(e.announcedID, id)
	})
}

// startDue starts the events that are due. Each start is a new incarnation.
func (s *Server) startDue() {
	now := s.opts.Now()
	for again := true; again; { // one start can make another event due
		again = false
		for _, e := range s.events {
			if at := s.startTime(e); !at.IsZero() && !at.After(now) {
				s.start(e)
				again = true
			}
		}
	}
}
