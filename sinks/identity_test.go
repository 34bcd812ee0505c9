package sinks

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
)

const (
	resource = "https://eventgrid.azure.net"
	clientID = "0c0c0c0c-1111-2222-3333-444444444444"
)

// openIdentity opens a webhook whose tokens come from the service at endpoint, through no proxy: that of the
// environment is one that fails.
func openIdentity(t *testing.T, address, endpoint, more string) (*webhook, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	h := testHost(t)
	h.Endpoint, h.Log = endpoint, slog.New(slog.NewTextHandler(&log, nil))
	h.Proxy = func(r *http.Request) (*url.URL, error) {
		if strings.HasPrefix(r.URL.String(), endpoint) {
			t.Errorf("a proxy was asked about for %s", r.URL)
		}
		return nil, nil
	}
	opened, err := open("webhook", fmt.Sprintf("url: %s\nazure_identity: {resource: %q%s}\n", address, resource, more), h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSink(opened.Sink) })
	return opened.Sink.(*webhook), &log
}

// A token is got once, sent with each request, and renewed five minutes before its end.
func TestTokenIsKeptUntilShortlyBeforeItsEnd(t *testing.T) {
	now := monday
	azure := imdstest.New(imdstest.Options{VMs: []string{"vm-0"}, Now: func() time.Time { return now }})
	var r recorder
	w, _ := openIdentity(t, serve(t, &r).URL, serve(t, azure.Metadata()).URL+"/vm/vm-0", ", client_id: "+clientID)
	w.identity.now = func() time.Time { return now }
	for _, after := range []time.Duration{0, time.Hour, 24*time.Hour - 5*time.Minute - time.Second,
		24*time.Hour - 5*time.Minute} {
		now = monday.Add(after)
		if _, err := w.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Fatalf("after %v: Deliver = %v", after, err)
		}
	}
	var tokens []string
	for _, req := range r.all() {
		tokens = append(tokens, req.Header.Get("Authorization"))
	}
	if len(tokens) != 4 || !strings.HasPrefix(tokens[0], "Bearer emulated.") || tokens[1] != tokens[0] ||
		tokens[2] != tokens[0] ||
		tokens[3] == tokens[0] {
		t.Errorf("sent %q, want the same token thrice and then a new one", tokens)
	}
	asked := azure.Requests()
	if len(asked) != 2 {
		t.Fatalf("asked for a token %d times, want 2", len(asked))
	}
	q := asked[0]
	want := url.Values{"api-version": {"2018-02-01"}, "resource": {resource}, "client_id": {clientID}}
	if q.Method != "GET" || q.Path != "/vm/vm-0/metadata/identity/oauth2/token" || q.Query.Encode() != want.Encode() ||
		q.Header.Get("Metadata") != "true" {
		t.Errorf("asked %+v", q)
	}
}

// A token that the destination does not take is not sent again.
func TestRefusedTokenIsRenewed(t *testing.T) {
	azure := imdstest.New(imdstest.Options{})
	var r recorder
	status := http.StatusUnauthorized
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.keep(req)
		w.WriteHeader(status)
		fmt.Fprintln(w, "you said", req.Header.Get("Authorization"))
	}))
	w, log := openIdentity(t, srv.URL, serve(t, azure.Metadata()).URL, "")
	_, err := w.Deliver(t.Context(), deliveries(t)[:1])
	if !errors.Is(err, delivery.ErrBlocked) {
		t.Errorf("Deliver with a refused token = %v, want it blocked", err)
	}
	status = http.StatusNoContent
	answer, again := w.Deliver(t.Context(), deliveries(t)[:1])
	if again != nil {
		t.Errorf("Deliver with a new token = %v", again)
	}
	all := r.all()
	first, second := all[0].Header.Get("Authorization"), all[1].Header.Get("Authorization")
	if first == second || second == "" {
		t.Errorf("sent %s, then %s; want a new one", first, second)
	}
	rendered, err2 := w.Render(deliveries(t)[0])
	if err2 != nil || !strings.Contains(rendered, "\nAuthorization: [secret]\n") {
		t.Errorf("Render = %v\n%s\nwant the header, but not its value", err2, rendered)
	}
	said := fmt.Sprintf("%v %+v %s %s %+v %#v", err, answer, log, rendered, w.identity, w)
	for _, token := range []string{first, second} {
		if strings.Contains(said, strings.TrimPrefix(token, "Bearer ")) {
			t.Errorf("the token is in what the sink says: %s", said)
		}
	}
}

// An answer without a token says whether somebody must act, and what to do.
func TestRefusalsOfTheTokenEndpoint(t *testing.T) {
	const notFound = `{"error":"invalid_request","error_description":"Identity not found"}`
	const several = `{"error":"invalid_request","error_description":"Multiple user assigned identities exist, please ` +
		`specify the clientId / resourceId of the identity in the token request"}`
	for _, tt := range []struct {
		fault imdstest.Fault
		class error
		text  string
	}{
		{imdstest.Fault{Status: 400, Body: notFound}, delivery.ErrBlocked,
			"this VM has no managed identity with the client id " + clientID + "; assign one"},
		{imdstest.Fault{Status: 400, Body: several}, delivery.ErrBlocked, "azure_identity: {client_id: ID} says which one"},
		{imdstest.Fault{Status: 404}, nil, "404 Not Found"},
		{imdstest.Fault{Status: 400,
			Body: `{"error":"invalid_resource","error_description":"AADSTS500011: no such\nresource"}`},
			delivery.ErrBlocked, "400 Bad Request: AADSTS500011: no such resource"},
		{imdstest.Fault{Status: 403, HTML: true}, delivery.ErrBlocked, "403 Forbidden"},
		{imdstest.Fault{Status: 302}, delivery.ErrBlocked, "302 Found"},
		{imdstest.Fault{Status: 410}, nil, "410 Gone"},
		{imdstest.Fault{Status: 429}, nil, "429 Too Many Requests"},
		{imdstest.Fault{Status: 500}, nil, "500 Internal Server Error"},
		{imdstest.Fault{HTML: true}, nil, "unexpected answer"},
		{imdstest.Fault{Body: `{"access_token":"a\nb"}`}, nil, "unexpected answer"},
		{imdstest.Fault{Truncate: 10}, nil, "read the answer"},
	} {
		tt.fault.Path = imdstest.Identity
		azure := imdstest.New(imdstest.Options{})
		azure.SetFault(tt.fault)
		var r recorder
		w, _ := openIdentity(t, serve(t, &r).URL, serve(t, azure.Metadata()).URL, ", client_id: "+clientID)
		_, err := w.Deliver(t.Context(), deliveries(t)[:1])
		if err == nil || errors.Is(err, delivery.ErrBlocked) != (tt.class != nil) || errors.Is(err, delivery.ErrRejected) ||
			!strings.Contains(err.Error(), tt.text) {
			t.Errorf("%+v: Deliver = %v, want class %v and …%s…", tt.fault, err, tt.class, tt.text)
		}
		if n := len(r.all()); n != 0 {
			t.Errorf("%+v: %d requests were made without a token, want none", tt.fault, n)
		}
	}
}

// The metadata service may ask for a pause.
func TestTokenEndpointMayAskForAPause(t *testing.T) {
	azure := imdstest.New(imdstest.Options{})
	azure.SetFault(imdstest.Fault{Path: imdstest.Identity, Status: 429, RetryAfter: "7"})
	w, _ := openIdentity(t, "http://127.0.0.1:1", serve(t, azure.Metadata()).URL, "")
	_, err := w.Deliver(t.Context(), deliveries(t)[:1])
	if wish, ok := errors.AsType[*delivery.RetryAfter](err); !ok || wish.After != 7*time.Second {
		t.Errorf("Deliver = %v, want a pause of 7 s", err)
	}
}

// How long a token lasts is a text or a number; the count of seconds goes before the time of the end.
func TestLifeOfAToken(t *testing.T) {
	later := monday.Add(time.Hour).Unix()
	for _, tt := range []struct {
		answer string
		want   time.Duration
	}{
		{`"expires_in":"3599","expires_on":"1"`, 3599 * time.Second},
		{`"expires_in":86400`, 24 * time.Hour},
		{fmt.Sprintf(`"expires_on":"%d"`, later), time.Hour},
		{fmt.Sprintf(`"expires_in":"soon","expires_on":%d`, later), time.Hour},
		{`"token_type":"Bearer"`, 0},
		{`"expires_in":"99999999999999999999"`, 0},
	} {
		_, got, err := readToken(`{"access_token":"t",`+tt.answer+`}`, monday)
		if err != nil || got != tt.want {
			t.Errorf("%s lasts %v (%v), want %v", tt.answer, got, err, tt.want)
		}
	}
}

// Each wrong key is refused, and so are two kinds of credentials.
func TestWrongIdentityIsRefused(t *testing.T) {
	const good = "azure_identity: {resource: " + resource + "}\n"
	for _, tt := range []struct{ settings, key, reason string }{
		{"url: https://a.example\nazure_identity: {}", "azure_identity.resource", "expected the application id URI"},
		{"url: https://a.example\nazure_identity: {resource: eventgrid}", "azure_identity.resource", "is not a resource"},
		{"url: https://a.example\nazure_identity: {resource: " + resource + ", client_id: me}", "azure_identity.client_id",
			"not a client id"},
		{"url: https://a.example\nbearer: x\n" + good, "azure_identity", "only one of them"},
		{"url: https://a.example\nbasic: {username: a, password: b}\n" + good, "azure_identity", "only one of them"},
		{"url: https://a.example\nheaders: {authorization: x}\n" + good, "headers.authorization", "only one of them"},
		{"url: https://a:b@a.example\n" + good, "url", "only one of them"},
	} {
		wrongKey(t, "webhook", tt.settings, tt.key, tt.reason)
	}
}

// Whatever the metadata service answers, there is a token that a header can hold, or an error that does not show it.
func FuzzIdentityAnswer(f *testing.F) {
	f.Add(200, `{"access_token":"s3cr3t-token","expires_in":"3599"}`)
	f.Add(200, `{"access_token":"s3cr3t-token\r\nX: y","expires_on":1e99}`)
	f.Add(200, `{"access_token":["s3cr3t-token"]}`)
	f.Add(400, `{"error":"invalid_request","error_description":"Identity not found\n\u202e"}`)
	f.Add(429, `<html>`)
	i, err := newIdentity(identitySettings{Resource: resource}, Host{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, status int, body string) {
		var token string
		var err error
		if status == http.StatusOK {
			token, _, err = readToken(body, monday)
		} else {
			err = i.refusal(status, body)
		}
		switch {
		case err == nil && (token == "" || !validHeaderValue(token)):
			t.Errorf("%q gave the token %q", body, token)
		case err == nil:
		case classOf(err) == rejected || len(err.Error()) > 1000 || strings.ContainsFunc(err.Error(), unicode.IsControl):
			t.Errorf("%d %q: %v", status, body, err)
		case status == http.StatusOK && strings.Contains(err.Error(), "s3cr3t"):
			t.Errorf("%q: %v shows the token", body, err)
		}
	})
}
