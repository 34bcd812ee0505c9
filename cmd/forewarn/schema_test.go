package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"forewarn/bridge/cloudevent"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/sinks"
)

// The schema of the settings accepts the example and refuses a typo at every level.
func TestSettingsSchemaRefusesTypos(t *testing.T) {
	schema := settingsValidator(t)
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
		{"sinks: [{name: a, only: {vms: ALL, types: [reboot]}, late: Latest, lead: 0, file: {path: x}}]", true},
		{"sinks: [{name: a, except: {changes: [Updated]}, bridge: ALL, file: {path: x}}]", true},
		{"sinks: []\napprove: [{only: {types: [reboot], sources: [USER]}}]", true},
		{"sinks: [{name: a, except: {vms: leader}, file: {path: x}}]", true},
		{"sinks: [{name: a, except: {vms: all}, file: {path: x}}]", false},
		{"sinks: [{name: a, except: {names: [vm-db-*]}, file: {path: x}}]", false},
		{"state: /x", false},
		{"sinks: [{name: a, file: {path: x}, lead: 5}]", false},
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
		{"sinks: [{name: a, syslog: {url: 'tls://h', facility: LOCAL4}}]", true},
		{"sinks: [{name: a, syslog: {url: 'tls://h', facility: lokal4}}]", false},
		{"sinks: [{name: a, syslog: {url: 'tls://h', framing: newline}}]", true},
		{"sinks: [{name: a, syslog: {url: 'tls://h', framing: lines}}]", false},
		{"sinks: [{name: a, slack: {webhook_url: x, mention: {text: <!here>, from: warn}}}]", true},
		{"sinks: [{name: a, slack: {webhook_url: x, mention: {text: <!here>, from: FATAL}}}]", false},
		{"imds: {interval: 1 second}\nsinks: []", false},
		{"imds: {interval: 1d2h30m}\nsinks: []", true},
		{"sinks: [{name: a, email: {host: h, from: f, to: t, port: 2525}}]", true},
		{"sinks: [{name: a, email: {host: h, from: f, to: t, port: 99999}}]", false},
		{"sinks: [{name: a, email: {host: h, from: f}}]", false},
		{"sinks: [{name: a, nats: {url_file: x}}]", true},
		{"sinks: [{name: a, nats: {url: 'nats://h', url_file: x}}]", false},
		{"sinks: [{name: a, nats: {subject: x}}]", false},
		{"sinks: [{name: a, slack: {token: x, token_file: x, channel: c}}]", false},
		{"sinks: [{file: {path: x}}]", false},
		{"sinks: [{name: a, webhook: {url: x, method: get}}]", false},
		{"sinks: [{name: a, webhook: {url: x, url_file: x}}]", false},
		{"sinks: [{name: a, webhook: {headers: {A: b}}}]", false},
		{"sinks: [{name: a, webhook: {url: x, basic: {username: u}}}]", false},
		{"sinks: [{name: a, pagerduty: {routing_key_file: x}}]", true},
		{"sinks: [{name: a, pagerduty: {}}]", false},
		{"sinks: [{name: a, pagerduty: {routing_key: x, routing_key_env: X}}]", false},
	} {
		if err := validYAML(t, schema, tt.yaml); (err == nil) != tt.ok {
			t.Errorf("%s\nis valid: %v, want %v: %v", tt.yaml, err == nil, tt.ok, err)
		}
	}
}

// settingsValidator is the schema that forewarn schema --settings prints, compiled.
func settingsValidator(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := forewarn(t, "schema", "--settings").Output()
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
	return schema
}

// validYAML says what of settings is wrong by the schema.
func validYAML(t *testing.T, schema *jsonschema.Schema, text string) error {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		t.Fatal(err)
	}
	return schema.Validate(value)
}

// schemaJSON is what forewarn schema --settings prints.
func schemaJSON(t *testing.T) map[string]any {
	t.Helper()
	text, err := forewarn(t, "schema", "--settings").Output()
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	return schema
}

// eachKey visits every key of a schema with its dotted path; the items of a list go by the list's name.
func eachKey(schema map[string]any, path string, visit func(path string, key map[string]any)) {
	if items, ok := schema["items"].(map[string]any); ok {
		eachKey(items, path, visit)
	}
	props, _ := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(props)) {
		key := props[name].(map[string]any)
		below := strings.TrimPrefix(path+"."+name, ".")
		visit(below, key)
		eachKey(key, below, visit)
	}
}

// The schema has a sentence for every key, short enough for an editor's list of completions.
func TestSchemaDescribesEveryKey(t *testing.T) {
	n := 0
	eachKey(schemaJSON(t), "", func(path string, key map[string]any) {
		n++
		text, _ := key["description"].(string)
		if text == "" || len(text) > 140 || strings.HasSuffix(text, ".") {
			t.Errorf("%s is described as %q, want one short line without a stop", path, text)
		}
	})
	if n < 100 {
		t.Errorf("the schema has %d keys, which cannot be all", n)
	}
}

// Each default in the schema is the real one: settings that write it out are the same settings.
func TestDefaultsOfTheSchemaAreCorrect(t *testing.T) {
	kinds := map[string]string{
		"email":   "{host: h, from: a@mail.test, to: [a@mail.test], username: u, password: p}",
		"exec":    programsHere("{command: [/bin/true]}"),
		"file":    "{path: /x}",
		"nats":    "{url: tls://h, provision: {stream: S}}",
		"slack":   "{token: t, channel: c, mention: {text: <!here>}}",
		"syslog":  "{url: tls://h}",
		"webhook": "{url: https://h}",
		"ntfy":    "{topic: t}",
	}
	load := func(text string) *settings.Settings {
		s := loadSample(t, "settings", text, "")
		s.Hash = "" // which is of the text
		return s
	}
	for kind, section := range kinds {
		base := "sinks: [{name: other, file: {path: /o}}, {name: a, fallback: {sink: other}, " + kind + ": " + section + "}]\n" +
			"approve: [{only: {types: [Reboot]}}]\n"
		want := load(base)
		stated := 0
		eachKey(schemaJSON(t), "", func(path string, key map[string]any) {
			value, ok := key["default"]
			ofKind := sinks.Kinds()[strings.Split(path+"..", ".")[1]].Open != nil
			if !ok || strings.HasPrefix(path, "nats.") || ofKind && !strings.HasPrefix(path, "sinks."+kind+".") {
				return
			}
			if path == "sinks.exec.dir" && runtime.GOOS == "windows" {
				return // without it, it is the root of the current volume, which no setting can say
			}
			stated++
			if got := load(withKey(t, base, path, value)); !alike(reflect.ValueOf(got), reflect.ValueOf(want)) {
				t.Errorf("%s: %v is not what counts without it", path, value)
			}
		})
		if stated < 5 {
			t.Errorf("%s: %d defaults are stated", kind, stated)
		}
	}
	relay := "nats: {url: tls://h}\nsinks: [{name: a, file: {path: /o}}]\n"
	eachKey(schemaJSON(t), "", func(path string, key map[string]any) {
		if value, ok := key["default"]; ok && strings.HasPrefix(path, "nats.") {
			if got := load(withKey(t, relay, path, value)); !alike(reflect.ValueOf(got), reflect.ValueOf(load(relay))) {
				t.Errorf("of a relay, %s: %v is not what counts without it", path, value)
			}
		}
	})
	if a, b := load("imds: {interval: 2s}\nsinks: []"), load("sinks: []"); alike(reflect.ValueOf(a), reflect.ValueOf(b)) {
		t.Error("no difference between settings is noticed")
	}
}

// withKey is settings with one more key; that of a list is the key of its last item.
func withKey(t *testing.T, text, path string, value any) string {
	t.Helper()
	var doc map[string]any
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	in := doc
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		if in[name] == nil {
			in[name] = map[string]any{}
		}
		if list, ok := in[name].([]any); ok {
			in = list[len(list)-1].(map[string]any)
		} else {
			in = in[name].(map[string]any)
		}
	}
	if n, ok := value.(float64); ok {
		value = int(n) // no default has a fraction
	}
	in[names[len(names)-1]] = value
	out, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// alike tells whether two values hold the same, but for functions.
func alike(a, b reflect.Value) bool {
	if a.Kind() != b.Kind() {
		return false
	}
	switch a.Kind() {
	case reflect.Pointer, reflect.Interface:
		if a.IsNil() || b.IsNil() || a.Kind() == reflect.Pointer && a.Pointer() == b.Pointer() {
			return a.IsNil() == b.IsNil()
		}
		return alike(a.Elem(), b.Elem())
	case reflect.Struct:
		for i := range a.NumField() {
			if !alike(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice, reflect.Array:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !alike(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		if a.Len() != b.Len() {
			return false
		}
		for _, key := range a.MapKeys() {
			if other := b.MapIndex(key); !other.IsValid() || !alike(a.MapIndex(key), other) {
				return false
			}
		}
		return true
	case reflect.Func, reflect.Chan, reflect.UnsafePointer:
		return true
	}
	return a.Equal(b)
}

// help fields explains each name that when and templates can use, and no other.
func TestEveryFieldIsExplained(t *testing.T) {
	seen := cloudevent.Fields(event.New())
	got := slices.Sorted(maps.Keys(cloudevent.FieldDocs))
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

// An editor says of an unknown kind only that there is no such key, and not that it misses another one.
func TestSchemaNamesOnlyTheUnknownKind(t *testing.T) {
	err := validYAML(t, settingsValidator(t), "sinks: [{name: a, slak: {channel: c}}]")
	if err == nil || !strings.Contains(err.Error(), "slak") || strings.Contains(err.Error(), "missing") {
		t.Errorf("the schema says %v, want only that slak is no key", err)
	}
}
