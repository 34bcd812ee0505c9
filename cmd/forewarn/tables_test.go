package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/spf13/cobra"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/cmd/forewarn/internal/page"
	"forewarn/cmd/forewarn/internal/statustest"
	"forewarn/sinks"
	"forewarn/templates"
)

// tableMarks are the lines around a table that is made from the code.
var tableMarks = regexp.MustCompile(`(?s)<!-- table: ([^>]*) -->\n(.*?)<!-- end -->`)

// Every table of keys, fields, functions, metrics, commands and codes in the documents is made from the code:
// go test ./cmd/forewarn -run TestTablesAreThoseOfTheCode -update writes them anew.
func TestTablesAreThoseOfTheCode(t *testing.T) {
	tables := codeTables(t)
	used := map[string]bool{}
	for _, name := range manuals {
		text := manualText(t, name)
		renewed := tableMarks.ReplaceAllStringFunc(text, func(all string) string {
			m := tableMarks.FindStringSubmatch(all)
			used[m[1]] = true
			table, ok := tables[m[1]]
			if !ok {
				t.Errorf("%s has a table %q, which nothing makes", name, m[1])
				return all
			}
			if !*update && m[2] != table {
				t.Errorf("%s, table %q: the document has\n%s\nthe code has\n%s\nrenew it with -update", name, m[1], m[2], table)
			}
			return "<!-- table: " + m[1] + " -->\n" + table + "<!-- end -->"
		})
		if *update && renewed != text {
			if err := os.WriteFile(filepath.Join(root, filepath.FromSlash(name)), []byte(renewed), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name := range tables {
		if !used[name] {
			t.Errorf("no document has the table %q", name)
		}
	}
}

// codeTables are all tables, by name.
func codeTables(t *testing.T) map[string]string {
	t.Helper()
	text, err := forewarn(t, "schema", "--settings").Output()
	if err != nil {
		t.Fatal(err)
	}
	schema := orderedSchema(t, text)
	sink := schema.below("sinks").items
	all := map[string]string{
		"keys of the file": keyTable(schema, "sinks", "approve", "nats"),
		"keys of a relay":  keyTable(schema.below("nats")),
		"keys of a sink":   keyTable(sink, append(slices.Collect(maps.Keys(sinks.Kinds())), "only", "except")...),
		"keys of only":     keyTable(sink.below("only")),
		"keys of approve":  keyTable(schema.below("approve").items),
		"fields":           fieldTable(cloudevent.Fields(event.New()), cloudevent.FieldDocs),
		"message fields":   fieldTable(messageFields(), sinks.MessageDocs),
		"functions":        functionTable(),
		"commands":         commandTable(),
		"exit codes":       exitCodeTable(),
		"metrics":          metricTable(t),
		"attributes":       attributeTable(t),
		"types":            typeTable(t),
		"severity":         severityTable(t),
	}
	all["kinds"] = kindList()
	all["services"] = serviceSections(sink)
	for kind := range sinks.Kinds() {
		if isService(kind) {
			continue // whose table is in its section
		}
		all["keys of "+kind] = keyTable(sink.below(kind))
		all["start of "+kind] = "\n" + yamlBlock(sinks.Kinds()[kind].Example) + "\n"
		if own := sinks.Kinds()[kind].Fields; len(own) > 0 {
			fields, docs := map[string]any{}, map[string]string{}
			for name, f := range own {
				fields[name], docs[name] = f.Zero, f.Doc
			}
			all["fields of "+kind] = fieldTable(fields, docs)
		}
	}
	return all
}

func isService(kind string) bool {
	return slices.ContainsFunc(sinks.Services(), func(s *sinks.Service) bool { return s.Name == kind })
}

// kindList has all kinds of sink by their purpose.
func kindList() string {
	var b strings.Builder
	for _, purpose := range sinks.Purposes {
		var rows [][]string
		for _, name := range slices.Sorted(maps.Keys(allKinds())) {
			k, link := allKinds()[name], "#"+name
			if k.Service {
				link = "services/README.md#" + name
			}
			if k.Purpose == purpose.Name {
				rows = append(rows, []string{"[`" + name + "`](" + link + ")", k.About})
			}
		}
		b.WriteString("\n**" + purpose.Title + "**\n" + strings.TrimSuffix(markdownTable([]string{"kind", "what it does"}, rows), "\n"))
	}
	return b.String() + "\n"
}

// allKinds returns the kinds of sink, with what is said about each.
var allKinds = sync.OnceValue(func() map[string]sinks.Kind {
	kinds := maps.Clone(sinks.Kinds())
	for _, s := range sinks.Services() {
		kinds[s.Name] = s.Kind()
	}
	return kinds
})

// serviceSections has a section for each service, by purpose.
func serviceSections(sink *schemaKey) string {
	var b strings.Builder
	for _, purpose := range sinks.Purposes {
		sections := ""
		for _, s := range sinks.Services() {
			if s.Kind().Purpose == purpose.Name {
				sections += serviceSection(s, keyTable(sink.below(s.Name), s.MoreKeys()...))
			}
		}
		if sections != "" {
			b.WriteString("\n## " + purpose.Title + "\n" + sections)
		}
	}
	return b.String() + "\n"
}

// messageFields are the fields of a message about nothing, for their kinds.
func messageFields() map[string]any {
	return sinks.MessageFields(delivery.Delivery{Event: event.New()}, time.UTC, time.Time{})
}

// marked is text whose words in angle brackets are no HTML.
func marked(text string) string {
	text = regexp.MustCompile(`<[!@][^>]*>`).ReplaceAllString(text, "`$0`")
	return strings.ReplaceAll(text, "{{json .cloudevent}}", "`{{json .cloudevent}}`")
}

func joined(values []any) string {
	var all []string
	for _, v := range values {
		all = append(all, fmt.Sprint(v))
	}
	return strings.Join(all, ", ")
}

func fieldTable(fields map[string]any, docs map[string]string) string {
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		rows = append(rows, []string{"`" + name + "`", kindOf(fields[name]), marked(docs[name])})
	}
	return markdownTable([]string{"name", "kind", "what it is"}, rows)
}

func kindOf(v any) string {
	switch v.(type) {
	case string:
		return "text"
	case bool:
		return "boolean"
	case int, float64:
		return "number"
	case []string, []map[string]any:
		return "list"
	}
	return "map"
}

func functionTable() string {
	var rows [][]string
	for _, d := range templates.FuncDocs {
		rows = append(rows, []string{"`" + d.Name + "`", d.Doc, "`` " + d.Example + " `` → `` " + d.Result + " ``"})
	}
	return markdownTable([]string{"function", "what it gives", "example"}, rows)
}

// commandTable has the commands of all platforms.
func commandTable() string {
	root := (&program{environment: environment{getenv: func(string) string { return "" }}}).root()
	rows := [][]string{}
	row := func(c *cobra.Command) {
		rows = append(rows, []string{"`" + strings.TrimPrefix(c.CommandPath(), "forewarn ") + "`", c.Short})
	}
	for _, c := range root.Commands() {
		switch {
		case c.Name() == "help", c.IsAdditionalHelpTopicCommand():
			continue
		case c.Name() != "outbox":
			row(c)
		}
		if c.Name() == "outbox" || c.Name() == "mute" {
			for _, sub := range c.Commands() {
				row(sub)
			}
		}
	}
	return markdownTable([]string{"command", "what it does"}, rows)
}

func exitCodeTable() string {
	var rows [][]string
	for _, e := range exitCodes {
		rows = append(rows, []string{fmt.Sprint(e.code), e.meaning})
	}
	return markdownTable([]string{"exit code", "meaning"}, rows)
}

// relayMetrics is what /metrics says on a relay.
func relayMetrics(t *testing.T) string {
	t.Helper()
	vm := bridge.FleetVM{Name: "web_0", Set: "web", NotBefore: time.Now().Add(time.Hour)}
	h := page.NewMetrics().Handler(func() bridge.Status {
		return bridge.Status{Relay: &bridge.RelayStatus{VMs: []bridge.FleetVM{vm}}}
	})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// metricTable is of what /metrics says of itself.
func metricTable(t *testing.T) string {
	t.Helper()
	m := measure(t, map[string]error{"ops": nil})
	m.run()
	m.azure.Schedule(imdstest.Event{ID: eventID("A"), Type: "Reboot", NotBefore: time.Now().Add(time.Hour)})
	m.wants(map[string]float64{`forewarn_events_open`: 1, `forewarn_deliveries_total{sink="ops"}`: 1})
	_, text := get(t, m.url+"/metrics")
	text += relayMetrics(t)
	help, kind, labels := map[string]string{}, map[string]string{}, map[string][]string{}
	label := regexp.MustCompile(`(\w+)="`)
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "# HELP forewarn_"):
			help[words[2]] = strings.Join(words[3:], " ")
		case strings.HasPrefix(line, "# TYPE forewarn_"):
			kind[words[2]] = words[3]
		case strings.HasPrefix(line, "forewarn_"):
			name, rest, _ := strings.Cut(line, "{")
			if rest == "" {
				name = words[0]
			}
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base := strings.TrimSuffix(name, suffix); kind[base] == "histogram" {
					name = base
				}
			}
			for _, l := range label.FindAllStringSubmatch(rest, -1) {
				if l[1] != "le" && !slices.Contains(labels[name], l[1]) {
					labels[name] = append(labels[name], l[1])
				}
			}
		}
	}
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(help)) {
		slices.Sort(labels[name])
		of := ""
		if len(labels[name]) > 0 {
			of = "`" + strings.Join(labels[name], "` `") + "`"
		}
		rows = append(rows, []string{"`" + name + "`", kind[name], of, help[name]})
	}
	return markdownTable([]string{"metric", "type", "labels", "what it is"}, rows)
}

// sampleEvent is what a sink is sent of a sample.
func sampleEvent(t *testing.T) event.Event {
	t.Helper()
	sample, ok := cloudevent.NewSample("reboot", statustest.Observer.Name, time.Now())
	if !ok {
		t.Fatal("there is no sample reboot")
	}
	ce, err := sample.CloudEvent(statustest.Observer, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ce
}

func attributeTable(t *testing.T) string {
	t.Helper()
	text, err := json.Marshal(sampleEvent(t))
	if err != nil {
		t.Fatal(err)
	}
	var attributes map[string]any
	if err := json.Unmarshal(text, &attributes); err != nil {
		t.Fatal(err)
	}
	delete(attributes, "data")
	docs := map[string]string{}
	for name := range attributes {
		if docs[name] = cloudevent.FieldDocs[name]; docs[name] == "" {
			t.Errorf("the attribute %s is not explained", name)
		}
	}
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		rows = append(rows, []string{"`" + name + "`", docs[name]})
	}
	return markdownTable([]string{"attribute", "what it is"}, rows)
}

func typeTable(t *testing.T) string {
	t.Helper()
	var rows [][]string
	for _, name := range append(slices.Clone(cloudevent.Types), cloudevent.BridgeTest) {
		if cloudevent.TypeDocs[name] == "" {
			t.Errorf("the type %s is not explained", name)
		}
		rows = append(rows, []string{"`" + name + "`", cloudevent.TypeDocs[name]})
	}
	if len(rows) != len(cloudevent.TypeDocs) {
		t.Errorf("%d types are explained, and there are %d", len(cloudevent.TypeDocs), len(rows))
	}
	return markdownTable([]string{"type", "when"}, rows)
}

// severityTable says what the sinks of people make of each kind of event, as render prints it.
func severityTable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "forewarn.yaml")
	write(t, file, `state: `+dir+`
sinks:
  - {name: slack, only: {vms: all}, slack: {token: t, channel: c, mention: {text: "<!here>"}}}
  - {name: pagerduty, only: {vms: all}, pagerduty: {routing_key: k}}
  - {name: ntfy, only: {vms: all}, ntfy: {topic: t}}
  - {name: text, only: {vms: all}, webhook: {url: "https://h", body_text: 'SEVERITY={{.severitytext}}', content_type: text/plain}}
`)
	var rows [][]string
	for _, e := range []struct {
		label, typ, source, change string
		duration                   int
	}{
		{"Preempt (Spot eviction)", "Preempt", "Platform", "scheduled", -1},
		{"Reboot by Azure", "Reboot", "Platform", "scheduled", -1},
		{"Redeploy by Azure", "Redeploy", "Platform", "scheduled", -1},
		{"Reboot or Redeploy that a user asked for", "Reboot", "User", "scheduled", -1},
		{"Terminate", "Terminate", "User", "scheduled", -1},
		{"Freeze up to 10 s", "Freeze", "Platform", "scheduled", 10},
		{"Freeze longer than 10 s", "Freeze", "Platform", "scheduled", 11},
		{"Freeze of unknown length", "Freeze", "Platform", "scheduled", -1},
		{"a type that forewarn doesn't know", "Migrate", "Platform", "scheduled", -1},
		{"the end of any event", "Preempt", "Platform", "vanished", -1},
	} {
		raw := statustest.Event(eventID("A"), e.typ, e.source, "", time.Now().Add(time.Hour), e.duration, "vm-0")
		c := forewarn(t, "render", "--config", file, "--document", "-", "--change", e.change)
		c.Stdin = strings.NewReader(fmt.Sprintf(`{"DocumentIncarnation": 1, "Events": [%s]}`, raw))
		out, err := c.Output()
		if err != nil {
			t.Fatal(err, string(out))
		}
		find := func(pattern string) string {
			m := regexp.MustCompile(pattern).FindStringSubmatch(string(out))
			if m == nil {
				t.Fatalf("render prints no %s:\n%s", pattern, out)
			}
			return m[1]
		}
		mentioned := "no"
		if strings.Contains(string(out), "<!here>") {
			mentioned = "yes"
		}
		pager := find(`"severity":"(\w+)"`)
		if find(`"event_action":"(\w+)"`) == "resolve" {
			pager = "resolves"
		}
		rows = append(rows, []string{e.label, mentioned, pager, find(`"priority":(\d)`), find(`SEVERITY=(\w+)`)})
	}
	return markdownTable([]string{"event", "Slack mentions", "PagerDuty", "ntfy priority", "severity"}, rows)
}
