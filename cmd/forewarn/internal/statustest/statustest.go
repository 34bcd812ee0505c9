// Package statustest provides a sample status and sample Azure events for tests of what people see.
package statustest

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"
	_ "time/tzdata" // a sample has a time zone, and Windows has no names of them

	"github.com/google/uuid"

	"forewarn/bridge"
	"forewarn/bridge/imds"
)

// EventID returns an EventId, always the same for a label.
func EventID(label string) string {
	return strings.ToUpper(uuid.NewSHA1(uuid.NameSpaceOID, []byte(label)).String())
}

// Observer is the VM of Status.
var Observer = imds.Observer{
	Name: "vm-db-1", ResourceGroup: "prod-db", Location: "westeurope",
	ResourceID: "/subscriptions/8d10da13-8125-4ba9-a717-bf7490507b3d/resourceGroups/prod-db" +
		"/providers/Microsoft.Compute/virtualMachines/vm-db-1",
}

// Event returns an event as Azure sends it, due at notBefore, or started if that is zero.
func Event(id, typ, source, description string, notBefore time.Time, duration int, vms ...string) json.RawMessage {
	status, when := "Scheduled", ""
	if notBefore.IsZero() {
		status = "Started"
	} else {
		when = notBefore.UTC().Format(http.TimeFormat)
	}
	raw, err := json.Marshal(map[string]any{
		"EventId": id, "EventStatus": status, "EventType": typ, "ResourceType": "VirtualMachine", "Resources": vms,
		"NotBefore":   when,
		"Description": description, "EventSource": source, "DurationInSeconds": duration,
	})
	if err != nil {
		panic(err) // texts and numbers only
	}
	return raw
}

// Status returns the status of a bad night: a freeze has started, a reboot is scheduled, and a sink is blocked.
func Status(now time.Time) bridge.Status {
	const day = 24 * time.Hour
	reboot, freeze := EventID("reboot"), EventID("freeze")
	due := now.Add(14*time.Minute + 12*time.Second)
	return bridge.Status{
		Version: "1.0.0", StartedAt: now.Add(-9 * day), Ready: true, Reasons: []string{}, Observer: Observer,
		IMDS: bridge.IMDSStatus{Endpoint: "http://169.254.169.254", APIVersion: "2020-07-01", LastAnswer: now},
		Events: []bridge.EventStatus{
			{Event: Event(freeze, "Freeze", "Platform",
				"Virtual machine is being paused because of a memory-preserving Live Migration operation.",
				time.Time{}, 5, "vm-db-3")},
			{Event: Event(reboot, "Reboot", "Platform", "Host server is undergoing maintenance.", due, -1, "vm-db-1", "vm-db-2"),
				NotBefore: due, SecondsLeft: due.Sub(now).Seconds(), AffectsSelf: true},
		},
		Sinks: []bridge.SinkStatus{
			{Name: "audit", Kind: "file", State: bridge.SinkOK, Delivered: 34, LastAccepted: now.Add(-48 * time.Second)},
			{Name: "ops-chat", Kind: "slack", State: bridge.SinkIsBlocked, Pending: 3, OldestPending: now.Add(-2 * time.Hour),
				Delivered:    21,
				LastAccepted: now.Add(-9 * time.Hour), LastError: "blocked: invalid_auth", NextAttempt: now.Add(31 * time.Second)},
			{Name: "runbook", Kind: "webhook", State: bridge.SinkOK, Delivered: 12, DeadLetters: 1,
				LastAccepted: now.Add(-47 * time.Second)},
		},
		Outbox:   bridge.OutboxStatus{Durable: true, Bytes: 96 << 10, Pending: 3, DeadLetters: 1},
		Settings: bridge.SettingsInfo{Hash: "0c0ffee00123", LoadedAt: now.Add(-3 * day), Timezone: "Europe/Berlin"},
	}
}
