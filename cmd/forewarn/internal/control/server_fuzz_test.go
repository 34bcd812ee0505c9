package control

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// Any request on the socket gets an answer in words or JSON, never an internal error. Only a successful POST changes
// anything.
func FuzzRequest(f *testing.F) {
	for _, path := range []string{"/status", "/outbox", "/outbox/entry", "/history", "/tail", "/approve", "/replay", "/nowhere"} {
		f.Add("GET", path, "limit=1&sink=ops&state=pending&key=ops/1&since=2026-11-23T10:00:00Z", []byte(nil))
		f.Add("POST", path, "", []byte(`{"event":"A","shown":"x","by":"jo"}`))
	}
	f.Add("POST", "/mute", "", []byte(`{"sink":"ops","for":3600000000000,"reason":"work","by":"jo"}`))
	f.Add("POST", "/unmute", "", []byte(`{"all":true,"by":"jo"}`))
	f.Add("POST", "/outbox/replay", "", []byte(`{"keys":["ops/1"],"to":"ops","by":"jo"}`))
	f.Add("POST", "/outbox/drop", "", []byte(`{"all":true,"sink":"ops","by":"jo"}`))
	f.Add("DELETE", "/outbox/drop", "a=%zz;b", []byte("{"))
	log := slog.New(slog.DiscardHandler)
	box, err := outbox.Open(f.TempDir(), outbox.Options{Log: log})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { box.Close() })
	azure := imds.NewClient("http://azure.test", imds.DefaultAPIVersion, log, nobody{})
	b, err := bridge.New(bridge.Options{Client: azure, Outbox: box, Log: log})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method, path, query string, body []byte) {
		if len(box.List(outbox.Selection{State: outbox.StatePending})) == 0 { // something dropped it
			message := delivery.Message{ID: "A-scheduled", Type: "t", Group: "A", Change: "scheduled"}
			batch := outbox.Batch{Routes: []outbox.Route{{Name: "ops"}}, Add: []outbox.Addition{{
				Message: message, Body: []byte(`{"specversion":"1.0","id":"A-scheduled","source":"x","type":"t"}`),
				To: []string{"ops"},
			}}}
			if err := box.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(batch) })(); err != nil {
				t.Fatal(err)
			}
		}
		state := func() string {
			text, err := json.Marshal([]any{box.List(outbox.Selection{}), b.Status().Mutes})
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		before := state()

		ctx, cancel := context.WithCancel(t.Context())
		path = "/" + strings.TrimPrefix(path, "/")
		if strings.HasPrefix(path, "/tail") {
			cancel() // or it would go on for ever
		}
		defer cancel()
		r := (&http.Request{Method: method, URL: &url.URL{Path: path, RawQuery: query},
			Body: http.NoBody, Header: http.Header{}, Host: "forewarn"}).WithContext(ctx)
		r.Body = http.MaxBytesReader(nil, readCloser{strings.NewReader(string(body))}, 64<<20)
		w := httptest.NewRecorder()
		Handler(b, box, noReload).ServeHTTP(w, r)

		said := fmt.Sprintf("%s %s?%s with %q: %d %.300q", method, r.URL.Path, query, body, w.Code, w.Body)
		ok := w.Code < 300
		switch {
		case w.Code >= 500:
			t.Error(said)
		case !ok && w.Code != http.StatusMovedPermanently && w.Code != http.StatusTemporaryRedirect &&
			(w.Body.Len() == 0 || w.Body.Len() > 4<<10+4*len(body)+4*len(query) || !utf8.Valid(w.Body.Bytes())):
			t.Errorf("no reason is given, or no readable one: %s", said)
		case ok && w.Header().Get("Content-Type") == "application/json" && !json.Valid(w.Body.Bytes()):
			t.Errorf("it is no JSON: %s", said)
		}
		if after := state(); after != before && !(ok && method == http.MethodPost) {
			t.Errorf("it changed %s\nto %s\nby %s", before, after, said)
		}
	})
}

// nobody is a network in which no metadata service answers.
type nobody struct{}

func (nobody) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("nobody answers")
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// noReload is for a forewarn that nobody reloads.
func noReload(context.Context, string) (Reloaded, error) { return Reloaded{}, nil }
