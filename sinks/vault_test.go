package sinks

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
)

// vaultURL is the URL of a secret of a fakeVault.
const vaultURL = "https://forewarn.vault.azure.net/secrets/slack-token"

// A fakeVault is a Key Vault as Microsoft documents it, at every address that ends in :443, beside a metadata service.
type fakeVault struct {
	mu      sync.Mutex
	secrets map[string]string // by path, such as /secrets/slack-token
	fault   http.HandlerFunc  // answers in its place; nil for none
	asked   []string          // the paths that were asked for

	azure    *imdstest.Server
	endpoint string
	ca       string
	address  string
}

func newVault(t *testing.T) *fakeVault {
	t.Helper()
	f := &fakeVault{secrets: make(map[string]string), azure: imdstest.New(imdstest.Options{})}
	f.endpoint = serve(t, f.azure.Metadata()).URL
	ca := newAuthority(t)
	srv := httptest.NewUnstartedServer(f)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "forewarn.vault.azure.net", time.Hour)}}
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	f.ca, f.address = ca.file, srv.Listener.Addr().String()
	return f
}

// host returns the host of sinks that reach the vault.
func (f *fakeVault) host(t *testing.T) Host {
	h := testHost(t)
	h.Endpoint, h.Vault = f.endpoint, &Vault{tls: TLSSettings{CAFile: Path(f.ca)}}
	h.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasSuffix(address, ":443") {
			address = f.address
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	return h
}

func (f *fakeVault) set(value string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.secrets["/secrets/slack-token"] = value
}

// fail has the vault answer with a status and an error of Key Vault; code and inner may be empty. Status 0 mends it.
func (f *fakeVault) fail(status int, code, inner, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = nil
	if status != 0 {
		f.fault = func(w http.ResponseWriter, _ *http.Request) { vaultError(w, status, code, inner, message) }
	}
}

func (f *fakeVault) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

func vaultError(w http.ResponseWriter, status int, code, inner, message string) {
	e := map[string]any{"code": code, "message": message}
	if inner != "" {
		e["innererror"] = map[string]string{"code": inner}
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "300")
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"error": e})
}

func (f *fakeVault) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.asked = append(f.asked, r.URL.Path)
	value, known := f.secrets[r.URL.Path]
	fault := f.fault
	f.mu.Unlock()
	switch {
	case !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer emulated."):
		w.Header().Set("WWW-Authenticate", `Bearer authorization="https://login.microsoftonline.com/tenant", `+
			`resource="https://vault.azure.net"`)
		vaultError(w, 401, "Unauthorized", "", "AKV10000: Request is missing a Bearer or PoP token.")
	case r.Method != http.MethodGet || r.URL.Query().Get("api-version") == "":
		vaultError(w, 400, "BadParameter", "", "api-version must be specified")
	case fault != nil:
		fault(w, r)
	case !known:
		vaultError(w, 404, "SecretNotFound", "", "A secret with (name/id) slack-token was not found in this key vault.")
	default:
		json.NewEncoder(w).Encode(map[string]any{
			"value": value, "id": "https://" + r.Host + r.URL.Path + "/4387e9f3d6e14c459867679a90fd0f79",
			"attributes": map[string]any{"enabled": true, "recoveryLevel": "Recoverable+Purgeable"},
		})
	}
}

// A secret in Key Vault is read before the first delivery, and once for all sinks that name it, also under the URL of a
// version.
func TestSecretInKeyVaultIsReadOnceForAllSinks(t *testing.T) {
	t.Parallel()
	f, r := newVault(t), new(recorder)
	f.set("t0ken-0f-today\n")
	f.secrets["/secrets/slack-token/4387e9f3d6e14c459867679a90fd0f79"] = "an-older-t0ken"
	h := f.host(t)
	h.ClientID = clientID
	address := serve(t, r).URL
	for range 2 {
		for _, at := range []string{vaultURL, vaultURL + "/", vaultURL + "/4387e9f3d6e14c459867679a90fd0f79"} {
			s := mustOpen(t, "webhook", "{url: '"+address+"', bearer_vault: '"+at+"'}", h)
			if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	var got []string
	for _, req := range r.all() {
		got = append(got, strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer "))
	}
	once := []string{"t0ken-0f-today", "t0ken-0f-today", "an-older-t0ken"}
	if !slices.Equal(got, append(once, once...)) {
		t.Errorf("the destination was sent %q", got)
	}
	if asked := f.requests(); len(asked) != 2 {
		t.Errorf("the vault was asked for %q, want each secret once", asked)
	}
	tokens := f.azure.Requests()
	if len(tokens) != 1 || tokens[0].Query.Get("resource") != "https://vault.azure.net" ||
		tokens[0].Query.Get("client_id") != clientID {
		t.Errorf("the metadata service was asked %+v, want one token of the identity for Key Vault", tokens)
	}
}

// The value in memory stays in use while the vault is out of reach: after an hour, and when the destination has refused
// it. Both are tried once a minute at most, and said once.
func TestLastValueOfASecretStaysInUse(t *testing.T) {
	t.Parallel()
	f, r := newVault(t), new(recorder)
	f.set("t0ken-0f-today")
	var log bytes.Buffer
	now := monday
	h := f.host(t)
	h.Log = slog.New(slog.NewTextHandler(&log, nil))
	h.Vault.clock = func() time.Time { return now }
	status := 200
	address := serve(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.keep(req)
		w.WriteHeader(status)
	})).URL
	opened, err := open("webhook", "{url: '"+address+"', bearer_vault: '"+vaultURL+"'}", h)
	if err != nil {
		t.Fatal(err)
	}
	step := func(what string, after time.Duration, upkeep bool, asked int) {
		t.Helper()
		now = now.Add(after)
		err := opened.Keep(t.Context())
		if !upkeep {
			_, err = opened.Sink.Deliver(t.Context(), deliveries(t)[:1])
		}
		if (err != nil) != (status != 200) || len(f.requests()) != asked {
			t.Errorf("%s: %v, and the vault was asked %d times; want %d", what, err, len(f.requests()), asked)
		}
	}
	step("at the start", 0, true, 1)
	step("after most of an hour", time.Hour-time.Second, true, 1)
	step("after an hour", time.Second, true, 2)
	f.fail(503, "", "", "")
	step("out of reach", time.Hour, true, 3)
	step("within a minute", time.Minute-time.Second, true, 3)
	step("after a minute", time.Second, true, 4)
	step("a delivery", 10*time.Second, false, 4)
	status = 401
	now = now.Add(time.Hour)
	_, _ = opened.Sink.Deliver(t.Context(), deliveries(t)[:1])
	if last := r.all()[len(r.all())-1].Header.Get("Authorization"); last != "Bearer t0ken-0f-today" {
		t.Errorf("sent %q, want the last value", last)
	}
	f.fail(0, "", "", "")
	f.set("an0ther-token")
	status = 200
	step("reached again", time.Minute, false, 5)
	if last := r.all()[len(r.all())-1].Header.Get("Authorization"); last != "Bearer an0ther-token" {
		t.Errorf("sent %q, want the new value", last)
	}
	text := log.String()
	if strings.Count(text, "secret not read from Key Vault") != 1 || strings.Count(text, "read from Key Vault again") != 1 ||
		strings.Contains(text, "t0ken") || strings.Contains(text, "emulated.") {
		t.Errorf("the log is\n%s\nwant the failure and its end once, without a secret", text)
	}
}

// A vault that does not answer delays no delivery while a value is in memory.
func TestAHungVaultDelaysNoDelivery(t *testing.T) {
	t.Parallel()
	f := newVault(t)
	f.set("t0ken-0f-today")
	h := f.host(t)
	opened, err := open("webhook", "{url: '"+serve(t, new(recorder)).URL+"', bearer_vault: '"+vaultURL+"'}", h)
	if err != nil {
		t.Fatal(err)
	}
	if err := opened.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	hung, release := make(chan struct{}), make(chan struct{})
	f.mu.Lock()
	f.fault = func(http.ResponseWriter, *http.Request) { close(hung); <-release }
	f.mu.Unlock()
	h.Vault.Expire()
	kept := make(chan error)
	go func() { kept <- opened.Keep(t.Context()) }()
	<-hung
	_, err = opened.Sink.Deliver(t.Context(), deliveries(t)[:1])
	select {
	case <-kept:
		t.Error("the vault has answered")
	default:
	}
	close(release)
	if err := errors.Join(err, <-kept); err != nil {
		t.Error(err)
	}
}

// What keeps a secret from being read is said with its URL and what to do; a delivery is tried again where that can help,
// and blocked where somebody has to act.
func TestUnreadableSecretsNameTheRemedy(t *testing.T) {
	t.Parallel()
	f := newVault(t)
	h := f.host(t)
	for name, tt := range map[string]struct {
		status               int
		code, inner, message string
		class, want          string
	}{
		"no role": {403, "Forbidden", "ForbiddenByRbac", "Caller is not authorized to perform action on resource.",
			blocked, `the role "Key Vault Secrets User"`},
		"no access policy": {403, "Forbidden", "AccessDenied", "The user does not have secrets get permission",
			blocked, "the permission Get for secrets"},
		"firewall": {403, "Forbidden", "ForbiddenByFirewall", "Client address is not authorized and caller is not a trusted service.",
			blocked, "allow its subnet"},
		"disabled": {403, "Forbidden", "SecretDisabled", "Operation get is not allowed on a disabled secret.",
			blocked, "enable the secret"},
		"another tenant": {401, "Unauthorized", "", "AKV10032: Invalid issuer.", blocked, "the tenant of the vault"},
		"another answer": {403, "", "", "", blocked, `the role "Key Vault Secrets User"`},
		"bad version":    {400, "BadParameter", "", "Invalid version", blocked, "400 Bad Request"},
		"throttled":      {429, "Throttled", "", "Request was not processed because too many requests were received.", again, "asks for 5m"},
		"broken":         {500, "InternalError", "", "", again, "500 Internal Server Error"},
	} {
		f.fail(tt.status, tt.code, tt.inner, tt.message)
		err := h.Vault.load(t.Context(), h, vaultURL, false)
		if classOf(err) != tt.class || !strings.Contains(err.Error(), vaultURL) ||
			!strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.message) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.fail(0, "", "", "")
	err := h.Vault.load(t.Context(), h, vaultURL, false)
	if classOf(err) != blocked || !strings.Contains(err.Error(), "404 Not Found") ||
		!strings.Contains(err.Error(), "create the secret, or correct its URL") {
		t.Errorf("no such secret: %v", err)
	}
}

// An answer is bounded, and nothing of it is shown when it is no secret that can be used.
func TestAnswersOfAVaultAreBounded(t *testing.T) {
	t.Parallel()
	f := newVault(t)
	h := f.host(t)
	for name, tt := range map[string]struct {
		answer func(w io.Writer)
		want   string
	}{
		"too long":  {func(w io.Writer) { fmt.Fprintf(w, `{"value":%q}`, strings.Repeat("s3cr", 25<<8+1)) }, "larger than 25 KiB"},
		"empty":     {func(w io.Writer) { io.WriteString(w, `{"value":"\n"}`) }, "is empty"},
		"no value":  {func(w io.Writer) { io.WriteString(w, `{"s3cr":"s3cr"}`) }, "unexpected answer"},
		"HTML":      {func(w io.Writer) { io.WriteString(w, `<html>s3cr</html>`) }, "unexpected answer"},
		"endless":   {func(w io.Writer) { io.WriteString(w, `{"value":"`+strings.Repeat("s3cr", 1<<20)) }, "ends early"},
		"cut short": {func(w io.Writer) { io.WriteString(w, `{"value":"s3cr`); panic(http.ErrAbortHandler) }, "vault"},
	} {
		f.mu.Lock()
		f.fault = func(w http.ResponseWriter, _ *http.Request) { tt.answer(w) }
		f.mu.Unlock()
		err := h.Vault.load(t.Context(), h, vaultURL, false)
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cr\"") ||
			strings.Contains(err.Error(), "s3crs3cr") {
			t.Errorf("%s: %v, want one about %s", name, err, tt.want)
		}
	}
}

// Only a valid certificate for the name of the vault gets a token.
func TestTokensGoOnlyToTheVault(t *testing.T) {
	t.Parallel()
	f := newVault(t)
	f.set("t0ken-0f-today")
	h := f.host(t)
	err := h.Vault.load(t.Context(), h, "https://another.vault.azure.net/secrets/x", false)
	if classOf(err) != blocked || len(f.requests()) != 0 {
		t.Errorf("the certificate of another vault: %v, and %q were asked for", err, f.requests())
	}
	for text, want := range map[string]string{
		"https://forewarn.vault.azure.net/secrets/a":                 "",
		"https://FOREWARN.VAULT.azure.net/secrets/a/0123abc/":        "",
		"https://forewarn.vault.azure.cn/secrets/a":                  "",
		"https://forewarn.vault.usgovcloudapi.net/secrets/a":         "",
		"https://forewarn.managedhsm.azure.net/secrets/a":            "managed HSM",
		"https://vault.azure.net/secrets/a":                          "host",
		"https://a.b.vault.azure.net/secrets/a":                      "host",
		"https://forewarn.vault.azure.net.example.com/secrets/a":     "host",
		"https://forewarn.vault.azure.net:8443/secrets/a":            "host",
		"https://forewarn.privatelink.vaultcore.azure.net/secrets/a": "host",
		"https://forewarn.vault.azure.net/keys/a":                    "name a secret",
		"https://forewarn.vault.azure.net/secrets/":                  "name a secret",
		"https://forewarn.vault.azure.net/secrets/a?x=1":             "not the URL",
		"http://forewarn.vault.azure.net/secrets/a":                  "not the URL",
		"https://u:p@forewarn.vault.azure.net/secrets/a":             "not the URL",
		"xoxb-0123456789": "not the URL",
	} {
		_, err := open("webhook", "{url: 'https://a.example', bearer_vault: '"+text+"'}", h)
		e, isKey := errors.AsType[*KeyError](err)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (!isKey || e.Key != "bearer_vault" || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), text)):
			t.Errorf("%s: %v, want an error about %s that does not show it", text, err, want)
		}
	}
}

// Where there is no managed identity, as outside Azure, the error says so, and no vault is asked.
func TestNoVaultIsAskedWithoutAnIdentity(t *testing.T) {
	t.Parallel()
	f := newVault(t)
	h := f.host(t)
	h.Endpoint = "http://" + hostOf(t) + ":1"
	err := h.Vault.load(t.Context(), h, vaultURL, false)
	if classOf(err) != again || !strings.Contains(err.Error(), "the managed identity of an Azure VM") {
		t.Errorf("nothing listens: %v", err)
	}
	h.Endpoint = serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(400)
		io.WriteString(w, `{"error":"invalid_request","error_description":"Identity not found"}`)
	})).URL
	h.Vault = &Vault{tls: h.Vault.tls}
	err = h.Vault.load(t.Context(), h, vaultURL, false)
	if classOf(err) != blocked || !strings.Contains(err.Error(), "this VM has no managed identity") {
		t.Errorf("no identity: %v", err)
	}
	if len(f.requests()) != 0 {
		t.Errorf("the vault was asked for %q", f.requests())
	}
}

// Settings are checked, and what would be delivered is shown, before a secret is read, without asking for it; nor is the
// metadata service asked for a token then.
func TestNothingIsReadFromKeyVaultToCheckSettings(t *testing.T) {
	t.Parallel()
	f := newVault(t)
	h := f.host(t)
	for _, tt := range []struct{ kind, settings string }{
		{"webhook", "{url_vault: URL, headers: {X-Key: {vault: URL}}, signing_secrets: [{vault: URL}]}"},
		{"webhook", "{url: 'https://a.example', basic: {username: a, password_vault: URL}}"},
		{"pagerduty", "{routing_key_vault: URL}"},
		{"slack", "{token_vault: URL, channel: '#ops'}"},
		{"slack", "{webhook_url_vault: URL}"},
		{"email", "{host: mail.test, from: a@mail.test, to: [b@mail.test], username: a, password_vault: URL}"},
		{"nats", "{url_vault: URL, creds_vault: URL}"},
		{"exec", "{command: [go], env: {KEY: {vault: URL}}}"},
	} {
		opened, err := open(tt.kind, strings.ReplaceAll(tt.settings, "URL", vaultURL), h)
		if err != nil {
			t.Errorf("%s: %v", tt.settings, err)
			continue
		}
		text, err := opened.Sink.(delivery.Renderer).Render(deliveries(t)[0])
		if err != nil || text == "" {
			t.Errorf("%s is shown as %q, %v", tt.settings, text, err)
		}
		if opened.Keep == nil {
			t.Errorf("%s: the secret is not kept", tt.settings)
		}
	}
	_, err := open("webhook", "{url: 'http://a.example', bearer_vault: '"+vaultURL+"'}", h)
	if err == nil || !strings.Contains(err.Error(), "bearer_vault would be sent unencrypted") {
		t.Errorf("http to another machine: %v", err)
	}
	opened, err := open("webhook", "url: https://a.example", h)
	if err != nil || opened.Keep != nil {
		t.Errorf("without a secret in Key Vault: %v, and one is kept", err)
	}
	if len(f.requests())+len(f.azure.Requests()) != 0 {
		t.Errorf("asked for %q, and for %d tokens", f.requests(), len(f.azure.Requests()))
	}
}

// Whatever a vault answers, there is a secret that can be used, or an error with its URL that shows nothing of the value
// and never rejects a CloudEvent.
func FuzzVaultAnswer(f *testing.F) {
	f.Add(200, `{"value":"s3cr3t-token","id":"https://forewarn.vault.azure.net/secrets/slack-token/0"}`)
	f.Add(200, `{"value":["s3cr3t-token"]}`)
	f.Add(200, `{"value":"\n"}`)
	f.Add(403, `{"error":{"code":"Forbidden","message":"No.\u202e","innererror":{"code":"ForbiddenByRbac"}}}`)
	f.Add(403, `{"error":{"code":[],"innererror":null}}`)
	f.Add(429, `<html>`)
	f.Fuzz(func(t *testing.T, status int, body string) {
		r := response{status: status, body: body}
		var secret Secret
		var err error
		if status == http.StatusOK {
			secret, err = vaultValue(vaultURL, r)
		} else {
			err = vaultRefusal(vaultURL, r, new(redactor))
		}
		text := secret.plain()
		switch {
		case err == nil && (text == "" || len(text) > vaultMax):
			t.Errorf("a secret of %d bytes", len(text))
		case err != nil && (!strings.Contains(err.Error(), vaultURL) || errors.Is(err, delivery.ErrRejected) ||
			status == http.StatusOK && strings.Contains(err.Error(), "s3cr3t")):
			t.Errorf("%v", err)
		}
	})
}
