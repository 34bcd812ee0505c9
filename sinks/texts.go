package sinks

import (
	"fmt"
	"io"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/templates"
)

// givenText returns the text that the settings have under a key or in a file, and the key that has it, or "".
func givenText(key, text, file string) (_, given string, err error) {
	switch {
	case text != "" && file != "":
		return "", "", &KeyError{key + "_file", fmt.Errorf("%s is given too; expected only one of them", key)}
	case file != "":
		read, err := readSmall(file)
		if err != nil {
			return "", "", &KeyError{key + "_file", err}
		}
		return string(read), key + "_file", nil
	case text != "":
		return text, key, nil
	}
	return "", "", nil
}

// A templateKey is a template that the settings may have under a key or in a file.
type templateKey struct {
	key, text, file string
	own             *templates.Template // the default
	parse           func(key, text string) (*templates.Template, error)
	try             func(fields map[string]any) error // uses the template, once it is at to; nil to execute it
	to              **templates.Template
}

// open parses the template of the settings, and tries it on samples. own are the fields of the kind.
func (k templateKey) open(own map[string]Field) error {
	text, given, err := givenText(k.key, k.text, k.file)
	if *k.to = k.own; err != nil || given == "" {
		return err
	}
	if *k.to, err = k.parse(given, text); err == nil {
		err = templates.CheckNames(text, messageShape(own))
	}
	if err == nil {
		err = tryOut(func(f map[string]any) error {
			addFields(f, own)
			if k.try == nil {
				return (*k.to).Execute(io.Discard, f)
			}
			return k.try(f)
		})
	}
	if err != nil {
		return &KeyError{given, err}
	}
	return nil
}

func openTemplates(own map[string]Field, all ...templateKey) error {
	var wrong KeyErrors
	for _, k := range all {
		wrong.add(k.open(own))
	}
	return wrong.err()
}

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
