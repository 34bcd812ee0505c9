package templates

import (
	"io"
	"strings"
	"testing"

	"forewarn/bridge/systemtest"
)

// A template that would write without end, or that uses itself, fails with an error.
func TestEndlessTemplatesAreStopped(t *testing.T) {
	for _, text := range []string{
		`{{range 1000000000000}}{{printf "%9999d" 1}}{{end}}`,
		`{{range 1000000}}{{json $}}{{end}}`,
		`{{range 100000}}` + strings.Repeat("a", 1000) + `{{end}}`,
		`{{define "x"}}{{template "x" .}}{{end}}{{template "x" .}}`,
		`{{define "x"}}{{include "x" .}}{{end}}{{template "x" .}}`,
		`{{define "x"}}{{range 1000000000000}}` + strings.Repeat("a", 1000) + `{{end}}{{end}}{{$x := include "x" .}}`,
		`{{define "x"}}{{template "y" .}}{{end}}{{define "y"}}{{include "x" .}}{{end}}{{template "y" .}}`,
		`{{define "who"}}{{template "fact" .}}{{end}}{{template "fact" .}}`, // through a word that uses it
	} {
		for kind, parse := range map[string]func(string, string) (*Template, error){"text": Parse, "HTML": ParseHTML} {
			parsed, err := parse("body", text)
			if err != nil {
				t.Errorf("Parse(%s) as %s: %v", text, kind, err)
				continue
			}
			if err := parsed.Execute(io.Discard, map[string]any{"azself": false, "resources": []string{"a"}, "azeventtype": ""}); err == nil {
				t.Errorf("%s as %s comes to an end, want an error", text, kind)
			}
		}
	}
}

// A correct template of a long text is executed: a group of thousands of events, each with its shared words.
func TestLongTextsAreAllowed(t *testing.T) {
	systemtest.Alone(t)
	one := map[string]any{
		"azself": false, "observer": "vm-0", "resources": []string{"vm-1", "vm-2"}, "azeventtype": "Reboot", "azeventsource": "Platform",
		"data": map[string]any{"event": map[string]any{"Description": strings.Repeat("a long description ", 20)}},
	}
	group := make([]map[string]any, 5000)
	for i := range group {
		group[i] = one
	}
	parsed, err := Parse("text", `{{range (slack .).group}}{{template "fact" .}}: {{include "why" . | trunc 200}}{{"\n"}}{{end}}`)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := parsed.Execute(&b, map[string]any{"group": group}); err != nil || strings.Count(b.String(), "\n") != len(group) {
		t.Errorf("Execute = %d lines, %v; want %d", strings.Count(b.String(), "\n"), err, len(group))
	}
}
