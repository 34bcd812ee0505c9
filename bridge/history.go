package bridge

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// A Life is what is on record of one Azure event.
type Life struct {
	Event     string       `json:"event"` // EventId
	Type      string       `json:"type"`
	Source    string       `json:"source,omitempty"` // Platform, User
	Resources []string     `json:"resources"`
	Outcome   Outcome      `json:"outcome,omitempty"` // "" while it is not over
	Changes   []LifeChange `json:"changes"`
}

// LifeChange is one change of it, and who was told.
type LifeChange struct {
	ID             string         `json:"id"`
	Change         ChangeKind     `json:"change"`
	Time           time.Time      `json:"time"` // when it was first observed, UTC
	NotBefore      time.Time      `json:"notBefore,omitzero"`
	Fields         []string       `json:"changed,omitempty"`
	WhileAway      bool           `json:"whileAway,omitempty"`
	NotEarlierThan time.Time      `json:"notEarlierThan,omitzero"`
	Observer       string         `json:"observer,omitempty"`
	Approval       *Approval      `json:"approval,omitempty"` // of an approved
	Lead           string         `json:"lead,omitempty"`     // of a reminder
	Deliveries     []LifeDelivery `json:"deliveries"`
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

// History gives the lives of Azure's events that are on record, the oldest first.
func (o *Outbox) History(p Period) ([]Life, error) { return o.history(p, "") }

// RecentHistory is History of the newest n changes alone, however many there are; more says that there are older ones.
// The first changes of the oldest of its lives may be missing.
func (o *Outbox) RecentHistory(p Period, n int) (lives []Life, more bool, err error) {
	about := []byte(`"type":"` + EventPrefix)
	from, more, err := o.store.fromEnd(bucketEvents, n, func(value []byte) bool { return bytes.Contains(value, about) })
	if err == nil {
		lives, err = o.history(p, from)
	}
	return lives, more, err
}

// history is History without the CloudEvents before the key from.
func (o *Outbox) history(p Period, from string) ([]Life, error) {
	told := map[string][]LifeDelivery{} // by sequence number
	err := o.store.walkFrom(bucketSettled, from, func(key string, value []byte) error {
		seq, route, _ := strings.Cut(key, "/")
		var s Settled
		if err := json.Unmarshal(value, &s); err != nil {
			return nil // a record of the past that cannot be read must not hide the others
		}
		told[seq] = append(told[seq], LifeDelivery{Sink: route, State: s.How, At: s.At, Attempts: s.Attempts, Answer: s.Status, AnswerID: s.AnswerID})
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, e := range o.List(Selection{}) {
		_, seq, _ := cutLast(e.Key, "/")
		if seq < from {
			continue
		}
		d := LifeDelivery{Sink: e.Sink, State: e.State, At: e.Tried, Attempts: e.Attempts, Reason: e.Reason, Error: e.Error}
		if e.State == StateDead {
			d.At = e.DeadSince
		}
		told[seq] = append(told[seq], d)
	}
	var b Biographer
	err = o.store.walkFrom(bucketEvents, from, func(key string, value []byte) error {
		var ce event.Event
		if json.Unmarshal(value, &ce) == nil {
			b.Add(ce, told[key])
		}
		return nil
	})
	return b.Lives(p), err
}

// A Biographer puts lives together from CloudEvents, in whatever order they come. Repeats count once.
type Biographer struct {
	lives map[string]*Life
	seen  map[string]bool // ids
}

// Add takes a CloudEvent about an Azure event, and ignores any other.
func (b *Biographer) Add(ce event.Event, told []LifeDelivery) {
	if !strings.HasPrefix(ce.Type(), EventPrefix) || b.seen[ce.ID()] {
		return
	}
	var d Data
	if json.Unmarshal(ce.Data(), &d) != nil {
		return
	}
	if b.lives == nil {
		b.lives, b.seen = map[string]*Life{}, map[string]bool{}
	}
	b.seen[ce.ID()] = true
	e, _ := UnmarshalEvent(d.Event)
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
	lives := []Life{}
	for _, l := range slices.SortedFunc(maps.Values(b.lives), func(x, y *Life) int { return strings.Compare(x.Event, y.Event) }) {
		slices.SortStableFunc(l.Changes, func(x, y LifeChange) int { return x.Time.Compare(y.Time) })
		hit := p.VM == "" || slices.ContainsFunc(l.Resources, func(r string) bool { return sameVM(r, p.VM) })
		if hit && strings.HasPrefix(l.Event, strings.ToUpper(p.Event)) && !l.Changes[len(l.Changes)-1].Time.Before(p.Since) {
			lives = append(lives, *l)
		}
	}
	slices.SortStableFunc(lives, func(x, y Life) int { return x.Changes[0].Time.Compare(y.Changes[0].Time) })
	return lives
}
