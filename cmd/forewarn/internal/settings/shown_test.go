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

// Of a URL that is none nothing is shown, and what it should be is said. It hides no problem of another sink, and neither
// does a secret that is spelt like what is said.
func TestOfAURLThatIsNoneItIsSaidWhatItShouldBe(t *testing.T) {
	const url, proxy = "is not a URL; expected one such as https://example.com/hook",
		"is not the URL of a proxy; expected none or one such as http://proxy.example.com:3128"
	const slack = "is not the URL of an incoming webhook; expected one such as https://hooks.slack.com/services/…"
	const nats = "is not the URL of a NATS server; expected one such as nats://nats.example.com:4222, or tls://…"
	dir := t.TempDir()
	err := os.WriteFile(filepath.Join(dir, "holds"), []byte("https://user:hunter2%ss@hooks.example.com/hook-hunter2\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ sink, want string }{
		{"webhook: {url: 'https://contoso.com:8o80/hunter2'}", "webhook.url: " + url},
		{"webhook: {url: 'https://user:hunter2%ss@contoso.com/abc'}", "webhook.url: " + url},
		{"webhook: {url: 'https://con toso.com/hunter2'}", "webhook.url: " + url},
		{"webhook: {url: 'https://hooks.example.com:8o80/hook'}", "webhook.url: " + url},
		{"webhook: {url: 'hunter2//https://example.com/hook%'}", "webhook.url: " + url},
		{"webhook: {url: 'https'}", "webhook.url: " + url},
		{"webhook: {url_file: holds}", "webhook.url_file: " + filepath.Join(dir, "holds") + ": " + url},
		{"discord: {url: 'https://discord.com:x/api/webhooks/1/hunter2'}", "discord.url: " + url},
		{"slack: {webhook_url: 'https://hooks.slack.com/services/hunter2%'}", "slack.webhook_url: " + slack},
		{"nats: {url: 'tls://user:hunter2%ss@nats.contoso.com:4222'}", "nats.url: " + nats},
		{"webhook: {url: 'https://a.test', proxy: 'http://user:hunter2%ss@proxy.contoso.com:3128'}", "webhook.proxy: " + proxy},
	} {
		text := "sinks:\n- name: a\n  " + tt.sink + "\n" +
			"- {name: b, webhook: {url: 'http://b.example.com', bearer: password12}}\n" +
			"- {name: c, webhook: {url: 'http://c.example.com', basic: {username: u, password: unencrypted}}}\n" +
			"- {name: d, email: {host: 'https://', from: a@a.test, to: b@a.test, username: u, password: expected1}}\n"
		_, err := Loader{Kinds: sinks.Kinds()}.Parse(filepath.Join(dir, "forewarn.yaml"), []byte(text))
		if err == nil {
			t.Errorf("%s is right", tt.sink)
			continue
		}
		got := err.Error()
		for _, want := range []string{
			":3:", ": " + tt.want + "\n", "bearer would be sent unencrypted; expected an address that begins with https://",
			"basic.password would be sent unencrypted", "email.host: is a URL; expected only the name of the mail server",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: it isn't said: %s\nbut\n%s", tt.sink, want, got)
			}
		}
		if strings.Contains(got, "hunter2") || strings.Contains(got, "contoso") || strings.Contains(got, "password12") {
			t.Errorf("%s is shown:\n%s", tt.sink, got)
		}
	}
}
