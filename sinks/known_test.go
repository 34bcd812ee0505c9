package sinks

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"forewarn/bridge/systemtest"
)

// One gateway serves two sinks, and repeats to one of them the token of the other, or one that was replaced.
func TestNoSinkShowsTheSecretOfAnother(t *testing.T) {
	t.Parallel()
	said := ""
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Request-Id", said)
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, "no token like "+said)
	}))
	h := testHost(t)
	h.Known = new(KnownSecrets)
	path := writeFile(t, "token", "t0ken-0f-today")
	open := func(name, kind, settings string) func() string {
		h.Name = name
		s := mustOpen(t, kind, settings, h)
		return func() string {
			answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
			return fmt.Sprint(answer.Status, answer.ID, err)
		}
	}
	a := open("a", "webhook", "{url: '"+srv.URL+"/a', bearer: t0ken-0f-a}")
	b := open("b", "webhook", "{url: '"+srv.URL+"/b', bearer_file: '"+path+"'}")
	open("mail", "email", "{host: mail.test, from: a@mail.test, to: [b@mail.test], username: a, password: pa55-0f-mail}")
	open("words", "email", "{host: mail.test, from: a@mail.test, to: [b@mail.test], username: a, password: Summer.Beach.99!}")
	open("command", "exec", asCommand(t, "exit", "0")+"  KEY: k3y-0f-command\n")
	open("chat", "slack", "{webhook_url: '"+srv.URL+"/services/h00k-0f-chat'}")
	open("stream", "nats", "{url: 'nats://n4ts-user:n4ts-password@127.0.0.1:4222'}")
	open("proxied", "webhook", "{url: 'http://hook.test', proxy: 'http://gatekeeper:pr0xy-password@proxy.test:3128'}")
	for _, said = range []string{"t0ken-0f-a", "t0ken-0f-today", "pa55-0f-mail", "k3y-0f-command", "h00k-0f-chat",
		"n4ts-password", "pr0xy-password", "Summer.Beach.99!"} {
		for name, deliver := range map[string]func() string{"a": a, "b": b} {
			if got := deliver(); strings.Contains(got, said[:8]) || !strings.Contains(got, notShown) {
				t.Errorf("%s is told %s, and shows %s", name, said, got)
			}
		}
	}
	said = "t0ken-0f-today"
	for i := range 100 { // it is replaced again and again
		err := os.WriteFile(path, fmt.Appendf(nil, "an0ther-%d", i), 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if got := b(); strings.Contains(got, said[:8]) {
			t.Fatalf("after %d others, the old token is shown: %s", i+1, got)
		}
	}
}

// What is remembered of one sink is bounded, and never forgets another's.
func TestSecretsOfOtherSinksAreBounded(t *testing.T) {
	known := new(KnownSecrets)
	steady, renewed, other := Host{Name: "steady", Known: known}, Host{Name: "renewed", Known: known}, Host{Known: known}
	steady.redactor().hide("the-pa55word")
	for i := range 1000 {
		redact := renewed.redactor()
		redact.hide("a-steady-k3y", strings.Repeat(fmt.Sprintf("t0ken-%d-", i), 100))
	}
	for text, shown := range map[string]bool{
		"the-pa55word": false, "a-steady-k3y": false, "t0ken-999-t0": false, "500-t0ke": true, "999-t0ke": false,
	} {
		if got := other.redactor().line(text, maxShown); (got == text) != shown {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
	if n := size(known.of["renewed"]); n > maxKnown {
		t.Errorf("%d bytes are remembered, want at most %d", n, maxKnown)
	}
}

// A single word, and secrets of fewer than eight characters, hide the answers to their own sink alone.
func TestAWeakSecretHidesNoOtherSinksAnswers(t *testing.T) {
	known := new(KnownSecrets)
	a, b := Host{Name: "a", Known: known}.redactor(), Host{Name: "b", Known: known}.redactor()
	for _, weak := range []string{"a", "e7", "hunter2", "a b c d", "password", "Password!"} {
		a.hide(weak)
		text := "it is " + weak
		if got := a.line(text, maxShown); got != notShown {
			t.Errorf("its own sink shows %s", got)
		}
		if got := b.line(text, maxShown); got != text {
			t.Errorf("another sink shows %s for %s", got, text)
		}
	}
}

// Of a secret in several words the whole isn't shown by any sink, however it is written; the words are in many answers.
func TestASecretInWordsIsASecretOfAllSinks(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	for _, secret := range []string{"Summer.Beach.99!", "correct-horse-battery-staple", "correct horse battery staple",
		"bot@contoso.test", "eu-west-central-1"} {
		known := new(KnownSecrets)
		Host{Name: "a", Known: known}.redactor().hide(secret)
		other := Host{Name: "b", Known: known}.redactor()
		for _, w := range writings {
			if got := other.line("+ PASS="+w.write(secret)+" for vm-db-1", maxShown); got != notShown {
				t.Errorf("another sink shows %s as %s: %s", secret, w.name, got)
			}
		}
		for _, cut := range []string{secret, url.PathEscape(secret)} {
			shift := maxShown - len(cut) // so that it is cut within
			if got := other.line(strings.Repeat("?", shift)+cut+", it is", maxShown); got != notShown {
				t.Errorf("another sink shows a part of %s: %s", secret, got[shift:])
			}
		}
		for _, text := range []string{"no Summer in contoso.test", "the correct horse", "summerbeach", "in eu-west"} {
			if got := other.line(text, maxShown); got != text {
				t.Errorf("with %s, another sink shows %s for %s", secret, got, text)
			}
		}
	}
}

// The name of a host is shown by the sink that calls it, although another has it for a secret.
func TestAHostIsNoOtherSinksSecret(t *testing.T) {
	known := new(KnownSecrets)
	Host{Name: "a", Known: known}.redactor().hideSetting("broker.example.com")
	redact := Host{Name: "b", Known: known}.redactor()
	redact.hideURL(parsed(t, "https://broker.example.com/hooks/k3v9x2m7qd"))
	const text = "lookup broker.example.com: no such host"
	if got := redact.line(text, maxShown); got != text {
		t.Errorf("shown is %s", got)
	}
}
