package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/sinks"
)

// destinations are one real destination of every kind, and the settings for them.
type destinations struct {
	t      *testing.T
	config string
	log    string
	audit  string // what the file sink writes
	ran    string // what the command appends
	hook   *receiver
	stream *streamServer
	chat   *chatServer
	post   *postOffice
	log514 *logServer

	process *os.Process
}

func everyKind(t *testing.T) *destinations {
	t.Helper()
	dir := t.TempDir()
	s := &destinations{
		t: t, config: filepath.Join(dir, "forewarn.yaml"), log: filepath.Join(dir, "log"),
		audit: filepath.Join(dir, "audit.jsonl"), ran: filepath.Join(dir, "ran.jsonl"),
		hook: hearing(t), stream: newStream(t), chat: newChat(t), post: newPost(t), log514: newLogServer(t),
	}
	return s
}

// sections are the kinds' sections of the settings.
func (s *destinations) sections() map[string]string {
	appends, err := exec.LookPath("append") // testscript.Main put it on the path
	if err != nil {
		s.t.Fatal(err)
	}
	all := map[string]string{
		"webhook": fmt.Sprintf("{url: %q}", s.hook.url),
		"nats":    fmt.Sprintf("{url: %q, provision: {stream: FOREWARN}}", s.stream.url),
		"slack":   fmt.Sprintf("{token: %s, channel: C024BE91L, api_url: %q}", chatToken, s.chat.url),
		"email": fmt.Sprintf("{host: %s, port: %s, from: azure@example.com, to: [ops@example.com], tls: {mode: none}}",
			s.post.host, s.post.port()),
		"file": fmt.Sprintf("{path: %q}", s.audit),
		"exec": fmt.Sprintf(`{command: [%q, %q]}`, appends, s.ran),
	}
	all["syslog"] = fmt.Sprintf("{url: %q}", "tcp://"+s.log514.address)
	for kind := range sinks.Kinds() {
		service := slices.ContainsFunc(sinks.Services(), func(s *sinks.Service) bool { return s.Name == kind })
		if all[kind] == "" && !service {
			s.t.Fatalf("there is no destination of kind %s", kind)
		}
	}
	return all
}

func (s *destinations) configure(endpoint string) {
	s.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "imds: {endpoint: %q, interval: 100ms, vm_name: vm-0}\nstate: %q\nlisten: \"\"\nsinks:\n",
		endpoint, filepath.Join(filepath.Dir(s.config), "state"))
	for kind, section := range s.sections() {
		fmt.Fprintf(&b, "  - {name: %s, timeout: 2m, bridge: none, %[1]s: %s}\n", kind, section)
	}
	if err := os.WriteFile(s.config, []byte(b.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *destinations) run(endpoint string) {
	s.t.Helper()
	s.configure(endpoint)
	log, err := os.Create(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	fw := forewarn(s.t, "run", "--config", s.config)
	fw.Stderr = log
	if err := fw.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.process = fw.Process
	s.t.Cleanup(func() {
		_ = fw.Process.Kill()
		_ = fw.Wait()
		log.Close()
	})
}

// command runs forewarn to its end, which must have this exit code, and gives what it printed.
func (s *destinations) command(code int, args ...string) []byte {
	s.t.Helper()
	var said bytes.Buffer
	fw := forewarn(s.t, append(args, "--config", s.config)...)
	fw.Stderr = &said
	out, err := fw.Output()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		s.t.Fatal(err)
	}
	if got := fw.ProcessState.ExitCode(); got != code {
		s.t.Fatalf("%v ends with %d, want %d:\n%s%s", args, got, code, out, said.String())
	}
	return out
}

func (s *destinations) until(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(2 * patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(s.log)
			var heard map[string][]string
			if s.hook != nil { // else the test has destinations of its own
				heard = s.heard()
			}
			s.t.Fatalf("waited in vain for %s; heard %v; the log:\n%s", what, heard, text)
		}
	}
}

// hear returns once all that have ids heard one that begins so, and Slack has that many messages; 0 does not ask Slack.
func (s *destinations) hear(id string, posts int) {
	s.t.Helper()
	s.until(id, func() bool {
		for name, heard := range s.heard() {
			if name != "slack" && !begins(heard, id) {
				return false
			}
		}
		return posts == 0 || len(s.chat.all()) >= posts
	})
}

// heard are the ids that each destination has taken.
func (s *destinations) heard() map[string][]string {
	ids := map[string][]string{"webhook": s.hook.accepted(), "nats": s.stream.ids(s.t), "email": {}, "file": {}, "exec": {},
		"syslog": s.log514.ids()}
	for _, m := range s.post.all(s.t) {
		id, _, _ := strings.Cut(strings.TrimPrefix(m.Get("Message-ID"), "<"), ".")
		ids["email"] = append(ids["email"], id)
	}
	for name, file := range map[string]string{"file": s.audit, "exec": s.ran} {
		for _, line := range lines(file) {
			var ce struct{ ID string }
			if json.Unmarshal(line, &ce) == nil { // else it is being written
				ids[name] = append(ids[name], ce.ID)
			}
		}
	}
	return ids
}

// quiet returns once nothing is pending, and fails for dead letters.
func (s *destinations) quiet() {
	s.t.Helper()
	s.until("nothing pending", func() bool {
		var st bridge.Status
		if err := json.Unmarshal(s.command(exitOK, "status", "-o", "json"), &st); err != nil {
			s.t.Fatal(err)
		}
		if st.Outbox.DeadLetters > 0 {
			text, _ := os.ReadFile(s.log)
			s.t.Fatalf("%d dead letters:\n%s\n%s", st.Outbox.DeadLetters, s.command(exitOK, "outbox", "list", "--state", "dead"), text)
		}
		return st.Outbox.Pending == 0
	})
}

func begins(ids []string, id string) bool { return len(about(ids, id)) > 0 }

// about are those of ids that begin with prefix.
func about(ids []string, prefix string) (some []string) {
	for _, id := range ids {
		if strings.HasPrefix(id, prefix) {
			some = append(some, id)
		}
	}
	return some
}

func lines(file string) (all [][]byte) {
	text, _ := os.ReadFile(file) // there is none before the first
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			all = append(all, line)
		}
	}
	return all
}

func (r *receiver) all() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.bodies)
}
