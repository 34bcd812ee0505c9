package sinks

import (
	"io"
	"net/http"
	"testing"
)

// What a service says inside a 200, as its documents show it: a failure is not accepted.
func TestServicesSeeTheFailureInsideA200(t *testing.T) {
	for service, answers := range map[string]struct{ good, bad []string }{
		"azure_automation": {[]string{`{"JobIds":["6d1f"]}`, ""}, []string{`{"JobIds":[]}`}},
		"elasticsearch": {
			[]string{`{"errors":false,"items":[{"create":{"status":201}}]}`},
			[]string{`{"errors":true,"items":[{"create":{"status":400,"error":{"type":"mapper_parsing_exception"}}}]}`, ""},
		},
		"otlp": {
			[]string{"", "{}", `{"partialSuccess":{"rejectedLogRecords":"0"}}`},
			[]string{`{"partialSuccess":{"rejectedLogRecords":"1","errorMessage":"too old"}}`,
				`{"partialSuccess":{"rejectedLogRecords":1}}`},
		},
		"pushover": {[]string{`{"status":1,"request":"x"}`}, []string{`{"status":0,"errors":["user is invalid"]}`, ""}},
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
