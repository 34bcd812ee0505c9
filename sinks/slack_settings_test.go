package sinks

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"forewarn/bridge/delivery"
)

// Settings that cannot work are refused when they are read, at their key, with the reason.
func TestSlackSettingsAreChecked(t *testing.T) {
	missing := t.TempDir() + "/missing"
	for _, tt := range []struct{ settings, key, reason string }{
		{"channel: C1", "token", "missing"},
		{"token: a", "channel", "missing"},
		{"{token: a, channel: ' '}", "channel", "in quotes"},
		{"{token: a, channel: xoxb-1}", "channel", "is a token, so it isn't shown"},
		{"{token: '', channel: C1}", "token", "empty"},
		{`{token: a, channel: C1, blocks: '[{"type":"section","text":"no object"}]'}`, "blocks", "no blocks of Slack"},
		{`{token: a, channel: C1, blocks: '[{"text":{"type":"mrkdwn","text":"x"}}]'}`, "blocks", "has no type"},
		{"{token: 'a b', channel: C1}", "token", "space"},
		{"{token: xapp-1, channel: C1}", "token", "xoxb-"},
		{"{token: 'https://hooks.slack.com/x', channel: C1}", "token", "xoxb-"},
		{"{token: a, token_file: b, channel: C1}", "token_file", "token is given too"},
		{"{token_file: " + missing + ", channel: C1}", "token_file", missing},
		{"{token_env: NOT_SET, channel: C1}", "token_env", "variable that is not set"},
		{"{token: a, channel: C1, webhook_url: 'https://a.example'}", "webhook_url", "only one"},
		{"{webhook_url: 'https://a.example', channel: C1}", "channel", "one channel"},
		{"{webhook_url: 'https://a.example', api_url: 'https://b.example'}", "api_url", "is for a token"},
		{"{webhook_url: 'https://a.example', broadcast: []}", "broadcast", "is for a token"},
		{"{webhook_url: 'a.example'}", "webhook_url", "not the URL of an incoming webhook"},
		{"{webhook_url: 'http://a.example', tls: {server_name: b}}", "webhook_url", "not https"},
		{"{token: a, channel: C1, api_url: 'ftp://a.example'}", "api_url", "not the URL"},
		{"{token: a, channel: C1, api_url: 'https://u:p@a.example'}", "api_url", "not the URL"},
		{"{token: a, channel: C1, api_url: 'http://a.example', tls: {server_name: b}}", "api_url", "not https"},
		{"{token: a, channel: C1, broadcast: [started, stopped]}", "broadcast.1", `"stopped" is unknown`},
		{"{token: a, channel: C1, broadcast: [none, started]}", "broadcast.0", "none alone"},
		{"{token: a, channel: C1, mention: {from: WARN}}", "mention.text", "missing"},
		{"{token: a, channel: C1, mention: {text: '@here'}}", "mention.text", "rings nobody; expected <!here>"},
		{"{token: a, channel: C1, mention: {text: 'on call: channel'}}", "mention.text", "expected <!channel>"},
		{"{token: a, channel: C1, mention: {text: '@alice'}}", "mention.text", "<@U024BE7LH>"},
		{"{token: a, channel: C1, mention: {text: '<here>'}}", "mention.text", "expected <!here>"},
		{"{token: a, channel: C1, text: '{{if}}'}", "text", "text:1"},
		{"{token: a, channel: C1, text: '{{if .reply}}x{{end}}'}", "text", "no text for the notification"},
		{"{token: a, channel: C1, text: x, text_file: y}", "text_file", "text is given too"},
		{"{token: a, channel: C1, text_file: " + missing + "}", "text_file", missing},
		{"{token: a, channel: C1, blocks: '{}'}", "blocks", "not a JSON array"},
		{"{token: a, channel: C1, blocks: '[{\"a\": \"{{.data.event.Description}}\"}]'}", "blocks",
			"put values in with {{json"},
		{"{token: a, channel: C1, runbook_url: 'wiki/{{.azeventtype}}'}", "runbook_url", "is not a URL"},
		{"{token: a, channel: C1, tls: {ca_file: " + missing + "}}", "tls.ca_file", missing},
		{"{token: a, channel: C1, proxy: 'ftp://proxy.example.com'}", "proxy", "not the URL of a proxy"},
	} {
		wrongKey(t, "slack", tt.settings, tt.key, tt.reason)
	}
}

// A token that changed in its file is used from the next attempt on; one that cannot be read blocks until it can.
func TestSlackReadsTheTokenOnEachUse(t *testing.T) {
	w := newWorkspace(t)
	file := writeFile(t, "token", "xoxb-old")
	settings := strings.Replace(w.settings(""), "token: "+slackToken, "token_file: "+file, 1)
	opened, err := open("slack", settings, testHost(t))
	if err != nil || !slices.Equal(opened.Secrets, []string{file}) {
		t.Fatalf("open = %v, %v; want the file among the secrets", opened.Secrets, err)
	}
	closeSink(opened.Sink)
	l := newTeller(t, settings)
	for _, tt := range []struct{ text, want string }{{"xoxb-old\n", blocked}, {"\n", blocked},
		{slackToken + "\n", accepted}} {
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := l.tell(deliveries(t)[0]); classOf(err) != tt.want {
			t.Errorf("with %q: %v, want it %s", tt.text, err, tt.want)
		}
	}
}

// Connect shows the token to Slack and posts nothing; of an incoming webhook it reaches only the host.
func TestSlackConnectSendsNothing(t *testing.T) {
	w := newWorkspace(t)
	k := openSlackSink(t, w.settings(""))
	w.refuse("auth.test", slackNo{body: `{"ok":true}`})
	if got, err := k.Connect(t.Context()); classOf(err) != again {
		t.Errorf("Connect = %q, %v; want it to be tried again", got, err)
	}
	if got, err := k.Connect(t.Context()); err != nil || got != "as @forewarn in Example Ltd" {
		t.Errorf("Connect = %q, %v; want who the token is", got, err)
	}
	w.refuse("auth.test", slackNo{body: `{"ok":false,"error":"invalid_auth"}`})
	if _, err := k.Connect(t.Context()); classOf(err) != blocked ||
		!strings.Contains(err.Error(), "put a new token into the settings file (slack.token)") {
		t.Errorf("Connect = %v, want it blocked", err)
	}
	hook := openSlackSink(t, "webhook_url: "+w.url+"/services/T/B/X")
	if got, err := hook.Connect(t.Context()); err != nil || !strings.Contains(got, "reached "+w.url+";") {
		t.Errorf("Connect of a webhook = %q, %v; want that it was reached", got, err)
	}
	if len(w.messages)+len(w.hook) > 0 {
		t.Errorf("%d messages were posted", len(w.messages)+len(w.hook))
	}
}

// Render shows the calls as they would leave, without the token, and makes none.
func TestSlackRenderShowsTheCalls(t *testing.T) {
	w := newWorkspace(t)
	settings := strings.Replace(w.settings(""), w.url, "https://slack.example", 1)
	var b strings.Builder
	for _, tt := range []struct {
		settings string
		d        delivery.Delivery
	}{
		{settings, deliveries(t)[0]},
		{settings, delivery.Delivery{Event: deliveries(t)[1].Event,
			Receipt: []byte(`{"to":"#ops","channel":"C1","ts":"1.2"}`)}},
		{"webhook_url: https://hooks.slack.example/services/s3cr3t\ntext: '{{.change}} <&>'\nblocks: " +
			"'[{\"type\":\"divider\"}]'", deliveries(t)[0]},
	} {
		k := openSlackSink(t, tt.settings)
		got, err := k.Render(tt.d)
		if err != nil {
			t.Errorf("Render = %v", err)
		}
		b.WriteString(got + "\n")
	}
	if strings.Contains(b.String(), "s3cr3t") {
		t.Errorf("a secret is in\n%s", &b)
	}
	golden(t, "slack-render.golden", b.String())
	if got := w.asked(); len(got) > 0 {
		t.Errorf("Slack was asked %q, want nothing", got)
	}
}

// The app of the manifest may do what the sink does, and nothing else.
func TestSlackManifestIsWhatTheSinkNeeds(t *testing.T) {
	var m struct {
		Display struct {
			Name        string `yaml:"name"`
			Description string `yaml:"description"`
			Color       string `yaml:"background_color"`
		} `yaml:"display_information"`
		Features struct {
			Bot struct {
				Name   string `yaml:"display_name"`
				Online bool   `yaml:"always_online"`
			} `yaml:"bot_user"`
		} `yaml:"features"`
		OAuth struct {
			Scopes struct {
				Bot []string `yaml:"bot"`
			} `yaml:"scopes"`
		} `yaml:"oauth_config"`
		Settings map[string]bool `yaml:"settings"`
	}
	if err := yaml.UnmarshalWithOptions(read(t, "../examples/slack-app-manifest.yaml"), &m, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.OAuth.Scopes.Bot, []string{"chat:write"}) || m.Features.Bot.Name == "" || m.Display.Name == "" ||
		len(m.Display.Name) > 35 || len(m.Display.Description) > 140 {
		t.Errorf("the manifest is %+v, want a bot with the scope chat:write, and texts that Slack takes", m)
	}
}

// A template that mentions people in words that ring nobody is noted. Slack's own form is fine, and so is an address.
func TestMentionsThatRingNobodyAreNoted(t *testing.T) {
	for text, want := range map[string]bool{
		"@here {{.subject}}": true, "{{.subject}} (@channel)": true, "<!here> {{.subject}}": false, "ops@here.test": false,
	} {
		opened, err := open("slack", "{token: a, channel: C1, text: '"+text+"'}", testHost(t))
		if err != nil {
			t.Fatal(err)
		}
		if notes := strings.Join(opened.Notes, "\n"); strings.Contains(notes, "rings nobody in Slack") != want {
			t.Errorf("%s notes %q, want that it rings nobody: %v", text, notes, want)
		}
	}
}
