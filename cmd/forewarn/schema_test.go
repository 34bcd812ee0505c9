package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"forewarn/bridge"
	"forewarn/sinks"
)

// The schema of the settings accepts the example and refuses a typo at every level.
func TestSettingsSchemaTellsRightFromWrong(t *testing.T) {
	text, err := json.Marshal(settingsSchema(sinks.Kinds))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("settings.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("settings.json")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile(filepath.Join("..", "..", "examples", "forewarn.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		yaml string
		ok   bool
	}{
		{string(example), true},
		{"state: /x\nsinks: [{name: a, file: {path: '-'}}]", true},
		{"sinks: [{name: a, webhook: {url: x, headers: {A: {file: /x}}, basic: {username: u, password_env: P}}}]", true},
		{"sinks: []\napprove: [{only: {types: [Reboot]}, after: [a], wait: 5m, others: true}]", true},
		{"approve: [{only: {types: [Reboot]}, aftr: [a]}]", false},
		{"approve: [{}]", false},
		{"approve: [{only: {sources: [User]}}]", false},
		{"approve: [{only: {types: []}}]", false},
		{"approve: [{only: {types: [Rebot]}}]", false},
		{"stat: /x", false},
		{"imds: {intervall: 1s}", false},
		{"sinks: [{name: a, file: {pth: x}}]", false},
		{"sinks: [{name: a, file: {path: x}, webhook: {url: x}}]", false},
		{"sinks: [{name: a}]", false},
		{"sinks: [{name: a, file: {path: x}, only: {types: [Rebot]}}]", false},
		{"sinks: [{name: a, file: {path: x}, late: never}]", false},
	} {
		asJSON, err := yaml.YAMLToJSON([]byte(tt.yaml))
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(value); (err == nil) != tt.ok {
			t.Errorf("%s\nis valid: %v, want %v: %v", tt.yaml, err == nil, tt.ok, err)
		}
	}
}

// help fields explains every name that when and templates see, and no other.
func TestEveryFieldIsExplained(t *testing.T) {
	seen := bridge.Fields(event.New())
	got := slices.Sorted(maps.Keys(bridge.FieldDocs))
	if want := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("explained are %q\nthere are      %q", got, want)
	}
	more := messageFields()
	maps.DeleteFunc(more, func(name string, _ any) bool { _, ok := seen[name]; return ok })
	got = slices.Sorted(maps.Keys(sinks.MessageDocs))
	if want := slices.Sorted(maps.Keys(more)); !slices.Equal(got, want) {
		t.Errorf("explained for messages are %q\nthere are                   %q", got, want)
	}
}

// The tables of fields in README are those that help fields prints.
func TestREADMEHasTheFieldsOfHelp(t *testing.T) {
	const begin, end = "<!-- fields: written by go test -update -->\n", "<!-- end of fields -->"
	path := filepath.Join("..", "..", "README.md")
	readme, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(readme), begin)
	if !ok {
		t.Fatalf("README has no line %s", begin)
	}
	got, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("README has no line %s", end)
	}
	marked := strings.NewReplacer("{{json .cloudevent}}", "`{{json .cloudevent}}`", "<!here>", "`<!here>`")
	var want strings.Builder
	table := func(docs []fieldDoc) {
		want.WriteString("\n| name | kind | what it is |\n| --- | --- | --- |\n")
		for _, d := range docs {
			fmt.Fprintf(&want, "| `%s` | %s | %s |\n", d.name, d.kind, marked.Replace(d.doc))
		}
	}
	table(fieldDocs(bridge.Fields(event.New()), bridge.FieldDocs))
	table(fieldDocs(messageFields(), sinks.MessageDocs))
	for _, kind := range slices.Sorted(maps.Keys(sinks.Kinds)) {
		if own := ownFields(kind); len(own) > 0 {
			fmt.Fprintf(&want, "\nOnly the templates of `%s` see:\n", kind)
			table(own)
		}
	}
	want.WriteString("\n")
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want.String() {
		t.Errorf("README has\n%s\nhelp fields has\n%s", got, want.String())
	}
}
