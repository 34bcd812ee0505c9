package settings

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"forewarn/sinks"
)

// ours returns the service that the documents have as an example.
func ours(t *testing.T) string {
	t.Helper()
	_, rest, _ := strings.Cut(sinks.Manual, "```\n# /etc/forewarn/services/ours.yaml")
	text, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("the documents have no service of one's own")
	}
	return "#" + text
}

// withService loads settings with a file services/NAME beside them.
func withService(t *testing.T, name, service, sink string) (*Settings, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(service), 0o600); err != nil {
		t.Fatal(err)
	}
	l := Loader{Kinds: sinks.Kinds(), Defaults: Defaults{State: "/var/lib/forewarn"}, Host: sinks.Host{
		Getenv: func(string) string { return "" }, Stdout: io.Discard, Log: slog.New(slog.DiscardHandler),
	}}
	return l.Parse(filepath.Join(dir, "forewarn.yaml"), []byte("services: "+name+"\nsinks: ["+sink+"]\n"))
}

// A file makes a kind of sink, with keys of its own, and is one of the files that the settings consist of.
func TestAServiceOfOnesOwn(t *testing.T) {
	s, err := withService(t, "ours.yaml", ours(t), "{name: a, ours: {url: 'https://a.test', token: hunter2}}")
	if err != nil {
		t.Fatal(err)
	}
	if r := s.Routes[0]; r.Kind != "ours" || !r.Terms.People || r.Sink == nil {
		t.Errorf("the sink is %+v, want one of people", r)
	}
	if len(s.Files) != 2 || filepath.Base(s.Files[1].Path) != "ours.yaml" {
		t.Errorf("the files are %v", s.Files)
	}
	_, err = withService(t, "ours.yaml", ours(t), "{name: a, ours: {url: 'https://a.test', tokn: hunter2}}")
	if err == nil || !strings.Contains(err.Error(), "ours: unknown key") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a misspelt key gives %v", err)
	}
}

// What is wrong with such a file is said with its place, once, whether a sink uses it or not.
func TestWrongServicesAreRefused(t *testing.T) {
	const body = "body: '{}'\n"
	for _, tt := range []struct{ name, service, says string }{
		{"ours.yaml", "bdy: x\n" + body, "ours.yaml:1:1: unknown key \"bdy\"; did you mean \"body\"?"},
		{"ours.yaml", "for: people\n", "ours.yaml:1:1: body: missing; expected a template of what is sent"},
		{"ours.yaml", "for: peple\n" + body, `ours.yaml:1:1: for: "peple" is unknown; expected one of people`},
		{"ours.yaml", "body: |\n  {\"a\":\n  {{json .azeventtyp}}}\n", `ours.yaml:3:10: body: unknown name "azeventtyp"`},
		{"ours.yaml", "body: '{{if}}'\n", "ours.yaml:1:1: body: "},
		{"ours.yaml", "body: 'no JSON'\n", "ours.yaml:1:1: body: with a sample"},
		{"ours.yaml", "body: '{\"a\": {{json (index .resources 0)}}}'\n", "ours.yaml:1:1: body: with a sample"},
		{"ours.yaml", "path: '/{{index .resources 9}}'\n" + body, "ours.yaml:1:1: path: its template fails"},
		{"ours.yaml", "headers: {X-A: '{{index .resources 9}}'}\n" + body, "ours.yaml:1:11: headers"},
		{"ours.yaml", "success: status\n" + body, "ours.yaml:1:1: success: expected bool"},
		{"ours.yaml", "blocked_if: status\n" + body, "ours.yaml:1:1: blocked_if: expected bool"},
		{"ours.yaml", "keys: [{name: url}]\n" + body, `ours.yaml:1:9: keys.0.name: "url" is taken`},
		{"ours.yaml", "keys: [{name: a, secret: true, default: x}]\n" + body, "ours.yaml:1:32: keys.0.default: a secret has none"},
		{"ours.yaml", "offers: [tls]\n" + body, `ours.yaml:1:10: offers.0: "tls" is unknown`},
		{"ours.yaml", "method: GET\n" + body, "ours.yaml:1:1: method: "},
		{"slack.yaml", body, "forewarn.yaml:1:11: services: there is slack already"},
		{"name.yaml", body, "forewarn.yaml:1:11: services: there is name already"},
		{"our tool.yaml", body, "forewarn.yaml:1:11: services: the name of the file is that of the kind"},
	} {
		for _, sink := range []string{"", "{name: a, ours: {url: 'https://a.test'}}"} {
			if sink != "" && tt.name != "ours.yaml" {
				continue
			}
			_, err := withService(t, tt.name, tt.service, sink)
			if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s\ngives %v\nwant %s", tt.service, err, tt.says)
			}
		}
	}
}
