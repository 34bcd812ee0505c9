package sinks

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a value of a URL's query or a header is called is no secret: the likeliest answer to a wrong key names it.
func TestWhatAKeyIsCalledIsShown(t *testing.T) {
	const key = "Qw3rT9uI0pLkJhGf"
	for settings, says := range map[string]string{
		"url: 'URL/notify?subscription-key=KEY'":                              "Access denied due to invalid subscription key.",
		"url: 'URL/notify?api_key=KEY'":                                       "Invalid API key",
		"url: 'URL/notify?private_token=KEY'":                                 "private token has expired",
		"url: 'URL/runtime/webhooks/eventgrid?functionName=Drain&code=KEY'":   "functionName Drain not found",
		"{url: 'URL', headers: {Authorization: 'GenieKey KEY'}}":              "You should provide a valid GenieKey",
		"{url: 'URL', headers: {Authorization: 'ApiKey KEY'}}":                "the api key has been invalidated",
		"{url: 'URL', headers: {Cookie: 'session_token=KEY; theme=dark'}}":    "session token expired",
		"{url: 'URL', headers: {X-Api-Key: 'KEY'}}":                           "X-Api-Key is wrong",
		"{url: 'URL', headers: {Authorization: 'correct horse battery KEY'}}": "correct it",
	} {
		for answer, shown := range map[string]bool{says: true, says + " " + key: false, says + " " + key[3:12]: false} {
			srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusUnauthorized)
				io.WriteString(w, answer)
			}))
			got := answerOf(t, "webhook", strings.NewReplacer("URL", srv.URL, "KEY", key).Replace(settings))
			if strings.Contains(got, answer) != shown || strings.Contains(got, notShown) == shown {
				t.Errorf("%s: of %q is shown %s", settings, answer, got)
			}
		}
	}
}

// A URL that comes from a file is taken apart as one in the settings: its host is shown, and other sinks' answers with
// another URL are too. Its user, its password and its path are not.
func TestTheHostOfASecretURLIsShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte("https://deploy:gT7xWq2LmZ9vKr4p@git.corp.net/ops/dr4in9x8.git\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	known := new(KnownSecrets)
	h := testHost(t)
	h.Known, h.Name = known, "drain"
	for says, shown := range map[string]bool{
		"Could not resolve host: git.corp.net":                      true,
		"password gT7xWq2LmZ9vKr4p is wrong":                        false,
		"no such repository: https://git.corp.net/ops/dr4in9x8.git": false,
	} {
		s := mustOpen(t, "exec", asCommand(t, "exit", "1", says)+"  GIT_URL: {file: "+file+"}\n", h)
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if err == nil || strings.Contains(err.Error(), says) != shown {
			t.Errorf("of %q is shown %v", says, err)
		}
	}
	other := Host{Name: "chat", Known: known}.redactor()
	const answer = `{"documentation_url": "https://docs.chat.example/rest"}`
	if got := other.line(answer, maxShown); got != answer {
		t.Errorf("another sink shows %s", got)
	}
}
