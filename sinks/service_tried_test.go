package sinks

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// realServers are those that the stage servers of CI tells of events: the module in .ci/servers/go.mod, if it is one, and
// what came of it there. The others have a fake.
var realServers = map[string]struct{ title, module, came string }{
	"alertmanager":  {"Alertmanager of Debian 12", "", "It fires, again after a restart, and is resolved."},
	"elasticsearch": {"VictoriaLogs", "github.com/VictoriaMetrics/VictoriaLogs", "Each change is stored."},
	"loki":          {"VictoriaLogs", "github.com/VictoriaMetrics/VictoriaLogs", "Each change is stored."},
	"matrix": {"Dendrite", "github.com/matrix-org/dendrite",
		"Each message is in the room; a wrong token is blocked."},
	"otlp":   {"the OpenTelemetry Collector", "go.opentelemetry.io/collector/otelcol", "Each change is received."},
	"splunk": {"VictoriaLogs", "github.com/VictoriaMetrics/VictoriaLogs", "Each change is stored."},
}

const triedBegin, triedEnd = "<!-- made by: go test ./sinks -run TestEachServiceHasItsRow -update -->\n", "<!-- end of it -->\n"

// Each service has a row that says what it is for, how it was tried and what that answered; a real server only if the
// stage servers has it.
func TestEachServiceHasItsRow(t *testing.T) {
	var b strings.Builder
	b.WriteString("\n| service | what it does | how it was tried | what it answered |\n| --- | --- | --- | --- |\n")
	stage := repositoryFile(t, ".ci/stages/servers")
	modules := repositoryFile(t, ".ci/servers/go.mod")
	for _, s := range Services() {
		d := demands[s.Name]
		request, _, _ := strings.Cut(d.request, "?")
		how := fmt.Sprintf("a fake: `%s`", strings.ReplaceAll(request, anyKey, "…"))
		if bodySchema(t, s.Name) != nil {
			how += ", schema"
		}
		if kb := bounds[s.Name].bytes / 1000; kb > 0 {
			how += fmt.Sprintf(", %d kB", kb)
		}
		answered := fmt.Sprintf("`%d`", d.status)
		if d.answer != "" {
			answered = fmt.Sprintf("`%d %s`", d.status, shorten(d.answer))
		}
		if real, ok := realServers[s.Name]; ok {
			if !regexp.MustCompile(`tried\+=\([^)]*\b` + s.Name + `\b`).MatchString(stage) {
				t.Errorf("the stage servers doesn't try %s", s.Name)
			}
			title := real.title
			if real.module != "" {
				version := regexp.MustCompile(regexp.QuoteMeta(real.module) + ` v(\S+)`).FindStringSubmatch(modules)
				if version == nil {
					t.Fatalf(".ci/servers/go.mod has no %s", real.module)
				}
				title += " " + version[1]
			}
			how, answered = title+"; "+how, real.came+" The fake: "+answered
		}
		fmt.Fprintf(&b, "| [`%s`](../../sinks/services/README.md#%s) | %s | %s | %s |\n", s.Name, s.Name, s.About, how, answered)
	}
	b.WriteString("\n")
	const page = "examples/untried/README.md"
	text := strings.ReplaceAll(repositoryFile(t, page), "\r\n", "\n")
	before, rest, begins := strings.Cut(text, triedBegin)
	table, after, ends := strings.Cut(rest, triedEnd)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table", page)
	}
	if *update {
		if err := os.WriteFile(filepath.Join("..", filepath.FromSlash(page)), []byte(before+triedBegin+b.String()+triedEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != b.String() {
		t.Errorf("the document has\n%s\nwant\n%s\nrenew it with -update", table, b.String())
	}
}

func repositoryFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// shorten keeps the beginning of an answer, for a cell.
func shorten(answer string) string {
	if utf8.RuneCountInString(answer) > 50 {
		return string([]rune(answer)[:49]) + "…"
	}
	return answer
}
