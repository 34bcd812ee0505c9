package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

// forecastText says which rules would approve an event and what they wait for, or "no: " and why none would.
func forecastText(forecasts []bridge.Forecast) string {
	var approving, refusing []string
	for _, f := range forecasts {
		if f.Approves {
			approving = append(approving, f.Rule+" "+afterText(f))
		} else {
			refusing = append(refusing, f.Rule+": "+f.Why)
		}
	}
	if len(approving) > 0 {
		return strings.Join(approving, "; ")
	}
	return "no: " + strings.Join(refusing, "; ")
}

// afterText says what a rule waits for.
func afterText(f bridge.Forecast) string {
	what := strings.Join(f.After, ", ")
	switch {
	case what == "" && f.Wait == 0:
		return "at once"
	case what == "":
		return "after " + wording.Duration(f.Wait)
	case f.Wait == 0:
		return "after " + what
	}
	return "after " + what + " and " + wording.Duration(f.Wait)
}

// forecastApproval sets row.Approval to what the rules would decide about the sample, given the sinks that would get
// it.
func (row *sampleRow) forecastApproval(
	rules []bridge.Rule, sample cloudevent.Sample, self string, now time.Time,
) error {
	switch {
	case len(rules) == 0:
		return nil
	case sample.Change.Kind == imds.Vanished: // nothing left to approve
		row.Approval = "-"
		return nil
	}
	ce, err := sample.CloudEvent(imds.Observer{Name: self}, now)
	if err != nil {
		return err
	}
	passes := func(sink string) (time.Time, bool) {
		return time.Time{}, strings.HasPrefix(row.Sinks[sink], "told")
	}
	row.Approval = forecastText(bridge.Forecasts(rules, sample.Change.Event, cloudevent.Fields(ce), self, passes, now))
	return nil
}

// approvalNotes warns of rules that approve more than their author may expect, and of rules that never approve because
// they wait for a sink that doesn't get the event.
func approvalNotes(s *settings.Settings, self string, now time.Time) ([]string, error) {
	var notes []string
	note := func(rule int, format string, args ...any) {
		notes = append(notes, "approve: "+bridge.RuleName(rule+1, s.Rules[rule])+" "+fmt.Sprintf(format, args...))
	}
	for i, r := range s.Rules {
		samples, err := approvable(r, self, now)
		if err != nil {
			return nil, err
		}
		approves := func(is func(imds.Event) bool) bool {
			return slices.ContainsFunc(samples, func(s cloudevent.Sample) bool { return is(s.Change.Event) })
		}
		if approves(func(e imds.Event) bool { return e.Source == "Platform" }) {
			note(i, "approves Platform events, so maintenance starts sooner than Azure planned; sources: [User] prevents that")
		}
		if approves(func(e imds.Event) bool { return e.Type == "Terminate" }) {
			note(i, "approves Terminate events, so Azure deletes this VM without its notice")
		}
		if len(r.After) == 0 {
			note(i, "has no after, so it approves whether or not anybody was notified")
		}
		if r.Others {
			note(i, "has others: true, so it also approves for VMs whose runbooks this VM doesn't see")
		}
		for _, route := range s.Routes {
			if !slices.Contains(r.After, route.Name) {
				continue
			}
			missed, all, err := filteredOut(route.Filter, samples, self, now)
			switch {
			case err != nil:
				return nil, err
			case all:
				note(i, "waits for %s, which gets none of the events that the rule is for (%s), so it never approves",
					route.Name, strings.Join(missed, ", "))
			case len(missed) > 0:
				note(i, "waits for %s, which doesn't get %s, so it doesn't approve those",
					route.Name, strings.Join(missed, ", "))
			}
		}
	}
	return notes, nil
}

// approvable returns two changes, scheduled and updated, of every kind of event that the rule would approve if every
// sink got it.
func approvable(r bridge.Rule, self string, now time.Time) ([]cloudevent.Sample, error) {
	vms := [][]string{{self}}
	if r.Others {
		vms = append(vms, []string{self, self + "-neighbour"}, []string{self + "-neighbour", self})
	}
	events, err := everyEvent(vms, now)
	if err != nil {
		return nil, err
	}
	everySink := func(string) (time.Time, bool) { return time.Time{}, true }
	var samples []cloudevent.Sample
	for _, e := range events {
		s := cloudevent.Sample{Change: imds.Change{Kind: imds.Scheduled, Event: e}}
		ce, err := s.CloudEvent(imds.Observer{Name: self}, now)
		if err != nil {
			return nil, err
		}
		if bridge.Forecasts([]bridge.Rule{r}, e, cloudevent.Fields(ce), self, everySink, now)[0].Approves {
			update := imds.Change{Kind: imds.Updated, Event: e, Previous: &e, Fields: []string{"NotBefore"}}
			samples = append(samples, s, cloudevent.Sample{Change: update})
		}
	}
	return samples, nil
}

// everyEvent returns an event of each type and source, for each set of VMs, with short, usual and long notice.
func everyEvent(sets [][]string, now time.Time) (events []imds.Event, err error) {
	for _, typ := range bridge.TypesValues {
		for _, source := range bridge.SourcesValues {
			for _, vms := range sets {
				for _, notice := range []time.Duration{30 * time.Second, 15 * time.Minute, 48 * time.Hour} {
					e, err := scheduledEvent(typ, source, vms, now.Add(notice))
					if err != nil {
						return nil, err
					}
					events = append(events, e)
				}
			}
		}
	}
	return events, nil
}

// scheduledEvent returns an event as Azure would announce it.
func scheduledEvent(typ, source string, vms []string, notBefore time.Time) (imds.Event, error) {
	raw, err := json.Marshal(map[string]any{
		"EventId": "602D9444-D2CD-49C7-8624-8643E7171297", "EventStatus": "Scheduled", "EventType": typ,
		"ResourceType": "VirtualMachine", "Resources": vms, "NotBefore": notBefore.UTC().Format(http.TimeFormat),
		"EventSource": source, "DurationInSeconds": -1,
	})
	if err != nil {
		return imds.Event{}, err
	}
	return imds.UnmarshalEvent(raw)
}

// filteredOut names the samples that a filter refuses, each with the key that refuses it. If it refuses all of them,
// all is true and missed holds only the keys.
func filteredOut(f bridge.Filter, samples []cloudevent.Sample, self string, now time.Time) (
	missed []string, all bool, err error,
) {
	var keys []string
	all = len(samples) > 0
	for _, s := range samples {
		result, err := filterResult(f, s, imds.Observer{Name: self}, now)
		if err != nil {
			return nil, false, err
		}
		key, refused := strings.CutPrefix(result, "no: ")
		if !refused {
			all = false
			continue
		}
		e := s.Change.Event
		what := e.Type + " events"
		switch key {
		case "only.vms":
			what = "events that name another VM first"
		case "only.sources":
			what = e.Source + " events"
		case "only.changes", "except.changes":
			what = string(s.Change.Kind) + " events"
		case "except":
			what = e.Source + " " + what
		}
		missed, keys = append(missed, what+" ("+key+")"), append(keys, key)
	}
	if all {
		missed = keys
	}
	slices.Sort(missed)
	return slices.Compact(missed), all, nil
}
