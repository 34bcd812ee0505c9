package relay

import (
	"context"
	"encoding/json"
	"maps"
	"sort"
	"strings"
	"sync"

	"forewarn/bridge"
	"forewarn/bridge/internal/streams"
)

// maxHistories is how many Azure events have their records kept for the history: more than a fleet knows of.
const maxHistories = 16_000

// A history keeps what the records of all sinks say of deliveries about Azure events, for people.
type history struct {
	mu      sync.Mutex
	records map[string]map[string]record // by group and sink
}

// followRecords reads the records of all sinks for the history, until ctx is done.
func (r *Relay) followRecords(ctx context.Context, st *storage) {
	bucket := recordsBucket(r.Stream)
	prefix := "$KV." + bucket + ".record."
	add := func(m streams.Raw) {
		sink, of, _ := strings.Cut(strings.TrimPrefix(m.Subject, prefix), ".")
		event, set := streams.CutGroup(of)
		var rec record
		if json.Unmarshal(m.Data, &rec) == nil {
			r.history.add(streams.FromToken(sink), streams.GroupOf(streams.FromToken(event), set), rec, r.fleet.Knows)
		}
	}
	problem := func(err error) { r.Log.Debug("the records can't be read for the history", "err", err) }
	streams.KeepFollowing(ctx, st.js, "KV_"+bucket, streams.LastOf(prefix+">"), problem, add)
}

// add takes in what a sink remembers of an Azure event that its filter let pass. The history needs no others, such as
// those about bridges. When there are too many, those of events that aren't known go.
func (h *history) add(sink, group string, rec record, known func(group string) bool) {
	if !rec.Matched {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.records[group] == nil {
		if len(h.records) >= maxHistories {
			maps.DeleteFunc(h.records, func(group string, _ map[string]record) bool { return !known(group) })
		}
		if len(h.records) >= maxHistories {
			return
		}
		h.records[group] = map[string]record{}
	}
	h.records[group][sink] = rec
}

// deliveries returns what became of a CloudEvent, by sink.
func (h *history) deliveries(group, id string) []bridge.HistoryDelivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := []bridge.HistoryDelivery{}
	for sink, rec := range h.records[group] {
		m, settled := rec.Settled[streams.Token(id)]
		w, waiting := rec.Waiting[streams.Token(id)]
		switch {
		case settled && m.State == resultDead:
			list = append(list, bridge.HistoryDelivery{Route: sink, State: m.State, At: m.At, Reason: m.Answer})
		case settled:
			list = append(list, bridge.HistoryDelivery{Route: sink, State: m.State, At: m.At, Answer: m.Answer,
				Attempts: m.Attempts})
		case waiting:
			list = append(list, bridge.HistoryDelivery{Route: sink, State: statePending, Attempts: w.Attempts, Error: w.Error})
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Route < list[j].Route })
	return list
}

// Histories returns the events of the last 40 days that p selects, oldest first, and reports whether older ones were
// dropped.
func (r *Relay) Histories(p bridge.Period) (histories []bridge.EventHistory, more bool) {
	histories, groups, more := r.fleet.Histories(p)
	for n, h := range histories {
		for i := range h.Changes {
			h.Changes[i].Deliveries = r.history.deliveries(groups[n], h.Changes[i].ID)
		}
	}
	sort.SliceStable(histories, func(i, j int) bool {
		return histories[i].Changes[0].Time.Before(histories[j].Changes[0].Time)
	})
	return histories, more
}
