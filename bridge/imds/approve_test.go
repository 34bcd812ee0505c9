package imds

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// An approval names its event as Azure wrote it, wherever it is in the document, and has the headers that the service
// requires. A poll has no body, so it has no Content-Type.
func TestApprovalHasTheFormThatAzureExpects(t *testing.T) {
	var got []string
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = append(got, strings.Join([]string{r.Method, r.URL.String(), r.Header.Get("Metadata"),
			r.Header.Get("Content-Type"), string(body)}, " | "))
		io.WriteString(w, `{"DocumentIncarnation":7,"Events":[{"EventId":"aaaa"},{"EventId":"BBBB"}]}`)
	})
	c.Poll(t.Context(), "")
	for _, tt := range []struct{ version, want string }{
		{"2020-07-01", `{"StartRequests":[{"EventId":"aaaa"}]} {"StartRequests":[{"EventId":"BBBB"}]}`},
		{"2017-08-01", `{"StartRequests":[{"EventId":"aaaa"}]} {"StartRequests":[{"EventId":"BBBB"}]}`},
		{"2017-03-01", `{"DocumentIncarnation":"7","StartRequests":[{"EventId":"aaaa"}]} ` +
			`{"DocumentIncarnation":"7","StartRequests":[{"EventId":"BBBB"}]}`},
	} {
		doc, err := DecodeDocument([]byte(`{"DocumentIncarnation":7,"Events":[{"EventId":"aaaa"},{"EventId":"BBBB"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		doc.APIVersion = tt.version
		want := strings.Split(tt.want, " ")
		for n, e := range doc.Events {
			if status, err := c.Approve(t.Context(), doc, e); err != nil || status != "200 OK" {
				t.Fatalf("Approve = %q, %v", status, err)
			}
			request := "POST | /metadata/scheduledevents?api-version=" + tt.version + " | true | application/json | " + want[n]
			if last := got[len(got)-1]; last != request {
				t.Errorf("got  %s\nwant %s", last, request)
			}
		}
		asked := len(got)
		if _, err := c.Approve(t.Context(), doc, Event{ID: "CCCC"}); err == nil || len(got) > asked {
			t.Errorf("an event that is not in the document is approved: %v", err)
		}
	}
	if poll := got[0]; poll != "GET | /metadata/scheduledevents?api-version="+DefaultAPIVersion+" | true |  | " {
		t.Errorf("a poll is %s", poll)
	}
}

// Azure refuses with a 4xx status. A status that may pass by itself is not a refusal.
func TestOnlyAPermanentClientErrorIsARefusal(t *testing.T) {
	doc, err := DecodeDocument([]byte(document7))
	if err != nil {
		t.Fatal(err)
	}
	for code, refused := range map[int]bool{
		200: false, 201: false, 299: false, 300: true, 400: true, 401: true, 403: true, 404: false, 408: false, 409: true,
		410: false, 429: false, 499: true, 500: false, 503: false,
	} {
		c := answering(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(code)
			if code >= 300 {
				io.WriteString(w, "why")
			}
		})
		_, err := c.Approve(t.Context(), doc, doc.Events[0])
		is, isRefused := errors.AsType[*RefusedError](err)
		if isRefused != refused || (err == nil) != (code < 300) || isRefused && is.Text != "why" {
			t.Errorf("after %d: %v, want refused %v", code, err, refused)
		}
	}
}

// Azure answers an approval with nothing, or as always in JSON. What anything else between Azure and the VM answers with a
// status of success, such as a page that wants a login, is no answer of Azure's: nobody is told that the event is approved.
func TestOnlyAzuresOwnAnswerApproves(t *testing.T) {
	doc, err := DecodeDocument([]byte(document7))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		body     string
		approved bool
	}{
		{"", true},
		{"\r\n", true},
		{`{"DocumentIncarnation":7,"Events":[]}`, true},
		{"null", true},
		{"<!DOCTYPE html><title>Sign in</title>", false},
		{"\ufeff\n<html>", false},
		{"Access denied by policy", false},
		{`{"DocumentIncarnation":7,"Events":[`, false},
	} {
		c := answering(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, tt.body) })
		_, err := c.Approve(t.Context(), doc, doc.Events[0])
		_, refused := errors.AsType[*RefusedError](err)
		if (err == nil) != tt.approved || refused {
			t.Errorf("after 200 and %q: %v, want approved %v, and nothing refused", tt.body, err, tt.approved)
		}
	}
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100") // of which nothing comes
	})
	if status, err := c.Approve(t.Context(), doc, doc.Events[0]); err == nil {
		t.Errorf("after 200 and a body that breaks off: %s, want an error", status)
	}
}
