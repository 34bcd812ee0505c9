package sinks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
)

// structuredType is the media type of a CloudEvent in structured mode. Some receivers refuse any other spelling.
const structuredType = "application/cloudevents+json; charset=utf-8"

// An attribute of a CloudEvent, with its value in canonical form.
type attribute struct{ name, value string }

// attributes returns all attributes that a CloudEvent has but datacontenttype, as the binary modes send them: those of
// the specification first, then the extensions by name.
func attributes(ce event.Event) ([]attribute, error) {
	all := []attribute{
		{"specversion", ce.SpecVersion()}, {"id", ce.ID()}, {"source", ce.Source()}, {"type", ce.Type()},
		{"subject", ce.Subject()}, {"dataschema", ce.DataSchema()},
	}
	if !ce.Time().IsZero() {
		all = append(all, attribute{"time", types.FormatTime(ce.Time())})
	}
	all = slices.DeleteFunc(all, func(a attribute) bool { return a.value == "" })
	standard := len(all)
	for name, v := range ce.Extensions() {
		value, err := types.Format(v)
		if err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
		all = append(all, attribute{name, value})
	}
	slices.SortFunc(all[standard:], func(a, b attribute) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// encodeAttribute encodes an attribute's value for a header as the HTTP and NATS bindings of CloudEvents say: space, ",
// % and all outside U+0021 to U+007E become the percent-encoded bytes of their UTF-8.
func encodeAttribute(value string) string {
	value = strings.ToValidUTF8(value, "\ufffd")
	return percentEncode(value, func(i int) bool {
		return value[i] > ' ' && value[i] < 0x7F && value[i] != '"' && value[i] != '%'
	})
}

// percentEncode percent-encodes each byte of s but those that stay.
func percentEncode(s string, stays func(i int) bool) string {
	var b strings.Builder
	for i := range len(s) {
		if stays(i) {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, "%%%02X", s[i])
		}
	}
	return b.String()
}
