package bridge

import "time"

// beat sends each route that wants it a sign of life, while all is well: the endpoint answers and the outbox is durable.
// Whoever expects them learns by their absence that something is wrong. One that was not delivered yet gives way to the
// next.
func (b *Bridge) beat(now time.Time) {
	b.mu.Lock()
	well := len(b.imds.reasons()) == 0 && now.Sub(b.imds.lastAnswer) < awayAbove
	var due []string
	for _, r := range b.routes {
		if every := r.Terms.Heartbeat; every > 0 && well && now.Sub(b.beats[r.Name]) >= every {
			due = append(due, r.Name)
		}
	}
	b.mu.Unlock()
	if len(due) == 0 || b.Outbox.Durable() != nil {
		return
	}
	b.Outbox.dropHeartbeats(due)
	var c Commit
	for i, name := range due { // each has its own, which is forgotten as soon as it is delivered
		ce, err := WrapBridge(BridgeHeartbeat, map[string]any{"version": b.Version}, b.self(), now.Add(time.Duration(i)))
		if err != nil {
			b.Log.Error("a heartbeat is not valid", "err", err)
			return
		}
		c.Owed = append(c.Owed, Owed{CloudEvent: ce, To: []string{name}})
	}
	_ = b.Outbox.Commit(c, now) // the store says when it cannot write
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range due {
		b.beats[name] = now
	}
}

// dropHeartbeats forgets those that were not delivered to the routes.
func (o *Outbox) dropHeartbeats(routes []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range routes {
		for _, e := range o.shelf(name).entries {
			if e.Type == BridgeHeartbeat {
				o.remove(e)
				o.store.write(bucketEvents, seqKey(e.seq), nil)
			}
		}
	}
}
