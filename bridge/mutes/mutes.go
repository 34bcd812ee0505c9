// Package mutes makes and ends mutes, which hold deliveries back: see delivery.Mute. It does the same for the bridge, the
// relay and the command.
package mutes

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
)

// The bounds of mutes.
const (
	Longest   = 30 * 24 * time.Hour
	maxActive = 100
)

// New completes the requested mute m, which has its scope, reason and author. all are the existing mutes.
func New(m delivery.Mute, d time.Duration, all []*delivery.Mute, now time.Time) (delivery.Mute, error) {
	active := len(Active(all))
	_, badPattern := path.Match(m.VM, "")
	switch {
	case d <= 0 || d > Longest:
		return m, fmt.Errorf("a mute for %s: expected more than 0 and at most 30 days", delivery.Readable(d))
	case strings.TrimSpace(m.Reason) == "":
		return m, errors.New("a mute needs a reason")
	case badPattern != nil:
		return m, fmt.Errorf("%q is no pattern of VM names; expected one such as vm-db-*", m.VM)
	case active >= maxActive:
		return m, fmt.Errorf("there are %d mutes; end one first", active)
	}
	m.Types = slices.Clone(m.Types)
	for i, azureType := range m.Types {
		at := slices.IndexFunc(imds.Types, func(known string) bool { return imds.SameWord(known, azureType) })
		if at < 0 {
			return m, fmt.Errorf("no event type is called %q; there are %s", azureType, strings.Join(imds.Types, ", "))
		}
		m.Types[i] = imds.Types[at]
	}
	m.Since, m.Until, m.Ended, m.EndedBy, m.LastSeq = now, now.Add(d), time.Time{}, "", 0
	for n := now.Unix(); ; n++ {
		m.ID = strconv.FormatInt(n, 36)
		if !slices.ContainsFunc(all, func(other *delivery.Mute) bool { return other.ID == m.ID }) {
			return m, nil
		}
	}
}

// Active returns the mutes that have not ended.
func Active(all []*delivery.Mute) []*delivery.Mute {
	return slices.DeleteFunc(slices.Clone(all), func(m *delivery.Mute) bool { return !m.Active() })
}

// Until returns until when the sink is muted for all VMs and types; zero if it isn't. people tells whether it is a
// sink for people.
func Until(active []*delivery.Mute, sink string, people bool) (until time.Time) {
	for _, m := range active {
		if m.IsFor(sink, people) && m.VM == "" && len(m.Types) == 0 {
			if m.Until.After(until) {
				until = m.Until.UTC()
			}
		}
	}
	return until
}

// Due returns the mutes that change now: those whose time is over, or whose sink is gone, end. One that began
// further in the future than skew, because the clock was set back since, begins again.
func Due(
	all []*delivery.Mute, gone func(sink string) bool, now time.Time, skew time.Duration,
) (changed []delivery.Mute) {
	for _, m := range Active(all) {
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

// End returns the mutes with these ids, or all, as ended by that user. It fails if one is not active.
func End(
	all []*delivery.Mute, ids []string, every bool, by string, now time.Time,
) (ended []delivery.Mute, err error) {
	active := Active(all)
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

// Data returns the type and data of the CloudEvent about the start or end of a mute.
func Data(m delivery.Mute) (typ string, data map[string]any) {
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

// Log logs that a mute began or ended.
func Log(log *slog.Logger, m delivery.Mute) {
	about := log.With("mute", m.ID, "sink", m.Sink, "people", m.People, "vm", m.VM, "types", m.Types, "reason", m.Reason,
		"by", m.By)
	if m.Active() {
		about.Warn("muted; deliveries wait", "until", m.Until.UTC())
	} else {
		about.Info("mute ended; what waited is delivered", "endedBy", m.EndedBy)
	}
}
