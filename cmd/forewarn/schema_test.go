package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
	got := slices.Sorted(maps.Keys(bridge.FieldDocs))
	if want := slices.Sorted(maps.Keys(bridge.Fields(event.New()))); !slices.Equal(got, want) {
		t.Errorf("explained are %q\nthere are      %q", got, want)
	}
}
