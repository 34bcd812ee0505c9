package sinks

import (
	"fmt"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
)

// tryOut calls render with the fields of samples: every change, every type, the bridge's own, a group, a late one, a
// test, and some that lack all that may be missing. It returns the first error. It takes a few milliseconds of each
// start, so it is for the templates of the settings; tests try the embedded ones.
func tryOut(render func(fields map[string]any) error) error { return tryOn(false, render) }

// tryOn is tryOut; with all it tries every change of every type from every source.
func tryOn(all bool, render func(fields map[string]any) error) error {
	events, err := cloudevent.Samples(all)
	if err != nil {
		return err
	}
	try := func(f map[string]any) error {
		if err := render(f); err != nil {
			return fmt.Errorf("with a sample CloudEvent of type %s: %w", f["type"], err)
		}
		return nil
	}
	for i, ce := range events {
		d, now := delivery.Delivery{Event: ce, Attempt: 1}, ce.Time()
		if i%3 == 2 {
			d.Attempt, now = 3, now.Add(time.Hour)
			d.Missed = []delivery.Missed{{Change: "scheduled", Time: ce.Time()}, {Change: "updated", Time: ce.Time()}}
		}
		if err := try(fields([]delivery.Delivery{d}, time.UTC, now)); err != nil {
			return err
		}
	}
	group := make([]delivery.Delivery, 0, 6)
	for _, ce := range events[:6] {
		group = append(group, delivery.Delivery{Event: ce, Attempt: 1})
	}
	return try(fields(group, time.UTC, events[0].Time()))
}
