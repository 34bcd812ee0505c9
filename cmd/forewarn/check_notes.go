package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/settings"
)

// sinkNotes warns of settings that are valid but probably not meant: a sink that no sample event reaches, incidents
// that stay open, a timezone that nobody sees.
func sinkNotes(s *settings.Settings, rows []sampleRow, self string, now time.Time) ([]string, error) {
	var notes []string
	for _, r := range s.Routes {
		var keys []string // the keys that filter the samples out
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
				note += "; when compares text exactly: azeventtype == \"Reboot\", not \"reboot\""
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
	apart, err := actsApart(s.Routes, self, now)
	if err != nil {
		return nil, err
	}
	notes = append(notes, apart...)
	if s.Timezone.String() != "UTC" && len(s.Routes) > 0 && !slices.ContainsFunc(s.Routes, func(r bridge.Route) bool {
		return showsTimes(r, s.Timezone, now)
	}) {
		notes = append(notes, "timezone: no sink shows times to people; only the page and forewarn status use it")
	}
	return notes, nil
}

// actsApart warns of two sinks of which one acts when an event is announced and the other when it is over: nothing keeps
// what they do in order. The sample of an unknown type doesn't count,
// because it passes every types.
func actsApart(routes []bridge.Route, self string, now time.Time) (notes []string, err error) {
	begins, ends := map[string][]string{}, map[string][]string{} // samples by sink
	for _, r := range routes {
		if !r.Terms.Starts() {
			continue
		}
		for _, name := range cloudevent.SampleNames {
			sample, _ := cloudevent.NewSample(name, self, now)
			if sample.Change.Kind != imds.Scheduled || !slices.Contains(imds.Types, sample.Change.Event.Type) {
				continue
			}
			begin, err := filterResult(r.Filter, sample, imds.Observer{Name: self}, now)
			if err != nil {
				return nil, err
			}
			sample.Change.Kind = imds.Vanished
			end, err := filterResult(r.Filter, sample, imds.Observer{Name: self}, now)
			if err != nil {
				return nil, err
			}
			switch {
			case begin == "told" && end != "told":
				begins[r.Name] = append(begins[r.Name], name)
			case begin != "told" && end == "told":
				ends[r.Name] = append(ends[r.Name], name)
			}
		}
	}
	for _, begin := range slices.Sorted(maps.Keys(begins)) {
		for _, end := range slices.Sorted(maps.Keys(ends)) {
			if slices.ContainsFunc(begins[begin], func(name string) bool { return slices.Contains(ends[end], name) }) {
				notes = append(notes, fmt.Sprintf("%s acts when an event is announced, %s when it is over, and nothing keeps "+
					"the two in order; let one sink do both, with vanished in its only.changes", begin, end))
			}
		}
	}
	return notes, nil
}

// openIncidents says which incidents of a route stay open; "" if none.
func openIncidents(r bridge.Route, self string, now time.Time) (string, error) {
	sample, _ := cloudevent.NewSample("reboot", self, now)
	observer := imds.Observer{Name: self}
	begin, err := filterResult(r.Filter, sample, observer, now)
	if err != nil {
		return "", err
	}
	sample.Change.Kind = imds.Vanished
	end, err := filterResult(r.Filter, sample, observer, now)
	switch {
	case err != nil:
		return "", err
	case begin == "told" && end != "told":
		return "it opens incidents but never hears that an event is over (" + end[len("no: "):] + "), so they stay open; " +
			"add vanished to only.changes", nil
	case !imds.SameWord(r.Filter.Only.VMs, "all"):
		return "a Preempt or Terminate deletes this VM, which then cannot report the end: its incident stays open unless " +
			"another VM with only: {vms: all} reports it, or the incident tool closes it after a time", nil
	}
	return "", nil
}

// showsTimes reports whether messages of the route show times in the zone; true if the sample cannot be rendered.
func showsTimes(r bridge.Route, zone *time.Location, now time.Time) bool {
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
