package sinks

import (
	"math/rand/v2"
	"testing"
)

// A word of the path of one sink's URL, and the dates of another's query, hide nothing of a third sink, and in the middle of
// the path nothing of their own.
func TestWordsAndDatesOfAURLHideNothing(t *testing.T) {
	for _, tt := range []struct{ url, said string }{
		{"https://a.test/notifications/hooks/k3v9x2m7qd", "notification queue is full"},
		{"https://a.test/powerautomate/automations/direct/k3v9x2m7qd", "automated failover"},
		{"https://a.test/subscriptions/resourceGroups/k3v9x2m7qd", "no permission on resourcegroup in this subscription"},
		{"https://a.test/incident-alerts/ops_call_team/k3v9x2m7qd", "no incident alerts for ops call team"},
		{"https://a.test/SendChatMessage/v1.0/k3v9x2m7qd", "HTTP/1.0: send chat message to v1.0"},
		{"https://a.test/2026-11-01/k3v9x2m7qd", "2026-11-01: not authorised"},
		{"https://a.test/k3v9x2m7qd?st=2026-11-30T02:00:00Z&se=2026-12-30", "2026-11-30T05:11:12Z: not authorised"},
		{"https://a.test/k3v9x2m7qd?st=2026-11-30T02%3A00%3A00.1234567%2B01%3A00", "2026-11-30: not authorised"},
		{"https://a.test/k3v9x2m7qd?st=2026-11-30T02%3A00Z&t=2026-11-30+02:00:00", "2026-11-30: not authorised"},
		{"https://a.test/k3v9x2m7qd?X-Amz-Date=20261130T020000Z", "20261130: not authorised"},
		{"https://a.test/k3v9x2m7qd?api-version=2026-11-30-preview", "2026-11-30: use a -preview"},
		{"https://a.test/k3v9x2m7qd?sv=1.0&v=v2.1", "10.1.0.4 speaks HTTP/1.0, v2.1"},
	} {
		known := new(KnownSecrets)
		own, other := Host{Name: "a", Known: known}.redactor(), Host{Name: "b", Known: known}.redactor()
		own.hideURL(parsed(t, tt.url))
		for whose, redact := range map[string]*redactor{"its own": own, "another": other} {
			if got := redact.line(tt.said, maxShown); got != tt.said {
				t.Errorf("beside %s, %s sink shows %q for %q", tt.url, whose, got, tt.said)
			}
			if got := redact.line("no k3v9x2m7qd", maxShown); got != notShown {
				t.Errorf("beside %s, %s sink shows %q", tt.url, whose, got)
			}
		}
	}
}

// A word at the end of a path, as a topic is, is a secret of its own sink alone.
func TestAWordAtTheEndOfAPathIsASecretOfItsSinkAlone(t *testing.T) {
	for _, end := range []string{"notifications", "powerautomate", "resourceGroups", "IncidentAlerts"} {
		known := new(KnownSecrets)
		own, other := Host{Name: "a", Known: known}.redactor(), Host{Name: "b", Known: known}.redactor()
		own.hideURL(parsed(t, "https://a.test/"+end))
		text := "no topic " + end
		if got := own.line(text, maxShown); got != notShown {
			t.Errorf("its own sink shows %q", got)
		}
		if got := other.line(text, maxShown); got != text {
			t.Errorf("another sink shows %q for %q", got, text)
		}
	}
}

// What is random is no word and no date, wherever it stands in a URL.
func TestTokensInAURLAreSecrets(t *testing.T) {
	const digits, lower, upper = "0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	random := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		name, letters string
		length        int
		missed        int // of a thousand, at most
	}{
		{"base62", digits + lower + upper, 16, 1}, {"base62, long", digits + lower + upper, 22, 0},
		{"base64url", digits + lower + upper + "-_", 22, 0}, {"letters in both cases", lower + upper, 16, 1},
		{"hex", digits + "abcdef", 16, 1}, {"hex, long", digits + "abcdef", 32, 0},
		{"small letters", lower, 13, 40}, {"small letters, 16", lower, 16, 10},
		{"small letters, long", lower, 22, 0}, {"small letters and digits", digits + lower, 16, 10},
		{"capitals", upper, 16, 0}, {"base32", upper + "234567", 16, 0},
	} {
		missed := 0
		for range 1000 {
			token := make([]byte, tt.length)
			for i := range token {
				token[i] = tt.letters[random.IntN(len(tt.letters))]
			}
			if isPathWord(string(token)) || isVersion(string(token)) {
				missed++
			}
		}
		if missed > tt.missed {
			t.Errorf("%d of 1000 tokens of %d %s are words, want at most %d", missed, tt.length, tt.name, tt.missed)
		}
	}
	for _, tt := range []struct{ url, secret string }{
		{"https://a.test/6f1e2b7c-8a4d-4d5e-9b0a-1c2d3e4f5a6b/run", "6f1e2b7c-8a4d-4d5e-9b0a-1c2d3e4f5a6b"},
		{"https://hooks.slack.test/services/T024BE7LD/B01QWERTY12/aBcDeFgHiJkLmNoPqRsTuVwX/", "aBcDeFgHiJkLmNoPqRsTuVwX"},
		{"https://discord.test/api/webhooks/1234567890123456789/aB-cD_eF0123/slack", "1234567890123456789"},
		{"https://x.webhook.office.test/webhookb2/6f1e2b7c@8a4d/IncomingWebhook/0a1b2c3d4e5f/6f1e", "0a1b2c3d4e5f"},
		{"https://ntfy.test/up_k3v9x2m7qd", "up_k3v9x2m7qd"}, {"https://ntfy.test/nwops-kqjzxwvbtrnmpl", "kqjzxwvb"},
		{"https://a.test/kqjzxwvbtrnmpl/run", "kqjzxwvbtrnmpl"}, {"https://a.test/abcDefGhiJkl/run", "abcDefGhiJkl"},
		{"https://a.test/k?sig=2026-11-30T99:00:00Z", "2026-11-30T99"}, {"https://a.test/k?sig=2026-13-30", "2026-13-30"},
		{"https://a.test/k?sig=1234.5", "1234.5"}, {"https://a.test/k?sig=notifications", "notifications"},
		{"https://a.test/k?sig=resourceGroups", "resourceGroups"}, {"https://a.test/2026-11-30", "2026-11-30"},
	} {
		if got := shownBeside(t, tt.url, "no "+tt.secret); got != notShown {
			t.Errorf("beside %s it shows %q", tt.url, got)
		}
	}
}
