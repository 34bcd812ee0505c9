package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
)

// A secret of the settings goes only to its destination. It is not in the log, on the page, in metrics, in the output
// of commands or in the state, although the destinations echo what they receive.
func TestNoSecretIsSeenAnywhere(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		status := http.StatusServiceUnavailable
		fmt.Sscanf(r.URL.Path, "/%d/", &status)
		said := fmt.Sprintf("%s %v %s", r.URL, r.Header, body)
		switch status { // as destinations write what they repeat
		case http.StatusForbidden:
			said = strings.ReplaceAll(said, "-", `\u002D`)
		case http.StatusUnprocessableEntity:
			said = hex.EncodeToString([]byte(said))
		case http.StatusNotFound:
			said = strings.ReplaceAll(said, "-", "%2D")
		}
		w.Header().Set("X-Request-Id", said)
		w.WriteHeader(status)
		io.WriteString(w, said)
	}))
	t.Cleanup(echo.Close)
	const secret = "s3cr3t-"
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file, creds := write("token", secret+"of-a-file\n"), natsCreds(t)
	port := freePort(t)
	s := &destinations{t: t, config: write("forewarn.yaml", filepath.ToSlash(strings.NewReplacer(
		"AZURE", azure.URL, "STATE", filepath.Join(dir, "state"), "PORT", port, "ECHO", echo.URL, "FILE", file,
		"USER", strings.Replace(echo.URL, "://", "://s3cr3t-user:s3cr3t-password@", 1), "CREDS", write("creds", creds),
		"AUDIT", filepath.Join(dir, "audit.jsonl"), "COMMAND", tellsSecrets,
	).Replace(`
imds: {endpoint: "AZURE", interval: 100ms, vm_name: vm-0}
state: "STATE"
listen: 127.0.0.1:PORT
sinks:
  - {name: rejects, webhook: {url: "USER/422/s3cr3t-path?sig=s3cr3t-query", headers: {X-Key: s3cr3t-header}}}
  - {name: blocks, webhook: {url: "ECHO/403/", bearer_file: "FILE"}}
  - {name: again, bridge: none, pagerduty: {url: "ECHO/503/", routing_key: s3cr3t-body}}
  - {name: identity, webhook: {url: "ECHO/422/", azure_identity: {resource: "https://eventgrid.azure.net"}}}
  - {name: proxied, webhook: {url: "http://a.example/", proxy: "USER"}}
  - {name: lost, webhook: {url: "https://hook.exmaple.invalid/s3cr3t-lost"}}
  - {name: hook, bridge: none, slack: {webhook_url: "ECHO/404/services/s3cr3t-hook"}}
  - {name: chat, bridge: none, slack: {token: s3cr3t-bot, channel: C1, api_url: "ECHO/200/"}}
  - {name: mail, bridge: none, email: {host: 127.0.0.1, port: 1, from: a@example.com, to: [b@example.com], username: u, password: s3cr3t-mail}}
  - {name: stream, nats: {url: "nats://s3cr3t-user:s3cr3t-password@127.0.0.1:1"}}
  - {name: jwt, nats: {url: "nats://127.0.0.1:1", creds_file: "CREDS"}}
  - {name: command, exec: {command: COMMAND, attempts: 1, env: {T: {file: "FILE"}, U: s3cr3t-variable}}}
  - {name: record, bridge: all, file: {path: "AUDIT"}}
`))), log: filepath.Join(dir, "log")}
	log, err := os.Create(s.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	fw := forewarn(t, "run", "--log-level", "debug", "--config", s.config)
	fw.Stderr = log
	if err := fw.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- fw.Wait() }()
	defer fw.Process.Kill()
	azure.Schedule(imdstest.Event{ID: eventID("secret"), Type: "Reboot"})

	var status struct {
		Sinks []struct{ Name, LastError string }
	}
	s.until("every sink but one to have failed", func() bool {
		got, err := http.Get("http://127.0.0.1:" + port + "/status.json")
		if err != nil {
			return false
		}
		defer got.Body.Close()
		if json.NewDecoder(got.Body).Decode(&status) != nil {
			return false
		}
		failed := 0
		for _, sink := range status.Sinks {
			if sink.LastError != "" {
				failed++
			}
		}
		return failed == 12
	})
	said := map[string][]byte{}
	for _, path := range []string{"/", "/metrics", "/status.json", "/healthz", "/readyz"} {
		got, err := http.Get("http://127.0.0.1:" + port + path)
		if err != nil {
			t.Fatal(err)
		}
		said[path], _ = io.ReadAll(got.Body)
		got.Body.Close()
	}
	for command, code := range map[string]int{
		"status":          exitFailed, // it is not ready
		"history -o json": exitOK, "outbox list -o json": exitOK,
		"check --connect -o json": exitUnavailable, "send -o json --sink rejects --sink command --sink chat": exitFailed,
		"render": exitOK,
	} {
		said[command] = s.command(code, strings.Fields(command)...)
	}
	if err := signalProcess(fw.Process, "TERM"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(2 * patience):
		t.Fatal("it does not end")
	}
	for _, path := range []string{s.log, filepath.Join(dir, "audit.jsonl"), filepath.Join(dir, "state", "outbox.db")} {
		if said[path], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	_, seed, _ := strings.Cut(creds, "-----BEGIN USER NKEY SEED-----\n")
	seed, _, _ = strings.Cut(seed, "\n")
	code := base64.RawStdEncoding.EncodeToString([]byte("s3cr3t-user:s3cr3t-password"))
	for _, where := range []string{"status", "/status.json", "history -o json", "check --connect -o json"} {
		if !bytes.Contains(said[where], []byte("lookup hook.exmaple.invalid")) {
			t.Errorf("%s doesn't show the host that isn't found:\n%s", where, said[where])
		}
	}
	if !bytes.Contains(said[s.log], []byte(`msg="output of the command"`)) {
		t.Errorf("the command said nothing, so that nothing was hidden:\n%s", said[s.log])
	}
	for what, text := range said {
		if len(text) == 0 {
			t.Errorf("%s says nothing", what)
		}
		for _, hidden := range []string{secret, code, seed, "Bearer emulated",
			`s3cr3t\u002d`, `s3cr3t\\u002d`, "s3cr3t%2d", hex.EncodeToString([]byte(secret))} {
			if i := bytes.Index(bytes.ToLower(text), []byte(strings.ToLower(hidden))); i >= 0 {
				t.Errorf("%s shows %s: …%q…", what, hidden, text[max(0, i-100):min(len(text), i+100)])
			}
		}
	}
}
