package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"forewarn/bridge/imdstest"
)

var (
	monitoring = filepath.Join("..", "..", "examples", "prometheus")
	dashboards = filepath.Join("..", "..", "examples", "grafana")
)

// metricNames are the metrics that a bridge with a sink and an open event shows.
func metricNames(t *testing.T) []string {
	t.Helper()
	m := measure(t, map[string]error{"a": nil})
	m.run()
	m.azure.Schedule(imdstest.Event{ID: eventID("A"), Type: "Reboot"})
	m.wants(map[string]float64{`forewarn_events_open`: 1})
	_, text := get(t, m.url+"/metrics")
	var names []string
	for _, match := range regexp.MustCompile(`(?m)^([a-z_]+)[ {]`).FindAllStringSubmatch(text, -1) {
		names = append(names, match[1])
	}
	return append(names, "up") // which Prometheus adds
}

// wantNames fails for each metric that a query asks for and nobody has. A query's words are metrics, but for its
// functions, labels and keywords.
func wantNames(t *testing.T, where, query string, names []string) {
	t.Helper()
	query = regexp.MustCompile(`"[^"]*"|\{\{.*?\}\}`).ReplaceAllString(query, "")
	query = regexp.MustCompile(`\{[^}]*\}|\b(by|on|group_left|without)\s*\([^)]*\)|\[[^\]]*\]`).ReplaceAllString(query, "")
	found := 0
	for _, at := range regexp.MustCompile(`[a-z_:]{2,}\s*\(?`).FindAllString(query, -1) {
		word := strings.TrimSpace(at)
		if strings.HasSuffix(word, "(") || slices.Contains([]string{"or", "and", "unless", "job"}, word) {
			continue
		}
		found++
		if !slices.Contains(names, word) {
			t.Errorf("%s asks for %s, which there is not", where, word)
		}
	}
	if found == 0 {
		t.Errorf("%s asks for no metric: %s", where, query)
	}
}

type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Alert, Record, Expr string
			Labels              map[string]string
			Annotations         map[string]string
		}
	}
}

type ruleTests struct {
	Tests []struct {
		AlertRuleTest []struct {
			AlertName string `yaml:"alertname"`
			ExpAlerts []any  `yaml:"exp_alerts"`
		} `yaml:"alert_rule_test"`
	}
}

func readExample(t *testing.T, v any, path ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err == nil && strings.HasSuffix(path[len(path)-1], ".json") {
		err = json.Unmarshal(text, v)
	} else if err == nil {
		err = yaml.Unmarshal(text, v)
	}
	if err != nil {
		t.Fatalf("%s: %v", filepath.Join(path...), err)
	}
}

// The alerts use only existing metrics, name the VM, and say what to do. Each has a unit test in which it fires and one in
// which it does not.
func TestAlertsUseExistingMetrics(t *testing.T) {
	t.Parallel()
	var rules ruleFile
	var tests ruleTests
	readExample(t, &rules, monitoring, "forewarn.rules.yaml")
	readExample(t, &tests, monitoring, "forewarn.rules.test.yaml")
	fires, rests := map[string]bool{}, map[string]bool{}
	for _, group := range tests.Tests {
		for _, a := range group.AlertRuleTest {
			fires[a.AlertName] = fires[a.AlertName] || len(a.ExpAlerts) > 0
			rests[a.AlertName] = rests[a.AlertName] || len(a.ExpAlerts) == 0
		}
	}
	names := metricNames(t)
	var alerts []string
	for _, group := range rules.Groups {
		for _, r := range group.Rules {
			wantNames(t, r.Alert+r.Record, r.Expr, names)
			if r.Record != "" {
				names = append(names, r.Record)
				continue
			}
			alerts = append(alerts, r.Alert)
			told := r.Annotations["summary"] + r.Annotations["description"]
			if namesVM := strings.Contains(told, "{{ $labels.vm }}"); namesVM == (r.Alert == "ForewarnAbsent") {
				t.Errorf("%s names the VM: %v", r.Alert, namesVM)
			}
			if strings.Contains(told, "$labels.instance") {
				t.Errorf("%s shows an address: %s", r.Alert, told)
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
				t.Errorf("%s has the severity %q, want critical, warning or info", r.Alert, r.Labels["severity"])
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s does not say what is wrong and what to do", r.Alert)
			}
			if !fires[r.Alert] || !rests[r.Alert] {
				t.Errorf("%s fires in a unit test: %v, and rests in one: %v; want both", r.Alert, fires[r.Alert], rests[r.Alert])
			}
		}
	}
	for _, want := range []string{"Down", "Absent", "SinkNeedsSomebody", "DeliveriesFailing", "OldestPendingTooOld",
		"DeadLetters", "PollStale",
		"OutboxNotDurable", "ReloadFailed", "EventImminent"} {
		if !slices.Contains(alerts, "Forewarn"+want) {
			t.Errorf("there is no alert Forewarn%s", want)
		}
	}
}

// Prometheus accepts the example's settings and alerts, and the alerts pass their unit tests.
func TestPrometheusAcceptsTheExamples(t *testing.T) {
	t.Parallel()
	promtool := promtool(t)
	for _, args := range [][]string{
		{"check", "config", "prometheus.yaml"},
		{"check", "rules", "--lint-fatal", "forewarn.rules.yaml"},
		{"test", "rules", "forewarn.rules.test.yaml"},
	} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = monitoring
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, said)
		}
	}
}

type dashboard struct {
	UID    string
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct {
			Name  string
			Query any
		}
	}
}

// The dashboard's queries use only existing metrics and are valid, and its panels do not overlap.
func TestDashboardUsesExistingMetrics(t *testing.T) {
	t.Parallel()
	var d dashboard
	readExample(t, &d, dashboards, "forewarn.json")
	if d.UID == "" || len(d.Panels) == 0 {
		t.Fatalf("the dashboard has the uid %q and %d panels", d.UID, len(d.Panels))
	}
	names := metricNames(t)
	var queries []map[string]any
	seen, used := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if seen[p.ID] || len(p.Targets) == 0 {
			t.Errorf("panel %d, %s, has another's id, or no query", p.ID, p.Title)
		}
		seen[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := used[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s lies over %q, or beyond the edge", p.Title, other)
				}
				used[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			wantNames(t, p.Title, target.Expr, names)
			expr := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*").Replace(target.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("%s has a variable that the dashboard lacks: %s", p.Title, target.Expr)
			}
			queries = append(queries,
				map[string]any{"record": "q", "expr": expr, "labels": map[string]string{"n": string(rune('a' + len(queries)))}})
		}
	}
	for _, v := range d.Templating.List {
		query, _ := v.Query.(map[string]any) // but of the data source it is text
		text, _ := query["query"].(string)
		if name, ok := strings.CutPrefix(text, "label_values("); ok {
			name, _, _ = strings.Cut(name, ",")
			wantNames(t, v.Name, name, names)
		}
	}

	promtool := promtool(t)
	rules, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": queries}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rules.json")
	if err := os.WriteFile(path, rules, 0o600); err != nil { // JSON is YAML too
		t.Fatal(err)
	}
	if said, err := exec.Command(promtool, "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("the dashboard's queries: %v\n%s", err, said)
	}
}
