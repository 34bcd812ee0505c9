package sinks

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/delivery"
)

// What a service says inside a 200, as its documents show it: a failure is not accepted.
func TestServicesSeeTheFailureInsideA200(t *testing.T) {
	for service, answers := range map[string]struct{ good, bad []string }{
		"azure_automation": {[]string{`{"JobIds":["6d1f"]}`}, []string{`{"JobIds":[]}`, `{"JobIds":null}`, "{}", ""}},
		"discord":          {[]string{`{"id":"1365","channel_id":"7"}`}, []string{`{"id":""}`, `{"id":null}`, "{}", "[]", ""}},
		"elasticsearch": {
			[]string{
				`{"errors":false,"items":[{"create":{"result":"created","failure_store":"not_applicable_or_unknown","status":201}}]}`,
				`{"errors":false,"items":[{"create":{"status":201}}]}`, // VictoriaLogs
				`{"errors":true,"items":[{"create":{"status":409,"error":{"type":"version_conflict_engine_exception"}}}]}`,
			},
			[]string{
				`{"errors":true,"items":[{"create":{"status":400,"error":{"type":"mapper_parsing_exception"}}}]}`,
				`{"errors":false,"items":[{"create":{"result":"noop","status":200}}]}`, // a pipeline dropped it
				`{"errors":false,"items":[{"create":{"result":"created","failure_store":"used","status":201}}]}`,
				`{"errors":true,"items":[{"create":{"failure_store":"failed","status":400,"error":{"type":"x"}}}]}`,
				`{"errors":false,"items":[]}`, `{"errors":true,"items":[]}`, `{"errors":false}`, "",
			},
		},
		"otlp": {
			[]string{"", "{}", `{"partialSuccess":{"rejectedLogRecords":"0"}}`},
			[]string{`{"partialSuccess":{"rejectedLogRecords":"1","errorMessage":"too old"}}`,
				`{"partialSuccess":{"rejectedLogRecords":1}}`},
		},
		"pushover": {
			[]string{`{"status":1,"request":"x"}`, `{"info":"a note","status":1,"request":"x"}`},
			[]string{`{"status":0,"errors":["user is invalid"]}`, `{"info":"no active devices to send to","status":1,"request":"x"}`, ""},
		},
		"splunk":   {[]string{`{"text":"Success","code":0}`}, []string{`{"text":"HEC is healthy","code":17}`}},
		"telegram": {[]string{`{"ok":true}`}, []string{`{"ok":false,"description":"chat not found"}`, ""}},
		"zabbix": {
			[]string{`{"jsonrpc":"2.0","result":{"response":"success","data":[{"itemid":"1"}]},"id":1}`},
			[]string{
				`{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid request."},"id":1}`,
				`{"jsonrpc":"2.0","result":{"response":"success","data":[{"itemid":"1","error":"Item is disabled."}]},"id":1}`,
				`{"jsonrpc":"2.0","result":{"response":"success","data":[{"error":"No permissions to referred object."}]},"id":1}`,
				`{"jsonrpc":"2.0","result":{"response":"failed"},"id":1}`,
				"",
			},
		},
	} {
		var answer string
		server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, answer) }))
		w := openService(t, serviceNamed(t, service), server.URL)
		for _, answer = range answers.good {
			if _, err := w.Deliver(t.Context(), situations()["scheduled"].batch); err != nil {
				t.Errorf("%s: %q gives %v, want it accepted", service, answer, err)
			}
		}
		for _, answer = range answers.bad {
			if _, err := w.Deliver(t.Context(), situations()["scheduled"].batch); err == nil {
				t.Errorf("%s: %q is accepted", service, answer)
			}
		}
	}
}

// Discord says of a message only to who waits that it was not saved. The address may have a query of its own.
func TestDiscordIsAskedToWaitUntilTheMessageIsSaved(t *testing.T) {
	const saved = `{"id":"1365"}`
	for _, tt := range []struct{ address, query, class string }{
		{"/api/webhooks/1/x", "wait=true", accepted},
		{"/api/webhooks/1/x?thread_id=5", "thread_id=5&wait=true", accepted},
		{"/api/webhooks/1/x?wait=true&thread_id=5", "wait=true&thread_id=5", accepted},
		{"/api/webhooks/1/x?wait=false", "wait=false", again}, // which says nothing of the message
	} {
		var query string
		server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			query = r.URL.RawQuery
			if r.URL.Query().Get("wait") != "true" {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			io.WriteString(w, saved)
		}))
		w := openService(t, serviceNamed(t, "discord"), server.URL+tt.address)
		_, err := w.Deliver(t.Context(), situations()["scheduled"].batch)
		if query != tt.query || classOf(err) != tt.class {
			t.Errorf("%s is asked with %q, and Deliver = %v; want %q and it %s", tt.address, query, err, tt.query, tt.class)
		}
	}
}

// A user of Pushover without a phone that is signed in misses every message, though each gets a 200: somebody must act.
func TestAMessageToNoPhoneIsBlocked(t *testing.T) {
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"info":"no active devices to send to","status":1,"request":"x"}`)
	}))
	w := openService(t, serviceNamed(t, "pushover"), server.URL)
	_, err := w.Deliver(t.Context(), situations()["scheduled"].batch)
	if !errors.Is(err, delivery.ErrBlocked) || !strings.Contains(err.Error(), "no active devices to send to") {
		t.Errorf("Deliver = %v, want it blocked with what Pushover says", err)
	}
}

// Telegram's refusals, as its Bot API words them: somebody must act about the token and the chat, and 429 says for how long
// to wait, in the header as in the body.
func TestTelegramsRefusalsAreUnderstood(t *testing.T) {
	for _, tt := range []struct {
		status int
		says   string
		wait   time.Duration
	}{
		{400, "Bad Request: chat not found", 0},
		{400, "Bad Request: group chat was upgraded to a supergroup chat", 0},
		{401, "Unauthorized", 0},
		{403, "Forbidden: bot was kicked from the group chat", 0},
		{404, "Not Found", 0}, // a token that is none
		{429, "Too Many Requests: retry after 34", 34 * time.Second},
	} {
		server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if tt.wait > 0 {
				w.Header().Set("Retry-After", "34")
			}
			w.WriteHeader(tt.status)
			json.NewEncoder(w).Encode(map[string]any{"ok": false, "error_code": tt.status, "description": tt.says})
		}))
		w := openService(t, serviceNamed(t, "telegram"), server.URL)
		_, err := w.Deliver(t.Context(), situations()["scheduled"].batch)
		wait, _ := errors.AsType[*delivery.RetryAfter](err)
		if tt.wait > 0 && (wait == nil || wait.After != tt.wait) {
			t.Errorf("%s: %v, want it tried again after %s", tt.says, err, tt.wait)
		}
		if tt.wait == 0 && !errors.Is(err, delivery.ErrBlocked) {
			t.Errorf("%s: %v, want it blocked", tt.says, err)
		}
	}
}

// All changes of one Azure event go to one partition of an event hub, and those of another event may go elsewhere.
func TestAnEventHubKeepsTheOrderOfAnEvent(t *testing.T) {
	var r recorder
	w := openService(t, serviceNamed(t, "event_hubs"), serve(t, &r).URL)
	for _, name := range []string{"scheduled", "started", "over", "bridge.sink.blocked"} {
		batch := situations()[name].batch
		if len(batch) == 0 {
			t.Fatalf("there is no situation %s", name)
		}
		w.Deliver(t.Context(), batch[:1])
	}
	var keys []string
	for _, req := range r.all() {
		var properties struct{ PartitionKey string }
		if err := json.Unmarshal([]byte(req.Header.Get("BrokerProperties")), &properties); err != nil {
			t.Fatal(err)
		}
		if n := len(properties.PartitionKey); n == 0 || n > 128 {
			t.Errorf("%q is no partition key of at most 128 characters", properties.PartitionKey)
		}
		keys = append(keys, properties.PartitionKey)
	}
	if len(keys) != 4 || keys[0] != keys[1] || keys[1] != keys[2] || keys[2] == keys[3] {
		t.Errorf("the partition keys are %q, want three alike and another", keys)
	}
}
