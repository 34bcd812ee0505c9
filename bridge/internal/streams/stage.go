package streams

import (
	"slices"
	"time"

	"forewarn/bridge/imds"
)

// maxPassed is how many earlier changes of an event are known by their ids.
const maxPassed = 50

// A Stage is how far along its life an Azure event is: the kind of its latest change, when a VM saw that, the change's
// sequence number in the stream, when the stream stored it, and when the event may begin.
type Stage struct {
	ID        string          `json:"id,omitempty"`     // the hash of that of the latest change
	Passed    []string        `json:"passed,omitempty"` // likewise: of the changes before it
	Kind      imds.ChangeKind `json:"kind,omitempty"`
	Seen      time.Time       `json:"seen,omitzero"`
	Seq       uint64          `json:"seq,omitempty"`
	Stored    time.Time       `json:"stored,omitzero"`
	NotBefore time.Time       `json:"notBefore,omitzero"`
}

// precedes reports whether a change comes after the latest one in the stream, or in one that was made later. The clock
// of the servers may be set back by less than a minute.
func (s *Stage) precedes(m Message) bool {
	return m.Seq > s.Seq || !s.Stored.IsZero() && m.Stored.After(s.Stored.Add(time.Minute))
}

// HasPassed reports whether the event has gone on since from that very change: another VM tells of it late.
func (s *Stage) HasPassed(m Message) bool { return slices.Contains(s.Passed, ShortHash(m.CE.ID())) }

// Outdated reports whether a change comes too late, because the stream has a later one before it. This happens when a
// VM that first sees an event already started or over publishes earlier than the VMs that saw it announced. The change
// of an event that comes back isn't outdated, because it was seen later. Nor is one that is pending and read again. A
// reminder is outdated once the event has begun or is over, or may begin at another time.
func (s *Stage) Outdated(m Message) bool {
	if !s.precedes(m) || !m.Seen().Before(s.Seen) {
		return false
	}
	if m.Change.Kind == imds.Reminder {
		return !s.Kind.Announces() || !s.NotBefore.Equal(m.NotBefore())
	}
	return m.Change.Kind.OfAzure() && stageOf(m.Change.Kind) < stageOf(s.Kind)
}

// MovesOnTo reports whether a change is neither outdated nor told or read again.
func (s *Stage) MovesOnTo(m Message) bool {
	return m.Change.Kind.OfAzure() && m.OnlySink == "" && s.precedes(m) && !s.HasPassed(m) && !s.Outdated(m)
}

// Update moves the stage on to a change, unless that is outdated, or told or read again.
func (s *Stage) Update(m Message) {
	if !s.MovesOnTo(m) {
		return
	}
	id, passed := ShortHash(m.CE.ID()), s.Passed
	if s.ID != "" && s.ID != id {
		passed = append(slices.Clone(passed[max(0, len(passed)-maxPassed+1):]), s.ID)
	}
	*s = Stage{id, passed, m.Change.Kind, m.Seen(), m.Seq, m.Stored, m.NotBefore()}
}

// stageOf returns the position of a kind of change in an event's life.
func stageOf(k imds.ChangeKind) int {
	return slices.Index([]imds.ChangeKind{imds.Scheduled, imds.Updated, imds.Started, imds.Vanished}, k)
}
