package templates

import (
	"bytes"
	"strings"
	"testing"
)

// Whatever a template of the settings says of whatever data, it ends, and what it makes is bounded. In HTML the data adds
// no tag.
func FuzzTemplate(f *testing.F) {
	f.Add(`{{template "headline" .}}: {{.azeventtype | upper}} {{json .data}}`, "<b>")
	f.Add(`{{range .resources}}<td title="{{.}}">{{.}}</td>{{end}}`, `" onclick="x`)
	f.Add(`{{define "x"}}{{include "why" .}}{{end}}{{template "x" .}}{{printf "%999d" 1}}`, "\u202e")
	f.Add(`{{$x := "0123456789"}}{{range 30}}{{$x = print $x $x}}{{end}}`, "")
	f.Fuzz(func(t *testing.T, text, data string) {
		fields := func(data string) map[string]any {
			return map[string]any{
				"azself": true, "observer": "vm-0", "resources": []string{data}, "azeventtype": data, "azeventsource": "Platform",
				"data": map[string]any{"event": map[string]any{"Description": data}},
			}
		}
		for kind, parse := range map[string]func(string, string) (*Template, error){"text": Parse, "HTML": ParseHTML} {
			parsed, err := parse("body", text)
			if err != nil {
				if !strings.Contains(err.Error(), "body") {
					t.Errorf("%s: the error %q doesn't name the template", kind, err)
				}
				continue
			}
			var got, plain bytes.Buffer
			failed := parsed.Execute(&got, fields(data))
			if got.Len() > 8<<20 {
				t.Errorf("%s: it made %d bytes", kind, got.Len())
			}
			if kind == "HTML" && failed == nil && parsed.Execute(&plain, fields("x")) == nil && !strings.Contains(text, "{{") &&
				got.String() != plain.String() {
				t.Errorf("%s: %q became %q", kind, plain.String(), got.String())
			}
		}
	})
}
