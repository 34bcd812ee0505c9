package sinks

import (
	"fmt"
	"strings"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// incidentKey returns what all messages about one event of Azure's, or about one trouble of forewarn, have in common.
// A service that opens incidents finds by it the one to close. A test, and what has no end, has a key of its own.
//
// What one VM reports, only the same VM ends, by its vmId; what a relay reports, any relay of that stream.
func incidentKey(f map[string]any) string {
	data, _ := f["data"].(map[string]any)
	observer, _ := data["observer"].(map[string]any)
	whose := f["observer"]
	if id := observer["vmId"]; id != nil {
		whose = id
	}
	if stream := data["stream"]; stream != nil {
		whose = fmt.Sprintf("%v-%v", stream, data["streamCreated"])
	}
	switch typ, _ := f["type"].(string); {
	case strings.HasPrefix(typ, cloudevent.EventPrefix):
		return fmt.Sprint(f["subject"])
	case typ == cloudevent.SinkBlocked, typ == cloudevent.SinkRecovered:
		return fmt.Sprintf("forewarn-%v-sink-%v", whose, data["sink"])
	case typ == cloudevent.SinkMuted, typ == cloudevent.SinkUnmuted:
		return fmt.Sprintf("forewarn-%v-mute-%v", whose, data["mute"])
	case typ == cloudevent.OutboxUnwritable, typ == cloudevent.OutboxWritable:
		return fmt.Sprintf("forewarn-%v-outbox", whose)
	case typ == cloudevent.IMDSUnavailable, typ == cloudevent.IMDSRecovered: // perhaps before the vmId was known
		return fmt.Sprintf("forewarn-%v-imds", f["observer"])
	case fmt.Sprint(data["count"]) == "1" && (typ == cloudevent.ObserverSilent || typ == cloudevent.ObserverBack):
		groups, _ := data["groups"].([]any)
		return fmt.Sprintf("forewarn-observer-%v-%s", f["subject"], strings.ToLower(fmt.Sprint(groups...)))
	}
	return fmt.Sprint(f["id"])
}

// resolved reports whether a CloudEvent of that type ends what incidentKey names.
func resolved(typ string) bool {
	return oneOf(typ, cloudevent.EventPrefix+string(imds.Vanished), cloudevent.SinkRecovered, cloudevent.SinkUnmuted,
		cloudevent.OutboxWritable, cloudevent.IMDSRecovered, cloudevent.ObserverBack)
}
