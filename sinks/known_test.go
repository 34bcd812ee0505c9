package sinks

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
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
	open("command", "exec", asCommand(t, "exit", "0")+"  KEY: k3y-0f-command\n")
	open("chat", "slack", "{webhook_url: '"+srv.URL+"/services/h00k-0f-chat'}")
	open("stream", "nats", "{url: 'nats://n4ts-user:n4ts-password@127.0.0.1:4222'}")
	open("proxied", "webhook", "{url: 'http://hook.test', proxy: 'http://u:pr0xy-password@proxy.test:3128'}")
	for _, said = range []string{"t0ken-0f-a", "t0ken-0f-today", "pa55-0f-mail", "k3y-0f-command", "h00k-0f-chat",
		"n4ts-password", "pr0xy-password"} {
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

// What is made of words, and secrets of fewer than eight characters, hide the answers to their own sink alone.
func TestAWeakSecretHidesNoOtherSinksAnswers(t *testing.T) {
	known := new(KnownSecrets)
	a, b := Host{Name: "a", Known: known}.redactor(), Host{Name: "b", Known: known}.redactor()
	for _, weak := range []string{"a", "e7", "hunter2", "password", "bot@contoso.test", "/triggers/manual/run"} {
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
