package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// When a VM counts as silent.
const (
	missedHeartbeats = 3                // heartbeats in a row that did not come
	minSilence       = time.Minute      // at least
	gatherPeriod     = time.Minute      // VMs that fall silent, or come back, within it …
	maxSeparate      = 10               // … are told one by one up to this many, and more in one message
	maxNamed         = 20               // VMs named in one message
	maxSilent        = 20_000           // silent VMs that are remembered; further ones are told when there is room
	observeEvery     = 5 * time.Second  // looks at the fleet
	maxUnwatched     = 30 * time.Second // without a look, silence counts anew
)

// An observer is a VM whose bridge publishes, as seen at one time.
type observer struct {
	key, name, set, group string
	lastHeard             time.Time     // last
	backSince             time.Time     // when it was heard first after its last silence
	interval              time.Duration // its heartbeats come; 0 if it sends none
	stopped               bool          // it said that it stops
	excused               bool          // by an event: it is unreachable, or gone, as Azure announced
	eventEnded            time.Time     // when the last event was over that had begun on it
}

// silentAt is when the VM counts as silent if nothing comes; zero if it never does. What happened before clear wasn't
// watched.
func (o *observer) silentAt(watchedSince time.Time) time.Time {
	if o.interval <= 0 || o.stopped || o.excused {
		return time.Time{}
	}
	since := o.lastHeard
	for _, at := range []time.Time{watchedSince, o.eventEnded} {
		if at.After(since) {
			since = at
		}
	}
	return since.Add(max(missedHeartbeats*o.interval, minSilence))
}

// silence is what all relays of a stream remember of silent VMs. Whoever wins the revision of it in the bucket tells
// what stands in Say; others do so if the winner doesn't, and the stream and the sinks know the id again.
type silenceRecord struct {
	Silent      map[string]time.Time `json:"silent,omitempty"` // when they were last heard, by the digest of observer.key
	Unpublished []json.RawMessage    `json:"say,omitempty"`    // CloudEvents that are not known to be in the stream
}

// decide gives the VMs that are to be told as silent and as back, by message, and what is remembered then. It is told
// the time by the stream's servers, whose clock is also that of what was heard.
func (s silenceRecord) decide(all []*observer, watchedSince, now time.Time) (next silenceRecord, silent, back [][]*observer) {
	next = silenceRecord{Silent: maps.Clone(s.Silent), Unpublished: s.Unpublished}
	if next.Silent == nil {
		next.Silent = map[string]time.Time{}
	}
	var fell, returned []*observer
	firstSilent, firstBack := now, now // the first of them
	for _, o := range all {
		lastHeard, wasSilent := findSilent(s.Silent, o.key)
		at := o.silentAt(watchedSince)
		switch {
		case wasSilent && o.lastHeard.After(lastHeard):
			returned = append(returned, o)
			if o.backSince.Before(firstBack) {
				firstBack = o.backSince
			}
		case !wasSilent && !at.IsZero() && !at.After(now) && now.Sub(o.lastHeard) < forgetVM:
			fell = append(fell, o)
			if at.Before(firstSilent) {
				firstSilent = at
			}
		}
	}
	maps.DeleteFunc(next.Silent, func(_ string, heard time.Time) bool { return now.Sub(heard) >= forgetVM })
	if now.Sub(firstBack) >= gatherPeriod {
		back = messages(returned)
		for _, o := range returned {
			delete(next.Silent, shortHash(o.key))
		}
	}
	if room := max(0, maxSilent-len(next.Silent)); len(fell) > room {
		slices.SortFunc(fell, func(a, b *observer) int { return a.lastHeard.Compare(b.lastHeard) })
		fell = fell[:room]
	}
	if now.Sub(firstSilent) >= gatherPeriod {
		silent = messages(fell)
		for _, o := range fell {
			next.Silent[shortHash(o.key)] = o.lastHeard
		}
	}
	return next, silent, back
}

// lastHeard looks a VM up among the silent ones, of which there are seldom any.
func findSilent(silent map[string]time.Time, key string) (last time.Time, told bool) {
	if len(silent) == 0 {
		return last, false
	}
	last, told = silent[shortHash(key)]
	return last, told
}

// messages are the VMs by message: one each, or all in one.
func messages(all []*observer) (list [][]*observer) {
	slices.SortFunc(all, func(a, b *observer) int { return strings.Compare(a.key, b.key) })
	if len(all) > maxSeparate {
		return [][]*observer{all}
	}
	for _, o := range all {
		list = append(list, []*observer{o})
	}
	return list
}

// observers watches who falls silent and who comes back, until ctx is done.
func (r *Relay) watchObservers(ctx context.Context, st *storage) {
	var watchedSince, lastLook time.Time // since when it watches without a break, and the last look
	for sleep(ctx, observeEvery) == nil {
		now, all, err := r.observersNow(ctx, st)
		if err == nil && now.Sub(lastLook) > maxUnwatched {
			watchedSince = now
		}
		if err == nil {
			lastLook = now
			err = r.announceSilence(ctx, st, all, watchedSince, now)
		}
		if ctx.Err() == nil {
			r.setWatchErr(err)
		}
	}
}

// setUnwatched notes why nobody can be told who falls silent, nil when that works, and logs what is news.
func (r *Relay) setWatchErr(err error) {
	r.mu.Lock()
	was := r.watchErr
	r.watchErr = err
	r.mu.Unlock()
	if err != nil && was == nil {
		r.Log.Warn("nobody can be told which VMs fall silent, trying again", "err", err)
	}
}

// tellSilence tells who fell silent, and who came back, if no other relay does.
func (r *Relay) announceSilence(ctx context.Context, st *storage, all []*observer, watchedSince, now time.Time) error {
	var s silenceRecord
	rev, err := st.records.get(ctx, silenceKey, &s)
	if err != nil && !errors.Is(err, errUnreadable) {
		return err
	}
	if len(s.Unpublished) == 0 {
		next, silent, back := s.decide(all, watchedSince, now)
		for _, said := range []struct {
			typ  string
			list [][]*observer
		}{{cloudevent.ObserverSilent, silent}, {cloudevent.ObserverBack, back}} {
			for _, vms := range said.list {
				body, err := r.silenceCloudEvent(said.typ, vms)
				if err != nil {
					return err
				}
				next.Unpublished = append(next.Unpublished, body)
			}
		}
		if len(next.Unpublished) > 0 || len(next.Silent) != len(s.Silent) {
			if rev, err = next.save(ctx, st.records, rev); errors.Is(err, errOvertaken) {
				return nil // another relay was faster
			} else if err != nil {
				return err
			}
		}
		s = next
	}
	r.fleet.setSilent(s.Silent)
	if len(s.Unpublished) == 0 {
		return nil
	}
	for _, body := range s.Unpublished {
		var ce event.Event
		if err := json.Unmarshal(body, &ce); err != nil {
			return err
		}
		if err := r.publish(ctx, st.js, ce, ce.ID()); err != nil {
			return err
		}
		r.Log.Info("told who fell silent or is back", "type", ce.Type(), "vm", ce.Subject(), "id", ce.ID())
	}
	s.Unpublished = nil
	if _, err = s.save(ctx, st.records, rev); errors.Is(err, errOvertaken) {
		return nil
	}
	return err
}

// silenceKey is where the bucket keeps the silence. No sink's keys begin so.
const silenceKey = "silence"

func (s silenceRecord) save(ctx context.Context, b bucket, rev uint64) (uint64, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	return b.put(ctx, silenceKey, body, rev)
}

// aboutObservers is the CloudEvent about VMs that fell silent or came back. This relay says so, about them.
func (r *Relay) silenceCloudEvent(typ string, vms []*observer) (json.RawMessage, error) {
	first, names := vms[0].lastHeard, []string{}
	sets, groups := map[string]bool{}, map[string]bool{}
	for _, o := range vms {
		if o.lastHeard.Before(first) {
			first = o.lastHeard
		}
		if len(names) < maxNamed {
			names = append(names, o.name)
		}
		sets[o.set], groups[o.group] = true, true
	}
	data := map[string]any{"count": len(vms), "vms": names}
	for name, list := range map[string]map[string]bool{"sets": sets, "groups": groups} {
		delete(list, "")
		if sorted := slices.Sorted(maps.Keys(list)); len(sorted) > 0 {
			data[name] = sorted[:min(len(sorted), maxNamed)]
		}
	}
	if typ == cloudevent.ObserverSilent {
		data["since"] = first.UTC()
	}
	ce, _, err := r.newCloudEvent(typ, data)
	if err != nil {
		return nil, err
	}
	if len(vms) == 1 {
		ce.SetSubject(vms[0].name)
	}
	return ce.MarshalJSON()
}

// watchFleet gives all VMs as they are now, once all that the streams hold by now is read, and the servers' time.
func (r *Relay) observersNow(ctx context.Context, st *storage) (now time.Time, all []*observer, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	beats, err := st.js.Stream(ctx, st.heartbeats)
	if err != nil {
		return now, nil, fmt.Errorf("look at stream %s: %w", st.heartbeats, err)
	}
	audit, err := st.stream.Info(ctx)
	if err != nil {
		return now, nil, fmt.Errorf("look at stream %s: %w", r.Stream, err)
	}
	for !r.fleet.caughtUp(audit, beats.CachedInfo()) {
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return now, nil, errors.New("the streams are not read to their end yet")
		}
	}
	now = audit.TimeStamp
	return now, r.fleet.observed(), nil
}

// followHeartbeats reads the last heartbeat of each VM, and those that come, until ctx is done.
func (r *Relay) followHeartbeats(ctx context.Context, st *storage) {
	f := r.fleet
	for ctx.Err() == nil {
		last := jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubject: heartbeatsSubject}
		err := follow(ctx, st.js, st.heartbeats, last, func(m rawMessage) error {
			f.addHeartbeat(m)
			return nil
		})
		if ctx.Err() == nil {
			r.Log.Debug("heartbeats can't be read", "err", err)
		}
		_ = sleep(ctx, readRetry)
	}
}

// A beat is what the data of a heartbeat says.
type heartbeat struct {
	Observer imds.Observer `json:"observer"`
	Every    float64       `json:"every"` // seconds until the next one
	Stopping bool          `json:"stopping"`
}

// longestBeat bounds what a heartbeat may say of the next one.
const maxInterval = forgetVM / (missedHeartbeats + 1)

func (b heartbeat) interval() time.Duration {
	if !(b.Every > 0) { // such as NaN
		return 0
	}
	return min(maxInterval, time.Duration(min(b.Every, maxInterval.Seconds())*float64(time.Second)))
}
