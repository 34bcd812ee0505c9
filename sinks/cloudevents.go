package sinks

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
)

// structuredType is the media type of a CloudEvent in structured mode. Some receivers refuse any other spelling.
const structuredType = "application/cloudevents+json; charset=utf-8"

// An attribute of a CloudEvent, with its value in canonical form.
type attribute struct{ name, value string }

// attributes returns the attributes of a CloudEvent as the binary modes send them, except datacontenttype: those of the
// specification first, then the extensions sorted by name. Empty ones are left out.
func attributes(ce event.Event) (all []attribute, err error) {
	for _, a := range []attribute{
		{"specversion", ce.SpecVersion()}, {"id", ce.ID()}, {"source", ce.Source()}, {"type", ce.Type()},
		{"subject", ce.Subject()}, {"dataschema", ce.DataSchema()},
	} {
		if a.value != "" {
			all = append(all, a)
		}
	}
	if !ce.Time().IsZero() {
		all = append(all, attribute{"time", types.FormatTime(ce.Time())})
	}
	extensions := ce.Extensions()
	for _, name := range slices.Sorted(maps.Keys(extensions)) {
		value, err := types.Format(extensions[name])
		if err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
		all = append(all, attribute{name, value})
	}
	return all, nil
}

// encodeAttribute encodes an attribute's value for a header by the rules of the HTTP and NATS bindings of CloudEvents:
// space, ", % and every character outside U+0021 to U+007E is percent-encoded, byte by byte in UTF-8.
func encodeAttribute(value string) string {
	value = strings.ToValidUTF8(value, "\ufffd")
	return percentEncode(value, func(i int) bool {
		return value[i] > ' ' && value[i] < 0x7F && value[i] != '"' && value[i] != '%'
	})
}

// percentEncode percent-encodes the bytes of s, except those whose index keep reports true for.
func percentEncode(s string, keep func(i int) bool) string {
	var b strings.Builder
	for i := range len(s) {
		if keep(i) {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, "%%%02X", s[i])
		}
	}
	return b.String()
}
