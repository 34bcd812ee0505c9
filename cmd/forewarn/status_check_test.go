package main

import (
	"encoding/json"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
)

// Monitoring is told the worst, everything in one line, and no | of another's begins the data.
func TestTheCheckOfTheStatusIsOneLine(t *testing.T) {
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	ready := bridge.Status{Ready: true, Sinks: []bridge.SinkStatus{{Name: "chat", State: bridge.SinkOK}}}
	blocked, muted, broken, down := ready, ready, ready, ready
	blocked.Sinks = []bridge.SinkStatus{{Name: "chat", State: bridge.SinkIsBlocked, Pending: 2, LastError: "401\n|no", NeededSince: now.Add(-time.Minute)}}
	muted.Sinks = []bridge.SinkStatus{{Name: "chat", State: bridge.SinkRetrying, Pending: 1, Muted: 1, MutedUntil: now.Add(time.Hour)}}
	broken.Settings.LastError = "line 3: unknown key"
	down.Ready, down.Reasons = false, []string{"the endpoint has not answered yet"}
	opened := func(after time.Duration, rules ...cloudevent.Rule) bridge.Status {
		s := ready
		s.Events = []bridge.EventStatus{{Event: json.RawMessage(`{"EventType":"Reboot","Resources":["vm-0"]}`), NotBefore: now.Add(after), Rules: rules}}
		return s
	}
	for _, c := range []struct {
		what   string
		status bridge.Status
		state  pluginState
		line   string
	}{
		{"ready", ready, pluginOK, "FOREWARN OK: ready, no events, 1 sink works | events=0;;;0 pending=0;;;0 dead_letters=0;;;0 sinks_failing=0;;;0;1\n"},
		{"a sink that needs somebody", blocked, pluginCritical, "FOREWARN CRITICAL: sink chat needs somebody: 401 /no | events=0;;;0 pending=0;;;0 dead_letters=0;;;0 sinks_failing=1;;;0;1\n"},
		{"a mute", muted, pluginOK, "FOREWARN OK: ready, no events, 1 sink works | events=0;;;0 pending=0;;;0 dead_letters=0;;;0 sinks_failing=0;;;0;1\n"},
		{"wrong settings", broken, pluginWarning, "FOREWARN WARNING: the newest settings are wrong | events=0;;;0 pending=0;;;0 dead_letters=0;;;0 sinks_failing=0;;;0;1\n"},
		{"an event", opened(time.Minute), pluginWarning, "FOREWARN WARNING: 1 event is open, Reboot of vm-0, 04:01:00 UTC at the earliest | events=1;;;0 pending=0;;;0 dead_letters=0;;;0 sinks_failing=0;;;0;1\n"},
		{"a rule will approve it", opened(time.Minute, cloudevent.Rule{Name: "rule 1"}), pluginWarning,
			"FOREWARN WARNING: 1 event is open, Reboot of vm-0, 04:01:00 UTC at the latest | events=1;;;0 pending=0;;;0 dead_letters=0;;;0 sinks_failing=0;;;0;1\n"},
		{"its time has passed", opened(-time.Minute, cloudevent.Rule{Name: "rule 1"}), pluginWarning,
			"FOREWARN WARNING: 1 event is open, Reboot of vm-0, due since 03:59:00 UTC | events=1;;;0 pending=0;;;0 dead_letters=0;;;0 sinks_failing=0;;;0;1\n"},
		{"no answer", down, pluginCritical, "FOREWARN CRITICAL: not ready: the endpoint has not answered yet | events=0;;;0 pending=0;;;0 dead_letters=0;;;0 sinks_failing=0;;;0;1\n"},
	} {
		if state, line := checkStatus(c.status, now); state != c.state || line != c.line {
			t.Errorf("%s: %v, %q; want %v, %q", c.what, state, line, c.state, c.line)
		}
	}
}
