package settings

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"forewarn/sinks"
)

// A value is shown only if its key is known and not secret. A value that was not decoded is not shown.
func TestUncheckedValueIsNotShown(t *testing.T) {
	doc := &document{text: "key: value\n"}
	for _, tt := range []struct{ open, secret, want bool }{{false, false, false}, {true, true, false},
		{true, false, true}} {
		n := &node{pos: pos{line: 1, column: 6}, kind: aText, text: "value", open: tt.open, secret: tt.secret}
		if got := doc.showable(n); got != tt.want {
			t.Errorf("open %v, secret %v: shown is %v, want %v", tt.open, tt.secret, got, tt.want)
		}
	}
}

// A secret that stands where the name of its file or its variable belongs is not shown, whatever it looks like. The
// error has the key, and says what was expected.
func TestASecretInTheWrongPlaceIsNotShown(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{
		"xoxb-2404-aBcDeFgH", "hunter2_prod", "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY", "/aGVsbG8gd29ybGQ",
		"aGVs//bG8/gd29ybGQ=", `doma\in-pass`, "https://hooks.slack.com/services/T0/B0/k3v9x2m7qd", "correct horse battery staple",
		"eyJhbGciOiJub25lIn0.eyJzdWIiOiJmb3Jld2FybiJ9.", strings.Repeat("k3y", 200), "nats://u:pa55@nats.test",
		"k3v9x2m7qd=", "ключ-длинный", "пароль", "-----BEGIN PRIVATE KEY-----\\nMIIEvQ//IBADANB\\n-----END PRIVATE KEY-----",
	} {
		for _, sink := range []string{
			"slack: {channel: C1, token_KIND: SECRET}", "slack: {webhook_url_KIND: SECRET}",
			"webhook: {url_KIND: SECRET}", "webhook: {url: 'https://a.test', bearer_KIND: SECRET}",
			"webhook: {url: 'https://a.test', basic: {username: u, password_KIND: SECRET}}",
			"webhook: {url: 'https://a.test', headers: {X-Key: {KIND: SECRET}}}",
			"webhook: {url: 'https://a.test', signing_secrets: [{KIND: SECRET}]}",
			"ntfy: {topic_KIND: SECRET}",
			"webhook: {url: 'https://a.test', body_text_file: SECRET}",
			"webhook: {url: 'https://a.test', tls: {cert_file: SECRET, key_file: SECRET}}",
			"nats: {url_KIND: SECRET}", "nats: {url: [{KIND: SECRET}]}", "nats: {url: 'tls://a.test', token_KIND: SECRET}",
			"nats: {url: 'tls://a.test', username: u, password_KIND: SECRET}",
			"nats: {url: 'tls://a.test', nkey_file: SECRET}", "nats: {url: 'tls://a.test', creds_file: SECRET}",
			"email: {host: a.test, from: a@a.test, to: [b@a.test], username: u, password_KIND: SECRET}",
			"email: {host: a.test, from: a@a.test, to: [b@a.test], text_file: SECRET}",
			"exec: {command: ['true'], env: {KEY: {KIND: SECRET}}}", "syslog: {url: 'tcp://127.0.0.1', text_file: SECRET}",
		} {
			for _, kind := range []string{"file", "env"} {
				quoted := "'" + secret + "'"
				if strings.Contains(secret, "BEGIN") { // of several lines
					quoted = `"` + secret + `"`
				}
				sink := strings.NewReplacer("KIND", kind, "SECRET", quoted).Replace(sink)
				_, err := Loader{Kinds: sinks.Kinds(), Host: sinks.Host{Getenv: func(string) string { return "" }},
					Defaults: Defaults{State: "/var/lib/forewarn"}}.
					Parse(filepath.Join(t.TempDir(), "forewarn.yaml"), []byte("sinks:\n- name: a\n  "+sink+"\n"))
				if err == nil {
					t.Errorf("%s is right", sink)
					continue
				}
				for i := range len(secret) - 7 {
					if strings.Contains(err.Error(), secret[i:i+8]) {
						t.Errorf("%s shows %q: %v", sink, secret[i:i+8], err)
						break
					}
				}
				if got := err.Error(); !strings.Contains(got, "yaml:3:") || !strings.Contains(got, "expected the") &&
					!strings.Contains(got, "names an environment variable that is not set") {
					t.Errorf("%s gives %v", sink, err)
				}
			}
		}
	}
}

// The path of a file that isn't there is shown if it is one: its directory exists, or it is made of words.
func TestAMissingFileIsShown(t *testing.T) {
	dir := t.TempDir()
	err := os.Mkdir(filepath.Join(dir, "sec"), 0o700)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "tokn"), "sec/tokn", "./tokn", "/nowhere/tokn"} {
		_, err := Loader{Kinds: sinks.Kinds()}.Parse(filepath.Join(dir, "forewarn.yaml"),
			[]byte("sinks: [{name: a, slack: {channel: C1, token_file: '"+path+"'}}]\n"))
		if err == nil || !strings.Contains(filepath.ToSlash(err.Error()), "/tokn: ") {
			t.Errorf("without %s, the settings give %v", path, err)
		}
	}
}
