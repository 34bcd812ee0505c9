package sinks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// A workspace behaves as Slack's API does, for one channel: what it keeps can be updated, replied to and deleted.
type workspace struct {
	url string

	mu       sync.Mutex
	messages []*slackPost
	calls    []string              // method and outcome, oldest first
	fail     map[string][]slackNo  // answers to give to a method first
	hook     []map[string]any      // what the incoming webhook got
	forms    map[string]url.Values // the last call of each method
}

// slackPost is a message as the workspace keeps it.
type slackPost struct {
	ts, thread, text, blocks string
	broadcast, deleted       bool
}

// slackNo is an answer other than yes.
type slackNo struct {
	status int // 0 for 200
	body   string
	header map[string]string
}

const slackToken, slackChannelID = "xoxb-s3cr3t-t0ken", "C024BE91L"

func newWorkspace(t *testing.T) *workspace {
	w := &workspace{fail: make(map[string][]slackNo), forms: make(map[string]url.Values)}
	w.url = serve(t, w).URL
	return w
}

func (w *workspace) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.mu.Lock()
	defer w.mu.Unlock()
	method := strings.TrimPrefix(r.URL.Path, "/api/")
	if no := w.fail[method]; len(no) > 0 {
		w.fail[method] = no[1:]
		w.calls = append(w.calls, method+" no")
		for name, value := range no[0].header {
			out.Header().Set(name, value)
		}
		if no[0].status != 0 {
			out.WriteHeader(no[0].status)
		}
		io.WriteString(out, no[0].body)
		return
	}
	if method == "/services/T/B/X" {
		var got map[string]any
		if err := json.Unmarshal(body, &got); err != nil || got["text"] == "" {
			out.WriteHeader(http.StatusBadRequest)
			io.WriteString(out, "invalid_payload")
			return
		}
		w.hook = append(w.hook, got)
		io.WriteString(out, "ok")
		return
	}
	form, _ := url.ParseQuery(string(body))
	w.forms[method] = form
	answer := w.call(method, form)
	w.calls = append(w.calls, method+fmt.Sprintf(" %v", answer["ok"]))
	json.NewEncoder(out).Encode(answer)
}

func (w *workspace) call(method string, form url.Values) map[string]any {
	no := func(code string) map[string]any { return map[string]any{"ok": false, "error": code} }
	if form.Get("token") != slackToken {
		return no("invalid_auth")
	}
	blocks := form.Get("blocks")
	var parsed []map[string]any
	switch {
	case method == "auth.test":
		return map[string]any{"ok": true, "team": "Example Ltd", "user": "forewarn", "team_id": "T1"}
	case blocks != "" && json.Unmarshal([]byte(blocks), &parsed) != nil, len(parsed) > 50:
		return no("invalid_blocks_format")
	case form.Get("text") == "" && len(parsed) == 0:
		return no("no_text")
	}
	switch method {
	case "chat.postMessage":
		if !oneOf(form.Get("channel"), "#ops", slackChannelID) {
			return no("channel_not_found")
		}
		m := &slackPost{
			ts: fmt.Sprintf("1700000000.%06d", len(w.messages)+1), thread: form.Get("thread_ts"), text: form.Get("text"),
			blocks: blocks, broadcast: form.Get("reply_broadcast") == "true",
		}
		if m.thread != "" && w.find(m.thread) == nil {
			m.thread, m.broadcast = "", false // as Slack does when the thread's root is gone
		}
		w.messages = append(w.messages, m)
		message := map[string]any{"ts": m.ts, "text": m.text, "blocks": []any{map[string]any{"type": 7}}}
		if m.thread != "" {
			message["thread_ts"] = m.thread
		}
		return map[string]any{"ok": true, "channel": slackChannelID, "ts": m.ts, "message": message, "errors": map[string]any{"a": 1}}
	case "chat.update":
		m := w.find(form.Get("ts"))
		if form.Get("channel") != slackChannelID {
			return no("channel_not_found") // a name is not enough
		}
		if m == nil {
			return no("message_not_found")
		}
		m.text = form.Get("text")
		if blocks != "" {
			m.blocks = blocks
		}
		return map[string]any{"ok": true, "channel": slackChannelID, "ts": m.ts, "text": m.text}
	}
	return no("unknown_method")
}

func (w *workspace) find(ts string) *slackPost {
	for _, m := range w.messages {
		if m.ts == ts && !m.deleted {
			return m
		}
	}
	return nil
}

// story is what stands in the channel: each message, its replies below it, and a + for those that the channel sees too.
func (w *workspace) story() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for _, m := range w.messages {
		switch {
		case m.deleted || m.thread != "":
			continue
		}
		fmt.Fprintf(&b, "%s\n", m.text)
		for _, r := range w.messages {
			if r.thread == m.ts {
				fmt.Fprintf(&b, "  %s%s\n", map[bool]string{true: "+ "}[r.broadcast], r.text)
			}
		}
	}
	return b.String()
}

func (w *workspace) delete(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.messages {
		m.deleted = m.deleted || m.text == text
	}
}

// refuse lets the next calls of a method fail.
func (w *workspace) refuse(method string, no ...slackNo) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail[method] = no
}

func (w *workspace) asked() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.calls)
}

// settings are those of a sink that says little, with more lines.
func (w *workspace) settings(more string) string {
	return "token: " + slackToken + "\nchannel: '#ops'\napi_url: " + w.url + "/api\n" +
		"text: '{{.change}}{{if .reply}} again{{end}}'\nblocks: '[]'\n" + more
}

// openSlackSink opens a sink that need not wait between messages.
func openSlackSink(t *testing.T, settings string) *slackSink {
	t.Helper()
	k := mustOpen(t, "slack", settings, testHost(t)).(*slackSink)
	k.turns = nil
	return k
}

// A teller delivers as the bridge does, and keeps the receipts and the progress.
type teller struct {
	t        *testing.T
	sink     *slackSink
	receipts map[string][]byte
	progress map[string][]byte // by the CloudEvent's id
}

func (l *teller) tell(batch ...delivery.Delivery) (delivery.Answer, error) {
	l.t.Helper()
	for i := range batch {
		batch[i].Receipt, batch[i].Progress = l.receipts[batch[i].Event.Subject()], l.progress[batch[i].Event.ID()]
	}
	a, err := l.sink.Deliver(l.t.Context(), batch)
	if a.Receipt != nil {
		for _, d := range batch {
			l.receipts[d.Event.Subject()] = a.Receipt
		}
	}
	for _, d := range batch {
		if err == nil {
			delete(l.progress, d.Event.ID())
		} else if a.Progress != nil {
			l.progress[d.Event.ID()] = a.Progress
		}
	}
	return a, err
}

func (l *teller) mustTell(batch ...delivery.Delivery) delivery.Answer {
	l.t.Helper()
	a, err := l.tell(batch...)
	if err != nil {
		l.t.Fatalf("Deliver of %s = %v", batch[0].Event.ID(), err)
	}
	return a
}

func newTeller(t *testing.T, settings string) *teller {
	return &teller{t, openSlackSink(t, settings), map[string][]byte{}, map[string][]byte{}}
}

func slackAccepts(t *testing.T) (string, func() []string) {
	w := newWorkspace(t)
	settings := strings.Replace(w.settings(""), "{{.change}}", "{{.id}}", 1)
	return settings, func() []string {
		var ids []string
		for _, m := range w.messages {
			ids = append(ids, m.text)
		}
		return ids
	}
}

func slackHangs(t *testing.T) map[string]hung {
	all := make(map[string]hung)
	for name, settings := range map[string]string{"api": "token: abc\nchannel: C1\napi_url: ", "webhook": "webhook_url: "} {
		for i, says := range []string{"", `{"ok": true, "ts": `} {
			began := make(chan struct{})
			srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if says != "" {
					io.WriteString(w, says)
					http.NewResponseController(w).Flush()
				}
				close(began)
				<-r.Context().Done()
			}))
			all[fmt.Sprint(name, i)] = hung{settings + srv.URL, began}
		}
	}
	return all
}

func slackFails(t *testing.T) map[string]string {
	all := map[string]string{}
	for class, code := range map[string]string{again: "fatal_error", blocked: "invalid_auth", rejected: "msg_too_long"} {
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"ok":false,"error":%q}`, code) }))
		all[class] = "{token: xoxb-1, channel: C1, api_url: '" + srv.URL + "'}"
	}
	return all
}

func slackSecrets(t *testing.T) []secretPlace {
	const secret = `s3cr3t-t0ken`
	env := map[string]string{"SECRET": secret}
	file := writeFile(t, "token", secret+"\n")
	var places []secretPlace
	add := func(place, settings string) {
		places = append(places, secretPlace{place, settings, []string{secret}, env})
	}
	for _, status := range []int{200, 302, 400, 403, 429, 503} {
		echo := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { sayBack(w, r, status) }))
		add(fmt.Sprint("token, echoed ", status), "{token: "+secret+", channel: C1, api_url: '"+echo.URL+"'}")
		add(fmt.Sprint("token_file, echoed ", status), "{token_file: "+file+", channel: C1, api_url: '"+echo.URL+"'}")
		add(fmt.Sprint("token_env, echoed ", status), "{token_env: SECRET, channel: C1, api_url: '"+echo.URL+"'}")
		add(fmt.Sprint("webhook_url, echoed ", status), "webhook_url: '"+echo.URL+"/services/"+secret+"'")
		add(fmt.Sprint("proxy, echoed ", status), "{webhook_url: 'http://destination.example', insecure: true, proxy: '"+
			strings.Replace(echo.URL, "://", "://u:"+secret+"@", 1)+"'}")
	}
	for name, body := range map[string]string{
		"error":    `{"ok":false,"error":"` + secret + `"}`,
		"needed":   `{"ok":false,"error":"missing_scope","needed":"` + secret + `"}`,
		"ts":       `{"ok":true,"channel":"C1","ts":"` + secret + `"}`,
		"channel":  `{"ok":true,"channel":"` + secret + `","ts":"1.2"}`,
		"messages": `{"ok":false,"error":"invalid_arguments","response_metadata":{"messages":["` + secret + `"]}}`,
	} {
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, body) }))
		add("token in "+name, "{token: "+secret+", channel: C1, api_url: '"+srv.URL+"'}")
	}
	add("webhook_url, nobody listens", "webhook_url: http://127.0.0.1:1/"+secret)
	add("token, nobody listens", "{token: "+secret+", channel: C1, api_url: 'http://127.0.0.1:1'}")
	add("wrong webhook_url", "webhook_url: 'http://a b.example/"+secret+"'")
	add("wrong webhook_url, user", "webhook_url: 'http://u:"+secret+"@a.example/'")
	add("wrong token", "{token: '"+secret+" x', channel: C1}")
	add("wrong channel", "{token: "+secret+"}")
	add("wrong proxy", "{token: "+secret+", channel: C1, proxy: 'http://u:"+secret+"@:port'}")
	return places
}

// The life of an event is one message that shows the state, with a reply for every change; those by which somebody may
// have to act go to the channel too.
func TestSlackTellsALifeInOneThread(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings(""))
	for i, d := range deliveries(t) {
		a := l.mustTell(d)
		if a.Status != "ok" || a.ID != w.messages[len(w.messages)-1].ts {
			t.Errorf("delivery %d: the answer is %+v, want the ts of the newest message", i, a)
		}
	}
	want := "vanished\n  + updated again\n  + started again\n  vanished again\nvanished\n  vanished again\n"
	if got := w.story(); got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// With the texts that come with forewarn, Slack gets blocks and a text that stand on their own.
func TestSlackMessagesAreWhole(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, "token: "+slackToken+"\nchannel: '#ops'\napi_url: "+w.url+"/api\nmention: {text: <!here>}\nrunbook_url: 'https://wiki.example/{{.azeventtype}}'\n")
	l.sink.now = func() time.Time { return deliveries(t)[0].Event.Time().Add(time.Minute) }
	for _, d := range deliveries(t)[:4] {
		l.mustTell(d)
	}
	root := w.messages[0]
	for _, want := range []string{"<https://wiki.example/Reboot|Runbook>", "vm-0"} {
		if text := unescape(t, root.blocks); !strings.Contains(text, want) || root.text == "" {
			t.Errorf("the root shows %q and %s, want %s in it", root.text, text, want)
		}
	}
	for _, reply := range w.messages[1:] {
		if reply.text == "" || reply.blocks != "" || reply.text == root.text {
			t.Errorf("a reply is %+v, want a text of its own", reply)
		}
	}
	l.mustTell(deliveries(t)[4])
	if text := w.messages[4].text; strings.Contains(text, "<!here>") {
		t.Errorf("a warning is told as %q, want nobody mentioned", text)
	}
	l.receipts = make(map[string][]byte)
	l.mustTell(deliveries(t)[0])
	if text := w.messages[5].text; !strings.HasPrefix(text, "<!here> ") {
		t.Errorf("an error is told as %q, want <!here> mentioned", text)
	}
	for _, method := range []string{"chat.postMessage", "chat.update"} {
		if got := w.forms[method].Get("parse"); got != "none" { // else Slack makes links and mentions of bare words
			t.Errorf("%s has parse %q, want none", method, got)
		}
	}
	if n, verbatim := strings.Count(root.blocks, `"mrkdwn"`), strings.Count(root.blocks, `"verbatim":true`); n != verbatim || n == 0 {
		t.Errorf("%d of %d texts are verbatim:\n%s", verbatim, n, root.blocks)
	}
	f := w.forms["chat.postMessage"]
	if f.Get("unfurl_links") != "false" || f.Get("unfurl_media") != "false" {
		t.Errorf("sent %v, want links not to be unfurled", f)
	}
}

// unescape is JSON with nothing escaped that need not be.
func unescape(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%q is no JSON: %v", text, err)
	}
	return string(mustCompact(t, v))
}

func mustCompact(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := compact(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A root message that was deleted is posted anew, whatever deleted it, and the thread goes on below the new one.
func TestSlackPostsADeletedRootAnew(t *testing.T) {
	for _, code := range []string{"", "message_not_found", "thread_not_found", "cant_update_message", "channel_not_found"} {
		w := newWorkspace(t)
		l := newTeller(t, w.settings(""))
		all := deliveries(t)
		l.mustTell(all[0])
		if code == "" {
			w.delete("scheduled")
		} else {
			w.refuse("chat.update", slackNo{body: `{"ok":false,"error":"` + code + `"}`})
		}
		l.mustTell(all[1])
		l.mustTell(all[2])
		want := "started\n  + started again\n"
		if code != "" {
			want = "scheduled\n" + want
		}
		if got := w.story(); got != want {
			t.Errorf("%q: the channel shows\n%s\nwant\n%s", code, got, want)
		}
	}
}

// What of a change was done is not done again: when the reply fails, the next attempt makes the reply only.
func TestSlackRepeatsNothingThatWasDone(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings(""))
	all := deliveries(t)
	l.mustTell(all[0])
	w.refuse("chat.postMessage", slackNo{status: 503})
	if a, err := l.tell(all[1]); classOf(err) != again || a.Progress == nil {
		t.Fatalf("Deliver = %+v, %v; want it again, and progress", a, err)
	}
	w.refuse("chat.postMessage", slackNo{status: 503})
	if _, err := l.tell(all[1]); classOf(err) != again {
		t.Fatalf("Deliver = %v, want it again", err)
	}
	l.mustTell(all[1])
	want := []string{
		"chat.postMessage true", "chat.update true", "chat.postMessage no", "chat.postMessage no", "chat.postMessage true",
	}
	if got := w.asked(); !slices.Equal(got, want) {
		t.Errorf("Slack was asked %q, want %q", got, want)
	}
	l.mustTell(all[1]) // replayed
	l.mustTell(all[2])
	if n := strings.Count(strings.Join(w.asked(), " "), "chat.update true"); n != 3 {
		t.Errorf("the root was updated %d times, want 3", n)
	}
	if got, want := w.story(), "started\n  + updated again\n  + updated again\n  + started again\n"; got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// Where there can be no thread, a change is a message of its own; where the settings want no reply, there is none.
func TestSlackWithoutReplies(t *testing.T) {
	for _, code := range []string{"cannot_reply_to_message", "restricted_action_non_threadable_channel", "restricted_action_thread_locked"} {
		w := newWorkspace(t)
		l := newTeller(t, w.settings(""))
		l.mustTell(deliveries(t)[0])
		w.refuse("chat.postMessage", slackNo{body: `{"ok":false,"error":"` + code + `"}`})
		l.mustTell(deliveries(t)[1])
		if got, want := w.story(), "updated\nupdated\n"; got != want {
			t.Errorf("%s: the channel shows\n%s\nwant\n%s", code, got, want)
		}
	}
	w := newWorkspace(t)
	l := newTeller(t, strings.Replace(w.settings(""), "{{.change}}{{if .reply}} again{{end}}", "{{if not .reply}}{{.change}}{{end}}", 1))
	for _, d := range deliveries(t)[:3] {
		l.mustTell(d)
	}
	if got, want := w.story(), "started\n"; got != want {
		t.Errorf("without replies the channel shows\n%s\nwant\n%s", got, want)
	}
}

// Every change is given once more when it is replayed: only an attempt that failed leaves something undone.
func TestSlackReplayIsToldAgain(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings(""))
	all := deliveries(t)
	l.mustTell(all[0])
	l.mustTell(all[2])
	l.mustTell(all[2])
	if got, want := w.story(), "started\n  + started again\n  + started again\n"; got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// When an event was announced and when it began comes with each CloudEvent, so the sink remembers its message alone.
func TestSlackTellsWhenItWasAnnouncedAndBegan(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings("")[:strings.Index(w.settings(""), "text:")]+
		"text: '{{.change}} {{.announced}} {{.begun}}{{if .reply}} again{{end}}'\nblocks: '[]'\n")
	a := l.mustTell(situations()["over"].batch...)
	if want := `{"to":"#ops","channel":"` + slackChannelID + `","ts":"1700000000.000001"}`; string(a.Receipt) != want {
		t.Errorf("the receipt is %s, want %s", a.Receipt, want)
	}
	if got, want := w.story(), "vanished 2026-11-21T03:55:29Z 2026-11-21T04:10:04Z\n"; got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// A first change that is not the announcement posts a root message too.
func TestSlackFirstChangeIsARoot(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings(""))
	l.mustTell(deliveries(t)[2])
	if got, want := w.story(), "started\n"; got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// What is about the bridge, and a test, is a message of its own, without a receipt.
func TestSlackTellsOfTheBridge(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings(""))
	s, _ := cloudevent.NewSample("reboot", "vm-0", monday)
	test, err := s.Test(imds.Observer{Name: "vm-0"}, monday)
	if err != nil {
		t.Fatal(err)
	}
	about, err := cloudevent.WrapBridge(cloudevent.SinkBlocked, map[string]any{"sink": "ops"}, imds.Observer{Name: "vm-0"}, monday)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, d := range []delivery.Delivery{{Event: test}, {Event: about}} {
			d.Receipt = []byte(`{"to":"#ops","channel":"` + slackChannelID + `","ts":"1700000000.000001"}`)
			a, err := l.sink.Deliver(t.Context(), []delivery.Delivery{d})
			if err != nil || a.Receipt != nil || a.Status != "ok" {
				t.Errorf("Deliver = %+v, %v; want no receipt", a, err)
			}
		}
	}
	if got, want := w.story(), strings.Repeat("scheduled\nsink.blocked\n", 2); got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// A group is one message; later changes reply in its thread and leave the message as it is.
func TestSlackGroupIsOneMessage(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, strings.Replace(w.settings(""), "{{.change}}", "{{.change}} of {{len .group}}", 1))
	all := deliveries(t)
	l.mustTell(all[0], all[4])
	l.mustTell(all[2])
	l.mustTell(all[3], all[5])
	want := "scheduled of 2\n  + started of 1 again\n  vanished of 2 again\n"
	if got := w.story(); got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
	w.delete("scheduled of 2")
	l.mustTell(all[3])
	l.mustTell(all[3])
	if got, want := w.story(), "vanished of 1\n  vanished of 1 again\n"; !strings.HasPrefix(got, want) {
		t.Errorf("without its root the channel shows\n%s\nwant\n%s", got, want)
	}
}

// Another channel in the settings gets a message of its own, and a receipt that cannot be read is none.
func TestSlackChannelThatChangedGetsARoot(t *testing.T) {
	for _, receipt := range []string{`{"to":"#other","channel":"` + slackChannelID + `","ts":"1700000000.000001"}`, `{`, `[]`,
		`{"to":"#ops"}`, `{"to":"#ops","channel":"C 1","ts":"1.0"}`} {
		w := newWorkspace(t)
		l := newTeller(t, w.settings(""))
		l.mustTell(deliveries(t)[0])
		d := deliveries(t)[1]
		l.receipts[d.Event.Subject()] = []byte(receipt)
		l.mustTell(d)
		if got, want := w.story(), "scheduled\nupdated\n"; got != want {
			t.Errorf("with receipt %s the channel shows %q, want %q", receipt, got, want)
		}
	}
}

// The settings choose which replies the channel sees.
func TestSlackBroadcastIsChosen(t *testing.T) {
	all := deliveries(t)
	short := all[2]
	short.Event = short.Event.Clone()
	short.Event.SetExtension("azeventtype", "Freeze")
	for _, tt := range []struct{ settings, want string }{
		{"", "+ updated again|+ started again|vanished again|started again"},
		{"broadcast: []", "updated again|started again|vanished again|started again"},
		{"broadcast: [none]", "updated again|started again|vanished again|started again"},
		{"broadcast: [vanished, started]", "updated again|+ started again|+ vanished again|+ started again"},
		{"broadcast: [canceled]", "updated again|started again|vanished again|started again"},
	} {
		w := newWorkspace(t)
		l := newTeller(t, w.settings(tt.settings))
		for _, d := range []delivery.Delivery{all[0], all[1], all[2], all[3], short} {
			l.mustTell(d)
		}
		want := "started\n  " + strings.ReplaceAll(tt.want, "|", "\n  ") + "\n"
		if got := w.story(); got != want {
			t.Errorf("%s: the channel shows\n%s\nwant\n%s", tt.settings, got, want)
		}
	}
}

// Whether a change rings follows from what changed.
func TestSlackRings(t *testing.T) {
	for _, tt := range []struct {
		name   string
		fields string
		want   bool
	}{
		{"started", `{"change":"started"}`, true},
		{"reminder", `{"change":"reminder"}`, true},
		{"approved", `{"change":"approved"}`, false},
		{"over", `{"change":"vanished","data":{"outcome":"completed"}}`, false},
		{"canceled", `{"change":"vanished","data":{"outcome":"canceled"}}`, true},
		{"new time", `{"change":"updated","data":{"changed":["NotBefore"]}}`, true},
		{"new type", `{"change":"updated","data":{"changed":["Description","EventType"]}}`, true},
		{"other VMs", `{"change":"updated","data":{"changed":["Resources"]}}`, true},
		{"new words", `{"change":"updated","data":{"changed":["Description","DurationInSeconds"]}}`, false},
		{"nothing known", `{}`, false},
	} {
		var f map[string]any
		if err := json.Unmarshal([]byte(tt.fields), &f); err != nil {
			t.Fatal(err)
		}
		f["duration"] = -1
		if got := rings(f, nil); got != tt.want {
			t.Errorf("%s rings: %v, want %v", tt.name, got, tt.want)
		}
		f["azeventtype"] = "Freeze"
		for length, want := range map[int]bool{-1: tt.want, 0: false, 10: false, 11: tt.want} {
			if f["duration"] = length; rings(f, nil) != want {
				t.Errorf("%s of a Freeze of %d s rings: %v, want %v", tt.name, length, !want, want)
			}
		}
	}
}

// A message mentions from the severity on that the settings name.
func TestSlackMentionsFromASeverity(t *testing.T) {
	for from, want := range map[string]string{"": "ERROR", "ERROR": "ERROR", "WARN": "ERROR WARN", "INFO": "ERROR WARN INFO"} {
		w := newWorkspace(t)
		k := openSlackSink(t, w.settings("mention: {text: <!here>, from: '"+from+"'}"))
		var got []string
		for _, d := range []delivery.Delivery{deliveries(t)[0], deliveries(t)[4], deliveries(t)[5]} {
			if f := k.fields([]delivery.Delivery{d}); f["mention"] == "<!here>" {
				got = append(got, f["severitytext"].(string))
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("from %q: mentioned for %q, want %q", from, got, want)
		}
	}
}

// An incoming webhook gets each change as a message of its own, and check says so.
func TestSlackIncomingWebhook(t *testing.T) {
	w := newWorkspace(t)
	settings := "webhook_url: " + w.url + "/services/T/B/X\ntext: '{{.change}}'\n"
	opened, err := open("slack", settings, testHost(t))
	if err != nil || len(opened.Notes) != 1 || !strings.Contains(opened.Notes[0], "neither update") {
		t.Fatalf("open = %+v, %v; want a note that nothing is updated", opened, err)
	}
	closeSink(opened.Sink)
	l := newTeller(t, settings)
	for _, d := range deliveries(t)[:4] {
		if a := l.mustTell(d); a.Status != "ok" || a.Receipt != nil {
			t.Errorf("the answer is %+v, want ok and no receipt", a)
		}
	}
	var got []string
	for _, m := range w.hook {
		got = append(got, fmt.Sprint(m["text"], " ", len(m["blocks"].([]any)) > 0, " ", m["unfurl_links"]))
	}
	if want := []string{"scheduled true false", "updated true false", "started true false", "vanished true false"}; !slices.Equal(got, want) {
		t.Errorf("the webhook got %q, want %q", got, want)
	}
}

// Every error of Slack has a class, and the operator is told what to do.
func TestSlackErrorsHaveClasses(t *testing.T) {
	file := writeFile(t, "token", slackToken)
	w := newWorkspace(t)
	l := newTeller(t, strings.Replace(w.settings(""), "token: "+slackToken, "token_file: "+file, 1))
	for code, tt := range map[string]struct{ class, says string }{
		"invalid_auth":                      {blocked, "put a new token into " + file},
		"not_authed":                        {blocked, file},
		"account_inactive":                  {blocked, file},
		"token_revoked":                     {blocked, file},
		"token_expired":                     {blocked, file},
		"missing_scope":                     {blocked, "chat:write"},
		"no_permission":                     {blocked, "chat:write"},
		"not_in_channel":                    {blocked, "invite the app into #ops with /invite"},
		"channel_not_found":                 {blocked, "#ops"},
		"is_archived":                       {blocked, "archived"},
		"org_login_required":                {blocked, "administrator"},
		"ekm_access_denied":                 {blocked, "administrator"},
		"team_access_not_granted":           {blocked, "administrator"},
		"restricted_action":                 {blocked, "administrator"},
		"restricted_action_read_only_x":     {blocked, "administrator"},
		"unknown_method":                    {blocked, "api_url"},
		"msg_too_long":                      {rejected, "msg_too_long"},
		"no_text":                           {rejected, "no_text"},
		"invalid_blocks":                    {rejected, "invalid_blocks"},
		"invalid_blocks_format":             {rejected, "invalid_blocks_format"},
		"invalid_arguments":                 {rejected, "invalid_arguments"},
		"ratelimited":                       {again, "ratelimited"},
		"internal_error":                    {again, "internal_error"},
		"fatal_error":                       {again, "fatal_error"},
		"service_unavailable":               {again, "service_unavailable"},
		"team_added_to_org":                 {again, "team_added_to_org"},
		"something_new":                     {again, "something_new"},
		"":                                  {again, "no answer of Slack"},
		"hello\\u0000 \\u202e <b>\\n world": {again, "hello <b> world"},
	} {
		w.refuse("chat.postMessage", slackNo{body: `{"ok":false,"error":"` + code + `"}`})
		_, err := l.tell(deliveries(t)[0])
		if classOf(err) != tt.class || !strings.Contains(err.Error(), tt.says) || strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("%s: %v, want it %s and …%s…", code, err, tt.class, tt.says)
		}
	}
	for _, tt := range []struct {
		no    slackNo
		class string
		after time.Duration
	}{
		{slackNo{status: 429, header: map[string]string{"Retry-After": "30"}}, again, 30 * time.Second},
		{slackNo{status: 429, body: `{"ok":false,"error":"invalid_auth"}`}, again, 0},
		{slackNo{status: 429, header: map[string]string{"Retry-After": "soon"}}, again, 0},
		{slackNo{body: `{"ok":false,"error":"ratelimited"}`, header: map[string]string{"Retry-After": "7"}}, again, 7 * time.Second},
		{slackNo{status: 500, body: "<html>"}, again, 0},
		{slackNo{status: 302, header: map[string]string{"Location": "https://login.example/"}}, blocked, 0},
		{slackNo{status: 403, body: "<html>"}, blocked, 0},
		{slackNo{status: 404}, blocked, 0},
		{slackNo{body: ""}, again, 0},
		{slackNo{body: "{}"}, again, 0},
		{slackNo{body: "ok"}, again, 0},
		{slackNo{body: `{"ok":true}`}, again, 0},
		{slackNo{body: `{"ok":true,"channel":"C1"}`}, again, 0},
		{slackNo{body: `{"ok":true,"channel":"C1","ts":"1 2"}`}, again, 0},
		{slackNo{body: `{"ok":"true","channel":"C1","ts":"1.2"}`}, again, 0},
		{slackNo{body: `{"ok":false,"channel":"C1","ts":"1.2"}`}, again, 0},
		{slackNo{body: `{"ok":true,"channel":"C1","ts":"1.2"} <p>`}, again, 0},
		{slackNo{status: 201, body: `{"ok":true,"channel":"C1","ts":"1.2"}`}, again, 0},
		{slackNo{body: "<!DOCTYPE html><title>Sign in to the hotel</title>"}, again, 0},
	} {
		w.refuse("chat.postMessage", tt.no)
		a, err := l.tell(deliveries(t)[0])
		var wish *delivery.RetryAfter
		var after time.Duration
		if errors.As(err, &wish) {
			after = wish.After
		}
		if classOf(err) != tt.class || after != tt.after || a.ID != "" || a.Receipt != nil {
			t.Errorf("%+v: %+v, %v after %v; want %s after %v", tt.no, a, err, after, tt.class, tt.after)
		}
	}
}

// The answers of an incoming webhook have classes too. What is a success by its status is a yes unless it says no, or is
// no answer of the service.
func TestSlackWebhookErrorsHaveClasses(t *testing.T) {
	w := newWorkspace(t)
	const path = "/services/T/B/X"
	l := newTeller(t, "webhook_url: "+w.url+path+"\ntext: x")
	for _, tt := range []struct {
		no          slackNo
		class, says string
	}{
		{slackNo{body: "ok\n"}, accepted, ""},
		{slackNo{body: `{"ok":true}`}, accepted, ""}, // as services say that are compatible with Slack
		{slackNo{body: `{"success":true}`}, accepted, ""},
		{slackNo{body: `{"ok":true,"error":null,"id":7}`}, accepted, ""},
		{slackNo{body: ""}, accepted, ""},
		{slackNo{body: "message received"}, accepted, ""},
		{slackNo{status: 202, body: "ok"}, accepted, ""},
		{slackNo{status: 204}, accepted, ""},
		{slackNo{body: "<html>ok</html>"}, again, "no answer of Slack"},
		{slackNo{body: "\n<!DOCTYPE html><title>Sign in</title>"}, again, "no answer of Slack"},
		{slackNo{body: `{"ok":false}`}, again, "no answer of Slack"},
		{slackNo{body: `{"success":false,"error":"no such room"}`}, again, "no such room"},
		{slackNo{body: `{"ok":false,"error":"invalid_token"}`}, blocked, "make a new incoming webhook"},
		{slackNo{body: "no_service"}, blocked, "make a new incoming webhook"},
		{slackNo{body: "invalid_payload"}, rejected, "invalid_payload"},
		{slackNo{status: 400, body: "invalid_payload"}, rejected, "invalid_payload"},
		{slackNo{status: 400, body: "user_not_found"}, blocked, "user_not_found"},
		{slackNo{status: 403, body: "invalid_token"}, blocked, "put its URL into webhook_url"},
		{slackNo{status: 403, body: "action_prohibited"}, blocked, "administrator"},
		{slackNo{status: 404, body: "no_service"}, blocked, "make a new incoming webhook"},
		{slackNo{status: 404, body: "channel_not_found"}, blocked, "channel_not_found"},
		{slackNo{status: 410, body: "channel_is_archived"}, blocked, "archived"},
		{slackNo{status: 403}, blocked, "403"},
		{slackNo{status: 429, header: map[string]string{"Retry-After": "3"}}, again, "asks for 3s"},
		{slackNo{status: 500, body: "rollup_error"}, again, "rollup_error"},
		{slackNo{status: 302}, blocked, "302"},
	} {
		w.refuse(path, tt.no)
		_, err := l.tell(deliveries(t)[0])
		if classOf(err) != tt.class || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%+v: %v, want it %s and …%s…", tt.no, err, tt.class, tt.says)
		}
	}
}

// Blocks that Slack does not take cost the blocks, not the message.
func TestSlackSendsTheTextWhenBlocksFail(t *testing.T) {
	for _, code := range []string{"invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long"} {
		w := newWorkspace(t)
		l := newTeller(t, strings.Replace(w.settings(""), "blocks: '[]'", `blocks: '[{"type":"divider"}]'`, 1))
		no := slackNo{body: `{"ok":false,"error":"` + code + `","response_metadata":{"messages":["[ERROR] why"]}}`}
		w.refuse("chat.postMessage", no)
		w.refuse("chat.update", slackNo{}, no)
		w.refuse("chat.update", no)
		l.mustTell(deliveries(t)[0])
		if got := w.messages[0]; got.text != "scheduled" || got.blocks != "" {
			t.Errorf("%s: posted %+v, want the text alone", code, got)
		}
		w.messages[0].blocks = `[{"type":"divider"}]`
		l.mustTell(deliveries(t)[1])
		if got := w.messages[0]; got.text != "updated" || got.blocks != "[]" {
			t.Errorf("%s: updated to %+v, want the text alone", code, got)
		}
		w.refuse("chat.update", no, no)
		if _, err := l.tell(deliveries(t)[2]); classOf(err) != rejected || !strings.Contains(err.Error(), "[ERROR] why") {
			t.Errorf("%s twice: %v, want it rejected with Slack's reason", code, err)
		}
	}
}

// Where messages cannot be edited the thread goes on all the same.
func TestSlackGoesOnWhereNothingCanBeEdited(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings(""))
	l.mustTell(deliveries(t)[0])
	w.refuse("chat.update", slackNo{body: `{"ok":false,"error":"edit_window_closed"}`})
	l.mustTell(deliveries(t)[1])
	if got, want := w.story(), "scheduled\n  + updated again\n"; got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// Whatever Azure and users put into texts, Slack gets a message within its limits, and nobody is mentioned by it.
func TestSlackTakesEveryText(t *testing.T) {
	t.Parallel()
	w := newWorkspace(t)
	l := newTeller(t, "token: "+slackToken+"\nchannel: '#ops'\napi_url: "+w.url+"/api\n")
	for _, bad := range []string{
		`"quotes" and 'more'`, "line\nbreak\r\n\t\x00", "<script>alert(1)</script>", "<!channel> <@U1> <https://evil.example|ok>", "&amp; & &lt;",
		"\u202eRTL\u202c \u200f", strings.Repeat("long & <wide> ", 8<<10), "inv\xffalid \xc3", "{{.id}}", `\u0000\`, "😀", "",
	} {
		d := deliveries(t)[0]
		d.Event = d.Event.Clone()
		for _, name := range []string{"azeventtype", "observer"} {
			d.Event.SetExtension(name, "x")
		}
		data, err := json.Marshal(map[string]any{
			"change": "scheduled",
			"event": map[string]any{
				"EventId": "A", "EventStatus": bad, "EventType": bad, "Resources": []string{bad, "vm-0"}, "Description": bad, "EventSource": bad,
			},
			"observer": map[string]any{"name": bad, "resourceGroup": bad, "resourceId": "/subscriptions/" + bad, "tags": bad},
		})
		if err != nil {
			t.Fatal(err)
		}
		d.Event.DataEncoded = data
		if _, err := l.sink.Deliver(t.Context(), []delivery.Delivery{d}); err != nil {
			t.Errorf("%.40q: %v", bad, err)
			continue
		}
		m := w.messages[len(w.messages)-1]
		if m.blocks == "" {
			t.Errorf("%.40q: the message has no blocks", bad)
		}
		for _, text := range []string{m.text, m.blocks} {
			if !utf8.ValidString(text) || utf8.RuneCountInString(m.text) > 4000 || len(text) > 60000 {
				t.Errorf("%.40q: sent %d bytes, invalid or too long", bad, len(text))
			}
			for _, never := range []string{"<!channel", "<script", "<@U1", "<https://evil"} {
				if strings.Contains(text, never) || strings.Contains(text, strings.ReplaceAll(never, "<", `\u003c`)) {
					t.Errorf("%.40q: %s is in %s", bad, never, text)
				}
			}
		}
	}
}

// Blocks are made to fit: too many, too long and empty ones are cut or left out.
func TestSlackBlocksAreMadeToFit(t *testing.T) {
	section := func(n int) string {
		return `{"type":"section","text":{"type":"mrkdwn","text":"` + strings.Repeat("█", n) + `"}}`
	}
	many := func(n int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	field := `{"type":"mrkdwn","text":"` + strings.Repeat("█", 2500) + `"}`
	button := `{"type":"button","text":{"type":"plain_text","text":"` + strings.Repeat("█", 90) + `"},"url":"https://a.example"}`
	for _, tt := range []struct {
		name, blocks string
		number, size int // of blocks, and of █ in them
	}{
		{"51 blocks", "[" + many(51, `{"type":"divider"}`) + "]", 50, 0},
		{"long section", "[" + section(3001) + "]", 1, 2999},
		{"many long sections", "[" + many(6, section(3000)) + "]", 5, 12999},
		{"long header", `[{"type":"header","text":{"type":"plain_text","text":"` + strings.Repeat("█", 200) + `"}}]`, 1, 149},
		{"fields", `[{"type":"section","fields":[` + many(12, field) + `]}]`, 1, 12993},
		{"empty section", `[` + section(0) + `,{"type":"divider"}]`, 1, 0},
		{"empty context", `[{"type":"context","elements":[{"type":"mrkdwn","text":" "}]}]`, 0, 0},
		{"context", `[{"type":"context","elements":[` + many(11, `{"type":"mrkdwn","text":"█"}`) + `]}]`, 1, 10},
		{"buttons", `[{"type":"actions","elements":[` + many(26, button) + `]}]`, 1, 25 * 74},
		{"button without address", `[{"type":"actions","elements":[{"type":"button","url":"","text":{"type":"plain_text","text":"x"}}]}]`, 0, 0},
		{"accessory", `[{"type":"section","text":{"type":"mrkdwn","text":"a"},"accessory":` + button + `}]`, 1, 74},
		{"markdown", `[{"type":"markdown","text":"` + strings.Repeat("█", 20000) + `"}]`, 1, 11999},
		{"unknown", `[{"type":"new","text":"██","n":12345678901234567890}]`, 1, 2},
		{"odd", `[null,{},{"type":"section","text":"x"},{"type":"header"},{"type":"context","elements":7},{"type":8}]`, 0, 0},
	} {
		got, err := parseBlocks(tt.blocks)
		all := string(mustCompact(t, got))
		size := strings.Count(all, "█")
		if err != nil || len(got) != tt.number || size != tt.size {
			t.Errorf("%s: %d blocks of %d, %v; want %d of %d", tt.name, len(got), size, err, tt.number, tt.size)
		}
	}
	for _, blocks := range []string{"", "{}", "x", "[1]", `[{"type":"divider"}] x`, `{"blocks":[]}`} {
		if got, err := parseBlocks(blocks); err == nil {
			t.Errorf("parseBlocks(%q) = %s, want an error", blocks, got)
		}
	}
}

// The texts that come with forewarn pass what those of the settings have to pass.
func TestSlackOwnTextsPass(t *testing.T) {
	mustOpen(t, "slack", "{token: a, channel: C1, text_file: ../templates/slack-text.txt, blocks_file: ../templates/slack-blocks.json, runbook_url: 'https://a.example/{{.azeventtype | urlquery}}'}", testHost(t))
}

// Settings that cannot work are refused when they are read, at their key, with the reason.
func TestSlackSettingsAreChecked(t *testing.T) {
	missing := t.TempDir() + "/missing"
	for _, tt := range []struct{ settings, key, reason string }{
		{"channel: C1", "token", "missing"},
		{"token: a", "channel", "missing"},
		{"{token: a, channel: ' '}", "channel", "in quotes"},
		{"{token: '', channel: C1}", "token", "empty"},
		{`{token: a, channel: C1, blocks: '[{"type":"section","text":"no object"}]'}`, "blocks", "no blocks of Slack"},
		{`{token: a, channel: C1, blocks: '[{"text":{"type":"mrkdwn","text":"x"}}]'}`, "blocks", "has no type"},
		{"{token: 'a b', channel: C1}", "token", "space"},
		{"{token: xapp-1, channel: C1}", "token", "xoxb-"},
		{"{token: 'https://hooks.slack.com/x', channel: C1}", "token", "xoxb-"},
		{"{token: a, token_file: b, channel: C1}", "token_file", "token is given too"},
		{"{token_file: " + missing + ", channel: C1}", "token_file", missing},
		{"{token_env: NOT_SET, channel: C1}", "token_env", "NOT_SET"},
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
		{"{token: a, channel: C1, mention: {text: x, from: warn}}", "mention.from", "expected INFO, WARN or ERROR"},
		{"{token: a, channel: C1, text: '{{if}}'}", "text", "text:1"},
		{"{token: a, channel: C1, text: '{{if .reply}}x{{end}}'}", "text", "no text for the notification"},
		{"{token: a, channel: C1, text: x, text_file: y}", "text_file", "text is given too"},
		{"{token: a, channel: C1, text_file: " + missing + "}", "text_file", missing},
		{"{token: a, channel: C1, blocks: '{}'}", "blocks", "not a JSON array"},
		{"{token: a, channel: C1, blocks: '[{\"a\": \"{{.data.event.Description}}\"}]'}", "blocks", "put values in with {{json"},
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
	for _, tt := range []struct{ text, want string }{{"xoxb-old\n", blocked}, {"\n", blocked}, {slackToken + "\n", accepted}} {
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := l.tell(deliveries(t)[0]); classOf(err) != tt.want {
			t.Errorf("with %q: %v, want it %s", tt.text, err, tt.want)
		}
	}
}

// Messages to a channel are a second apart, those to another do not wait for them; the wait ends with the context.
func TestSlackKeepsPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, began := new(SlackTurns), time.Now()
		for i := range 3 {
			if err := turns.wait(t.Context(), "#ops"); err != nil || time.Since(began) != time.Duration(i)*time.Second {
				t.Errorf("turn %d came after %v, %v; want %d s", i, time.Since(began), err, i)
			}
		}
		if err := turns.wait(t.Context(), "#dev"); err != nil || time.Since(began) != 2*time.Second {
			t.Errorf("in another channel the turn came after %v, %v; want it at once", time.Since(began), err)
		}
		time.Sleep(time.Minute)
		began = time.Now()
		if err := turns.wait(t.Context(), "#ops"); err != nil || time.Since(began) != 0 {
			t.Errorf("after a minute the turn came after %v, %v; want it at once", time.Since(began), err)
		}
		if len(turns.next) != 1 {
			t.Errorf("%d channels are remembered, want the one that was told of last", len(turns.next))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := turns.wait(ctx, "#ops"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("wait = %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// A message waits for its turn in the channel, also for those of other sinks, and what is only shown does not.
func TestSlackMessagesWaitForTheirTurn(t *testing.T) {
	w := newWorkspace(t)
	for _, settings := range []string{w.settings(""), "webhook_url: " + w.url + "/services/T/B/X"} {
		h := testHost(t)
		h.SlackTurns = new(SlackTurns)
		first, second := mustOpen(t, "slack", settings, h), mustOpen(t, "slack", settings, h)
		if _, err := first.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Fatal(err)
		}
		before := len(w.asked())
		if _, err := second.(delivery.Renderer).Render(deliveries(t)[0]); err != nil {
			t.Errorf("Render = %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := second.Deliver(ctx, deliveries(t)[:1]); !errors.Is(err, context.DeadlineExceeded) || classOf(err) != again {
			t.Errorf("Deliver = %v, want %v", err, context.DeadlineExceeded)
		}
		if got := w.asked()[before:]; len(got) > 0 {
			t.Errorf("Slack was asked %q before the turn", got)
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
	if _, err := k.Connect(t.Context()); classOf(err) != blocked || !strings.Contains(err.Error(), "put a new token into token") {
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
		{settings, delivery.Delivery{Event: deliveries(t)[1].Event, Receipt: []byte(`{"to":"#ops","channel":"C1","ts":"1.2"}`)}},
		{"webhook_url: https://hooks.slack.example/services/s3cr3t\ntext: '{{.change}} <&>'\nblocks: '[{\"type\":\"divider\"}]'", deliveries(t)[0]},
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

// Whatever is answered, the sink does not panic, takes only Slack's yes for one, and says what it got in one line.
func FuzzSlackAnswer(f *testing.F) {
	f.Add(200, `{"ok":true,"channel":"C1","ts":"1.2"}`, "")
	f.Add(200, `{"ok":false,"error":"invalid_blocks","response_metadata":{"messages":[1]}}`, "1")
	f.Add(429, `ok`, "x")
	f.Add(200, `ok`, "30")
	f.Add(404, `no_service`, "")
	f.Add(200, `{"OK":true,"ts":{},"channel":[],"message":{"thread_ts":7}}`, "")
	log := slog.New(slog.DiscardHandler)
	var all []*slackSink
	for _, settings := range []string{"{token: xoxb-s3cr3t, channel: C1, text: x, blocks: '[{\"type\":\"divider\"}]'}",
		"{webhook_url: 'https://a.example/s3cr3t', text: x, blocks: '[]'}"} {
		opened, err := open("slack", settings, Host{Getenv: os.Getenv, Log: log})
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, opened.Sink.(*slackSink))
	}
	f.Fuzz(func(t *testing.T, status int, body, after string) {
		for _, k := range all {
			k.turns = nil
			a, err := k.open(func(*http.Request, *veil) (response, error) {
				return response{status, http.Header{"Retry-After": {after}}, body, false}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			answer, err := k.tell(t.Context(), a, deliveries(t)[:1])
			if err == nil {
				var yes struct {
					OK          bool
					Channel, TS string
				}
				if status/100 != 2 || k.api == "" && strings.HasPrefix(strings.TrimSpace(body), "<") || k.api != "" && status != 200 ||
					k.api != "" && (json.Unmarshal([]byte(body), &yes) != nil || !yes.OK || yes.TS == "" || yes.Channel == "") {
					t.Errorf("%d %q was taken for a yes", status, body)
				}
				continue
			}
			said := answer.Status + answer.ID + err.Error()
			if len(said) > 1500 || strings.ContainsFunc(said, func(r rune) bool { return r < ' ' || r == 0x7F }) || strings.Contains(strings.ToLower(said), "s3cr3t") {
				t.Errorf("%d %q: said %q", status, body, said)
			}
		}
	})
}

// Whatever a template makes, the blocks are within Slack's limits or refused.
func FuzzSlackBlocks(f *testing.F) {
	f.Add(`[{"type":"section","text":{"type":"mrkdwn","text":"a"},"fields":[{}],"accessory":{"type":"button"}}]`)
	f.Add(`[{"type":"context","elements":[1,null,{"type":"mrkdwn"}]},{"type":"actions","elements":{}},null]`)
	f.Fuzz(func(t *testing.T, text string) {
		blocks, err := parseBlocks(text)
		if err != nil {
			return
		}
		if _, err := compact(blocks); err != nil {
			t.Errorf("%q gives %v", text, err)
		}
		if len(blocks) > maxBlocks {
			t.Errorf("%d blocks", len(blocks))
		}
	})
}
