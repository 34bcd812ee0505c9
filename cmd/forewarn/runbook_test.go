package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
)

func runbook(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "runbooks", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// shapeOf is the documented shape of what a service takes.
func shapeOf(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join("testdata", "runbooks", name+".schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// call is a request that a runbook's sink made about a CloudEvent.
type call struct {
	about  event.Event
	method string
	path   string
	header http.Header
	body   any
}

// sentBy delivers every golden CloudEvent about an event of Azure through the sink of a runbook's settings.
func sentBy(t *testing.T, name string) (all []call) {
	t.Helper()
	var got call
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
		if err != nil {
			t.Errorf("%s: %v in %s", name, err, body)
		}
		got = call{method: r.Method, path: r.URL.Path, header: r.Header, body: value}
		io.WriteString(w, `{"JobIds":["6d1f"]}`) // as Azure Automation does; of the others any 2xx counts
	}))
	defer server.Close()
	text := regexp.MustCompile(`https://[a-z.]+(:\d+)?/`).ReplaceAllString(runbook(t, name), server.URL+"/")
	routes := loadSample(t, name, text, server.URL).Routes
	if len(routes) != 1 {
		t.Fatalf("%s has %d sinks, want 1", name, len(routes))
	}
	files, err := filepath.Glob(filepath.Join("..", "..", "bridge", "cloudevent", "testdata", "cloudevents", "*.json"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d golden CloudEvents, %v", len(files), err)
	}
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), "bridge-") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var ce event.Event
		if err := json.Unmarshal(text, &ce); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if _, err := routes[0].Sink.Deliver(t.Context(), []delivery.Delivery{{Event: ce, Attempt: 1}}); err != nil {
			t.Fatalf("%s, %s: %v", name, file, err)
		}
		got.about = ce
		all = append(all, got)
	}
	return all
}

// at is the value that a path of keys leads to.
func at(v any, path string) (any, bool) {
	for key := range strings.SplitSeq(path, ".") {
		object, _ := v.(map[string]any)
		var ok bool
		if v, ok = object[key]; !ok {
			return nil, false
		}
	}
	return v, true
}

// Each external runbook is called as its service documents: address, credentials and body, for every change.
func TestRunbooksAreCalledAsDocumented(t *testing.T) {
	for _, tt := range []struct {
		settings, shape, path string
		header                map[string]string
		change, event, vm     string // where the body has them
	}{
		{"github.yaml", "github", `^/repos/[^/]+/[^/]+/dispatches$`,
			map[string]string{"Authorization": "Bearer secret", "Accept": "application/vnd.github+json",
				"X-GitHub-Api-Version": "2022-11-28"},
			"client_payload.change", "client_payload.event", "client_payload.vm"},
		{"rundeck.yaml", "rundeck", `^/api/\d+/job/[0-9a-f-]{36}/run$`,
			map[string]string{"X-Rundeck-Auth-Token": "secret", "Accept": "application/json"},
			"options.change", "options.event", "options.vm"},
		{"awx.yaml", "awx", `^/api/v2/job_templates/\d+/launch/$`, map[string]string{"Authorization": "Bearer secret"},
			"extra_vars.azure_change", "extra_vars.azure_event", "limit"},
		{"azure-automation.yaml", "cloudevent", `^/secret$`, nil, "data.change", "subject", "observer"},
		{"event-driven-ansible.yaml", "cloudevent", `^/forewarn$`, map[string]string{"Authorization": "Bearer secret"},
			"data.change", "subject", "observer"},
	} {
		shape := shapeOf(t, tt.shape)
		for _, s := range sentBy(t, tt.settings) {
			if s.method != http.MethodPost || !regexp.MustCompile(tt.path).MatchString(s.path) {
				t.Errorf("%s: %s %s, want POST %s", tt.settings, s.method, s.path, tt.path)
			}
			if got := s.header.Get("Content-Type"); !strings.Contains(got, "json") {
				t.Errorf("%s: the body is %s, want JSON", tt.settings, got)
			}
			for key, want := range tt.header {
				if got := s.header.Get(key); got != want {
					t.Errorf("%s: %s is %q, want %q", tt.settings, key, got, want)
				}
			}
			if err := shape.Validate(s.body); err != nil {
				t.Errorf("%s, %s: %v", tt.settings, s.about.ID(), err)
			}
			if limit, ok := at(s.body, "limit"); ok && limit == "" {
				t.Errorf("%s, %s: no limit, so that AWX would run on all machines", tt.settings, s.about.ID())
			}
			fields := cloudevent.Fields(s.about)
			for path, want := range map[string]any{tt.change: fields["change"], tt.event: s.about.Subject(),
				tt.vm: fields["observer"]} {
				if got, ok := at(s.body, path); want != nil && want != "" && (!ok || got != want) {
					t.Errorf("%s, %s: %s is %v, want %v", tt.settings, s.about.ID(), path, got, want)
				}
			}
		}
	}
}

// asJSON is a YAML file as jsonschema sees it.
func asJSON(t *testing.T, text string) any {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// The fields that the runbooks read exist in what forewarn sends for an announcement and for an end.
func TestRunbooksReadExistingFields(t *testing.T) {
	for _, tt := range []struct {
		file, settings string
		reads          string // an expression whose group is a path in the body
		least          int    // paths that it finds
	}{
		{"event-driven-ansible.yml", "event-driven-ansible.yaml", `event\.payload\.([\w.]+)`, 7},
		{"github-workflow.yml", "github.yaml", `github\.event\.(client_payload[\w.]+)`, 5},
		{"azure-automation.ps1", "azure-automation.yaml", `\$change\.([\w.]+)`, 4},
	} {
		paths := map[string]bool{}
		for _, m := range regexp.MustCompile(tt.reads).FindAllStringSubmatch(runbook(t, tt.file), -1) {
			paths[m[1]] = true
		}
		if len(paths) < tt.least {
			t.Fatalf("%s reads %v, want at least %d", tt.file, paths, tt.least)
		}
		looked := 0
		for _, s := range sentBy(t, tt.settings) {
			vanished := strings.HasSuffix(s.about.ID(), "-vanished")
			if has := s.about.Extensions(); !vanished && !strings.HasSuffix(s.about.ID(), "-scheduled") ||
				has["azeventtype"] == nil || has["observer"] == nil {
				continue // no rule acts on it
			}
			looked++
			for path := range paths {
				_, ok := at(s.body, path)
				switch path {
				case "data.outcome":
					ok = ok == vanished // only an end has one
				case "data.notBefore":
					ok = ok || vanished || s.about.Extensions()["aznotbefore"] == nil
				}
				if !ok {
					t.Errorf("%s reads %s, which %s does not have", tt.file, path, s.about.ID())
				}
			}
		}
		if looked < 5 {
			t.Errorf("%s: only %d CloudEvents were looked at", tt.file, looked)
		}
	}
}

// The rulebook has the form that Event-Driven Ansible documents. Its rules use our types and Azure's words.
func TestRulebookIsValid(t *testing.T) {
	text := runbook(t, "event-driven-ansible.yml")
	if err := shapeOf(t, "rulebook").Validate(asJSON(t, text)); err != nil {
		t.Error(err)
	}
	types := map[string]bool{}
	for _, s := range sentBy(t, "event-driven-ansible.yaml") {
		types[s.about.Type()] = true
	}
	wanted := regexp.MustCompile(`event\.payload\.type == "([^"]+)"`).FindAllStringSubmatch(text, -1)
	if len(wanted) != 2 {
		t.Fatalf("the rules ask for %d types, want 2", len(wanted))
	}
	for _, m := range wanted {
		if !types[m[1]] {
			t.Errorf("a rule asks for type %s, which nobody sends", m[1])
		}
	}
}

// The workflow has the form that GitHub documents and starts on the dispatched event. No text from outside is inserted
// into a script.
func TestWorkflowStartsOnTheDispatch(t *testing.T) {
	workflow := asJSON(t, runbook(t, "github-workflow.yml"))
	if err := shapeOf(t, "workflow").Validate(workflow); err != nil {
		t.Error(err)
	}
	types, _ := at(workflow, "on.repository_dispatch.types")
	for _, s := range sentBy(t, "github.yaml") {
		if got, _ := at(s.body, "event_type"); !slices.Contains(types.([]any), got) {
			t.Errorf("%v is dispatched, and the workflow starts on %v", got, types)
		}
	}
}
