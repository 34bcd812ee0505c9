package bridge

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// A Life is what is on record of one Azure event.
type Life struct {
	Event     string             `json:"event"` // EventId
	Type      string             `json:"type"`
	Source    string             `json:"source,omitempty"` // Platform, User
	Resources []string           `json:"resources"`
	Outcome   cloudevent.Outcome `json:"outcome,omitempty"` // "" while it is not over
	Changes   []LifeChange       `json:"changes"`
}

// LifeChange is one change of it, and who was told.
type LifeChange struct {
	ID             string               `json:"id"`
	Change         imds.ChangeKind      `json:"change"`
	Time           time.Time            `json:"time"` // when it was first observed, UTC
	NotBefore      time.Time            `json:"notBefore,omitzero"`
	Fields         []string             `json:"changed,omitempty"`
	WhileAway      bool                 `json:"whileAway,omitempty"`
	NotEarlierThan time.Time            `json:"notEarlierThan,omitzero"`
	Observer       string               `json:"observer,omitempty"`
	Approval       *cloudevent.Approval `json:"approval,omitempty"` // of an approved
	Lead           string               `json:"lead,omitempty"`     // of a reminder
	Deliveries     []LifeDelivery       `json:"deliveries"`
}

// LifeDelivery is what became of telling one route.
type LifeDelivery struct {
	Sink     string    `json:"sink"`
	State    string    `json:"state"`       // accepted, superseded, pending, dead, dropped
	At       time.Time `json:"at,omitzero"` // of the end; of the last attempt while pending
	Attempts int       `json:"attempts"`
	Answer   string    `json:"answer,omitempty"` // what the destination said
	AnswerID string    `json:"answerId,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// A Period picks lives: by a prefix of the EventId, a VM name, and the time of the first change. Empty fields pick all.
type Period struct {
	Event string
	VM    string
	Since time.Time
}

// History gives the lives of Azure's events that are on record in the outbox, the oldest first.
func History(o *outbox.Outbox, p Period) ([]Life, error) {
	var b Biographer
	err := o.Walk(0, func(r outbox.Record) error {
		var ce event.Event
		if json.Unmarshal(r.Body, &ce) == nil { // a record of the past that can't be read must not hide the others
			b.Add(ce, deliveries(r))
		}
		return nil
	})
	return b.Lives(p), err
}

// RecentHistory is History of the newest n changes alone, however many there are; more says that there are older ones.
// The first changes of the oldest of its lives may be missing.
func RecentHistory(o *outbox.Outbox, p Period, n int, now time.Time) (lives []Life, more bool, err error) {
	about := []byte(`"type":"` + cloudevent.EventPrefix)
	for span := 24 * time.Hour; ; span *= 4 {
		var newest []outbox.Record
		more = false
		all := span > outbox.KeepHistory
		from := uint64(0)
		if !all {
			from = uint64(max(0, now.Add(-span).UnixMicro()))
		}
		err := o.Walk(from, func(r outbox.Record) error {
			if !bytes.Contains(r.Body, about) {
				return nil
			}
			if newest = append(newest, r); len(newest) > 2*n {
				more, newest = true, slices.Clone(newest[n:])
			}
			return nil
		})
		if err != nil {
			return nil, false, err
		}
		if !all && len(newest) <= n && !more {
			continue // further back
		}
		if len(newest) > n {
			more, newest = true, newest[len(newest)-n:]
		}
		var b Biographer
		for _, r := range newest {
			var ce event.Event
			if json.Unmarshal(r.Body, &ce) == nil {
				b.Add(ce, deliveries(r))
			}
		}
		return b.Lives(p), more, nil
	}
}

// deliveries are what became of a CloudEvent.
func deliveries(r outbox.Record) (list []LifeDelivery) {
	for _, d := range r.Deliveries {
		list = append(list, LifeDelivery{
			Sink: d.Route, State: d.State, At: d.At, Attempts: d.Attempts, Answer: d.Answer, AnswerID: d.AnswerID,
			Reason: d.Reason, Error: d.Error,
		})
	}
	return list
}

// A Biographer puts lives together from CloudEvents, in whatever order they come. Repeats count once.
type Biographer struct {
	lives map[string]*Life
	seen  map[string]bool // ids
}

// Add takes a CloudEvent about an Azure event, and ignores any other.
func (b *Biographer) Add(ce event.Event, told []LifeDelivery) {
	if !strings.HasPrefix(ce.Type(), cloudevent.EventPrefix) || b.seen[ce.ID()] {
		return
	}
	var d cloudevent.Data
	if json.Unmarshal(ce.Data(), &d) != nil {
		return
	}
	if b.lives == nil {
		b.lives, b.seen = map[string]*Life{}, map[string]bool{}
	}
	b.seen[ce.ID()] = true
	e, _ := imds.UnmarshalEvent(d.Event)
	life := b.lives[ce.Subject()]
	if life == nil {
		life = &Life{Event: ce.Subject()}
		b.lives[ce.Subject()] = life
	}
	life.Type, life.Source, life.Resources = e.Type, e.Source, e.Resources
	if d.Outcome != "" {
		life.Outcome = d.Outcome
	}
	if told == nil {
		told = []LifeDelivery{}
	}
	slices.SortFunc(told, func(a, b LifeDelivery) int { return strings.Compare(a.Sink, b.Sink) })
	life.Changes = append(life.Changes, LifeChange{
		ID: ce.ID(), Change: d.Change, Time: ce.Time().UTC(), NotBefore: d.NotBefore, Fields: d.Changed,
		WhileAway: d.WhileAway, NotEarlierThan: d.NotEarlierThan, Observer: d.Observer.Name,
		Approval: d.Approval, Lead: d.Lead, Deliveries: told,
	})
}

// Lives gives the lives that p picks, the oldest first, each with its changes by time.
func (b *Biographer) Lives(p Period) []Life {
	var picked []*Life
	byEvent := func(x, y *Life) int { return strings.Compare(x.Event, y.Event) }
	for _, l := range slices.SortedFunc(maps.Values(b.lives), byEvent) {
		slices.SortStableFunc(l.Changes, func(x, y LifeChange) int { return x.Time.Compare(y.Time) })
		hit := p.VM == "" || slices.ContainsFunc(l.Resources, func(r string) bool { return imds.SameVM(r, p.VM) })
		if hit && strings.HasPrefix(l.Event, strings.ToUpper(p.Event)) && !l.Changes[len(l.Changes)-1].Time.Before(p.Since) {
			picked = append(picked, l)
		}
	}
	slices.SortStableFunc(picked, func(x, y *Life) int { return x.Changes[0].Time.Compare(y.Changes[0].Time) })
	lives := make([]Life, len(picked))
	for i, l := range picked {
		lives[i] = *l
	}
	return lives
}
