package sinks

import (
	"fmt"
	"io"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/templates"
)

// settingsText returns the text that the settings have under key, or in the file that key_file names, and which of the
// two keys it is. Without a text both are "". Its errors are *KeyError.
func settingsText(key, text string, file Path) (_, from string, err error) {
	switch {
	case text != "" && file != "":
		return "", "", &KeyError{key + "_file", fmt.Errorf("%s is given too; expected only one of them", key)}
	case file != "":
		read, err := readText(file)
		if err != nil {
			return "", "", &KeyError{key + "_file", err}
		}
		return string(read), key + "_file", nil
	case text != "":
		return text, key, nil
	}
	return "", "", nil
}

// A templateKey is a template that the settings may have under key, or in the file that key_file names.
type templateKey struct {
	key, text string
	file      Path
	byDefault *templates.Template
	parse     func(key, text string) (*templates.Template, error)
	try       func(fields map[string]any) error // uses the template at to; nil only executes it
	to        **templates.Template              // where the template is stored
}

// open stores the template of the settings, which it parses and tries on samples, or else the default. own are the
// fields that only templates of this kind have.
func (k templateKey) open(own map[string]Field) error {
	text, from, err := settingsText(k.key, k.text, k.file)
	*k.to = k.byDefault
	if err != nil || from == "" {
		return err
	}
	*k.to, err = k.parse(from, text)
	if err == nil {
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
		return &KeyError{from, err}
	}
	return nil
}

// openTemplates opens all templates of a sink.
func openTemplates(own map[string]Field, all ...templateKey) error {
	var wrong KeyErrors
	for _, k := range all {
		wrong.add(k.open(own))
	}
	return wrong.err()
}

// tryOut calls render with the fields of samples, and returns the first error. The samples are of every change, every
// type of event and every CloudEvent about the bridge, with a group, a late message, a test, and events without any
// optional field. It takes a few milliseconds at each start, so it is for templates in the settings; tests try the
// embedded ones.
func tryOut(render func(fields map[string]any) error) error { return tryOn(false, render) }

// tryOn is tryOut. If all is true, the samples are every change of every type from every source.
func tryOn(all bool, render func(fields map[string]any) error) error {
	events, err := cloudevent.Samples(all)
	if err != nil {
		return err
	}
	var host Host
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
		if err := try(host.fields([]delivery.Delivery{d}, now)); err != nil {
			return err
		}
	}
	group := make([]delivery.Delivery, 0, 6)
	for _, ce := range events[:6] {
		group = append(group, delivery.Delivery{Event: ce, Attempt: 1})
	}
	return try(host.fields(group, events[0].Time()))
}
