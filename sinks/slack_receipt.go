package sinks

import (
	"encoding/json"
	"strings"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
)

// A slackReceipt is what the sink remembers about an Azure event: where its root is.
type slackReceipt struct {
	To      string `json:"to"`              // the channel in the settings when the root was posted
	Channel string `json:"channel"`         // its id at Slack
	TS      string `json:"ts"`              // the root's timestamp, which is its id
	Group   bool   `json:"group,omitempty"` // the root is about several events, and is never updated
}

// answer returns the answer for a message with the timestamp ts, and the receipt. "" means that nothing was posted.
func (r slackReceipt) answer(ts string) delivery.Answer {
	raw, _ := json.Marshal(r) // texts always can be
	a := delivery.Answer{ID: ts, Receipt: raw}
	if ts != "" {
		a.Status = "ok"
	}
	return a
}

// receipt returns the receipt of a batch. It names no root if there is none in the settings' channel, or if the events
// of a group have different roots.
func (k *slackSink) receipt(batch []delivery.Delivery) slackReceipt {
	var r slackReceipt
	if !isAzure(batch) {
		return r
	}
	for i, d := range batch {
		var one slackReceipt
		if d.Receipt == nil || json.Unmarshal(d.Receipt, &one) != nil || one.To != k.channel ||
			!validSlackID(one.Channel) || !validSlackID(one.TS) || len(batch) > 1 && !one.Group {
			one = slackReceipt{}
		}
		if i == 0 {
			r = one
		} else if one.TS != r.TS || one.Channel != r.Channel {
			return slackReceipt{}
		}
	}
	return r
}

// isAzure reports whether a batch is about Azure's events, and not about the bridge.
func isAzure(batch []delivery.Delivery) bool {
	return strings.HasPrefix(batch[0].Event.Type(), cloudevent.EventPrefix)
}
