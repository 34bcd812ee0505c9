package sinks

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/cloudevents/sdk-go/v2/types"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"forewarn/bridge/delivery"
	"forewarn/bridge/systemtest"
)

// Signing secrets: the letters a to z, and 32 times the letter x.
var (
	secretAZ = "whsec_" + base64.StdEncoding.EncodeToString([]byte("abcdefghijklmnopqrstuvwxyz"))
	secretXX = "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", 32)))
)

func webhookAccepts(t *testing.T) (string, func() []string) {
	var r recorder
	srv := serve(t, &r)
	return "url: " + srv.URL, func() []string {
		var ids []string
		for _, req := range r.all() {
			ids = append(ids, idsIn(t, []byte(req.body+"\n"))...)
		}
		return ids
	}
}

func webhookHangs(t *testing.T) map[string]hung {
	asked, begun := make(chan struct{}), make(chan struct{})
	silent := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // so that the server notices when the client is gone
		close(asked)
		<-r.Context().Done()
	}))
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // takes a connection and never shakes hands
		defer close(ended)
		conn, err := deaf.Accept()
		if err != nil {
			return
		}
		close(begun)
		io.Copy(io.Discard, conn)
		conn.Close()
	}()
	t.Cleanup(func() {
		deaf.Close()
		<-ended
	})
	return map[string]hung{
		"no answer":    {"url: " + silent.URL, asked},
		"no handshake": {"url: https://" + deaf.Addr().String(), begun},
	}
}

// Every request is, byte for byte, what receivers were told it would be.
func TestWebhookRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		settings string
		delivery int
	}{
		"structured": {"", 0},
		"binary":     {"mode: binary", 0},
		"binary-odd": {"mode: binary", 4},
		"signed":     {fmt.Sprintf("signing_secrets: [%s, %s]", secretAZ, secretXX), 1},
		"headers":    {"headers: {Host: hooks.example.com, X-Team: ops, user-agent: mine}\nbearer: abc.def", 2},
		"basic":      {"basic: {username: azure, password: 'p:w d'}", 3},
		"body-json": {`body_text: '{"text": {{json (printf "%s %s" .data.event.EventType .change)}}, "vms": {{json ` +
			`.resources}}}'`, 0},
		"body-text": {"content_type: text/plain; charset=utf-8\nbody_text: |\n  {{.azeventtype | upper}} of {{join \", " +
			"\" .resources}}: {{trunc 8 .data.event.Description}}\n", 0},
		"body-minimal": {`body_text: '{"text": {{json .data.event.Description}}, "until": {{default "unknown" ` +
			`.aznotbefore | json}}}'`, 4},
	} {
		t.Run(name, func(t *testing.T) {
			var r recorder
			srv := serve(t, &r)
			s := mustOpen(t, "webhook", "url: "+srv.URL+"/hook?to=ops\n"+tt.settings, testHost(t)).(*webhook)
			s.now = func() time.Time { return monday }
			answer, err := s.Deliver(t.Context(), deliveries(t)[tt.delivery:tt.delivery+1])
			if err != nil || answer.Status != "200 OK" {
				t.Fatalf("Deliver = %+v, %v", answer, err)
			}
			golden(t, "webhook-"+name+".golden", dump(r.all(), srv.URL))
		})
	}
}

// A structured request is read by the CloudEvents SDK as the CloudEvent that was sent.
func TestStructuredWebhookIsReadByTheSDK(t *testing.T) {
	for _, d := range deliveries(t) {
		req := sentBy(t, "", d)
		got, err := cehttp.NewEventFromHTTPRequest(req.Request)
		if err != nil {
			t.Fatal(err)
		}
		if want := d.Event.String(); got.String() != want {
			t.Errorf("the SDK reads\n%s\nwant\n%s", got, want)
		}
	}
}

// A binary request is read by the CloudEvents SDK as the CloudEvent that was sent, once the percent-encoding is taken
// off its attributes, which the specification asks for and the SDK leaves on.
func TestBinaryWebhookIsReadByTheSDK(t *testing.T) {
	for _, d := range deliveries(t) {
		req := sentBy(t, "mode: binary", d)
		if v := req.Header.Values("ce-datacontenttype"); v != nil {
			t.Errorf("ce-datacontenttype is %q, want Content-Type only", v)
		}
		for name, values := range req.Header {
			if strings.HasPrefix(name, "Ce-") {
				values[0] = decodeAttribute(t, values[0])
			}
		}
		got, err := cehttp.NewEventFromHTTPRequest(req.Request)
		if err != nil {
			t.Fatal(err)
		}
		if attributesOf(t, *got) != attributesOf(t, d.Event) || string(got.Data()) != string(d.Event.Data()) {
			t.Errorf("the SDK reads\n%s\nwant\n%s", got, d.Event)
		}
	}
}

// What no header can hold is refused for good, not tried again and again.
func TestAContentTypeThatNoHeaderHoldsIsRejected(t *testing.T) {
	s := mustOpen(t, "webhook", "{url: 'http://127.0.0.1:1', mode: binary}", testHost(t))
	d := deliveries(t)[0]
	d.Event = d.Event.Clone()
	d.Event.SetDataContentType("application/json;\n charset=utf-8")
	if _, err := s.Deliver(t.Context(), []delivery.Delivery{d}); !errors.Is(err, delivery.ErrRejected) {
		t.Errorf("Deliver = %v, want that it is rejected", err)
	}
}

// Receivers verify signatures with the library of Standard Webhooks, with either secret while they are being changed.
func TestSignaturesAreThoseOfStandardWebhooks(t *testing.T) {
	third := writeFile(t, "signing", secretXX+"\n")
	req := sentBy(t, fmt.Sprintf("signing_secrets: [%s, {file: %s}]", secretAZ, third), deliveries(t)[0])
	for _, secret := range []string{secretAZ, secretXX} {
		wh, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := wh.Verify([]byte(req.body), req.Header); err != nil {
			t.Errorf("verify: %v", err)
		}
		if err := wh.Verify([]byte(req.body+" "), req.Header); err == nil {
			t.Error("another body is verified too")
		}
	}
	if got, want := req.Header.Get("webhook-id"), deliveries(t)[0].Event.ID(); got != want {
		t.Errorf("webhook-id is %s, want that of the CloudEvent, %s", got, want)
	}
}

// A secret that changed in its file is used from the next attempt on; one that cannot be read blocks until it can.
func TestWebhookReadsSecretsOnEachUse(t *testing.T) {
	var r recorder
	path := writeFile(t, "token", "first\n")
	settings := "url: " + serve(t, &r).URL + "\nbearer_file: " + path
	opened, err := open("webhook", settings, testHost(t))
	if err != nil || !slices.Equal(opened.Secrets, []string{path}) {
		t.Fatalf("open = %v, %v; want the secret file", opened.Secrets, err)
	}
	s := opened.Sink
	defer closeSink(s)
	for _, tt := range []struct {
		text string
		want error
	}{{"first\n", nil}, {"second", nil}, {"\n", delivery.ErrBlocked}, {"two\nlines\n", delivery.ErrBlocked},
		{"third\r\n", nil}} {
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if !errors.Is(err, tt.want) || err != nil && !strings.Contains(err.Error(), "bearer_file: "+path) {
			t.Errorf("with %q in the file: %v, want %v and the name of the file", tt.text, err, tt.want)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); !errors.Is(err, delivery.ErrBlocked) ||
		!errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v, want it blocked", err)
	}
	var got []string
	for _, req := range r.all() {
		got = append(got, req.Header.Get("Authorization"))
	}
	if want := []string{"Bearer first", "Bearer second", "Bearer third"}; !slices.Equal(got, want) {
		t.Errorf("sent %q, want %q", got, want)
	}
}

// A template that fails on a CloudEvent, or makes no JSON of it, rejects this CloudEvent and nothing else.
func TestWebhookBodyThatFailsIsRejected(t *testing.T) {
	body := `{{if eq .id "BAD"}}{"text": "{{.subject}}}{{else}}{"text": {{json .subject}}}{{end}}`
	srv := serve(t, new(recorder))
	s := mustOpen(t, "webhook", "url: "+srv.URL+"\nbody_text: '"+body+"'", testHost(t))
	bad := deliveries(t)[0]
	bad.Event = bad.Event.Clone()
	bad.Event.SetID("BAD")
	if _, err := s.Deliver(t.Context(), []delivery.Delivery{bad}); !errors.Is(err, delivery.ErrRejected) ||
		!strings.Contains(err.Error(), "JSON") {
		t.Errorf("Deliver = %v, want it rejected for not being JSON", err)
	}
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
		t.Errorf("Deliver of another = %v", err)
	}
}

// Settings that cannot work are refused when they are read, at their key, with the reason.
func TestWebhookSettingsAreChecked(t *testing.T) {
	empty, missing := writeFile(t, "empty", "\n"), t.TempDir()+"/missing"
	short := "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 23))
	long := "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 65))
	for _, tt := range []struct{ settings, key, reason string }{
		{"mode: binary", "url", "missing"},
		{"url: ''", "url", "empty"},
		{"url: ftp://example.com", "url", "is not a URL"},
		{"url: example.com/hook", "url", "is not a URL"},
		{"url: 'http://'", "url", "is not a URL"},
		{"{url: http://a.example, url_file: /x}", "url_file", "url is given too"},
		{"{url_file: /x, url_env: X}", "url_env", "url_file is given too"},
		{"url_file: " + missing, "url_file", missing},
		{"url_file: " + empty, "url_file", empty + " is empty"},
		{"url_file: " + t.TempDir(), "url_file", "is not a regular file"},
		{"url_env: NOT_SET", "url_env", "variable that is not set"},
		{"{url: http://a.example, bearer: a, basic: {username: a, password: b}}", "basic", "bearer is given too"},
		{"{url: http://a.example, bearer: a, headers: {authorization: b}}", "headers.authorization",
			"bearer or basic is given too"},
		{"{url: http://u:p@a.example, bearer: a}", "url", "holds a user"},
		{"{url: http://a.example, bearer_file: " + missing + "}", "bearer_file", missing},
		{"{url: http://a.example, basic: {username: 'a:b', password: b}}", "basic.username", "without a colon"},
		{"{url: http://a.example, basic: {password: b}}", "basic.username", "expected a name"},
		{"{url: http://a.example, basic: {username: a}}", "basic.password", "missing"},
		{"{url: http://a.example, basic: {username: a, password: b, password_env: C}}", "basic.password_env",
			"basic.password is given too"},
		{"{url: http://a.example, headers: {X-A: {file: " + missing + "}}}", "headers.X-A.file", missing},
		{"{url: http://a.example, headers: {X-A: {env: NOT_SET}}}", "headers.X-A.env", "variable that is not set"},
		{"{url: http://a.example, headers: {X-A: {env: B, file: C}}}", "headers.X-A.env", "headers.X-A.file is given too"},
		{"{url: http://a.example, headers: {X-A: \"a\\nb\"}}", "headers.X-A", "line break"},
		{"{url: http://a.example, headers: {'X A': a}}", "headers.X A", "not the name of a header"},
		{"{url: http://a.example, headers: {X-A: a, x-a: b}}", "headers.x-a", "twice"},
		{"{url: http://a.example, headers: {Content-Type: a}}", "headers.Content-Type", "mode"},
		{"{url: http://a.example, headers: {content-length: 1}}", "headers.content-length", "body"},
		{"{url: http://a.example, headers: {Webhook-Id: a}}", "headers.Webhook-Id", "webhook-"},
		{"{url: http://a.example, headers: {ce-id: a}}", "headers.ce-id", "ce-"},
		{"{url: http://a.example, headers: {Transfer-Encoding: a}}", "headers.Transfer-Encoding", "connection"},
		{"{url: http://a.example, signing_secrets: [abc]}", "signing_secrets.0", "whsec_"},
		{"{url: http://a.example, signing_secrets: [" + secretAZ + ", 'whsec_!']}", "signing_secrets.1", "base64"},
		{"{url: http://a.example, signing_secrets: [" + short + "]}", "signing_secrets.0", "23 bytes"},
		{"{url: http://a.example, signing_secrets: [" + long + "]}", "signing_secrets.0", "65 bytes"},
		{"{url: http://a.example, signing_secrets: [{file: " + empty + "}]}", "signing_secrets.0.file", empty},
		{"{url: http://a.example, mode: binary, signing_secrets: [" + secretAZ + "]}", "signing_secrets",
			"expected mode structured"},
		{"{url: http://a.example, mode: binary, content_type: text/plain}", "content_type", "mode structured"},
		{"{url: http://a.example, method: GET}", "method", "POST, PUT or PATCH"},
		{"{url: http://a.example, success: status}", "success", "expected bool, but got int; expected an expression"},
		{"{url: http://a.example, success: 'jsn.ok'}", "success", "unknown name jsn"},
		{"{url: http://a.example, body_text: '{}', content_type: 'text plain'}", "content_type", "not a media type"},
		{"{url: http://a.example, body_text: '{}', body_text_file: /x}", "body_text_file", "body_text is given too"},
		{"{url: http://a.example, body_text_file: " + missing + "}", "body_text_file", missing},
		{"{url: http://a.example, body_text: '{}', mode: binary}", "mode", "body_text"},
		{"{url: http://a.example, body_text: \"{\\n{{if}}\"}", "body_text", "body_text:2:"},
		{"{url: http://a.example, body_text: '{{env \"X\"}}'}", "body_text", `function "env" not defined; forewarn help fields`},
		{"{url: http://a.example, body_text: '{\"a\": {{.azeventtype}}}'}", "body_text", "not JSON"},
		{"{url: http://a.example, body_text: '{\"a\": \"{{.data.event.Description}}\"}'}", "body_text",
			"put values in with {{json"},
		{"{url: http://a.example, body_text: '{\"a\": {{json (index .resources 0)}}}'}", "body_text", "out of range"},
		{"{url: http://a.example, body_text: 'x', content_type: application/vnd.x+json}", "body_text", "not JSON"},
		{"{url: http://a.example, tls: {server_name: b.example}}", "url", "is not https"},
		{"{url: https://a.example, tls: {ca_file: " + missing + "}}", "tls.ca_file", missing},
		{"{url: https://a.example, tls: {ca_file: " + empty + "}}", "tls.ca_file", "no certificate"},
		{"{url: https://a.example, tls: {cert_file: " + empty + "}}", "tls.cert_file", "needs key_file"},
		{"{url: https://a.example, tls: {key_file: " + empty + "}}", "tls.key_file", "needs cert_file"},
		{"{url: https://a.example, tls: {cert_file: " + empty + ", key_file: " + missing + "}}", "tls.key_file", missing},
		{"{url: https://a.example, tls: {cert_file: " + empty + ", key_file: " + empty + "}}", "tls.cert_file", "PEM"},
		{"{url: https://a.example, proxy: proxy.example.com:3128}", "proxy", "not the URL of a proxy"},
		{"{url: https://a.example, proxy: 'ftp://proxy.example.com'}", "proxy", "not the URL of a proxy"},
	} {
		wrongKey(t, "webhook", tt.settings, tt.key, tt.reason)
	}
}

// The value of a header is a text, the name of a file or the name of a variable, and nothing else.
func TestWebhookHeaderValuesAreStrict(t *testing.T) {
	for _, value := range []string{"{fil: /x}", "[a]", "{}", "{file: ''}", "{file: /x, more: 1}"} {
		if _, err := open("webhook", "{url: http://a.example, headers: {X-A: "+value+"}}", testHost(t)); err == nil {
			t.Errorf("the header value %s gave no error", value)
		}
	}
}

// sentBy returns the request by which a webhook delivers d.
func sentBy(t *testing.T, settings string, d delivery.Delivery) recorded {
	t.Helper()
	var r recorder
	srv := serve(t, &r)
	s := mustOpen(t, "webhook", "url: "+srv.URL+"\n"+settings, testHost(t))
	if _, err := s.Deliver(t.Context(), []delivery.Delivery{d}); err != nil {
		t.Fatal(err)
	}
	return r.all()[0]
}

// dump returns requests as they came in, with the headers in order and without the address of the test's server.
func dump(requests []recorded, server string) string {
	var b strings.Builder
	for _, r := range requests {
		fmt.Fprintf(&b, "%s %s %s\nHost: %s\n", r.Method, r.RequestURI, r.Proto, r.Host)
		for _, name := range slices.Sorted(maps.Keys(r.Header)) {
			fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(r.Header[name], "\n"))
		}
		fmt.Fprintf(&b, "\n%s\n", r.body)
	}
	u, _ := url.Parse(server)
	return strings.ReplaceAll(b.String(), u.Host, "destination.example")
}

// attributesOf returns the attributes of a CloudEvent in canonical form.
func attributesOf(t *testing.T, ce event.Event) string {
	t.Helper()
	all := map[string]string{
		"specversion": ce.SpecVersion(), "id": ce.ID(), "source": ce.Source(), "type": ce.Type(), "subject": ce.Subject(),
		"time": types.FormatTime(ce.Time()), "dataschema": ce.DataSchema(), "datacontenttype": ce.DataContentType(),
	}
	for name, v := range ce.Extensions() {
		text, err := types.Format(v)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = text
	}
	text, _ := json.Marshal(all)
	return string(text)
}

// decodeAttribute takes off the percent-encoding once, as the HTTP binding tells receivers to.
func decodeAttribute(t *testing.T, s string) string {
	t.Helper()
	text, err := url.PathUnescape(s)
	if err != nil {
		t.Errorf("%q cannot be decoded: %v", s, err)
	}
	return text
}

func webhookFails(t *testing.T) map[string]string {
	all := map[string]string{}
	for class, status := range map[string]int{again: 503, blocked: 403, rejected: 422} {
		all[class] = "url: " +
			serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })).URL
	}
	return all
}

// Some services answer 400 where others answer 401: what a service, or blocked_on, names keeps the backlog
// until somebody has acted. Everything else is as it is elsewhere.
func TestRefusedCredentialsInABodyBlock(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	key := writeFile(t, "key", "0123456789abcdef0123456789abcdef")
	pagerduty := "routing_key_file: " + key
	for _, tt := range []struct {
		kind, settings string
		status         int
		want           string
	}{
		{"pagerduty", pagerduty, 400, blocked},
		{"pagerduty", pagerduty, 413, rejected},
		{"pagerduty", pagerduty, 429, again},
		{"azure_automation", "", 400, blocked}, // its webhook has expired
		{"teams", "", 400, blocked},            // its workflow is turned off
		{"ntfy", "topic: none", 400, blocked},
		{"event_grid", "key: " + anyKey, 400, rejected},
		{"webhook", "body_text: '{}'", 400, rejected},
		{"webhook", "body_text: '{}'\nblocked_on: [400, 422]", 422, blocked},
		{"webhook", "body_text: '{}'\nblocked_on: [422]", 400, rejected},
		{"webhook", "blocked_on: [400]", 400, blocked},
		{"webhook", "", 400, rejected},
	} {
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tt.status)
			fmt.Fprint(w, `{"message":"Invalid routing key"}`)
		}))
		s := mustOpen(t, tt.kind, "url: "+srv.URL+"\n"+tt.settings, testHost(t))
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if classOf(err) != tt.want || !strings.Contains(fmt.Sprint(err), "Invalid routing key") {
			t.Errorf("%s %q, answered %d: %v, want %s with what was said", tt.kind, tt.settings, tt.status, err, tt.want)
		}
	}
	for settings, words := range map[string]string{
		"blocked_on: [200]":      "expected statuses from 400 to 499",
		"blocked_on: [400, 500]": "expected statuses from 400 to 499",
		"blocked_on: [429]":      "429 means to come back later",
	} {
		wrongKey(t, "webhook", "url: https://example.com\n"+settings, "blocked_on", words)
	}
}

// The id of a CloudEvent of somebody else may hold what no header can: it is sent encoded, and signed so.
func TestWebhookEncodesAStrangersID(t *testing.T) {
	var r recorder
	s := mustOpen(t, "webhook", "url: "+serve(t, &r).URL+"\nsigning_secrets: ["+secretAZ+"]", testHost(t))
	ce := deliveries(t)[0].Event.Clone()
	ce.SetID("a\r\nb ü")
	if _, err := s.Deliver(t.Context(), []delivery.Delivery{{Event: ce}}); err != nil {
		t.Fatal(err)
	}
	got := r.all()[0]
	const id = "a%0D%0Ab%20%C3%BC"
	if key, hook := got.Header.Get("Idempotency-Key"), got.Header.Get("Webhook-Id"); key != id || hook != id {
		t.Errorf("the headers have %q and %q, want %q", key, hook, id)
	}
	verifier, err := standardwebhooks.NewWebhook(secretAZ)
	if err == nil {
		err = verifier.Verify([]byte(got.body), got.Header)
	}
	if err != nil {
		t.Errorf("the signature: %v", err)
	}
}
