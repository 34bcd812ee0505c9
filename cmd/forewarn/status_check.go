package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/cmd/forewarn/internal/wording"
)

// A pluginState is the result of a monitoring plugin, and its exit code: see the guidelines of the Monitoring Plugins,
// https://www.monitoring-plugins.org/doc/guidelines.html.
type pluginState int

const (
	pluginOK pluginState = iota
	pluginWarning
	pluginCritical
	pluginUnknown
)

func (s pluginState) String() string { return [...]string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}[s] }

// exit returns the error with which a command ends as a plugin: it has said all on standard output.
func (s pluginState) exit() error {
	if s == pluginOK {
		return nil
	}
	return exit(int(s), errors.New(""))
}

// pluginLine returns what a plugin says: one line, in which | begins the data for graphs.
func pluginLine(s pluginState, text, data string) string {
	line := fmt.Sprintf("FOREWARN %s: %s", s, strings.ReplaceAll(wording.Printable(text), "|", "/"))
	if data != "" {
		line += " | " + data
	}
	return line + "\n"
}

// checkStatus judges a status as a plugin does. It is critical if forewarn isn't ready or a sink needs somebody, and a
// warning if an event is open, a sink fails, or the newest settings are wrong.
func checkStatus(s bridge.Status, now time.Time) (state pluginState, line string) {
	zone := s.Settings.Location()
	var words []string
	note := func(at pluginState, format string, args ...any) {
		state = max(state, at)
		words = append(words, fmt.Sprintf(format, args...))
	}
	if !s.Ready {
		note(pluginCritical, "not ready: %s", strings.Join(s.Reasons, "; "))
	}
	failing := 0
	for _, k := range wording.ByNeed(s.Sinks, now) {
		words, class := wording.SinkState(k, now, zone)
		needed := class == bridge.SinkIsBlocked
		fails := class == bridge.SinkRetrying && k.MutedUntil.IsZero() && k.Muted == 0
		switch {
		case needed:
			note(pluginCritical, "sink %s needs somebody: %s", k.Name, wording.SinkError(k))
		case fails:
			note(pluginWarning, "sink %s: %s: %s", k.Name, words, wording.SinkError(k))
		}
		if needed || fails {
			failing++
		}
	}
	if events := wording.ByUrgency(s.Events); len(events) > 0 {
		note(pluginWarning, "%s, %s", wording.Plural(len(events), "event is open", "events are open"),
			nearest(events[0], now, zone))
	}
	if s.Settings.LastError != "" {
		note(pluginWarning, "the newest settings are wrong")
	}
	if len(words) == 0 {
		words = []string{"ready, no events, " + wording.Plural(len(s.Sinks), "sink works", "sinks work")}
	}
	data := fmt.Sprintf("events=%d;;;0 pending=%d;;;0 dead_letters=%d;;;0 sinks_failing=%d;;;0;%d",
		len(s.Events), s.Outbox.Pending, s.Outbox.DeadLetters, failing, len(s.Sinks))
	return state, pluginLine(state, strings.Join(words, "; "), data)
}

// nearest says what an event is, and when it begins: "Reboot of vm-0, 04:06:00 UTC at the earliest".
func nearest(e bridge.EventStatus, now time.Time, zone *time.Location) string {
	azure := wording.ReadEvent(e.Event)
	what := fmt.Sprintf("%s of %s", azure.EventType, strings.Join(wording.First(azure.Resources, 3), ", "))
	switch {
	case azure.EventStatus == wording.Started:
		return what + " has begun"
	case e.NotBefore.IsZero():
		return what + ", Azure does not say when"
	}
	return what + ", " + wording.Begins(e.NotBefore, e.Rules, e.Asked, now, zone)
}
