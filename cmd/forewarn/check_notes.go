package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/settings"
)

// sinkNotes say what an operator may not expect of the sinks: that no sample event reaches one, that one opens
// incidents and never hears of their end, that nobody sees the timezone.
func sinkNotes(s *settings.Settings, rows []sampleRow, self string, now time.Time) ([]string, error) {
	var notes []string
	for _, r := range s.Routes {
		var keys []string // that keep the samples out
		for _, row := range rows {
			key, out := strings.CutPrefix(row.Sinks[r.Name], "no: ")
			if row.VM == "other" {
				continue
			} else if !out {
				keys = nil
				break
			}
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
		if len(keys) > 0 {
			note := fmt.Sprintf("%s: no sample event of this VM reaches it, because of %s", r.Name, strings.Join(keys, " and "))
			if slices.Contains(keys, "when") {
				note += "; in when, text is compared exactly: azeventtype == \"Reboot\", not \"reboot\""
			}
			notes = append(notes, note)
			continue
		}
		if slices.Contains(s.Incidents, r.Name) {
			note, err := openIncidents(r, self, now)
			if err != nil {
				return nil, err
			}
			if note != "" {
				notes = append(notes, r.Name+": "+note)
			}
		}
	}
	if s.Timezone.String() != "UTC" && len(s.Routes) > 0 && !slices.ContainsFunc(s.Routes, func(r bridge.Route) bool {
		return shows(r, s.Timezone, now)
	}) {
		notes = append(notes, "timezone: no sink shows times to people, so only the page and forewarn status use it")
	}
	return notes, nil
}

// openIncidents says which incidents of a route stay open, "" if none.
func openIncidents(r bridge.Route, self string, now time.Time) (string, error) {
	sample, _ := cloudevent.NewSample("reboot", self, now)
	observer := imds.Observer{Name: self}
	begin, err := told(r.Filter, sample, observer, now)
	if err != nil {
		return "", err
	}
	sample.Change.Kind = imds.Vanished
	end, err := told(r.Filter, sample, observer, now)
	switch {
	case err != nil:
		return "", err
	case begin == "told" && end != "told":
		return "it opens incidents and never hears that an event is over (" + end[len("no: "):] + "), so they stay open; " +
			"add vanished to only.changes", nil
	case r.Filter.Only.VMs != "all":
		return "Preempt and Terminate end with this VM, which then cannot say so: their incidents stay open unless a VM with " +
			"only: {vms: all} tells of the end too, or the incident tool closes them after a time", nil
	}
	return "", nil
}

// shows says whether a message of the route shows times in the zone. What cannot be rendered now may.
func shows(r bridge.Route, zone *time.Location, now time.Time) bool {
	renderer, ok := r.Sink.(delivery.Renderer)
	if !ok {
		return false
	}
	sample, _ := cloudevent.NewSample("reboot", "vm-0", now)
	ce, err := sample.CloudEvent(imds.Observer{Name: "vm-0"}, now)
	if err != nil {
		return true
	}
	text, err := renderer.Render(delivery.Delivery{Event: ce})
	return err != nil || strings.Contains(text, sample.Change.Event.NotBefore.In(zone).Format("15:04 MST"))
}
