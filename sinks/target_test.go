package sinks

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"forewarn/bridge/delivery"
	"forewarn/templates"
)

// hostile returns a delivery whose type of event is text.
func hostile(t *testing.T, text string) delivery.Delivery {
	t.Helper()
	ce := deliveries(t)[0].Event.Clone()
	ce.SetExtension("azeventtype", text)
	return delivery.Delivery{Event: ce, Attempt: 1}
}

// Behind its host the URL is a template. A value of the event stays one part of the path or one value of the query,
// whatever is in it.
func TestTheURLIsATemplate(t *testing.T) {
	const nasty = "a/b?c=d&e#f %2F\r\nX: y é"
	const encoded = "a%2Fb%3Fc%3Dd%26e%23f%20%252F%0D%0AX:%20y%20%C3%A9"
	for _, tt := range []struct{ path, want string }{
		{"/alerts/{{.azeventtype}}/close?by={{.azeventtype}}&x=1", "/alerts/" + encoded + "/close?by=" + encoded + "&x=1"},
		{"/{{if .azself}}self{{else}}other{{end}}/{{with .azeventtype}}{{.}}{{end}}", "/self/" + encoded},
		{`/{{define "x"}}{{.azeventtype}}{{end}}{{include "x" .}}`, "/" + encoded},
		{"?type={{.azeventtype}}", "/?type=" + encoded},
		{"/{{$t := .azeventtype}}{{$t}}", "/" + encoded},
		{"/{{range .resources}}{{.}};{{end}}", "/vm-0;vm-1;"},
	} {
		var r recorder
		s := mustOpen(t, "webhook", "url: '"+serve(t, &r).URL+tt.path+"'", testHost(t))
		if _, err := s.Deliver(t.Context(), []delivery.Delivery{hostile(t, nasty)}); err != nil {
			t.Fatal(err)
		}
		if got := r.all()[0].RequestURI; got != tt.want {
			t.Errorf("%s becomes %s, want %s", tt.path, got, tt.want)
		}
	}
}

// The value of a header is a template if it stands in the settings. No value of the event makes a second header, and an
// empty one is left out. What a file holds is sent as it is.
func TestHeadersAreTemplates(t *testing.T) {
	var r recorder
	s := mustOpen(t, "webhook", "url: "+serve(t, &r).URL+"\nheaders: {X-Type: 'of {{.azeventtype}}', X-None: '{{.runbook}}', "+
		"X-File: {file: "+writeFile(t, "header", "{{.id}}")+"}}", testHost(t))
	if _, err := s.Deliver(t.Context(), []delivery.Delivery{hostile(t, "Reboot\r\nX-None: y")}); err != nil {
		t.Fatal(err)
	}
	got := r.all()[0].Header
	if got.Get("X-Type") != "of Reboot X-None: y" || got.Values("X-None") != nil || got.Get("X-File") != "{{.id}}" {
		t.Errorf("the headers are %v", got)
	}
}

// A template that is wrong is refused when the settings are read, at its key and without what it says, which may be
// secret.
func TestWrongTemplatesOfARequestAreRefused(t *testing.T) {
	const secret = "hunter2k3v9x2m7qd"
	for _, tt := range []struct{ settings, key, words string }{
		{"url: 'https://{{.azeventtype}}.example/" + secret + "'", "url", "its host is a template"},
		{"url: 'https://a.example{{.azeventtype}}/" + secret + "'", "url", "its host is a template"},
		{"url: 'htt{{.x}}ps://a.example/" + secret + "'", "url", "its host is a template"},
		{"url: '{{.azeventtype}}/" + secret + "'", "url", "is not a URL"},
		{"url: 'https://a.example/" + secret + "/{{.id'", "url", "no template"},
		{"url: 'https://a.example/{{" + secret + "}}'", "url", "no template"},
		{`url: 'https://a.example/{{template "headline" .}}/` + secret + "'", "url", "no template"},
		{"url: 'https://a.example/" + secret + "/{{index .resources 7}}'", "url", "its template fails"},
		{"url: https://a.example\nheaders: {X-A: '" + secret + " {{.id'}", "headers.X-A", "no template"},
		{"url: https://a.example\nheaders: {X-A: '{{index .resources 7}}" + secret + "'}", "headers.X-A", "its template fails"},
	} {
		wrongKey(t, "webhook", tt.settings, tt.key, tt.words)
		if _, err := open("webhook", tt.settings, testHost(t)); strings.Contains(fmt.Sprint(err), secret[:8]) {
			t.Errorf("%s gives %v", tt.settings, err)
		}
	}
	for _, settings := range []string{"url: 'https://a.example/{{.azeventtyp}}'",
		"url: https://a.example\nheaders: {X-A: '{{if .azself}}{{.azeventtyp}}{{end}}'}"} {
		_, err := open("webhook", settings, testHost(t))
		if u, ok := errors.AsType[*templates.UnknownName](err); !ok || u.Name != "azeventtyp" {
			t.Errorf("%s gives %v, want the unknown name", settings, err)
		}
	}
}

// What a template of the URL or a header says itself is as secret as without it, and what the event puts in is none.
func TestSecretsInTemplatesAreNotShown(t *testing.T) {
	const secret = "hunter2k3v9x2m7qd"
	for _, settings := range []string{
		"/hooks/" + secret + "/{{.id}}'", "/{{.id}}?key=" + secret + "&x={{.id}}'",
		`/{{printf "` + secret + `%s" .id}}'`, "'\nheaders: {X-Key: '" + secret + " {{.id}}'}",
		"'\nheaders: {Authorization: '{{printf `Bearer " + secret + "`}}'}",
	} {
		var said string
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, said, http.StatusUnprocessableEntity)
		}))
		s := mustOpen(t, "webhook", "url: '"+srv.URL+settings, testHost(t))
		d := deliveries(t)[:1]
		said = "no such token: " + secret
		if _, err := s.Deliver(t.Context(), d); err == nil || strings.Contains(err.Error(), secret[:8]) {
			t.Errorf("%s gives %v", settings, err)
		}
		said = "no such event: " + d[0].Event.ID()
		if _, err := s.Deliver(t.Context(), d); err == nil || !strings.Contains(err.Error(), d[0].Event.ID()) {
			t.Errorf("%s gives %v, want the id of the CloudEvent in it", settings, err)
		}
		shown, err := s.(delivery.Renderer).Render(d[0])
		if err != nil || strings.Contains(shown, secret[:8]) {
			t.Errorf("%s is shown as %v\n%s", settings, err, shown)
		}
	}
}
