package sinks

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"forewarn/bridge/delivery"
)

// An answer of 2xx counts only if success holds for it. What fails to be asked doesn't count, and says so; nothing of
// that rejects the message.
func TestSuccessIsAskedOfEachAnswer(t *testing.T) {
	for _, tt := range []struct {
		success, body, want string // want is in the error; "" if the message is accepted
	}{
		{"json.errors == false", `{"errors":false}`, ""},
		{"json.errors == false", `{"errors":true,"items":[]}`, `200 OK from http://127.0.0.1`},
		{"json.errors == false", `{"errors":true,"items":[]}`, `but success doesn't hold: {"errors":true,"items":[]}`},
		{"!json.errors", `{}`, "the expression of success fails: "},
		{"json.errors == false", `<html>`, "the expression of success fails: the answer isn't JSON: <html>"},
		{"int(text) > 0", `<html>`, "the expression of success fails: invalid operation: int(<html>)"},
		{`text == "ok"`, "ok", ""},
		{`text == "ok"`, "no", "success doesn't hold: no"},
		{`status == 200 and headers["X-Taken"] == "yes"`, "", ""},
		{"", `{"errors":true}`, ""},
	} {
		server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Taken", "yes")
			io.WriteString(w, tt.body)
		}))
		s := mustOpen(t, "webhook", fmt.Sprintf("url: %s\nsuccess: %q\n", server.URL, tt.success), testHost(t))
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("with success %q the answer %q gives %v, want %q", tt.success, tt.body, err, tt.want)
		}
		if errors.Is(err, delivery.ErrRejected) || errors.Is(err, delivery.ErrBlocked) {
			t.Errorf("with success %q the answer %q gives %v, want it tried again", tt.success, tt.body, err)
		}
		closeSink(s)
	}
}

// A CloudEvent goes by the method and with the media type of the settings.
func TestWebhookSendsByMethodAndMediaType(t *testing.T) {
	var r recorder
	s := mustOpen(t, "webhook", "url: "+serve(t, &r).URL+"\nmethod: put\ncontent_type: application/json\n", testHost(t))
	defer closeSink(s)
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
		t.Fatal(err)
	}
	got := r.all()[0]
	if got.Method != http.MethodPut || got.Header.Get("Content-Type") != "application/json" || !strings.Contains(got.body, `"specversion"`) {
		t.Errorf("it got %s %v %s, want the CloudEvent by PUT as application/json", got.Method, got.Header, got.body)
	}
}
