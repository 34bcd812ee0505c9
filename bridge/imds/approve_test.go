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
	const document = `{"DocumentIncarnation":7,"Events":[{"EventId":"aaaa"},{"EventId":"BBBB"}]}`
	var asked []string
	c := host(func(r *http.Request) (int, http.Header, string) {
		var body []byte
		if r.Body != nil {
			body, _ = io.ReadAll(r.Body)
		}
		asked = append(asked, strings.Join([]string{
			r.Method, r.URL.RequestURI(), r.Header.Get("Metadata"), r.Header.Get("Content-Type"), string(body),
		}, " | "))
		return 200, nil, document
	}).client()
	wantAsked := func(want string) {
		t.Helper()
		if got := asked[len(asked)-1]; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	c.Poll(t.Context(), "")
	wantAsked("GET | /metadata/scheduledevents?api-version=" + DefaultAPIVersion + " | true |  | ")
	d := decoded(t, document)
	for version, incarnation := range map[string]string{
		"2020-07-01": "", "2017-08-01": "", "2017-03-01": `"DocumentIncarnation":"7",`,
	} {
		d.APIVersion = version
		for n, id := range []string{"aaaa", "BBBB"} {
			if status, err := c.Approve(t.Context(), d, d.Events[n]); err != nil || status != "200 OK" {
				t.Fatalf("Approve = %q, %v", status, err)
			}
			wantAsked("POST | /metadata/scheduledevents?api-version=" + version + " | true | application/json | " +
				`{` + incarnation + `"StartRequests":[{"EventId":"` + id + `"}]}`)
		}
		before := len(asked)
		if _, err := c.Approve(t.Context(), d, Event{ID: "CCCC"}); err == nil || len(asked) > before {
			t.Errorf("an event that is not in the document is approved: %v", err)
		}
	}
}

// Azure refuses with a 4xx status. A status that may pass by itself is not a refusal.
func TestOnlyAPermanentClientErrorIsARefusal(t *testing.T) {
	d := decoded(t, document7)
	for code, refused := range map[int]bool{
		200: false, 201: false, 299: false, 300: true, 400: true, 401: true, 403: true, 404: false, 408: false, 409: true,
		410: false, 429: false, 499: true, 500: false, 503: false,
	} {
		text := ""
		if code >= 300 {
			text = "why"
		}
		_, err := says(code, text).client().Approve(t.Context(), d, d.Events[0])
		is, isRefused := errors.AsType[*RefusedError](err)
		if isRefused != refused || (err == nil) != (code < 300) || isRefused && is.Text != "why" {
			t.Errorf("after %d: %v, want refused %v", code, err, refused)
		}
	}
}

// Azure answers an approval with nothing, or as always in JSON. What anything else between Azure and the VM answers
// with a status of success, such as a page that wants a login, is no answer of Azure's: nobody is told that the event
// is approved.
func TestOnlyAzuresOwnAnswerApproves(t *testing.T) {
	d := decoded(t, document7)
	for body, approved := range map[string]bool{
		"": true, "\r\n": true, `{"DocumentIncarnation":7,"Events":[]}`: true, "null": true,
		"<!DOCTYPE html><title>Sign in</title>": false, "\ufeff\n<html>": false, "Access denied by policy": false,
		`{"DocumentIncarnation":7,"Events":[`: false,
	} {
		_, err := says(200, body).client().Approve(t.Context(), d, d.Events[0])
		_, refused := errors.AsType[*RefusedError](err)
		if (err == nil) != approved || refused {
			t.Errorf("after 200 and %q: %v, want approved %v, and nothing refused", body, err, approved)
		}
	}
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100") // of which nothing comes
	})
	if status, err := c.Approve(t.Context(), d, d.Events[0]); err == nil {
		t.Errorf("after 200 and a body that breaks off: %s, want an error", status)
	}
}
