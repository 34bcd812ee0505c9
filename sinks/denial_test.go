package sinks

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"forewarn/bridge/systemtest"
)

// teamsDenial is what Microsoft's webhook answers with a status of 200 when Teams has too many messages.
const teamsDenial = "Webhook message delivery failed with error: Microsoft Teams endpoint returned HTTP error 429 with " +
	"ContextId tcid=0,server=DB3PEPF00001A11,cv=UTmbGYIYlkC0oOFoxUSzoQ.0.."

// An answer of 2xx that says that the message was not taken is tried again, so that nobody misses a message. Any other is
// accepted, also one that the service doesn't document: those that are compatible with it answer in ways of their own,
// and a message that is tried again is posted for days.
func TestAnswersThatSayNoAreTriedAgain(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	const page = "\ufeff\n<!DOCTYPE html><title>Sign in</title>"
	for _, tt := range []struct {
		kind   string
		status int
		answer string
		class  string
	}{
		{"teams", 202, "", accepted}, // a workflow
		{"teams", 200, "1", accepted},
		{"teams", 200, `{"id":"1","subject":"the webhook works"}`, accepted},
		{"teams", 200, teamsDenial, again},
		{"teams", 200, strings.ToUpper(teamsDenial), again},
		{"teams", 200, page, again},
		{"teams", 202, `{"error":{"code":"WorkflowRunFailed"}}`, again},

		{"pagerduty", 202, `{"status":"success","message":"Event processed","dedup_key":"k"}`, accepted},
		{"pagerduty", 200, `{"status":"ok","errors":[]}`, accepted},
		{"pagerduty", 200, `{"status":"invalid event","message":"Event object is invalid","errors":["why"]}`, again},

		{"splunk", 200, `{"text":"Success","code":0}`, accepted},
		{"splunk", 200, `OK`, accepted},
		{"splunk", 200, `{"text":"HEC is healthy","code":17}`, again},
		{"splunk", 200, `{"text":"Server is busy","code":9}`, again},

		{"ntfy", 200, `{"id":"x","time":1,"event":"message","topic":"vms","code":40301}`, accepted},
		{"ntfy", 200, `{"code":42901,"http":429,"error":"limit reached"}`, again},
		{"ntfy", 200, page, again},

		{"azure_automation", 202, `{"JobIds":["6d1f"]}`, accepted},
		{"azure_automation", 202, ``, again}, // each that started a runbook says so
		{"azure_automation", 202, `{"JobIds":[]}`, again},

		{"ntfy", 200, "\ufeff" + `{"ok":false}`, again},
		{"ntfy", 200, `{"ok":"false"}`, again},
		{"ntfy", 200, `{"ok":"true","error":"none"}`, accepted},
		{"ntfy", 200, `{"ok":1,"status":"queued"}`, accepted},
		{"ntfy", 200, `{"status":"error","message":"no such key"}`, again},
		{"ntfy", 200, `{"status":"Failed"}`, again},
		{"ntfy", 200, `{"status":"ok","ok":true,"error":"deprecated"}`, accepted},
		{"ntfy", 200, `{"ok":false,"error":"a text that breaks o`, again},
		{"ntfy", 200, `{"success":false,"message":"` + strings.Repeat("x", maxBody) + `"}`, again},
		{"ntfy", 200, `{"id":"a text that breaks o`, accepted},
		{"ntfy", 200, `{"ok":true} {"ok":false}`, accepted},
		{"ntfy", 200, `[{"ok":false}]`, accepted},

		{"event_grid", 200, ``, accepted},
		{"event_grid", 200, `{"error":{"code":"BadRequest","message":"why"}}`, again},
		{"azure_monitor", 204, ``, accepted},
		{"azure_monitor", 200, page, again},

		{"webhook", 200, teamsDenial, again}, // a card of the user's own
		{"webhook", 200, page, accepted},     // anything else is anybody's
		{"webhook", 200, `{"error":"none"}`, accepted},
	} {
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tt.status)
			io.WriteString(w, tt.answer)
		}))
		h := testHost(t)
		h.Endpoint = identityEndpoint(t)
		settings := "url: " + srv.URL
		if tt.kind != "webhook" {
			settings = settingsOf(serviceNamed(t, tt.kind), srv.URL)
		}
		_, err := mustOpen(t, tt.kind, settings, h).Deliver(t.Context(), deliveries(t)[:1])
		if classOf(err) != tt.class {
			t.Errorf("%s: %d %s: Deliver = %v, want it %s", tt.kind, tt.status, tt.answer, err, tt.class)
		}
		if err != nil && !strings.Contains(err.Error(), ", but ") {
			t.Errorf("%s: %v, want it to say that the message was not taken", tt.kind, err)
		}
	}
}

// An answer is read also if it is compressed, as those of some gateways always are.
func TestACompressedAnswerIsRead(t *testing.T) {
	t.Parallel()
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		compressed := gzip.NewWriter(w)
		io.WriteString(compressed, `{"ok":false,"error":"no such topic"}`)
		compressed.Close()
	}))
	s := mustOpen(t, "ntfy", "url: "+srv.URL+"\ntopic: vms-of-ours", testHost(t))
	_, err := s.Deliver(t.Context(), deliveries(t)[:1])
	if classOf(err) != again || !strings.Contains(err.Error(), "no such topic") {
		t.Errorf("Deliver = %v, want the answer read", err)
	}
}
