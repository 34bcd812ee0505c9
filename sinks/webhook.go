package sinks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/templates"
)

// webhookSettings are the keys of a webhook. Secrets have four keys; see Value.
type webhookSettings struct {
	URL            Secret            `yaml:"url" required:"" doc:"address, http or https; the part after the host is a template; redirects are refused"`
	URLFile        Path              `yaml:"url_file"`
	URLEnv         string            `yaml:"url_env"`
	URLVault       string            `yaml:"url_vault"`
	Method         string            `yaml:"method" default:"POST" oneof:"POST PUT PATCH" doc:"HTTP method"`
	Mode           string            `yaml:"mode" default:"structured" oneof:"structured binary" doc:"form of the CloudEvent"`
	BodyText       string            `yaml:"body_text" doc:"body to send instead of the CloudEvent"`
	BodyTextFile   Path              `yaml:"body_text_file"`
	RunbookURL     string            `yaml:"runbook_url" doc:"link to a runbook, for the body"`
	RunbookURLFile Path              `yaml:"runbook_url_file"`
	ContentType    string            `yaml:"content_type" doc:"media type of the body (default: application/json; for a CloudEvent application/cloudevents+json)"`
	Success        string            `yaml:"success" doc:"expression that must also be true of a 2xx answer, such as json.errors == false; it sees status, headers, json and text"`
	BlockedOn      []int             `yaml:"blocked_on" doc:"more statuses that count as blocked, such as [400]"`
	Headers        map[string]Value  `yaml:"headers" doc:"more headers, such as X-Api-Key: {file: /etc/forewarn/api-key}; a text is a template"`
	Bearer         Secret            `yaml:"bearer" doc:"token for Authorization: Bearer"`
	BearerFile     Path              `yaml:"bearer_file"`
	BearerEnv      string            `yaml:"bearer_env"`
	BearerVault    string            `yaml:"bearer_vault"`
	Basic          *basicSettings    `yaml:"basic" doc:"user name and password for Authorization: Basic"`
	Identity       *identitySettings `yaml:"azure_identity" doc:"token of the VM's managed identity, as Bearer"`
	Signing        []Value           `yaml:"signing_secrets" doc:"whsec_ secrets for signatures of Standard Webhooks, one signature each"`
	TLS            TLSSettings       `yaml:"tls" doc:"certificates"`
	Proxy          Secret            `yaml:"proxy" doc:"URL of a proxy, or none (default: the environment's)"`
	Insecure       bool              `yaml:"insecure" doc:"send credentials over http to another machine"`

	service *Service // whose settings they are; nil for a webhook
	own     sources  // of the service's own keys
}

type basicSettings struct {
	Username      string `yaml:"username" required:"" doc:"user name"`
	Password      Secret `yaml:"password" required:"" doc:"password"`
	PasswordFile  Path   `yaml:"password_file"`
	PasswordEnv   string `yaml:"password_env"`
	PasswordVault string `yaml:"password_vault"`
}

// webhookTerms: machines want every change.
var webhookTerms = delivery.Terms{Timeout: 10 * time.Second, MaxAge: week, Late: delivery.LateSend, Batch: 1}

// shape returns the shape of the fields for the templates of a request.
func (s webhookSettings) shape() *templates.Shape {
	all := messageShape(nil)
	if s.service != nil {
		all.Names["setting"] = names()
		for _, own := range s.own {
			all.Names["setting"].Names[own.name] = nil
		}
	}
	return all
}

// A webhook posts each CloudEvent to a URL, either in a form of the HTTP binding of CloudEvents or as a body that a
// template makes.
type webhook struct {
	Host
	caller      *caller
	secrets     credentials
	identity    *identity // nil without azure_identity
	binary      bool
	body        *templates.Template // nil to send the CloudEvent itself
	bodyText    string              // of body; it may hold a key
	method      string
	contentType string  // of body; of a CloudEvent "" for the usual one
	runbook     runbook // for body
	now         func() time.Time
}

func openWebhook(s webhookSettings, h Host) (Opened, error) {
	w := &webhook{Host: h, binary: s.Mode == "binary", now: time.Now}
	var wrong KeyErrors
	w.method = cmp.Or(strings.ToUpper(s.Method), http.MethodPost)
	wrong.when(!oneOf(w.method, http.MethodPost, http.MethodPut, http.MethodPatch), "method",
		"%q is no way to send; expected POST, PUT or PATCH", s.Method)
	var err error
	w.secrets, err = newCredentials(s, h)
	wrong.add(err)
	if s.Identity != nil {
		w.identity, err = newIdentity(*s.Identity, h)
		wrong.add(err)
	}
	wrong.when(w.binary && len(s.Signing) > 0, "signing_secrets",
		"a signature covers the body only, and in binary mode the CloudEvent's attributes are headers; "+
			"expected mode structured")
	wrong.add(w.openBody(s), w.tryRequest(s))
	w.caller, err = newCaller(s.TLS, s.Proxy, h)
	wrong.add(err)
	w.caller.denied = isUndelivered
	if s.service != nil {
		w.caller.denied = isDenial
		w.caller.blockedIf, err = parseCondition(s.service.BlockedIf, `json.info == "no devices"`)
		wrong.when(err != nil, "blocked_if", "%w", err)
	}
	w.caller.blockedOn, err = blockedOn(s)
	wrong.add(err)
	w.caller.success, err = parseCondition(s.Success, "json.errors == false")
	wrong.when(err != nil, "success", "%w", err)
	if err := wrong.err(); err != nil {
		return Opened{}, err
	}
	values := w.secrets.sources()
	opened := Opened{Sink: w, Secrets: append(values.files(), s.TLS.files()...), Keep: values.keep(h)}
	if a, err := w.secrets.read(); exceptUnread(err) == nil {
		opened.note(a.inClear != "", noteInClear(a.inClear))
		opened.note(true, w.caller.noteProxy(a.url.URL, a.redact))
	}
	return opened, nil
}

// blockedOn returns the statuses that block besides the usual ones.
func blockedOn(s webhookSettings) ([]int, error) {
	var wrong KeyErrors
	for _, status := range s.BlockedOn {
		outside := status < 400 || status > 499
		wrong.when(outside, "blocked_on", "%d; expected statuses from 400 to 499, such as [400]", status)
		wrong.when(!outside && classOfStatus(status) == nil, "blocked_on",
			"%d means to come back later; expected other statuses", status)
	}
	return s.BlockedOn, wrong.err()
}

// openBody parses the template of the body and tries it on samples.
func (w *webhook) openBody(s webhookSettings) error {
	text, key, err := settingsText("body_text", s.BodyText, s.BodyTextFile)
	if err != nil {
		return err
	}
	if s.service != nil {
		key = "body" // as in its file
	}
	var wrong KeyErrors
	w.contentType = s.ContentType
	_, _, mediaErr := mime.ParseMediaType(w.contentType)
	wrong.when(w.contentType != "" && (mediaErr != nil || !validHeaderValue(w.contentType)), "content_type",
		"%q is not a media type; expected one such as text/plain; charset=utf-8", w.contentType)
	if key == "" {
		wrong.when(s.ContentType != "" && w.binary, "content_type", "is that of the data in mode binary; expected mode structured")
		wrong.when(s.RunbookURL != "" || s.RunbookURLFile != "", "runbook_url",
			"is for body_text; a CloudEvent holds no link")
		return wrong.err()
	}
	wrong.when(s.Mode != "", "mode", "is how a CloudEvent is sent, and %s replaces it; expected one or the other", key)
	wrong.add(w.runbook.key(s.RunbookURL, s.RunbookURLFile).open(nil))
	w.contentType = cmp.Or(s.ContentType, "application/json")
	w.bodyText = text
	w.body, err = templates.Parse(key, text)
	if err == nil {
		err = templates.CheckNames(text, s.shape())
	}
	if err == nil && len(wrong) == 0 {
		err = tryOut(func(f map[string]any) error {
			f["setting"] = w.shownSettings()
			_, err := w.render(f)
			return err
		})
	}
	wrong.when(err != nil, key, "%w", err)
	return wrong.err()
}

// tryRequest tries the templates of the URL and of headers on samples.
func (w *webhook) tryRequest(s webhookSettings) error {
	a, err := w.secrets.read()
	if exceptUnread(err) != nil || !a.hasTemplates() {
		return nil // newCredentials has said what is wrong
	}
	shape := s.shape()
	var wrong KeyErrors
	for _, from := range append(slices.Clone(w.secrets.headers), w.secrets.url) {
		text, err := from.read(w.Host)
		if from.key == "url" {
			text = joinPath(text, w.secrets.path)
		}
		if err == nil && isTemplate(text) && templates.CheckNames(text, shape) != nil {
			wrong.add(&KeyError{from.from(), templates.CheckNames(text, shape)})
		}
	}
	if len(wrong) > 0 {
		return wrong.err()
	}
	return tryOut(func(f map[string]any) error {
		f["setting"] = w.shownSettings()
		_, err := a.request(f, make(http.Header))
		return err
	})
}

// shownSettings returns the values of the service's own keys by name, each secret as [secret].
func (w *webhook) shownSettings() map[string]string {
	values := make(map[string]string, len(w.secrets.own))
	for _, s := range w.secrets.own {
		switch {
		case !s.given():
			values[s.name] = ""
		case s.open:
			values[s.name] = s.Text.plain()
		default:
			values[s.name] = hidden
		}
	}
	return values
}

// render returns the body for one CloudEvent. If its media type is JSON, it must be JSON.
func (w *webhook) render(fields map[string]any) ([]byte, error) {
	var b bytes.Buffer
	if err := w.body.Execute(&b, fields); err != nil {
		return nil, err
	}
	if isJSON(w.contentType) {
		var value json.RawMessage
		if err := json.Unmarshal(b.Bytes(), &value); err != nil {
			return nil, fmt.Errorf("the body is not JSON, as %s has to be: %w; put values in with {{json .name}}",
				w.contentType, err)
		}
	}
	return b.Bytes(), nil
}

// isJSON reports whether a media type is one of JSON.
func isJSON(content string) bool {
	t, _, _ := mime.ParseMediaType(content)
	return oneOf(t, "application/json", "text/json") || strings.HasSuffix(t, "+json")
}

// Deliver posts the CloudEvent of the batch, which holds one.
//
// An answer that blocks drops the token of a managed identity, so that the next attempt has a new one: permissions are
// part of some tokens. The bridge retries soon until it has met several such answers, so that a token that has only
// expired alarms nobody.
func (w *webhook) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	values := w.secrets.sources()
	err := values.load(ctx, w.Host)
	if err != nil {
		return delivery.Answer{}, err
	}
	a, err := w.secrets.read()
	if err != nil {
		return delivery.Answer{}, fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	a.redact.hideKeys(w.bodyText)
	if w.identity != nil {
		token, err := w.identity.get(ctx)
		if err != nil {
			return delivery.Answer{}, err
		}
		a.redact.hide(token)
		a.header.Set("Authorization", "Bearer "+token)
	}
	req, err := w.request(ctx, a, batch)
	if err != nil {
		return delivery.Answer{}, fmt.Errorf("%w: %s", delivery.ErrRejected, a.redact.line(err.Error(), maxShown))
	}
	answer, err := w.caller.do(req, a.redact)
	values.refuse(w.Host, err)
	if w.identity != nil && errors.Is(err, delivery.ErrBlocked) {
		w.identity.forget()
	}
	return answer, err
}

// Render returns the request that Deliver would make. The path of the URL, the headers of the settings, and keys in the
// text of the body are hidden.
func (w *webhook) Render(d delivery.Delivery) (string, error) {
	a, err := w.secrets.read()
	if exceptUnread(err) != nil {
		return "", err
	}
	if w.identity != nil {
		a.header.Set("Authorization", hidden) // without getting a token
	}
	a.setting = w.shownSettings()
	req, err := w.request(context.Background(), a, []delivery.Delivery{d})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s/[secret]\n", req.Method, origin(a.url.URL))
	for _, name := range slices.Sorted(maps.Keys(req.Header)) {
		value := req.Header.Get(name)
		if len(a.header.Values(name)) > 0 || a.makes(name) {
			value = hidden
		}
		fmt.Fprintf(&b, "%s: %s\n", name, value)
	}
	body, err := io.ReadAll(req.Body)
	fmt.Fprintf(&b, "\n%s\n", templates.HideKeys(string(body), w.bodyText))
	return b.String(), err
}

// Connect connects to the URL's host, or to the proxy, and makes no request.
func (w *webhook) Connect(ctx context.Context) (string, error) {
	if err := w.secrets.sources().load(ctx, w.Host); err != nil {
		return "", err
	}
	a, err := w.secrets.read()
	if err != nil {
		return "", fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	return w.caller.connect(ctx, a.url.URL, a.redact)
}

// Close closes idle connections.
func (w *webhook) Close() error { return w.caller.Close() }

// request returns the request for one CloudEvent or, with a body of its own, for a group. It has signatures of the current
// time if there are signing secrets.
func (w *webhook) request(ctx context.Context, a access, batch []delivery.Delivery) (*http.Request, error) {
	header := a.header.Clone()
	var fields map[string]any // of templates; nil if there are none
	if w.body != nil || a.hasTemplates() {
		fields = w.fields(batch, w.now())
		fields["setting"] = a.setting
		w.runbook.put(fields, w.Log)
	}
	to, err := a.request(fields, header)
	if err != nil {
		return nil, err
	}
	body, err := w.message(batch[0], fields, header)
	if err != nil {
		return nil, err
	}
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", w.Agent)
	}
	id := encodeAttribute(batchID(batch)) // a stranger's may hold line breaks
	header.Set("Idempotency-Key", id)     // also lets net/http repeat a request that met a dead connection
	if len(a.keys) > 0 {
		now := w.now()
		header.Set("webhook-id", id)
		header.Set("webhook-timestamp", strconv.FormatInt(now.Unix(), 10))
		header.Set("webhook-signature", sign(a.keys, id, now, body))
	}
	req, err := http.NewRequestWithContext(ctx, w.method, "", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.URL, req.Host, req.Header = to, a.host, header
	return req, nil
}

// message returns the body, and sets the headers that describe it. fields are those of templates. Without a template the
// body is the CloudEvent of d.
func (w *webhook) message(d delivery.Delivery, fields map[string]any, header http.Header) ([]byte, error) {
	switch ce := d.Event; {
	case w.body != nil:
		header.Set("Content-Type", w.contentType)
		return w.render(fields)
	case w.binary:
		all, err := attributes(ce)
		if err != nil {
			return nil, err
		}
		for _, a := range all {
			header.Set("ce-"+a.name, encodeAttribute(a.value))
		}
		if contentType := ce.DataContentType(); !validHeaderValue(contentType) {
			return nil, errors.New("its datacontenttype can't be sent as a header")
		} else if contentType != "" {
			header.Set("Content-Type", contentType)
		}
		return ce.Data(), nil
	}
	header.Set("Content-Type", cmp.Or(w.contentType, structuredType))
	return d.Event.MarshalJSON()
}
