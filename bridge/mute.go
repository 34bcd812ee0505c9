package bridge

import (
	"slices"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/mutes"
	"forewarn/bridge/outbox"
)

// A Mute holds deliveries back: see delivery.Mute.
type Mute = delivery.Mute

// Mutes returns the mutes that have not ended, the oldest first.
func (b *Bridge) Mutes() []*delivery.Mute { return mutes.Active(b.outbox.Mutes()) }

// Mute holds deliveries back for d, above 0 and at most 30 days. m has its scope, reason and author; the reason is needed. At
// most 100 mutes are in force at a time. It returns the mute with its id. A disk that fails is no error: the mute then holds
// until the next start.
func (b *Bridge) Mute(m delivery.Mute, d time.Duration) (delivery.Mute, error) {
	err := b.changeMutes(func(all []*delivery.Mute) (changed []delivery.Mute, err error) {
		m, err = mutes.New(m, d, all, time.Now())
		return []delivery.Mute{m}, err
	})
	return m, err
}

// Unmute ends mutes by their ids, or all with every. by names the user, for the record.
func (b *Bridge) Unmute(ids []string, every bool, by string) (ended []delivery.Mute, err error) {
	err = b.changeMutes(func(all []*delivery.Mute) ([]delivery.Mute, error) {
		ended, err = mutes.End(all, ids, every, by, time.Now())
		return ended, err
	})
	return ended, err
}

// endMutes ends the mutes whose time is over, or whose sink is gone.
func (b *Bridge) endMutes() {
	b.mu.Lock()
	routes := b.routes
	b.mu.Unlock()
	gone := func(sink string) bool {
		return !slices.ContainsFunc(routes, func(r Route) bool { return r.Name == sink })
	}
	_ = b.changeMutes(func(all []*delivery.Mute) ([]delivery.Mute, error) {
		return mutes.Due(all, gone, time.Now(), 0), nil // not earlier: one may have begun just now
	})
}

// changeMutes stores the changed mutes and the CloudEvents about them in one batch. It returns when they are on disk,
// or cannot be written: then they hold until the next start.
func (b *Bridge) changeMutes(changes func(all []*delivery.Mute) ([]delivery.Mute, error)) error {
	report := b.reporter()
	var c commit
	var err error
	wait := b.outbox.Update(time.Now(), func(tx *outbox.Tx) {
		c.Mutes, err = changes(tx.Mutes())
		if err != nil {
			return
		}
		for _, m := range c.Mutes {
			typ, data := mutes.Data(m)
			report.add(&c, typ, data, m.Sink)
		}
		b.apply(tx, c)
	})
	if err != nil {
		return err
	}
	b.committed(c)
	for _, m := range c.Mutes {
		mutes.Log(b.log, m)
	}
	_ = wait() // the outbox logs its errors
	return nil
}
