package bridge

import (
	"bytes"
	"cmp"
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

// An EventHistory is the recorded history of one Azure event.
type EventHistory struct {
	Event     string             `json:"event"` // EventId
	Type      string             `json:"type"`
	Source    string             `json:"source,omitempty"` // Platform, User
	Resources []string           `json:"resources"`
	Outcome   cloudevent.Outcome `json:"outcome,omitempty"` // "" while it is not over
	Changes   []HistoryChange    `json:"changes"`
	Set       string             `json:"-"` // scale set of the observer
	Group     string             `json:"-"` // resource group
	latest    time.Time          // of the latest change, which Type, Source and Resources are of
}

// A HistoryChange is one change of an event, with its deliveries.
type HistoryChange struct {
	ID             string               `json:"id"`
	Change         imds.ChangeKind      `json:"change"`
	Time           time.Time            `json:"time"` // when it was first observed, UTC
	NotBefore      time.Time            `json:"notBefore,omitzero"`
	RawNotBefore   string               `json:"rawNotBefore,omitempty"` // what Azure sent as NotBefore, if it can't be read
	Fields         []string             `json:"changed,omitempty"`
	WhileAway      bool                 `json:"whileAway,omitempty"`
	NotEarlierThan time.Time            `json:"notEarlierThan,omitzero"`
	Observer       string               `json:"observer,omitempty"`
	Approval       *cloudevent.Approval `json:"approval,omitempty"` // of the change approved
	Lead           string               `json:"lead,omitempty"`     // of the change reminder
	Rules          []cloudevent.Rule    `json:"rules,omitempty"`    // that were to approve the event, as was told
	Asked          *cloudevent.Asked    `json:"asked,omitempty"`    // who had asked Azure to start it, as was told
	Deliveries     []HistoryDelivery    `json:"deliveries"`
	outcome        cloudevent.Outcome   // of the event, if this change ended it
}

// A HistoryDelivery is the delivery of a change to one route.
type HistoryDelivery = outbox.Result

// A Period selects events by a prefix of the EventId, a VM name, and the time of the last change. Empty fields select
// all.
type Period struct {
	Event string
	VM    string
	Since time.Time
}

// History returns the histories of the Azure events in the outbox, oldest first.
func History(o *outbox.Outbox, p Period) ([]EventHistory, error) {
	var b HistoryBuilder
	err := o.Walk(0, func(r outbox.Record) error {
		b.AddRecord(r)
		return nil
	})
	return b.Histories(p), err
}

// RecentHistory is History of the newest n changes only; more reports whether there are older ones. The oldest event
// may lack its first changes. If n changes are not older than a day, its cost does not depend on the size of the history.
func RecentHistory(o *outbox.Outbox, p Period, n int, now time.Time) (histories []EventHistory, more bool, err error) {
	about := []byte(`"type":"` + cloudevent.EventPrefix)
	for span := 24 * time.Hour; ; span *= 4 {
		var newest []outbox.Record
		all := span > outbox.KeepHistory
		from := uint64(0)
		if !all {
			from = uint64(max(0, now.Add(-span).UnixMicro()))
		}
		err := o.Walk(from, func(r outbox.Record) error {
			if !bytes.Contains(r.Body, about) {
				return nil
			}
			newest = append(newest, r)
			if len(newest) > 2*n {
				more, newest = true, slices.Clone(newest[n:])
			}
			return nil
		})
		if err != nil {
			return nil, false, err
		}
		if !all && len(newest) <= n {
			continue // look further back
		}
		if len(newest) > n {
			more, newest = true, newest[len(newest)-n:]
		}
		var b HistoryBuilder
		for _, r := range newest {
			b.AddRecord(r)
		}
		return b.Histories(p), more, nil
	}
}

// A HistoryBuilder assembles histories from CloudEvents in any order. It ignores repeated ones.
type HistoryBuilder struct {
	histories map[string]*EventHistory
	seen      map[string]bool // ids
}

// AddRecord adds a record of the outbox, unless it is unreadable: it must not hide the others.
func (b *HistoryBuilder) AddRecord(r outbox.Record) {
	var ce event.Event
	if json.Unmarshal(r.Body, &ce) != nil {
		return
	}
	b.Add(ce, r.Deliveries)
}

// Add adds a CloudEvent with its deliveries. It ignores CloudEvents that are not about an Azure event.
func (b *HistoryBuilder) Add(ce event.Event, deliveries []HistoryDelivery) {
	if !strings.HasPrefix(ce.Type(), cloudevent.EventPrefix) || b.seen[ce.ID()] {
		return
	}
	var d cloudevent.Data
	if json.Unmarshal(ce.Data(), &d) != nil {
		return
	}
	if b.histories == nil {
		b.histories, b.seen = map[string]*EventHistory{}, map[string]bool{}
	}
	b.seen[ce.ID()] = true
	e, _ := imds.UnmarshalEvent(d.Event)
	life := b.histories[ce.Subject()]
	if life == nil {
		life = &EventHistory{Event: ce.Subject()}
		b.histories[ce.Subject()] = life
	}
	if !ce.Time().Before(life.latest) {
		life.latest = ce.Time()
		life.Type, life.Source, life.Resources = e.Type, e.Source, e.Resources
	}
	life.Set, life.Group = cmp.Or(d.Observer.ScaleSet, life.Set), cmp.Or(d.Observer.ResourceGroup, life.Group)
	if deliveries == nil {
		deliveries = []HistoryDelivery{}
	}
	slices.SortFunc(deliveries, func(x, y HistoryDelivery) int { return strings.Compare(x.Route, y.Route) })
	life.Changes = append(life.Changes, HistoryChange{
		ID: ce.ID(), Change: d.Change, Time: ce.Time().UTC(), NotBefore: d.NotBefore, RawNotBefore: e.RawNotBefore(),
		Fields:    d.Changed,
		WhileAway: d.WhileAway, NotEarlierThan: d.NotEarlierThan, Observer: d.Observer.Name,
		Approval: d.Approval, Lead: d.Lead, Rules: d.Rules, Asked: d.Asked, Deliveries: deliveries, outcome: d.Outcome,
	})
}

// Histories returns the histories that p selects, oldest first, each with its changes by time.
func (b *HistoryBuilder) Histories(p Period) []EventHistory {
	var picked []*EventHistory
	byEvent := func(x, y *EventHistory) int { return strings.Compare(x.Event, y.Event) }
	for _, l := range slices.SortedFunc(maps.Values(b.histories), byEvent) {
		slices.SortStableFunc(l.Changes, func(x, y HistoryChange) int { return x.Time.Compare(y.Time) })
		l.Outcome = outcome(l.Changes)
		hit := p.VM == "" || slices.ContainsFunc(l.Resources, func(r string) bool { return imds.SameVM(r, p.VM) })
		if hit && strings.HasPrefix(l.Event, imds.Upper(p.Event)) && !l.Changes[len(l.Changes)-1].Time.Before(p.Since) {
			picked = append(picked, l)
		}
	}
	slices.SortStableFunc(picked, func(x, y *EventHistory) int { return x.Changes[0].Time.Compare(y.Changes[0].Time) })
	histories := make([]EventHistory, len(picked))
	for i, l := range picked {
		histories[i] = *l
	}
	return histories
}

// outcome returns the outcome of an event with these changes; "" if it is not over, or was listed again. What forewarn
// itself says about an event may come after its end.
func outcome(changes []HistoryChange) (o cloudevent.Outcome) {
	for _, c := range changes {
		if c.Change.OfAzure() {
			o = c.outcome
		}
	}
	return o
}
