package sinks

import (
	"net/url"
	"strings"
	"testing"
)

// Attributes are encoded as the HTTP binding's own examples are.
func TestAttributesAreEncodedAsTheBindingSays(t *testing.T) {
	for value, want := range map[string]string{
		"Euro € 😀":           "Euro%20%E2%82%AC%20%F0%9F%98%80", // the example of the specification
		`a b/ü%"~!`:          `a%20b/%C3%BC%25%22~!`,
		"tab\tline\nnul\x00": "tab%09line%0Anul%00",
		"\x7f":               "%7F",
		"\xff":               "%EF%BF%BD",
		"":                   "",
		"602D9444-started":   "602D9444-started",
	} {
		if got := encodeAttribute(value); got != want {
			t.Errorf("encodeAttribute(%q) = %q, want %q", value, got, want)
		}
	}
}

// What is encoded is printable ASCII without spaces and quotes, and decodes to what it was.
func FuzzEncodeAttribute(f *testing.F) {
	for _, value := range []string{"", "a b", "100%", "%41", "é\x00\xff\"", "\U0010ffff"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		encoded := encodeAttribute(value)
		if strings.ContainsFunc(encoded, func(r rune) bool { return r <= ' ' || r >= 0x7F || r == '"' }) {
			t.Errorf("%q is encoded as %q", value, encoded)
		}
		decoded, err := url.PathUnescape(encoded)
		if want := strings.ToValidUTF8(value, "\ufffd"); err != nil || decoded != want {
			t.Errorf("%q is encoded as %q and decoded as %q, %v; want %q", value, encoded, decoded, err, want)
		}
	})
}
