package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net"
	"net/http"
	"net/mail"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/emersion/go-smtp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/imdstest"
	"forewarn/sinks"
)

// One run tells an event's whole life to a destination of every kind.
func TestEveryKindHearsTheWholeLife(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	six := everyKind(t)
	six.run(azure.URL)
	id := eventID("six")

	azure.Schedule(imdstest.Event{ID: id, Type: "Reboot", Description: "Host server is undergoing maintenance."})
	six.hear(id+"-scheduled", 1)
	azure.Update(id, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(5 * time.Minute) })
	six.hear(id+"-updated-", 2)
	azure.Start(id)
	six.hear(id+"-started", 3)
	azure.End(id)
	six.hear(id+"-vanished", 4)

	for name, heard := range six.heard() {
		if got := about(heard, id); len(got) != 4 {
			t.Errorf("%s heard %v, want each of the four changes once", name, got)
		}
	}
	posts := six.chat.all()
	if len(posts) != 4 {
		t.Fatalf("Slack has %d messages, want one and three replies: %+v", len(posts), posts)
	}
	if root := posts[0]; root.thread != "" || root.updates != 3 || !strings.Contains(root.text, "is over") {
		t.Errorf("the message is %+v, want it to say in its third update that the reboot is over", root)
	}
	for _, reply := range posts[1:] {
		if reply.thread != posts[0].ts {
			t.Errorf("a reply is in the thread %q, want %q", reply.thread, posts[0].ts)
		}
	}
	mails := six.post.all(t)
	for i, says := range []string{"will reboot", "moved to", "has begun", "is over"} {
		if !strings.Contains(mails[i].subject, says) {
			t.Errorf("mail %d has the subject %q, want it to say %q", i, mails[i].subject, says)
		}
		if i > 0 && mails[i].Get("References") != mails[0].Get("References") {
			t.Errorf("mail %d has the References %q, want those of the first", i, mails[i].Get("References"))
		}
	}
	six.quiet()
}

// While Slack hangs in its first attempt and the mail server is dead, every other destination hears each change, and
// polls go on. Once both are back, each gets one message with the state now.
func TestNeitherSlackNorMailDelaysTheOthers(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	six := everyKind(t)
	six.run(azure.URL)
	id := eventID("slow")
	six.chat.hang()
	six.post.stop()

	azure.Schedule(imdstest.Event{ID: id, Type: "Reboot"})
	six.until("an attempt at Slack", func() bool { return six.chat.waiting() > 0 })
	for _, step := range []struct {
		change string
		happen func()
	}{
		{"-scheduled", func() {}},
		{"-updated-", func() {
			azure.Update(id, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(5 * time.Minute) })
		}},
		{"-started", func() { azure.Start(id) }},
	} {
		step.happen()
		for _, name := range []string{"nats", "webhook", "file", "exec", "syslog"} {
			six.until(name+" to hear "+step.change, func() bool { return begins(six.heard()[name], id+step.change) })
		}
	}
	before := documents(azure.Requests())
	six.until("two more polls", func() bool { return documents(azure.Requests()) >= before+2 })
	if n := six.chat.waiting(); n != 1 {
		t.Errorf("Slack has %d attempts under way, want still the first", n)
	}
	if posts, mails := six.chat.all(), six.post.all(t); len(posts) > 0 || len(mails) > 0 {
		t.Errorf("Slack has %v and the mailbox %v, want nothing", posts, mails)
	}

	six.chat.release()
	six.post.listen(t)
	if err := signalProcess(six.process, "HUP"); err != nil { // the times of attempts begin anew
		t.Fatal(err)
	}
	six.until("Slack and mail to be told", func() bool { return len(six.chat.all()) > 0 && len(six.post.all(t)) > 0 })
	six.quiet()
	if posts := six.chat.all(); len(posts) != 1 || !strings.Contains(posts[0].text, "has begun") {
		t.Errorf("Slack has %+v, want one message that says that the reboot has begun", posts)
	}
	if mails := six.post.all(t); len(mails) != 1 || !strings.Contains(mails[0].subject, "has begun") ||
		!strings.HasPrefix(mails[0].Get("Message-ID"), "<"+id+"-started.") {
		t.Errorf("the mailbox has %+v, want one mail that says that the reboot has begun", mails)
	}
}

// check --connect reaches each destination and sends nothing; it says which cannot be reached.
func TestCheckConnectSendsNothing(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	six := everyKind(t)
	six.configure(azure.URL)
	check := func(code int, want map[string]string) {
		t.Helper()
		var got struct {
			Destinations []connectResult `json:"connect"`
		}
		out := six.command(code, "check", "--connect", "-o", "json")
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		for _, r := range got.Destinations {
			if r.Result != want[r.Sink] {
				t.Errorf("%s is %s, want %s: %s", r.Sink, r.Result, want[r.Sink], r.Answer)
			}
		}
		if len(got.Destinations) != len(sinks.Kinds) {
			t.Errorf("check --connect tells of %+v, want all kinds", got.Destinations)
		}
	}
	up := map[string]string{"webhook": "reached", "nats": "reached", "slack": "reached", "email": "reached",
		"file": "reached", "exec": "reached", "syslog": "reached"}
	check(exitOK, up)
	six.post.stop()
	if err := six.hook.answer("refuse"); err != nil {
		t.Fatal(err)
	}
	six.chat.refuse("invalid_auth")
	down := map[string]string{"webhook": "unreachable", "slack": "unreachable", "email": "unreachable", "nats": "reached",
		"file": "reached", "exec": "reached", "syslog": "reached"}
	check(exitUnavailable, down)
	for name, heard := range six.heard() {
		if len(heard) > 0 {
			t.Errorf("%s heard %v, want nothing", name, heard)
		}
	}
	if posts := six.chat.all(); len(posts) > 0 {
		t.Errorf("Slack has %+v, want nothing", posts)
	}
}

// send puts a message marked TEST through the real sinks, one that acts only when it is named, and its exit code is
// that of the worst answer.
func TestSendThroughEveryKind(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	six := everyKind(t)
	six.configure(azure.URL)
	send := func(code int, result string, args ...string) {
		t.Helper()
		var got []sendResult
		out := six.command(code, append([]string{"send", "-o", "json"}, args...)...)
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%v: %v:\n%s", args, err, out)
		}
		for _, s := range got {
			if s.Result != result || s.Answer == "" || !s.WouldPass {
				t.Errorf("send %v: %+v, want it %s, an answer, and that a real one would pass", args, s, result)
			}
		}
		if want := max(1, strings.Count(strings.Join(args, " "), "--sink")); len(args) > 0 && len(got) != want {
			t.Errorf("send %v: %+v, want %d", args, got, want)
		}
	}
	send(exitOK, "accepted")
	heard := six.heard()
	for name := range sinks.Kinds {
		switch n := len(heard[name]); {
		case name == "slack": // a message has no id
		case name == "exec" && n != 0, name != "exec" && n != 1:
			t.Errorf("%s heard %v of send", name, heard[name])
		}
	}
	if posts := six.chat.all(); len(posts) != 1 || !strings.Contains(posts[0].text, "TEST") {
		t.Errorf("Slack has %+v, want a message marked TEST", posts)
	}
	if mails := six.post.all(t); !strings.Contains(mails[0].subject, "TEST") || !strings.Contains(mails[0].text, "TEST") ||
		!strings.Contains(mails[0].html, "TEST") {
		t.Errorf("the mail is %+v, want it marked TEST in subject, text and HTML", mails[0])
	}
	send(exitOK, "accepted", "--sink", "exec")
	if heard := six.heard()["exec"]; len(heard) != 1 {
		t.Errorf("the command heard %v, want the test", heard)
	}

	six.post.stop()
	send(exitTryAgain, "again", "--sink", "email")
	six.chat.refuse("invalid_auth")
	send(exitUnavailable, "blocked", "--sink", "slack")
	six.chat.refuse("msg_too_long")
	send(exitFailed, "rejected", "--sink", "slack")
	if err := six.hook.answer("422"); err != nil {
		t.Fatal(err)
	}
	send(exitFailed, "rejected", "--sink", "webhook")
	six.stream.stop()
	send(exitTryAgain, "again", "--sink", "nats")
	out := six.command(exitFailed, "send", "--sink", "webhook", "--sink", "email", "--sink", "file")
	if n := bytes.Count(out, []byte("\n")); n != 4 {
		t.Errorf("send printed %d lines, want a header and three sinks:\n%s", n, out)
	}
}

// render prints what would leave through each kind, and the same text in JSON.
func TestRenderEveryKind(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	six := everyKind(t)
	six.configure(azure.URL)
	for name, says := range map[string]string{
		"webhook": `"azeventtype":"Preempt"`, "nats": "Nats-Msg-Id: ", "slack": "is being evicted",
		"email": "is being evicted",
		"file":  `"azeventtype":"Preempt"`, "exec": "CE_AZEVENTTYPE=Preempt",
		"syslog": `azeventtype="Preempt"`,
	} {
		args := []string{"render", "--sink", name, "--sample", "preempt"}
		if out := six.command(exitOK, args...); !bytes.Contains(out, []byte(says)) || bytes.Contains(out, []byte(chatToken)) {
			t.Errorf("render prints for %s, want it to hold %q and no secret:\n%s", name, says, out)
		}
		var got []rendering
		out := six.command(exitOK, append(args, "-o", "json")...)
		if err := json.Unmarshal(out,
			&got); err != nil || len(got) != 1 || got[0].Sink != name || !strings.Contains(got[0].Text, says) {
			t.Errorf("render prints for %s, %v, want one text that holds %q:\n%s", name, err, says, out)
		}
	}
	if posts := six.chat.all(); len(posts) > 0 || len(six.heard()["nats"]) > 0 {
		t.Errorf("render sent something: %+v", six.heard())
	}
}

// Text that is hostile, overlong or no text at all comes out right or cut at every destination, and nothing is stuck.
func TestHostileTextReachesEveryKind(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"quotes":     `"' ` + "`" + `\ {{.id}} $HOME $(id)`,
		"newlines":   "one\r\nSubject: two\r\n.\r\nthree\u2028four\x00\x1b[31m",
		"script":     `<script>alert("1")</script> & <!channel>`,
		"directions": "abc\u202edefg\u2066h\u200fi",
		"long":       strings.Repeat("<&é\" ", 100<<10/6),
		"word":       strings.Repeat("x", 100<<10),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // Slack takes one message a second
			quoted, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			six := hearsText(t, string(quoted))
			// What is JSON holds the text itself, up to its bound.
			for kind, ces := range map[string][][]byte{
				"webhook": six.hook.all(), "file": lines(six.audit), "exec": lines(six.ran),
			} {
				got := description(t, ces)
				if got != text && !(len(got) > 15<<10 && strings.HasPrefix(text, got)) {
					t.Errorf("%s got the description %.200q, want %.200q", kind, got, text)
				}
			}
		})
	}
	t.Run("no UTF-8", func(t *testing.T) {
		t.Parallel()
		hearsText(t, "\"a\xff\xfeb\xc3(\"")
	})
}

// hearsText has a destination of every kind hear of an event that is full of a text, given as JSON. People get it
// without what could mislead them.
func hearsText(t *testing.T, text string) *six {
	t.Helper()
	azure := imdstest.Serve(t, imdstest.Options{
		VMs: []string{"vm-0"}, Instance: imdstest.Instance{ResourceGroup: `prod "&<db>` + "\u202e\u200f"},
	})
	six := everyKind(t)
	six.run(azure.URL)
	id := eventID("hostile")
	for i, status := range []string{"Scheduled", "Started"} {
		azure.SetDocument(fmt.Appendf(nil, `{"DocumentIncarnation":%d,"Events":[{"EventId":%q,"EventStatus":%q,"EventType":"Reboot",`+
			`"ResourceType":"VirtualMachine","Resources":["vm-0",%s],"NotBefore":"","Description":%s,"EventSource":"Platform",`+
			`"DurationInSeconds":-1,"Tags":{%[5]s:%[5]s}}]}`, i+2, id, status, text, text))
		six.hear(id+"-"+strings.ToLower(status), 0)
	}
	six.quiet()
	for _, m := range six.chat.all() {
		for _, bad := range []string{"<!channel>", "<script>", "\u202e", "\x1b"} {
			if strings.Contains(m.text+m.blocks, bad) {
				t.Errorf("Slack got %q in %.300q", bad, m.text+m.blocks)
			}
		}
	}
	for _, m := range six.post.all(t) {
		for _, bad := range []string{"<script>", "\u202e", "\x1b"} {
			if strings.Contains(m.html, bad) || strings.ContainsAny(m.subject, "\r\n\u202e") {
				t.Errorf("a mail holds %q: %q %.300q", bad, m.subject, m.html)
			}
		}
		if !utf8.ValidString(m.text) || len(m.text) > 40<<10 {
			t.Errorf("the text of a mail is %d bytes, want valid UTF-8 of bounded length: %.300q", len(m.text), m.text)
		}
	}
	return six
}

// description is the one that the CloudEvent of a scheduled event has.
func description(t *testing.T, ces [][]byte) string {
	t.Helper()
	for _, raw := range ces {
		var ce struct {
			ID   string
			Data struct{ Event struct{ Description string } }
		}
		if err := json.Unmarshal(raw, &ce); err != nil {
			t.Fatalf("%.200q: %v", raw, err)
		}
		if strings.HasSuffix(ce.ID, "-scheduled") {
			return ce.Data.Event.Description
		}
	}
	return ""
}

// six is a real destination of every kind, and the settings for them.
type six struct {
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

func everyKind(t *testing.T) *six {
	t.Helper()
	dir := t.TempDir()
	s := &six{
		t: t, config: filepath.Join(dir, "forewarn.yaml"), log: filepath.Join(dir, "log"),
		audit: filepath.Join(dir, "audit.jsonl"), ran: filepath.Join(dir, "ran.jsonl"),
		hook: hearing(t), stream: newStream(t), chat: newChat(t), post: newPost(t), log514: newLogServer(t),
	}
	return s
}

// sections are the kinds' sections of the settings.
func (s *six) sections() map[string]string {
	all := map[string]string{
		"webhook": fmt.Sprintf("{url: %q}", s.hook.url),
		"nats":    fmt.Sprintf("{url: %q, provision: {stream: FOREWARN}}", s.stream.url),
		"slack":   fmt.Sprintf("{token: %s, channel: C024BE91L, api_url: %q}", chatToken, s.chat.url),
		"email": fmt.Sprintf("{host: 127.0.0.1, port: %s, from: azure@example.com, to: [ops@example.com], tls: {mode: none}}",
			s.post.port()),
		"file": fmt.Sprintf("{path: %q}", s.audit),
		"exec": fmt.Sprintf(`{command: [/bin/sh, -c, 'cat >>"$0"; echo >>"$0"', %q], parallel: 1}`, s.ran), // two at once would write into each other's lines
	}
	all["syslog"] = fmt.Sprintf("{url: %q}", "tcp://"+s.log514.address)
	for kind := range sinks.Kinds {
		if all[kind] == "" {
			s.t.Fatalf("there is no destination of kind %s", kind)
		}
	}
	return all
}

func (s *six) configure(endpoint string) {
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

func (s *six) run(endpoint string) {
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
func (s *six) command(code int, args ...string) []byte {
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

func (s *six) until(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(2 * patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(s.log)
			s.t.Fatalf("waited in vain for %s; heard %v; the log:\n%s", what, s.heard(), text)
		}
	}
}

// hear returns once all that have ids heard one that begins so, and Slack has that many messages; 0 does not ask Slack.
func (s *six) hear(id string, posts int) {
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
func (s *six) heard() map[string][]string {
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
func (s *six) quiet() {
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

// A logServer takes messages of syslog, each behind its length, until the sender closes.
type logServer struct {
	address string

	mu    sync.Mutex
	heard []string
}

func newLogServer(t *testing.T) *logServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	s := &logServer{address: l.Addr().String()}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.read(conn)
		}
	}()
	return s
}

var idOfMessage = regexp.MustCompile(` id="([^"]+)" `)

func (s *logServer) read(conn net.Conn) {
	defer conn.Close()
	for r := bufio.NewReader(conn); ; {
		length, _ := r.ReadString(' ')
		n, err := strconv.Atoi(strings.TrimSpace(length))
		if err != nil {
			return
		}
		m := make([]byte, n)
		if _, err := io.ReadFull(r, m); err != nil {
			return
		}
		if id := idOfMessage.FindSubmatch(m); id != nil {
			s.mu.Lock()
			s.heard = append(s.heard, string(id[1]))
			s.mu.Unlock()
		}
	}
}

func (s *logServer) ids() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.heard)
}

// A streamServer is a real NATS server with JetStream.
type streamServer struct {
	url    string
	server *server.Server
	js     jetstream.JetStream
}

func newStream(t *testing.T) *streamServer {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	n := &streamServer{server: s}
	t.Cleanup(n.stop)
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server takes no connections")
	}
	n.url = s.ClientURL()
	conn, err := nats.Connect(n.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if n.js, err = jetstream.New(conn); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *streamServer) stop() {
	n.server.Shutdown()
	n.server.WaitForShutdown()
}

// ids are those of the CloudEvents in the stream, in its order.
func (n *streamServer) ids(t *testing.T) (ids []string) {
	if !n.server.Running() {
		return nil
	}
	stream, err := n.js.Stream(context.Background(), "FOREWARN")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= stream.CachedInfo().State.LastSeq; i++ {
		msg, err := stream.GetMsg(context.Background(), i)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, msg.Header.Get(jetstream.MsgIDHeader))
	}
	return ids
}

const chatToken = "xoxb-t0ken-of-the-test"

// A chatServer is one channel behind Slack's API. What it keeps can be updated and replied to.
type chatServer struct {
	url string

	mu    sync.Mutex
	posts []chatPost
	no    string        // the error that every call gets, if any
	held  chan struct{} // while it hangs
	waits int           // calls that hang
}

type chatPost struct {
	ts, thread, text, blocks string
	updates                  int
}

func newChat(t *testing.T) *chatServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &chatServer{url: "http://" + l.Addr().String() + "/api/"}
	srv := &http.Server{Handler: c, ReadHeaderTimeout: patience}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return c
}

func (c *chatServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	form, _ := url.ParseQuery(string(body))
	c.mu.Lock()
	defer c.mu.Unlock()
	if held := c.held; held != nil {
		c.waits++
		c.mu.Unlock()
		select {
		case <-held:
		case <-r.Context().Done():
		}
		c.mu.Lock()
		c.waits--
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	json.NewEncoder(w).Encode(c.answer(strings.TrimPrefix(r.URL.Path, "/api/"), chatSecret(r, form), form))
}

// chatSecret is the token of a call, in either of the two places that Slack takes it from.
func chatSecret(r *http.Request, form url.Values) string {
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return bearer
	}
	return form.Get("token")
}

func (c *chatServer) answer(method, token string, form url.Values) map[string]any {
	no := func(what string) map[string]any { return map[string]any{"ok": false, "error": what} }
	const channel = "C024BE91L"
	blocks := form.Get("blocks")
	find := func(ts string) int {
		return slices.IndexFunc(c.posts, func(p chatPost) bool { return p.ts == ts })
	}
	switch {
	case c.no != "":
		return no(c.no)
	case token != chatToken:
		return no("invalid_auth")
	case method == "auth.test":
		return map[string]any{"ok": true, "team": "Example Ltd", "user": "forewarn"}
	case form.Get("channel") != channel:
		return no("channel_not_found")
	case utf8.RuneCountInString(form.Get("text")) > 40000:
		return no("msg_too_long")
	case blocks != "" && !json.Valid([]byte(blocks)):
		return no("invalid_blocks_format")
	}
	ts := form.Get("ts")
	switch method {
	case "chat.postMessage":
		if thread := form.Get("thread_ts"); thread != "" && find(thread) < 0 {
			return no("thread_not_found")
		}
		ts = fmt.Sprintf("1700000000.%06d", len(c.posts)+1)
		c.posts = append(c.posts, chatPost{ts: ts, thread: form.Get("thread_ts"), text: form.Get("text"), blocks: blocks})
	case "chat.update":
		i := find(ts)
		if i < 0 {
			return no("message_not_found")
		}
		c.posts[i].text, c.posts[i].blocks = form.Get("text"), blocks
		c.posts[i].updates++
	default:
		return no("unknown_method")
	}
	message := map[string]any{"ts": ts, "text": form.Get("text"), "thread_ts": form.Get("thread_ts")}
	return map[string]any{"ok": true, "channel": channel, "ts": ts, "message": message}
}

func (c *chatServer) all() []chatPost {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.posts)
}

func (c *chatServer) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waits
}

func (c *chatServer) hang() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = make(chan struct{})
}

func (c *chatServer) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.held)
	c.held = nil
}

// refuse lets every call fail so from now on.
func (c *chatServer) refuse(no string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.no = no
}

// A postOffice is a real mail server for one mailbox.
type postOffice struct {
	addr string

	mu    sync.Mutex
	close func()
	mails [][]byte
}

// A letter is a mail taken apart.
type letter struct {
	mail.Header
	subject, text, html string
}

func newPost(t *testing.T) *postOffice {
	t.Helper()
	p := &postOffice{addr: "127.0.0.1:0"}
	p.listen(t)
	t.Cleanup(p.stop)
	return p
}

func (p *postOffice) listen(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addr = l.Addr().String()
	srv := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return counter{p}, nil }))
	srv.ErrorLog = log.New(io.Discard, "", 0)
	go srv.Serve(l)
	p.close = func() { srv.Close(); l.Close() } // Serve may not have come to know of l
}

// stop lets connections be refused until listen.
func (p *postOffice) stop() { p.close() }

func (p *postOffice) port() string {
	_, port, _ := net.SplitHostPort(p.addr)
	return port
}

func (p *postOffice) all(t *testing.T) (all []letter) {
	t.Helper()
	p.mu.Lock()
	mails := slices.Clone(p.mails)
	p.mu.Unlock()
	for _, raw := range mails {
		m, err := mail.ReadMessage(bytes.NewReader(raw))
		if err != nil {
			t.Fatalf("%v:\n%s", err, raw)
		}
		l := letter{Header: m.Header}
		if l.subject, err = new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject")); err != nil {
			t.Fatal(err)
		}
		_, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
		if err != nil {
			t.Fatal(err)
		}
		for parts := multipart.NewReader(m.Body, params["boundary"]); ; {
			part, err := parts.NextRawPart()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(quotedprintable.NewReader(part))
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(part.Header.Get("Content-Type"), "text/html") {
				l.html = string(body)
			} else {
				l.text = string(body)
			}
		}
		all = append(all, l)
	}
	return all
}

// A counter takes mail at the post office.
type counter struct{ at *postOffice }

func (counter) Reset()                               {}
func (counter) Logout() error                        { return nil }
func (counter) Mail(string, *smtp.MailOptions) error { return nil }
func (counter) Rcpt(string, *smtp.RcptOptions) error { return nil }

func (c counter) Data(r io.Reader) error {
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	c.at.mu.Lock()
	defer c.at.mu.Unlock()
	c.at.mails = append(c.at.mails, raw)
	return nil
}
