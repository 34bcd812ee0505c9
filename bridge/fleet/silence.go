package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
)

// The rules of silence.
const (
	missedHeartbeats = 3                // in a row, until a VM counts as silent
	minSilence       = time.Minute      // at least
	minGather        = 10 * time.Second // VMs that fall silent, or come back, within it are announced together; see gather
	maxGather        = time.Minute
	maxSeparate      = 10               // with more VMs than this they share one CloudEvent
	maxNamed         = 20               // VMs named in one CloudEvent
	maxSilent        = 20_000           // silent VMs that are remembered; others are announced when there is room
	observeEvery     = 5 * time.Second  // how often all VMs are looked at
	maxUnwatched     = 30 * time.Second // after a longer break, heartbeats missed in it do not count as silence
)

// An observer is a VM whose bridge publishes, as seen at one time.
type observer struct {
	key, name, set, group string
	lastHeard             time.Time     // by the clock of the stream's servers
	heardHere             time.Time     // when this relay heard that
	backSince             time.Time     // when this relay heard the first message after its last silence
	interval              time.Duration // of its heartbeats; 0 if it sends none
	stopped               bool          // its bridge announced that it was stopping
	excused               bool          // an Azure event explains that it is silent
	eventEnded            time.Time     // when this relay heard that the last event ended that had started on it
}

// gather returns how long others may follow the VM before it is announced: the longer, the less often it is heard.
func (o *observer) gather() time.Duration { return min(maxGather, max(minGather, o.interval/5)) }

// silentAt returns when the VM counts as silent if it publishes nothing more; zero if it never does. Silence before
// watchedSince doesn't count, because no relay watched.
func (o *observer) silentAt(watchedSince time.Time) time.Time {
	if o.interval <= 0 || o.stopped || o.excused {
		return time.Time{}
	}
	since := o.heardHere
	for _, at := range []time.Time{watchedSince, o.eventEnded} {
		if at.After(since) {
			since = at
		}
	}
	return since.Add(silentAfter(o.interval))
}

// silentAfter returns after how long without a heartbeat a VM counts as silent.
func silentAfter(interval time.Duration) time.Duration {
	return max(missedHeartbeats*interval, minSilence)
}

// A silenceRecord is what all relays of a stream remember of silent VMs. The relay that writes a new revision publishes
// what is in Unpublished. If it is killed before, the others do. A CloudEvent that is published twice has the same id,
// so the stream and the sinks recognise it.
type silenceRecord struct {
	Silent      map[string]time.Time `json:"silent,omitempty"`      // when they were last heard, by the digest of observer.key
	Unpublished []json.RawMessage    `json:"unpublished,omitempty"` // CloudEvents that are not known to be in the stream
}

// decide returns the VMs to be announced as silent and as back, by CloudEvent, and the record that remembers them. Only
// this relay's clock decides how long a VM is silent: the streams may be led by servers whose clocks differ.
func (s silenceRecord) decide(
	all []*observer, watchedSince, now time.Time,
) (next silenceRecord, silent, back [][]*observer) {
	next = silenceRecord{Silent: maps.Clone(s.Silent), Unpublished: s.Unpublished}
	if next.Silent == nil {
		next.Silent = map[string]time.Time{}
	}
	var fell, returned []*observer
	tellSilent, tellBack := false, false // the first of them has waited for others
	for _, o := range all {
		lastHeard, wasSilent := findSilent(s.Silent, o.key)
		at := o.silentAt(watchedSince)
		switch {
		case wasSilent && o.lastHeard.After(lastHeard):
			returned = append(returned, o)
			tellBack = tellBack || now.Sub(o.backSince) >= o.gather()
		case !wasSilent && !at.IsZero() && !at.After(now) && now.Sub(o.lastHeard) < ForgetVM:
			fell = append(fell, o)
			tellSilent = tellSilent || now.Sub(at) >= o.gather()
		}
	}
	for vm, heard := range next.Silent {
		if now.Sub(heard) >= ForgetVM {
			delete(next.Silent, vm)
		}
	}
	if tellBack {
		back = messages(returned)
		for _, o := range returned {
			delete(next.Silent, streams.ShortHash(o.key))
		}
	}
	if room := max(0, maxSilent-len(next.Silent)); len(fell) > room {
		slices.SortFunc(fell, func(a, b *observer) int { return a.lastHeard.Compare(b.lastHeard) })
		fell = fell[:room]
	}
	if tellSilent {
		silent = messages(fell)
		for _, o := range fell {
			// Rounded up, so that the record of maxSilent VMs is no larger than a server takes, and none counts as back.
			next.Silent[streams.ShortHash(o.key)] = o.lastHeard.Add(time.Second - 1).Truncate(time.Second)
		}
	}
	return next, silent, back
}

// findSilent looks up a VM among the silent ones, and returns when it was last heard before.
func findSilent(silent map[string]time.Time, key string) (last time.Time, told bool) {
	if len(silent) == 0 {
		return last, false
	}
	last, told = silent[streams.ShortHash(key)]
	return last, told
}

// messages groups VMs by CloudEvent: one each, or all in one.
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

// Watch reads heartbeats, notices which VMs fall silent and which come back, and has it told, until ctx is done.
func (f *Fleet) Watch(ctx context.Context, src Source) {
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { f.followHeartbeats(ctx, src) })
	var watchedSince, lastLook time.Time // since when it watches without a break, and the last look
	for streams.Sleep(ctx, observeEvery) == nil {
		now, all, err := f.observersNow(ctx, src)
		if err == nil && now.Sub(lastLook) > maxUnwatched {
			watchedSince = now
		}
		if err == nil {
			lastLook = now
			err = f.announceSilence(ctx, src, all, watchedSince, now)
		}
		if ctx.Err() == nil {
			f.setWatchErr(err)
		}
	}
}

// setWatchErr records why silent VMs can't be noticed, nil if they can, and logs the first of such errors.
func (f *Fleet) setWatchErr(err error) {
	err = streams.Plain(err)
	f.mu.Lock()
	was := f.watchErr
	f.watchErr = err
	f.mu.Unlock()
	if err != nil && was == nil {
		f.Log.Warn("nobody can be told which VMs fall silent, trying again", "err", err)
	}
}

// WatchErr returns why silent VMs can't be noticed; nil if they can.
func (f *Fleet) WatchErr() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watchErr
}

// announceSilence publishes which VMs fell silent or came back, unless another relay does.
func (f *Fleet) announceSilence(ctx context.Context, src Source, all []*observer, watchedSince, now time.Time) error {
	var s silenceRecord
	rev, err := src.Bucket.Get(ctx, silenceKey, &s)
	if err != nil && !errors.Is(err, streams.ErrUnreadable) {
		return err
	}
	if len(s.Unpublished) == 0 {
		next, silent, back := s.decide(all, watchedSince, now)
		for _, said := range []struct {
			typ  string
			list [][]*observer
		}{{cloudevent.ObserverSilent, silent}, {cloudevent.ObserverBack, back}} {
			for _, vms := range said.list {
				body, err := f.silenceCloudEvent(said.typ, vms)
				if err != nil {
					return err
				}
				next.Unpublished = append(next.Unpublished, body)
			}
		}
		if len(next.Unpublished) > 0 || len(next.Silent) != len(s.Silent) {
			rev, err = next.save(ctx, src.Bucket, rev)
			if errors.Is(err, streams.ErrOvertaken) {
				return nil // another relay was faster
			} else if err != nil {
				return err
			}
		}
		s = next
	}
	f.setSilent(s.Silent)
	if len(s.Unpublished) == 0 {
		return nil
	}
	for _, body := range s.Unpublished {
		ce, err := cloudevent.Decode(body)
		if err != nil {
			return err
		}
		if err := f.Publish(ctx, ce); err != nil {
			return err
		}
		f.Log.Info("told who fell silent or is back", "type", ce.Type(), "vm", ce.Subject(), "id", ce.ID())
	}
	s.Unpublished = nil
	_, err = s.save(ctx, src.Bucket, rev)
	if errors.Is(err, streams.ErrOvertaken) {
		return nil
	}
	return err
}

// silenceKey is the key of the silenceRecord. No sink's key begins like it.
const silenceKey = "silence"

func (s silenceRecord) save(ctx context.Context, b streams.Bucket, rev uint64) (uint64, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	return b.Put(ctx, silenceKey, body, rev)
}

// silenceCloudEvent returns the CloudEvent about VMs that fell silent or came back. Its observer is this relay.
func (f *Fleet) silenceCloudEvent(typ string, vms []*observer) (json.RawMessage, error) {
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
	ce, err := f.NewCloudEvent(typ, data)
	if err != nil {
		return nil, err
	}
	if len(vms) == 1 {
		ce.SetSubject(vms[0].name)
	}
	return ce.MarshalJSON()
}

// observersNow returns all VMs, and the time, once everything that the streams hold now is read.
func (f *Fleet) observersNow(ctx context.Context, src Source) (now time.Time, all []*observer, err error) {
	ctx, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	lastHeartbeat, err := src.lastHeartbeat(ctx)
	if err != nil {
		return now, nil, fmt.Errorf("look at stream %s: %w", src.Heartbeats, err)
	}
	if err := f.catchUp(ctx, src, lastHeartbeat); err != nil {
		return now, nil, err
	}
	now = time.Now()
	return now, f.observed(now), nil
}

// CatchUp waits until everything that the stream holds now is taken in.
func (f *Fleet) CatchUp(ctx context.Context, src Source) error { return f.catchUp(ctx, src, 0) }

// catchUp waits until everything that the stream holds now is taken in, and the heartbeats up to that one.
func (f *Fleet) catchUp(ctx context.Context, src Source, lastHeartbeat uint64) error {
	audit, err := src.Stream.Info(ctx)
	var last uint64
	if err == nil {
		last, err = f.lastToRead(ctx, src, audit)
	}
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", src.name(), err)
	}
	for !f.caughtUp(last, lastHeartbeat) {
		if err := streams.Sleep(ctx, 50*time.Millisecond); err != nil {
			return errors.New("the streams are not read to their end yet")
		}
	}
	return nil
}

// lastToRead returns the sequence number up to which the stream is to be taken in, 0 if all of it is older than
// period. The last number that the stream gave may be that of a message which was deleted.
func (f *Fleet) lastToRead(ctx context.Context, src Source, audit *jetstream.StreamInfo) (uint64, error) {
	if audit.State.Msgs == 0 || streams.TimeOf(audit).Sub(audit.State.LastTime) >= period {
		return 0, nil
	}
	if read := f.readTo(); read < audit.State.LastSeq {
		from, more := streams.StartAfter(read), false
		if read == 0 { // as Follow
			from = streams.StartAt(streams.TimeOf(audit).Add(-period))
		}
		err := streams.ReadToEnd(ctx, src.JS, src.name(), from, func(streams.Raw) error {
			more = true
			return streams.ErrStop
		})
		if err != nil || !more {
			return read, err
		}
	}
	return audit.State.LastSeq, nil
}

// lastHeartbeat returns the sequence number of the last heartbeat, 0 if there is none. In a stream that takes other
// messages too it is that of one message, which the relay has the right to read there.
func (src Source) lastHeartbeat(ctx context.Context) (seq uint64, err error) {
	if src.Heartbeats == src.name() {
		last, err := streams.Last(ctx, src.JS, src.Heartbeats, streams.HeartbeatsSubject)
		return last.Seq, err
	}
	beats, err := src.JS.Stream(ctx, src.Heartbeats)
	if err != nil {
		return 0, err
	}
	if state := beats.CachedInfo().State; state.Msgs > 0 {
		seq = state.LastSeq
	}
	return seq, nil
}

// A heartbeat is the data of a heartbeat's CloudEvent.
type heartbeat struct {
	Observer imds.Observer `json:"observer"`
	Interval float64       `json:"interval"` // seconds until the next one
	Stopping bool          `json:"stopping"`
}

// maxInterval is the longest interval of heartbeats that is believed.
const maxInterval = ForgetVM / (missedHeartbeats + 1)

func (b heartbeat) interval() time.Duration {
	if !(b.Interval > 0) { // such as NaN
		return 0
	}
	return min(maxInterval, time.Duration(min(b.Interval, maxInterval.Seconds())*float64(time.Second)))
}
