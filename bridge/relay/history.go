package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"forewarn/bridge"
	"forewarn/bridge/internal/streams"
)

// Histories returns the events of the last 40 days that p selects, oldest first, and reports whether older ones were
// dropped. What became of deliveries is read from the records of all sinks; after an error it is missing.
func (r *Relay) Histories(ctx context.Context, p bridge.Period) (histories []bridge.EventHistory, more bool, err error) {
	defer r.toShow(&err)
	histories, groups, more := r.fleet.Histories(p)
	told, err := r.deliveries(ctx, groups)
	for n, h := range histories {
		for i, change := range h.Changes {
			if all := told[deliveriesKey{recordSuffix(groups[n]), streams.Token(change.ID)}]; all != nil {
				h.Changes[i].Deliveries = all
			}
		}
	}
	slices.SortStableFunc(histories, func(a, b bridge.EventHistory) int {
		return a.Changes[0].Time.Compare(b.Changes[0].Time)
	})
	return histories, more, err
}

// A deliveriesKey names a CloudEvent by how records do: see recordOf and streams.Message.DeliveryID.
type deliveriesKey struct{ record, id string }

// deliveries reads what the records of all sinks say of CloudEvents about the Azure events of groups.
func (r *Relay) deliveries(
	ctx context.Context, groups []string,
) (told map[deliveriesKey][]bridge.HistoryDelivery, err error) {
	if len(groups) == 0 {
		return nil, nil
	}
	st, err := r.connected()
	if err != nil {
		return nil, err
	}
	told = map[deliveriesKey][]bridge.HistoryDelivery{}
	wanted := map[string]bool{}
	for _, group := range groups {
		wanted[recordSuffix(group)] = true
	}
	prefix, which := "$KV."+recordsBucket(r.Stream)+".record.", ">"
	if len(wanted) == 1 {
		which = "*." + recordSuffix(groups[0])
	}
	from := streams.LastOf(prefix + which)
	err = streams.ReadToEnd(ctx, st.js, "KV_"+recordsBucket(r.Stream), from, func(m streams.Raw) error {
		sink, of, _ := strings.Cut(strings.TrimPrefix(m.Subject, prefix), ".")
		var rec record
		if !wanted[of] || json.Unmarshal(m.Data, &rec) != nil {
			return nil
		}
		rec.eachDelivery(streams.FromToken(sink), func(id string, d bridge.HistoryDelivery) {
			ce, _, _ := strings.Cut(id, ".")
			key := deliveriesKey{of, ce}
			told[key] = append(told[key], d)
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read who was told what: %w", err)
	}
	for _, all := range told {
		slices.SortStableFunc(all, func(a, b bridge.HistoryDelivery) int { return strings.Compare(a.Route, b.Route) })
	}
	return told, nil
}

// eachDelivery calls f with what became of the deliveries of a record to its sink, by streams.Message.DeliveryID: first
// of those that are settled, in that order, then of those that wait.
func (r *record) eachDelivery(sink string, f func(id string, d bridge.HistoryDelivery)) {
	bySettled := func(a, b string) int { return r.Settled[a].At.Compare(r.Settled[b].At) }
	for _, id := range slices.SortedFunc(maps.Keys(r.Settled), bySettled) {
		was := r.Settled[id]
		d := bridge.HistoryDelivery{Route: sink, State: was.State, At: was.At, Answer: was.Answer, Attempts: was.Attempts,
			Error: was.Error}
		if was.State == resultDead {
			d.Reason, d.Answer = was.Answer, ""
		}
		f(id, d)
	}
	for _, id := range slices.Sorted(maps.Keys(r.Waiting)) {
		w := r.Waiting[id]
		f(id, bridge.HistoryDelivery{Route: sink, State: statePending, Attempts: w.Attempts, Error: w.Error})
	}
}
