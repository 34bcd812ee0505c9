package imdstest

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
)

// An Approval is one EventId of an accepted POST.
type Approval struct {
	Time    time.Time `json:"time"`
	VM      string    `json:"vm"` // who approved, on behalf of all in Resources
	EventID string    `json:"eventId"`
}

// Approvals returns what was approved, the oldest first. One event may be approved many times; only the first has an
// effect.
func (s *Server) Approvals() []Approval {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.approvals)
}

// approve answers a POST. It approves all the events that the POST names, or none if one of them is unknown and that is
// refused. The fault says what becomes of the approvals.
func (s *Server) approve(c *call, f Fault) answer {
	ids, ok := startRequests(c.body)
	if !ok {
		return badRequest("StartRequests is missing or malformed")
	}
	if f.Approve == ApproveRefuse {
		return badRequest("StartRequests is refused")
	}
	served := s.servedIDs()
	missing := func(id string) bool {
		return !slices.ContainsFunc(served, func(other string) bool { return strings.EqualFold(id, other) })
	}
	if s.opts.UnknownApproval != http.StatusOK && slices.ContainsFunc(ids, missing) {
		a := badRequest("EventId is unknown")
		a.status = s.opts.UnknownApproval
		return a
	}
	now, delay := s.opts.Now(), cmp.Or(f.ApproveDelay, s.approveDelay)
	for _, id := range slices.DeleteFunc(ids, missing) {
		s.approvals = append(s.approvals, Approval{Time: now, VM: c.vm, EventID: id})
		if i := s.index(id); i >= 0 && s.events[i].approved.IsZero() && f.Approve != ApproveIgnore {
			s.events[i].approved = now.Add(delay)
		}
	}
	s.startDue()
	return answer{status: http.StatusOK}
}

// startRequests returns the EventIds in the body of a POST. It takes every form that Azure's documentation shows: with
// or without DocumentIncarnation, which may be a number or a string.
func startRequests(body []byte) (ids []string, ok bool) {
	var list struct {
		DocumentIncarnation any
		StartRequests       []struct {
			EventID *string `json:"EventId"`
		}
	}
	if json.Unmarshal(body, &list) != nil || len(list.StartRequests) == 0 {
		return nil, false
	}
	for _, r := range list.StartRequests {
		if r.EventID == nil {
			return nil, false
		}
		ids = append(ids, *r.EventID)
	}
	return ids, true
}

// servedIDs returns the EventIds of the document that is served.
func (s *Server) servedIDs() []string {
	var ids []string
	if s.document == nil {
		for _, e := range s.events {
			ids = append(ids, e.ID)
		}
		return ids
	}
	var d struct {
		Events []struct {
			EventID string `json:"EventId"`
		}
	}
	_ = json.Unmarshal(s.document, &d) // an unreadable document has no events to approve
	for _, e := range d.Events {
		ids = append(ids, e.EventID)
	}
	return ids
}
