package templates

import (
	"io"
	"strings"
	"testing"

	"forewarn/bridge/systemtest"
)

// A template that would never end, or that would make more text than fits in memory, fails with an error.
func TestEndlessTemplatesAreStopped(t *testing.T) {
	systemtest.LeftToGate(t)
	const twice40 = `{{$x := "0123456789"}}{{range 40}}{{$x = printf "%s%s" $x $x}}{{end}}`
	for i, text := range []string{
		`{{range 1000000000000}}{{end}}`,
		`{{range 1000000}}{{range 1000000}}{{end}}{{end}}`,
		`{{range 1000000000000}}{{"0123456789"}}{{end}}`,
		`{{range 1000000}}{{json $}}{{end}}`,
		`{{range 100000}}` + strings.Repeat("a", 1000) + `{{end}}`, // little work, much text
		`{{define "x"}}{{template "x" .}}{{end}}{{template "x" .}}`,
		`{{define "x"}}{{include "x" .}}{{end}}{{template "x" .}}`,
		`{{define "x"}}{{template "y" .}}{{end}}{{define "y"}}{{include "x" .}}{{end}}{{template "y" .}}`,
		`{{define "x"}}{{if .}}{{template "x" (slice . 1)}}{{template "x" (slice . 1)}}{{end}}{{end}}{{template "x" "0123456789012345678901234567890123456789"}}`,
		`{{define "who"}}{{template "fact" .}}{{end}}{{template "fact" .}}`, // through a word that uses it
		twice40, strings.Replace(twice40, `printf "%s%s"`, "print", 1), strings.Replace(twice40, `printf "%s%s"`, "println", 1),
		`{{$x := list "a"}}{{range 60}}{{$x = list $x $x}}{{end}}{{$x}}`,
		`{{$x := dict "a" "b"}}{{range 60}}{{$x = dict "a" $x "b" $x}}{{end}}{{json $x}}`,
		`{{$x := "\\"}}{{range 60}}{{$x = quote $x}}{{end}}`,
		`{{$x := "\\"}}{{range 60}}{{$x = js $x}}{{end}}`,
		`{{$x := "aaaaaaaaaa"}}{{range 60}}{{$x = replace "a" $x $x}}{{end}}`,
		`{{$x := split "" "aaaaaaaaaa"}}{{$s := "0123456789"}}{{range 60}}{{$s = join $s $x}}{{end}}`,
		`{{$x := "0123456789"}}{{range 12}}{{$x = print $x $x}}{{end}}{{range 12}}{{$x = replace "0" $x $x}}{{end}}`,
		`{{printf (replace "a" "%1000000d" "` + strings.Repeat("a", 100) + `") 1}}`,
		`{{printf "%*d%*d%*d" 100000000 1 100000000 1 100000000 1}}` + twice40,
	} {
		for kind, parse := range map[string]func(string, string) (*Template, error){"text": Parse, "HTML": ParseHTML} {
			if kind == "HTML" && (i > 9 || i < 5) { // what isn't escaped by its place is the same there
				continue
			}
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

// The budget is that of one execution: the next one has all of it again.
func TestEachExecutionHasItsOwnBudget(t *testing.T) {
	systemtest.Alone(t)
	parsed, err := Parse("text", `{{range .}}{{end}}{{template "x" 1}}{{define "x"}}{{end}}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, rounds := range []int{150_000, 150_000, 1_000_000, 150_000} {
		if err := parsed.Execute(io.Discard, rounds); (err != nil) != (rounds > 500_000) {
			t.Errorf("Execute with %d rounds = %v", rounds, err)
		}
	}
}
