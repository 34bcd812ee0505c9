package templates

import (
	"bytes"
	"strings"
	"testing"
)

// A template with mistakes is refused with an error that names it.
func FuzzParse(f *testing.F) {
	f.Add(`{{template "headline" .}}: {{.azeventtype | upper}} {{json .data}}`)
	f.Add(`{{define "x"}}{{include "why" .}}{{end}}{{template "x" .}}`)
	f.Add(`{{define ""}}{{"00"0`)
	f.Fuzz(func(t *testing.T, text string) {
		for kind, parse := range map[string]func(string, string) (*Template, error){"text": Parse, "HTML": ParseHTML} {
			if _, err := parse("body", text); err != nil && !strings.Contains(err.Error(), "body") {
				t.Errorf("%s: the error %q doesn't name the template", kind, err)
			}
		}
	})
}

// What Azure or a destination says stays text in HTML: it adds no tag, no attribute and no link.
func FuzzDataStaysTextInHTML(f *testing.F) {
	f.Add("<b>")
	f.Add(`" onclick="x`)
	f.Add("javascript:alert(1)")
	f.Add("\u202e\x00 2")
	parsed, err := ParseHTML("body", `{{range .resources}}<td title="{{.}}">{{.}}</td>{{end}}<p>{{template "headline" .}} {{include "why" .}}</p>`)
	if err != nil {
		f.Fatal(err)
	}
	made := func(t *testing.T, data string) string {
		var b bytes.Buffer
		err := parsed.Execute(&b, map[string]any{
			"azself": true, "observer": "vm-0", "resources": []string{data}, "azeventtype": data, "azeventsource": "Platform", "group": []any{},
			"data": map[string]any{"event": map[string]any{"Description": data}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	f.Fuzz(func(t *testing.T, data string) {
		got, plain := made(t, data), made(t, "x")
		for _, mark := range []string{"<", ">", `"`, "'"} {
			if strings.Count(got, mark) != strings.Count(plain, mark) {
				t.Errorf("%q adds %s: %s", data, mark, got)
			}
		}
	})
}
