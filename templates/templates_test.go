package templates

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// Every function does what users of Alertmanager and sprig know it for, also with what is missing.
func TestFunctions(t *testing.T) {
	fields := map[string]any{
		"text": "Réboot <vm> & \"more\"", "list": []any{"a", 1.5}, "names": []string{"vm-0", "vm-1"}, "none": []string{},
		"map": map[string]any{"b": 2, "a": "<x>"}, "n": 42, "no": false,
	}
	for _, tt := range []struct{ template, want string }{
		{`{{json .text}}`, `"Réboot <vm> & \"more\""`},
		{`{{json .map}}`, `{"a":"<x>","b":2}`},
		{`{{json .missing}}`, `null`},
		{`{{.text | upper}}`, `RÉBOOT <VM> & "MORE"`},
		{`{{.text | lower}}`, `réboot <vm> & "more"`},
		{`{{upper .missing}}`, ``},
		{`{{upper .n}}`, `42`},
		{`{{join ", " .names}}`, `vm-0, vm-1`},
		{`{{.list | join "/"}}`, `a/1.5`},
		{`{{join "," .none}}`, ``},
		{`{{join "," .missing}}`, ``},
		{`{{join "," .n}}`, `42`},
		{`{{default "none" .missing}}`, `none`},
		{`{{.none | default "none"}}`, `none`},
		{`{{.no | default "none"}}`, `none`},
		{`{{.text | default "none" | trunc 6}}`, `Réboo…`},
		{`{{trunc 6 "sechse"}}`, `sechse`},
		{`{{trunc 1 "sechse"}}`, `…`},
		{`{{trunc 0 "sechse"}}`, ``},
		{`{{trunc -1 ""}}`, ``},
		{`{{trunc 3 .missing}}`, ``},
		{`{{replace "vm-" "node " (join ", " .names)}}`, `node 0, node 1`},
		{`{{replace "a" "b" .missing}}`, ``},
		{`{{.missing}}`, `<no value>`},
	} {
		parsed, err := Parse("body", tt.template)
		if err != nil {
			t.Errorf("Parse(%s): %v", tt.template, err)
			continue
		}
		var got strings.Builder
		if err := parsed.Execute(&got, fields); err != nil || got.String() != tt.want {
			t.Errorf("%s = %q, %v; want %q", tt.template, got.String(), err, tt.want)
		}
	}
}

// A value that JSON cannot hold ends the template with an error.
func TestJSONRefusesWhatItCannotHold(t *testing.T) {
	parsed, err := Parse("body", `{{json .f}}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := parsed.Execute(new(strings.Builder), map[string]any{"f": func() {}}); err == nil {
		t.Error("json of a function gave no error")
	}
}

// An error says where it is: the name and line when parsing, the column too when executing.
func TestErrorsSayWhere(t *testing.T) {
	_, err := Parse("body_text", "one\n{{if}}")
	if err == nil || !strings.Contains(err.Error(), "body_text:2:") {
		t.Errorf("Parse = %v, want body_text:2: in it", err)
	}
	parsed, err := Parse("body_text", "one\n{{index .list 7}}")
	if err != nil {
		t.Fatal(err)
	}
	err = parsed.Execute(new(strings.Builder), map[string]any{"list": []string{"a"}})
	if err == nil || !strings.Contains(err.Error(), "body_text:2:2") {
		t.Errorf("Execute = %v, want body_text:2:2 in it", err)
	}
}

// Nobody can read the environment, files or the network from a template: the functions are these and no others.
func TestFunctionsAreAClosedSet(t *testing.T) {
	want := strings.Fields(`activityLogURL clock clockSeconds coalesce contains date default dict dig first fullTime hasPrefix
		hasSuffix humanizeDuration indent join json last line list lower names portalURL quote replace required slack slackEscape
		slackTime split ternary title toTime trim trimPrefix trimSuffix trunc tz unixEpoch upper without`)
	if got := slices.Sorted(maps.Keys(Funcs())); !slices.Equal(got, want) {
		t.Errorf("Funcs() = %v, want %v", got, want)
	}
}
