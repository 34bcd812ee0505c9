package sinks

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"forewarn/bridge/delivery"
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
		return map[string]any{"ok": true, "channel": slackChannelID, "ts": m.ts, "message": message,
			"errors": map[string]any{"a": 1}}
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

// story returns what stands in the channel: each message, its replies below it, and a + for those that the channel sees
// too.
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

// settings returns those of a sink that says little, with more lines.
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
