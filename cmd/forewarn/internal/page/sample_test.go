package page

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/statustest"
)

// sampleHistory is the life of an event: announced so long ago, begun and over so long after; 0 for what did not come.
func sampleHistory(now time.Time, label, typ string, ago, begun, over time.Duration, o cloudevent.Outcome,
	vms ...string) bridge.EventHistory {
	l := bridge.EventHistory{Event: statustest.EventID(label), Type: typ, Source: "Platform", Resources: vms, Outcome: o}
	at := now.Add(-ago)
	add := func(kind imds.ChangeKind, at time.Time) {
		l.Changes = append(l.Changes, bridge.HistoryChange{
			ID: l.Event + "-" + string(kind), Change: kind, Time: at, Observer: statustest.Observer.Name,
			Deliveries: []bridge.HistoryDelivery{{Route: "audit", State: "accepted"}, {Route: "ops-chat", State: "accepted"}},
		})
	}
	add(imds.Scheduled, at)
	if begun > 0 {
		add(imds.Started, at.Add(begun))
	}
	if over > 0 {
		add(imds.Vanished, at.Add(over))
	}
	return l
}

// sampleFacts are what an operator may see on a bad night, with two events ahead and a month behind.
func sampleFacts(now time.Time) pageFacts {
	const day = 24 * time.Hour
	freeze := statustest.EventID("freeze")
	f := pageFacts{
		Histories: []bridge.EventHistory{
			sampleHistory(now, "1", "Freeze", 29*day, 15*time.Minute, 16*time.Minute, cloudevent.OutcomeCompleted, "vm-db-1"),
			sampleHistory(now, "2", "Redeploy", 25*day, 10*time.Minute, 25*time.Minute, cloudevent.OutcomeCompleted, "vm-db-2"),
			sampleHistory(now, "3", "Freeze", 22*day, 15*time.Minute, 16*time.Minute, cloudevent.OutcomeCompleted, "vm-db-3"),
			sampleHistory(now, "4", "Reboot", 19*day, 0, 2*day, cloudevent.OutcomeCanceled, "vm-db-1"),
			sampleHistory(now, "5", "Reboot", 16*day, 3*day, 3*day+time.Hour, cloudevent.OutcomeCompleted, "vm-db-1", "vm-db-2"),
			sampleHistory(now, "6", "Freeze", 12*day, 0, 3*time.Hour, cloudevent.OutcomeUnknown, "vm-db-1"),
			sampleHistory(now, "7", "Freeze", 9*day, 15*time.Minute, 16*time.Minute, cloudevent.OutcomeCompleted, "vm-db-1"),
			sampleHistory(now, "8", "Freeze", 5*day, 15*time.Minute, 16*time.Minute, cloudevent.OutcomeCompleted, "vm-db-2"),
			sampleHistory(now, "freeze", "Freeze", 15*time.Minute+8*time.Second, 15*time.Minute, 0, "", "vm-db-3"),
			sampleHistory(now, "reboot", "Reboot", 48*time.Second, 0, 0, "", "vm-db-1", "vm-db-2"),
		},
		Status: statustest.Status(now),
		Dead: []outbox.Delivery{{
			Key: "runbook/812", Route: "runbook", State: outbox.StateDead, Reason: delivery.ReasonRejected,
			DeadSince: now.Add(-14 * time.Minute),
			Item: delivery.Item{Error: "rejected: 422 Unprocessable Entity", Message: &delivery.Message{
				ID: freeze + "-scheduled", Type: cloudevent.EventPrefix + "scheduled", Group: freeze, Change: "scheduled",
				AzureType: "Freeze",
			}},
		}},
	}
	return f
}

// calmFacts are sampleFacts on a good night: one reboot ahead, and nothing that needs anybody.
func calmFacts(now time.Time) pageFacts {
	f := sampleFacts(now)
	f.Dead, f.Status.Outbox = nil, bridge.OutboxStatus{Durable: true, Bytes: 96 << 10}
	f.Status.Events = f.Status.Events[1:]
	f.Histories = slices.DeleteFunc(f.Histories, func(l bridge.EventHistory) bool { return l.Event == statustest.EventID("freeze") })
	for i, k := range f.Status.Sinks {
		f.Status.Sinks[i] = bridge.SinkStatus{
			Name: k.Name, Kind: k.Kind, State: bridge.SinkOK, Delivered: k.Delivered, LastAccepted: now.Add(-47 * time.Second),
		}
	}
	return f
}

// hostileFacts are sampleFacts with markup in every text that comes from outside.
func hostileFacts(now time.Time) pageFacts {
	const evil = `<img src=x onerror=document.title='taken'>"'&{{.}}</script>` + "\u202e"
	f := sampleFacts(now)
	f.Err = errors.New(evil)
	s := &f.Status
	s.Reasons, s.Ready, s.Version = []string{evil}, false, evil
	s.Observer = imds.Observer{Name: evil, ResourceGroup: evil, Location: evil, ScaleSet: evil}
	s.IMDS = bridge.IMDSStatus{Endpoint: evil, APIVersion: evil, LastError: evil, LastAnswer: now}
	s.Settings.LastError, s.Settings.Hash = evil, evil
	for i := range s.Events {
		at := now.Add(time.Duration(i) * time.Hour)
		s.Events[i].Approval = evil
		s.Events[i].Event = statustest.Event(evil+fmt.Sprint(i), evil, evil, evil, at, i, evil, evil+"2")
	}
	for i := range s.Sinks {
		s.Sinks[i].LastError, s.Sinks[i].Kind, s.Sinks[i].Name = evil, evil, evil
	}
	for i := range f.Histories {
		l := &f.Histories[i]
		l.Source, l.Resources = evil, []string{evil, strings.Repeat(evil, 50)}
		if i%2 == 0 {
			l.Type = evil
		}
		for j := range l.Changes {
			l.Changes[j].Observer = evil
			l.Changes[j].Deliveries = []bridge.HistoryDelivery{{Route: evil, State: "accepted"}}
		}
	}
	for i := range f.Dead {
		d := &f.Dead[i]
		d.Key, d.Route, d.Type, d.Error, d.AzureType, d.Reason = evil, evil, evil, evil, evil, evil
	}
	return f
}
