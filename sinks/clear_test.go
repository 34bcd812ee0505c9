package sinks

import (
	"errors"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
)

// Credentials that anybody on the way could read are refused when the settings are read, unless the destination is on
// this machine or the settings accept it.
func TestCredentialsNeverTravelInClear(t *testing.T) {
	file := writeFile(t, "secret", "abc")
	account, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	creds, _, _ := natsUser(t, account, time.Time{})
	nkey, _, _ := natsSeed(t)
	for _, tt := range []struct {
		kind, settings, key string // key is what is refused, "" for nothing
	}{
		{"webhook", "url: 'http://a.example', bearer: x", "bearer"},
		{"webhook", "url: 'http://a.example', bearer_file: " + file, "bearer_file"},
		{"webhook", "url: 'http://10.0.0.1', basic: {username: a, password: b}", "basic.password"},
		{"webhook", "url: 'http://a.example', azure_identity: {resource: 'https://eventgrid.azure.net'}", "azure_identity"},
		{"webhook", "url: 'http://u:p@a.example'", "url"},
		{"webhook", "url: 'http://a.example', headers: {Authorization: x}", "headers.Authorization"},
		{"webhook", "url: 'http://a.example', headers: {cookie: x}", "headers.cookie"},
		{"webhook", "url: 'http://a.example', headers: {X-Key: {file: " + file + "}}", "headers.X-Key.file"},
		{"ntfy", "url: 'http://a.example', topic: x", "topic"},
		{"webhook", "url: 'http://a.example'", ""},
		{"webhook", "url: 'http://a.example', headers: {X-Api-Key: x}", "headers.X-Api-Key"},
		{"webhook", "url: 'http://a.example', headers: {Ocp-Apim-Subscription-Key: x}", "headers.Ocp-Apim-Subscription-Key"},
		{"webhook", "url: 'http://a.example', headers: {X-Team: blue}", "headers.X-Team"}, // nobody knows what that is
		{"webhook", "url: 'http://a.example', headers: {X-Team: blue}, insecure: true", ""},
		{"webhook", "url: 'http://a.example', headers: {X-Team: blue, user-agent: x, Title: y}", "headers.X-Team"},
		{"webhook", "url: 'http://a.example', headers: {accept: text/plain, user-agent: x, Title: y}", ""},
		{"webhook", "url: 'http://a.example', headers: {Title: {file: " + file + "}}", "headers.Title.file"},
		{"webhook", "url: 'http://localhost', headers: {X-Api-Key: x}", ""},
		{"webhook", "url: 'http://a.example', signing_secrets: [" + secretAZ + "]", ""}, // signs, and stays here
		{"webhook", "url: 'https://a.example', bearer: x", ""},
		{"webhook", "url: 'http://a.example', bearer: x, insecure: true", ""},
		{"webhook", "url: 'http://127.0.0.1:8080', bearer: x", ""},
		{"webhook", "url: 'http://[::1]', bearer: x", ""},
		{"webhook", "url: 'http://localhost', bearer: x", ""},
		{"webhook", "url: 'http://localhost.example', bearer: x", "bearer"},
		{"webhook", "url: 'http://127.0.0.1.example', bearer: x", "bearer"},
		{"slack", "webhook_url: 'http://a.example/x'", "webhook_url"},
		{"slack", "webhook_url: 'http://a.example/x', insecure: true", ""},
		{"slack", "webhook_url: 'http://127.0.0.1/x'", ""},
		{"slack", "token_file: " + file + ", channel: C1, api_url: 'http://a.example'", "token_file"},
		{"slack", "token: abc, channel: C1, api_url: 'http://a.example', insecure: true", ""},
		{"slack", "token: abc, channel: C1, api_url: 'http://localhost:1'", ""},
		{"nats", "url: 'nats://a.example', token: x", "token"},
		{"nats", "url: a.example, username: u, password: x", "password"},
		{"nats", "url: 'nats://u:p@a.example'", "url"},
		{"nats", "url: 'nats://a.example', creds_file: " + creds, "creds_file"},
		{"nats", "url: ['nats://127.0.0.1', 'nats://a.example'], token: x", "token"},
		{"nats", "url: ['nats://127.0.0.1', 'nats://localhost'], token: x", ""},
		{"nats", "url: 'nats://a.example', token: x, insecure: true", ""},
		{"nats", "url: 'tls://a.example', token: x", ""},
		{"nats", "url: 'nats://a.example', token: x, tls: {server_name: b.example}", ""},
		{"nats", "url: 'nats://a.example'", ""},
		{"nats", "url: 'nats://a.example', nkey_file: " + nkey, ""}, // only signs
	} {
		_, err := open(tt.kind, "{"+tt.settings+"}", testHost(t))
		var wrong *KeyError
		switch errors.As(err, &wrong); {
		case tt.key == "" && err != nil:
			t.Errorf("%s {%s} is refused: %v", tt.kind, tt.settings, err)
		case tt.key == "":
		case wrong == nil || !strings.Contains(wrong.Key, "url") || !strings.Contains(err.Error(), tt.key+" would be sent") &&
			!strings.Contains(err.Error(), tt.key+": would be sent"):
			t.Errorf("%s {%s} gives %v, want an error at the address about %s", tt.kind, tt.settings, err, tt.key)
		case !strings.Contains(err.Error(), map[bool]string{true: "with tls://, ", false: "with https://, "}[tt.kind == "nats"]),
			!strings.Contains(err.Error(), "insecure: true"):
			t.Errorf("%s {%s} gives %v, want what its address may be", tt.kind, tt.settings, err)
		}
	}
}

// Settings that accept it say so in the notes that check prints.
func TestWhatTravelsInClearIsNoted(t *testing.T) {
	for kind, settings := range map[string]string{
		"webhook": "{url: 'http://a.example', bearer: x, insecure: true}",
		"slack":   "{token: abc, channel: C1, api_url: 'http://a.example', insecure: true}",
		"nats":    "{url: 'nats://a.example', token: x, insecure: true}",
	} {
		opened, err := open(kind, settings, testHost(t))
		if err != nil {
			t.Fatal(err)
		}
		if notes := strings.Join(opened.Notes, "\n"); !strings.Contains(notes, "unencrypted") ||
			!strings.Contains(notes, "insecure") {
			t.Errorf("%s notes %q, want that credentials travel unencrypted", kind, notes)
		}
	}
}

// A password for a proxy travels in clear as it does in most networks: that is noted, and not refused.
func TestPasswordOfAProxyInClearIsNoted(t *testing.T) {
	for settings, noted := range map[string]bool{
		"webhook {url: 'https://a.example', proxy: 'http://u:p4ssw0rd@proxy.example:3128'}":         true,
		"webhook {url: 'https://a.example', proxy: 'socks5://u:p4ssw0rd@proxy.example'}":            true,
		"slack {token: abc, channel: C1, proxy: 'http://u:p4ssw0rd@proxy.example:3128'}":            true,
		"slack {webhook_url: 'https://a.example/x', proxy: 'http://u:p4ssw0rd@proxy.example:3128'}": true,
		"webhook {url: 'https://a.example', proxy: 'https://u:p4ssw0rd@proxy.example'}":             false,
		"webhook {url: 'https://a.example', proxy: 'http://u:p4ssw0rd@127.0.0.1:3128'}":             false,
		"webhook {url: 'https://a.example', proxy: 'http://proxy.example:3128'}":                    false,
		"webhook {url: 'https://a.example', proxy: none}":                                           false,
		"environment {url: 'https://a.example'}":                                                    true,
	} {
		h := testHost(t)
		kind, keys, _ := strings.Cut(settings, " ")
		if kind == "environment" {
			kind = "webhook"
			h.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse("http://u:p4ssw0rd@proxy.example:3128") }
		}
		opened, err := open(kind, keys, h)
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(opened.Notes, "\n")
		if strings.Contains(notes, "proxy has a user: its password is sent unencrypted") != noted ||
			strings.Contains(notes, "p4ssw0rd") {
			t.Errorf("%s notes %q, want a word on the password %v", settings, notes, noted)
		}
	}
}

// A file of the URL that changes later is no way around it.
func TestURLThatTurnsInsecureIsRefused(t *testing.T) {
	file := writeFile(t, "url", "https://a.example")
	s := mustOpen(t, "webhook", "{url_file: "+file+", bearer: x}", testHost(t))
	if err := os.WriteFile(file, []byte("http://a.example"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err == nil || !strings.Contains(err.Error(), "unencrypted") {
		t.Errorf("Deliver = %v, want it refused before anything is sent", err)
	}
}
