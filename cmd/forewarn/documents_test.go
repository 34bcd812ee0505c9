package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/spf13/cobra"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/cmd/forewarn/internal/manual"
	"forewarn/cmd/forewarn/internal/statustest"
	"forewarn/sinks"
	"forewarn/templates"
)

// manuals are all documents that operators read, from the top of the repository.
var manuals = []string{
	"README.md", "cmd/forewarn/README.md", "sinks/README.md", "templates/README.md", "bridge/README.md",
	"examples/README.md",
}

// manualText is the text of one of them.
func manualText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const root = "../.."

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
		"keys of a sink":   keyTable(sink, append(slices.Collect(maps.Keys(sinks.Kinds)), "only", "except")...),
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
	for kind := range sinks.Kinds {
		all["keys of "+kind] = keyTable(sink.below(kind))
		if own := sinks.Kinds[kind].Fields; len(own) > 0 {
			fields, docs := map[string]any{}, map[string]string{}
			for name, f := range own {
				fields[name], docs[name] = f.Zero, f.Doc
			}
			all["fields of "+kind] = fieldTable(fields, docs)
		}
	}
	return all
}

// messageFields are the fields of a message about nothing, for their kinds.
func messageFields() map[string]any {
	return sinks.MessageFields(delivery.Delivery{Event: event.New()}, time.UTC, time.Time{})
}

// markdownTable makes a table; bars in its cells are text.
func markdownTable(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) {
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", `\|`)
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	b.WriteString("\n")
	line(head)
	b.WriteString("|" + strings.Repeat(" --- |", len(head)) + "\n")
	for _, r := range rows {
		line(r)
	}
	b.WriteString("\n")
	return b.String()
}

// A schemaKey is a key of the settings with what the schema says of it, its own keys in their order.
type schemaKey struct {
	name, description string
	fallback          any // its default
	enum              []any
	secret            bool
	keys              []*schemaKey
	items, values     *schemaKey
}

func (k *schemaKey) below(name string) *schemaKey {
	i := slices.IndexFunc(k.keys, func(k *schemaKey) bool { return k.name == name })
	return k.keys[i]
}

// orderedSchema reads a JSON Schema.
func orderedSchema(t *testing.T, text []byte) *schemaKey {
	t.Helper()
	var in struct {
		Description string          `json:"description"`
		Default     any             `json:"default"`
		Enum        []any           `json:"enum"`
		WriteOnly   bool            `json:"writeOnly"`
		Properties  json.RawMessage `json:"properties"`
		Items       json.RawMessage `json:"items"`
		Values      json.RawMessage `json:"additionalProperties"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		t.Fatal(err)
	}
	k := &schemaKey{description: in.Description, fallback: in.Default, enum: in.Enum, secret: in.WriteOnly}
	if len(in.Items) > 0 {
		k.items = orderedSchema(t, in.Items)
	}
	if bytes.HasPrefix(in.Values, []byte("{")) {
		k.values = orderedSchema(t, in.Values)
	}
	d := json.NewDecoder(bytes.NewReader(in.Properties))
	for token, err := d.Token(); err == nil; token, err = d.Token() {
		name, ok := token.(string)
		if !ok {
			continue // a brace
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			t.Fatal(err)
		}
		below := orderedSchema(t, value)
		below.name = name
		k.keys = append(k.keys, below)
	}
	return k
}

// keyTable has a row for each key below one, but those that are left out. The other spellings of a secret or a template
// have none of their own.
func keyTable(of *schemaKey, without ...string) string {
	var rows [][]string
	var add func(path string, keys []*schemaKey)
	add = func(path string, keys []*schemaKey) {
		has := func(name string) bool {
			return slices.ContainsFunc(keys, func(k *schemaKey) bool { return k.name == name })
		}
		for _, k := range keys {
			base := strings.TrimSuffix(strings.TrimSuffix(k.name, "_file"), "_env")
			if path == "" && slices.Contains(without, k.name) || base != k.name && has(base) {
				continue
			}
			name := strings.TrimPrefix(path+"."+k.name, ".")
			below := k.keys
			if path == "" && (k.name == "only" || k.name == "except") {
				below = nil // which have a table of their own
			}
			text, fallback := k.description, ""
			if before, after, ok := strings.Cut(text, " (default: "); ok {
				text, fallback = before, strings.TrimSuffix(after, ")")
			} else if len(below) > 0 {
				add(name, below)
				continue
			}
			if k.fallback != nil {
				fallback = fmt.Sprintf("`%v`", k.fallback)
			}
			values := k.enum
			if k.items != nil && len(k.items.enum) > 0 {
				values = k.items.enum
			}
			if len(values) > 0 && !strings.Contains(text, ":") {
				text += ": " + joined(values)
			}
			switch {
			case k.secret, k.items != nil && k.items.secret, k.values != nil && k.values.secret:
				text += " (secret)"
			case has(k.name + "_file"):
				text += " (template)"
			}
			rows = append(rows, []string{"`" + name + "`", fallback, marked(text)})
			add(name, below)
		}
	}
	add("", of.keys)
	return markdownTable([]string{"key", "default", "what it is"}, rows)
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

func commandTable() string {
	root := (&program{environment: environment{getenv: func(string) string { return "" }}}).root()
	var rows [][]string
	eachCommand(root, func(c *cobra.Command) {
		if c.Runnable() && !c.HasSubCommands() && c.Parent().Name() != "completion" || c.Name() == "completion" ||
			c.Name() == "service" {
			if c.Parent().Name() != "service" {
				rows = append(rows, []string{"`" + strings.TrimPrefix(c.CommandPath(), "forewarn ") + "`", c.Short})
			}
		}
	})
	return markdownTable([]string{"command", "what it does"}, rows)
}

func exitCodeTable() string {
	var rows [][]string
	for _, e := range exitCodes {
		rows = append(rows, []string{fmt.Sprint(e.code), e.meaning})
	}
	return markdownTable([]string{"exit code", "meaning"}, rows)
}

// metricTable is of what /metrics says of itself.
func metricTable(t *testing.T) string {
	t.Helper()
	m := measure(t, map[string]error{"ops": nil})
	m.run()
	m.azure.Schedule(imdstest.Event{ID: eventID("A"), Type: "Reboot", NotBefore: time.Now().Add(time.Hour)})
	m.wants(map[string]float64{`forewarn_events_open`: 1, `forewarn_deliveries_total{sink="ops"}`: 1})
	_, text := get(t, m.url+"/metrics")
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
  - {name: slack, only: {vms: all}, slack: {token: t, channel: c, mention: {text: MENTIONED}}}
  - {name: pagerduty, only: {vms: all}, webhook: {url: "https://h", body: pagerduty, body_secrets: {routing_key: k}}}
  - {name: ntfy, only: {vms: all}, webhook: {url: "https://h", body: ntfy, body_secrets: {topic: t}}}
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
		if strings.Contains(string(out), "MENTIONED") {
			mentioned = "yes"
		}
		pager := find(`"severity":"(\w+)"`)
		if find(`"event_action":"(\w+)"`) == "resolve" {
			pager = "resolves"
		}
		rows = append(rows, []string{e.label, find(`SEVERITY=(\w+)`), mentioned, pager, find(`"priority":(\d)`)})
	}
	return markdownTable([]string{"event", "severity", "Slack mentions", "PagerDuty", "ntfy priority"}, rows)
}

// Every kind of sink has a section with the table of its keys, which help sinks KIND prints too.
func TestEveryKindHasItsSection(t *testing.T) {
	for kind := range sinks.Kinds {
		if !strings.Contains(manual.Section(sinks.Manual, kind), "<!-- table: keys of "+kind+" -->") {
			t.Errorf("sinks/README.md has no section %s with the table of its keys", kind)
		}
	}
}

// README is one page.
func TestREADMEIsOnePage(t *testing.T) {
	if n := strings.Count(manualText(t, "README.md"), "\n"); n > 120 {
		t.Errorf("README.md has %d lines, want at most 120", n)
	}
}

// What help prints of the documents is there, and readable in a terminal of 100 columns.
func TestHelpPrintsTheDocuments(t *testing.T) {
	names := [][]string{{"sinks", "slack"}, {"sinks", "file"}}
	for _, topic := range topics {
		for _, section := range topic.sections {
			if manual.Section(topic.document, section) == "" {
				t.Errorf("help %s is made of a section %q, which is not there", topic.name, section)
			}
		}
		names = append(names, []string{topic.name})
	}
	for _, name := range names {
		out, err := forewarn(t, append([]string{"help"}, name...)...).Output()
		if err != nil || len(out) < 300 {
			t.Errorf("help %s: %v, %d bytes", strings.Join(name, " "), err, len(out))
		}
		for line := range strings.Lines(string(out)) {
			long := utf8.RuneCountInString(strings.TrimRight(line, "\n")) > manual.Width
			if code := strings.HasPrefix(line, "    "); long && !code || strings.Contains(line, "<!--") || strings.Contains(line,
				"**") {
				t.Errorf("help %s: %q", strings.Join(name, " "), line)
			}
		}
	}
	if _, err := forewarn(t, "help", "sinks", "fax").Output(); exitCodeOf(err) != exitUsage {
		t.Errorf("help about a sink that there is none of: %v, want exit %d", err, exitUsage)
	}
}

// What commands say about themselves fits into 100 columns.
func TestHelpOfCommandsFitsIntoATerminal(t *testing.T) {
	root := (&program{environment: environment{getenv: func(string) string { return "" }}}).root()
	eachCommand(root, func(c *cobra.Command) {
		if c.Parent().Name() == "completion" {
			return // cobra's own words
		}
		for _, line := range strings.Split(c.Short+"\n"+c.Long+"\n"+c.Example, "\n") {
			if utf8.RuneCountInString(line) > manual.Width {
				t.Errorf("%s: %q", c.CommandPath(), line)
			}
		}
	})
}

func exitCodeOf(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}

// Every key of the settings is in what help prints.
func TestHelpHasEveryKey(t *testing.T) {
	text := ""
	for _, name := range []string{"settings", "sinks", "approval"} {
		out, err := forewarn(t, "help", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		text += string(out)
	}
	eachKey(schemaJSON(t), "", func(path string, _ map[string]any) {
		name := path[strings.LastIndexByte(path, '.')+1:]
		plain := strings.TrimSuffix(strings.TrimSuffix(name, "_file"), "_env")
		if !strings.Contains(text, name) && !strings.Contains(text, plain) {
			t.Errorf("help names no key %s", path)
		}
	})
}

var (
	fenced   = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")
	codeSpan = regexp.MustCompile("`([^`\n]+)`")
	linkTo   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// Every link of the documents leads somewhere: to a file of the repository, and to a heading in it.
func TestLinksLeadSomewhere(t *testing.T) {
	anchor := func(heading string) string {
		return strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, heading)
	}
	headings := func(name string) (all []string) {
		for _, b := range manual.Parse(manualText(t, name)) {
			if b.Kind == manual.Heading {
				all = append(all, anchor(b.Text))
			}
		}
		return all
	}
	for _, name := range append(slices.Clone(manuals), "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md") {
		for _, m := range linkTo.FindAllStringSubmatch(manualText(t, name), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, heading, _ := strings.Cut(m[1], "#")
			target := name
			if file != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(name), file))
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			} else if heading != "" && !slices.Contains(headings(target), heading) {
				t.Errorf("%s links to %s, and there is no such heading; there are %q", name, m[1], headings(target))
			}
		}
	}
}

// Every command that the documents name exists, with its flags.
func TestEveryCommandInTheDocumentsExists(t *testing.T) {
	commands := regexp.MustCompile(`(?m)^(?:sudo )?(?:\./|\\)?forewarn (.*)$`)
	n := 0
	for _, name := range manuals {
		text := manualText(t, name)
		var lines []string
		for _, block := range fenced.FindAllStringSubmatch(text, -1) {
			if block[1] == "" || block[1] == "console" {
				lines = append(lines, block[2])
			}
		}
		for _, span := range codeSpan.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			lines = append(lines, span[1])
		}
		for _, m := range commands.FindAllStringSubmatch(strings.Join(lines, "\n"), -1) {
			line, _, _ := strings.Cut(m[1], " #")
			line, _, _ = strings.Cut(line, " >")
			line, _, _ = strings.Cut(line, " 2>")
			args := strings.Fields(strings.TrimSuffix(line, "&"))
			root := (&program{environment: environment{getenv: func(string) string { return "" }}}).root()
			c, rest, err := root.Find(args)
			if err == nil && c == root {
				err = errors.New("no such command")
			}
			if err == nil {
				c.InitDefaultHelpFlag()
				err = c.ParseFlags(rest)
			}
			if n++; err != nil {
				t.Errorf("%s: forewarn %s: %v", name, m[1], err)
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d commands were found", n)
	}
}

// What operations says that forewarn says, it says: each message in the table of failures stands in the source.
func TestFailuresAreDescribedInTheirOwnWords(t *testing.T) {
	var source strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		source.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, line := range strings.Split(manual.Section(ownManual, "What failures look like"), "\n") {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, m := range codeSpan.FindAllStringSubmatch(first, -1) {
			if rows++; !strings.Contains(source.String(), m[1]) {
				t.Errorf("nothing says %q", m[1])
			}
		}
	}
	if rows < 8 {
		t.Errorf("the table of failures has %d messages", rows)
	}
}

// A secret that is made as the documents say is one that signing takes.
func TestSecretForSigningIsMadeAsTheDocumentsSay(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("sh is not installed, and the line needs it")
	}
	line := regexp.MustCompile(`(?m)^printf 'whsec_.*$`).FindString(sinks.Manual)
	out, err := exec.Command("sh", "-c", line).Output()
	if err != nil {
		t.Fatal(err)
	}
	loadSample(t, "a signing webhook", "sinks: [{name: a, webhook: {url: 'https://h', signing_secrets: ['"+strings.TrimSpace(string(out))+"']}}]", "")
}
