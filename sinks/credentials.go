package sinks

import (
	"encoding/base64"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"forewarn/templates"
)

// credentials are the sources of the values in a webhook's settings that may be secret. They are read on each use.
type credentials struct {
	url      source
	bearer   source
	username string // of basic
	password source
	headers  sources
	signing  sources
	own      sources // of the service's own keys
	path     string  // of the service, added to the URL
	identity bool    // a managed identity adds a token
	secure   bool    // the URL must be https, because the settings have tls
	insecure bool    // the URL may be http even if credentials are sent
	host     Host
}

// access holds the values of credentials at the time of one read, and the redactor that knows them.
type access struct {
	url     target
	from    source // of the URL
	host    string // of the request; "" for that of the URL
	header  http.Header
	made    []madeHeader
	keys    [][]byte          // to sign with
	setting map[string]string // the values of the service's own keys by name
	inClear string            // the settings key of credentials that are sent unencrypted, "" for none
	redact  *redactor
}

// newCredentials checks the settings, and reads all values once so that their errors are found too.
func newCredentials(s webhookSettings, h Host) (credentials, error) {
	c := credentials{
		insecure: s.Insecure,
		url:      keyedSource("url", s.URL, s.URLFile, s.URLEnv, s.URLVault),
		bearer:   keyedSource("bearer", s.Bearer, s.BearerFile, s.BearerEnv, s.BearerVault),
		identity: s.Identity != nil,
		secure:   s.TLS != TLSSettings{},
		headers:  mapSources("headers", s.Headers),
		own:      s.own,
		signing:  listSources("signing_secrets", s.Signing),
		host:     h,
	}
	if s.service != nil {
		c.addService(s.service)
	}
	var wrong KeyErrors
	if b := s.Basic; b != nil {
		c.username = b.Username
		c.password = keyedSource("basic.password", b.Password, b.PasswordFile, b.PasswordEnv, b.PasswordVault)
		wrong.when(b.Username == "" || strings.Contains(b.Username, ":") || !validHeaderValue(b.Username), "basic.username",
			"expected a name without a colon")
		wrong.when(!c.password.given(), "basic.password", "missing; expected password, password_file, password_env or password_vault")
		wrong.when(c.bearer.given(), "basic", "bearer is given too; expected only one of them")
	}
	wrong.when(c.identity && (c.bearer.given() || c.password.given()), "azure_identity",
		"bearer or basic is given too; expected only one of them")
	wrong.when(!c.url.given(), "url", "missing; expected url, url_file, url_env or url_vault")
	wrong.add(c.checkNames(), c.sources().check())
	if len(wrong) == 0 {
		_, err := c.read()
		wrong.add(exceptUnread(err))
	} else if c.url.given() && c.url.check() == nil {
		wrong.add(exceptUnread(c.readURL(&access{redact: c.host.redactor()})))
	}
	return c, wrong.err()
}

// addService adds the URL and the headers of a service where the settings have none.
func (c *credentials) addService(s *Service) {
	c.path = s.Path
	if s.URL != "" && (!c.url.given() || c.url.Text.plain() == s.URL) {
		c.url.Text, c.url.open = NewSecret(s.URL), true
	}
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		same := func(h source) bool { return http.CanonicalHeaderKey(h.name) == http.CanonicalHeaderKey(name) }
		if !slices.ContainsFunc(c.headers, same) {
			header := source{Value: Value{Text: NewSecret(s.Headers[name])}, key: "headers." + name, name: name, open: true}
			c.headers = append(c.headers, header)
		}
	}
}

// sentKeys returns the settings keys of the credentials that each request carries, except a user in the URL. A signing
// secret is not sent.
func (c credentials) sentKeys() (keys []string) {
	keys = slices.Concat(c.bearer.keys(), c.password.keys())
	if c.identity {
		keys = append(keys, "azure_identity")
	}
	for _, h := range c.headers {
		if h.isCredential() {
			keys = append(keys, h.from())
		}
	}
	for _, s := range c.own {
		if !s.open {
			keys = append(keys, s.keys()...)
		}
	}
	return keys
}

// sources returns the sources of all values.
func (c credentials) sources() sources {
	return slices.Concat(sources{c.url, c.bearer, c.password}, c.headers, c.own, c.signing)
}

// checkNames returns the errors about headers whose name is invalid, used twice, or not for the settings to set.
func (c credentials) checkNames() error {
	var wrong KeyErrors
	seen := make(map[string]bool)
	for _, h := range c.headers {
		name := http.CanonicalHeaderKey(h.name)
		err := refusedHeader(h.name)
		wrong.when(err != nil, h.key, "%w", err)
		wrong.when(seen[name], h.key, "stands twice; the case of a header's name does not count")
		seen[name] = true
		if h.open {
			continue // a service's own, which is empty without its own key
		}
		other := "bearer or basic"
		if !c.bearer.given() && !c.password.given() {
			other = "azure_identity"
		}
		wrong.when(name == "Authorization" && (c.identity || other != "azure_identity"), h.key,
			"%s is given too; expected only one of them", other)
	}
	return wrong.err()
}

// read returns the current values. Its errors are *KeyError or KeyErrors, and hold no secret. If all of them are
// errUnread, the other values are there.
func (c credentials) read() (access, error) {
	a := access{
		header: make(http.Header), setting: make(map[string]string), from: c.url, redact: c.host.redactor(),
	}
	var wrong KeyErrors
	wrong.add(c.readURL(&a))
	for _, h := range c.headers {
		value, err := h.read(c.host)
		if err == nil && !validHeaderValue(value) {
			err = h.wrong(errControl)
		}
		wrong.add(err)
		if h.isTemplate() {
			wrong.add(c.readHeaderTemplate(h, value, &a))
			continue
		}
		if http.CanonicalHeaderKey(h.name) == "Host" { // not a secret, and likely the URL's
			a.host = value
			a.redact.showHosts(value)
			continue
		}
		a.header.Set(h.name, value)
		if h.isCredential() {
			a.redact.hideHeader(value)
		} else {
			a.redact.hideKeys(value)
		}
	}
	for _, s := range c.own {
		a.setting[s.name] = ""
		if !s.given() {
			continue
		}
		value, err := s.read(c.host)
		wrong.add(err)
		if !s.open {
			a.redact.hideSecret(value)
		}
		a.setting[s.name] = value
	}
	authorization, err := c.readAuthorization(a.redact)
	wrong.add(err)
	if authorization != "" {
		a.header.Set("Authorization", authorization)
	}
	for _, s := range c.signing {
		secret, err := s.read(c.host)
		a.redact.hide(secret, strings.TrimPrefix(secret, signingPrefix))
		key, bad := signingKey(secret)
		a.redact.hideBytes(key)
		if err == nil && bad != nil {
			err = s.wrong(bad)
		}
		wrong.add(err)
		a.keys = append(a.keys, key)
	}
	if err := exceptUnread(wrong.err()); err != nil {
		return a, wrong.err()
	}
	keys := c.sentKeys()
	if user := a.url.User; user != nil {
		if a.header.Get("Authorization") != "" || c.identity {
			return a, c.url.wrong(says("holds a user, and there are other credentials too; expected only one of them"))
		}
		password, _ := user.Password()
		a.header.Set("Authorization", basic(user.Username(), password))
		keys = append([]string{c.url.from()}, keys...)
	}
	if len(keys) > 0 && isExposed(a.url.URL) {
		a.inClear = keys[0]
	}
	if a.inClear != "" && !c.insecure {
		return a, errInClear(a.inClear, c.url.from(), "https://")
	}
	return a, wrong.err()
}

// readURL reads the URL into a.
func (c credentials) readURL(a *access) error {
	raw, err := c.url.read(c.host)
	if err != nil {
		a.url = target{URL: &url.URL{Scheme: "https", Host: hidden}}
		return err
	}
	own, err := parseTarget(raw, c.secure)
	if err == nil {
		a.url, err = parseTarget(joinPath(raw, c.path), c.secure)
	}
	if err != nil {
		return c.url.wrong(err)
	}
	a.redact.hideKeys(joinPath(raw, c.path))
	if !c.url.open {
		a.redact.hideURL(own.URL)
		a.redact.hideParts(constants(raw)...)
	}
	return nil
}

// readHeaderTemplate reads a header that a template makes into a. What the template says itself may be a secret, what
// it puts in is none.
func (c credentials) readHeaderTemplate(h source, text string, a *access) error {
	made, err := templates.Parse(h.key, text)
	if err != nil {
		return h.wrong(errTemplate)
	}
	a.made = append(a.made, madeHeader{h, made})
	if h.isCredential() {
		a.redact.hideHeader(withoutActions(text))
	}
	a.redact.hideParts(constants(text)...)
	return nil
}

// readAuthorization returns the value of the Authorization header, or "" if the settings have neither bearer nor basic.
func (c credentials) readAuthorization(redact *redactor) (string, error) {
	switch {
	case c.bearer.given():
		token, err := c.bearer.read(c.host)
		redact.hide(token)
		if err == nil && !validHeaderValue(token) {
			err = c.bearer.wrong(errControl)
		}
		return "Bearer " + token, err
	case c.password.given():
		password, err := c.password.read(c.host)
		redact.hideLogin(c.username, password)
		return basic(c.username, password), err
	}
	return "", nil
}

var errControl = says("holds a line break or another control character, which no header can; expected the value alone, on one line")

// basic returns the value of an Authorization header for HTTP's basic authentication.
func basic(username, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(username+":"+password))
}

// ownHeaders maps the headers that the settings cannot set to the reason.
var ownHeaders = map[string]string{
	"Content-Type":        "it follows from mode, or from content_type beside body_text",
	"Content-Length":      "it follows from the body",
	"Idempotency-Key":     "it is the CloudEvent's id",
	"Proxy-Authorization": "the proxy's credentials stand in its URL",
}

// refusedHeader returns why the settings cannot set a header, nil if they can.
func refusedHeader(name string) error {
	canonical := http.CanonicalHeaderKey(name)
	why := ownHeaders[canonical]
	switch {
	case !validHeaderName(name):
		return says("not the name of a header; expected letters, digits and dashes")
	case oneOf(canonical, "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect",
		"Proxy-Connection"):
		why = "it belongs to the connection"
	case strings.HasPrefix(canonical, "Ce-"), strings.HasPrefix(canonical, "Webhook-"):
		why = "names that begin with ce- and webhook- belong to CloudEvents and signatures"
	}
	if why != "" {
		return errors.New("cannot be set: " + why)
	}
	return nil
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// validHeaderName and validHeaderValue report whether HTTP permits a header's name and value (RFC 9110, section 5).
func validHeaderName(name string) bool {
	return name != "" && strings.Trim(name, "!#$%&'*+-.^_`|~0123456789"+letters) == ""
}

func validHeaderValue(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F })
}
