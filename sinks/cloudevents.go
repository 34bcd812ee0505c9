package sinks

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

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
	const upperHex = "0123456789ABCDEF"
	if !utf8.ValidString(value) {
		value = strings.ToValidUTF8(value, string(utf8.RuneError))
	}
	var b strings.Builder
	for i := range len(value) {
		switch c := value[i]; {
		case c <= ' ', c >= 0x7F, c == '"', c == '%':
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
