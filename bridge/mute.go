package bridge

import (
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// A Mute holds deliveries back: see delivery.Mute.
type Mute = delivery.Mute

// The bounds of mutes.
const (
	LongestMute = 30 * 24 * time.Hour
	maxMutes    = 100
)

// NewMute completes the requested mute m, which has its scope, reason and author. all are the existing mutes.
func NewMute(m delivery.Mute, d time.Duration, all []*delivery.Mute, now time.Time) (delivery.Mute, error) {
	active := len(ActiveMutes(all))
	_, badPattern := path.Match(m.VM, "")
	switch {
	case d <= 0 || d > LongestMute:
		return m, fmt.Errorf("a mute for %s: expected more than 0 and at most 30 days", delivery.Readable(d))
	case strings.TrimSpace(m.Reason) == "":
		return m, errors.New("a mute needs a reason")
	case badPattern != nil:
		return m, fmt.Errorf("%q is no pattern of VM names; expected one such as vm-db-*", m.VM)
	case active >= maxMutes:
		return m, fmt.Errorf("there are %d mutes; end one first", active)
	}
	m.Types = slices.Clone(m.Types)
	for i, azureType := range m.Types {
		at := slices.IndexFunc(TypesValues, func(known string) bool { return imds.SameWord(known, azureType) })
		if at < 0 {
			return m, fmt.Errorf("no event type is called %q; there are %s", azureType, strings.Join(TypesValues, ", "))
		}
		m.Types[i] = TypesValues[at]
	}
	m.Since, m.Until, m.Ended, m.EndedBy, m.LastSeq = now, now.Add(d), time.Time{}, "", 0
	for n := now.Unix(); ; n++ {
		m.ID = strconv.FormatInt(n, 36)
		if !slices.ContainsFunc(all, func(other *delivery.Mute) bool { return other.ID == m.ID }) {
			return m, nil
		}
	}
}

// ActiveMutes returns the mutes that have not ended.
func ActiveMutes(all []*delivery.Mute) []*delivery.Mute {
	return slices.DeleteFunc(slices.Clone(all), func(m *delivery.Mute) bool { return !m.Active() })
}

// MutedUntil returns until when the sink is muted for all VMs and types; zero if it isn't. people tells whether it is a
// sink for people.
func MutedUntil(active []*delivery.Mute, sink string, people bool) (until time.Time) {
	for _, m := range active {
		if m.IsFor(sink, people) && m.VM == "" && len(m.Types) == 0 {
			until = later(until, m.Until.UTC())
		}
	}
	return until
}

// MutedSinks returns the names of the sinks that the mute is for, of those in the settings.
func MutedSinks(m delivery.Mute, sinks []SinkStatus) (names []string) {
	for _, k := range sinks {
		if k.State != SinkOrphaned && m.IsFor(k.Name, k.People) {
			names = append(names, k.Name)
		}
	}
	return names
}

// DueMutes returns the mutes that change now: those whose time is over, or whose sink is gone, end. One that began
// further in the future than skew, because the clock was set back since, begins again.
func DueMutes(
	all []*delivery.Mute, gone func(sink string) bool, now time.Time, skew time.Duration,
) (changed []delivery.Mute) {
	for _, m := range ActiveMutes(all) {
		next := *m
		switch {
		case m.Sink != "" && gone(m.Sink):
			next.Ended, next.EndedBy = now, "the settings, which no longer have the sink"
		case m.Since.Sub(now) > skew:
			next.Since, next.Until = now, now.Add(m.Until.Sub(m.Since))
		case !now.Before(m.Until):
			next.Ended = now
		default:
			continue
		}
		changed = append(changed, next)
	}
	return changed
}

// EndMutes returns the mutes with these ids, or all, as ended by that user. It fails if one is not active.
func EndMutes(
	all []*delivery.Mute, ids []string, every bool, by string, now time.Time,
) (ended []delivery.Mute, err error) {
	active := ActiveMutes(all)
	for _, id := range ids {
		if !slices.ContainsFunc(active, func(m *delivery.Mute) bool { return m.ID == id }) {
			return nil, fmt.Errorf("there is no mute %q; forewarn mute list shows them", id)
		}
	}
	for _, m := range active {
		if every || slices.Contains(ids, m.ID) {
			next := *m
			next.Ended, next.EndedBy = now, by
			ended = append(ended, next)
		}
	}
	return ended, nil
}

// MuteData returns the type and data of the CloudEvent about the start or end of a mute.
func MuteData(m delivery.Mute) (typ string, data map[string]any) {
	data = map[string]any{"mute": m.ID, "since": m.Since.UTC(), "until": m.Until.UTC(), "reason": m.Reason, "by": m.By}
	for name, v := range map[string]string{"sink": m.Sink, "vm": m.VM, "endedBy": m.EndedBy} {
		if v != "" {
			data[name] = v
		}
	}
	if m.People {
		data["people"] = true
	}
	if len(m.Types) > 0 {
		data["types"] = m.Types
	}
	if m.Active() {
		return cloudevent.SinkMuted, data
	}
	return cloudevent.SinkUnmuted, data
}

// Mutes returns the mutes that have not ended, the oldest first.
func (b *Bridge) Mutes() []*delivery.Mute { return ActiveMutes(b.Outbox.Mutes()) }

// Mute holds deliveries back for d. m has its scope, reason and author. It returns the mute with its id.
func (b *Bridge) Mute(m delivery.Mute, d time.Duration) (delivery.Mute, error) {
	err := b.changeMutes(func(all []*delivery.Mute) (changed []delivery.Mute, err error) {
		m, err = NewMute(m, d, all, time.Now())
		return []delivery.Mute{m}, err
	})
	return m, err
}

// Unmute ends mutes by their ids, or all with every. by names the user, for the record.
func (b *Bridge) Unmute(ids []string, every bool, by string) (ended []delivery.Mute, err error) {
	err = b.changeMutes(func(all []*delivery.Mute) ([]delivery.Mute, error) {
		ended, err = EndMutes(all, ids, every, by, time.Now())
		return ended, err
	})
	return ended, err
}

// endMutes ends the mutes whose time is over, or whose sink is gone.
func (b *Bridge) endMutes() {
	_ = b.changeMutes(func(all []*delivery.Mute) ([]delivery.Mute, error) { // never fails
		b.mu.Lock()
		routes := b.routes
		b.mu.Unlock()
		return DueMutes(all, func(sink string) bool {
			return !slices.ContainsFunc(routes, func(r Route) bool { return r.Name == sink })
		}, time.Now(), 0), nil // not earlier: one may have begun just now
	})
}

// changeMutes stores the changed mutes and the CloudEvents about them in one batch. It returns when they are on disk,
// or cannot be written: then they hold until the next start.
func (b *Bridge) changeMutes(changes func(all []*delivery.Mute) ([]delivery.Mute, error)) error {
	b.muting.Lock()
	changed, err := changes(b.Outbox.Mutes())
	if err != nil || len(changed) == 0 {
		b.muting.Unlock()
		return err
	}
	c := commit{Batch: outbox.Batch{Mutes: changed}}
	for _, m := range changed {
		typ, data := MuteData(m)
		b.addReport(&c, typ, data, m.Sink)
	}
	wait := b.commit(c, time.Now())
	b.muting.Unlock()
	for _, m := range changed {
		LogMute(b.Log, m)
	}
	_ = wait() // the outbox logs its errors
	return nil
}

// LogMute logs that a mute began or ended.
func LogMute(log *slog.Logger, m delivery.Mute) {
	about := log.With("mute", m.ID, "sink", m.Sink, "people", m.People, "vm", m.VM, "types", m.Types, "reason", m.Reason,
		"by", m.By)
	if m.Active() {
		about.Warn("muted; deliveries wait", "until", m.Until.UTC())
	} else {
		about.Info("mute ended; what waited is delivered", "endedBy", m.EndedBy)
	}
}
