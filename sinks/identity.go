package sinks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"forewarn/bridge/delivery"
)

// identitySettings name a managed identity of this VM and what its tokens are for.
type identitySettings struct {
	Resource string `yaml:"resource" required:"" doc:"what the token is for, such as https://eventgrid.azure.net"`
	ClientID string `yaml:"client_id" doc:"which user-assigned identity, if the VM has several"`
}

// renewBefore is the time before its expiry from which a token is no longer used.
const renewBefore = 5 * time.Minute

// An identity gets tokens of a managed identity of this VM from the metadata service, without a proxy and without
// redirects. It keeps a token in memory until shortly before it expires.
type identity struct {
	settings identitySettings
	host     Host
	url      string
	caller   *caller
	now      func() time.Time

	cached atomic.Pointer[cachedToken]
}

// A cachedToken is a token, and the time until which it is used.
type cachedToken struct {
	token Secret
	until time.Time
}

func newIdentity(s identitySettings, h Host) (*identity, error) {
	u, err := url.Parse(s.Resource)
	var wrong KeyErrors
	bad := err != nil || s.Resource == "" || u.Scheme == "" && uuid.Validate(s.Resource) != nil
	wrong.when(bad, "azure_identity.resource",
		"%q is not a resource; expected the application id URI of the destination, "+
			"such as https://eventgrid.azure.net", s.Resource)
	wrong.when(s.ClientID != "" && uuid.Validate(s.ClientID) != nil, "azure_identity.client_id",
		"%q is not a client id; expected one such as 0c0c0c0c-1111-2222-3333-444444444444", s.ClientID)
	query := url.Values{"api-version": {"2018-02-01"}, "resource": {s.Resource}}
	if s.ClientID != "" {
		query.Set("client_id", s.ClientID)
	}
	return &identity{
		settings: s, host: h, now: time.Now, caller: &caller{dial: h.dialer(connectTime)},
		url: h.Endpoint + "/metadata/identity/oauth2/token?" + query.Encode(),
	}, wrong.err()
}

// get returns the cached token or a new one. Its errors have a class, and show no token.
func (i *identity) get(ctx context.Context) (string, error) {
	if t := i.cached.Load(); t != nil && i.now().Before(t.until) {
		return t.token.plain(), nil
	}
	token, life, err := i.fetch(ctx)
	if err != nil {
		return "", err
	}
	i.cached.Store(&cachedToken{NewSecret(token), i.now().Add(life - renewBefore)})
	return token, nil
}

// forget removes the cached token, so that the next attempt gets a new one.
func (i *identity) forget() { i.cached.Store(nil) }

// fetch gets a new token from the metadata service, and the time for which it is valid.
func (i *identity) fetch(ctx context.Context) (token string, life time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, i.url, nil)
	if err != nil {
		return "", 0, fmt.Errorf("%w: token of the managed identity: %w", delivery.ErrBlocked, err)
	}
	req.Header.Set("Metadata", "true")
	r, err := i.caller.fetch(req, i.host.redactor())
	if err != nil {
		return "", 0, fmt.Errorf("token of the managed identity: %w", err)
	}
	i.caller.Close() // a token lasts for hours
	if r.status != http.StatusOK {
		return "", 0, r.withRetryAfter(i.refusal(r.status, r.body))
	}
	if r.cut {
		return "", 0, errors.New("token of the managed identity: read the answer: it ends early")
	}
	return readToken(r.body, i.now())
}

// refusal returns the error for an answer without a token. It blocks, except for the statuses that the metadata service
// documents as temporary: it answers 404 and 410 while it is being updated.
func (i *identity) refusal(status int, body string) error {
	var why struct {
		Description string `json:"error_description"`
	}
	json.Unmarshal([]byte(body), &why) // a refusal need not be JSON
	text := "token of the managed identity: " + statusLine(status)
	if description := i.host.redactor().line(why.Description, maxShown); description != "" {
		text += ": " + description
	}
	if oneOf(status, 404, 408, 410, 429) || status >= 500 {
		return errors.New(text)
	}
	said := strings.ToLower(why.Description)
	if strings.Contains(said, "multiple user assigned identities") {
		text += "; azure_identity: {client_id: ID} says which one"
	}
	if strings.Contains(said, "identity not found") {
		text += "; this VM has no managed identity"
		if i.settings.ClientID != "" {
			text += " with the client id " + i.settings.ClientID
		}
		text += "; assign one to it, such as with az vm identity assign"
	}
	return withClass(delivery.ErrBlocked, text)
}

// readToken returns the token in an answer and the time for which it is valid. The number of seconds in the answer is
// preferred to the time of the expiry, because it does not depend on this VM's clock.
func readToken(body string, now time.Time) (token string, life time.Duration, err error) {
	var a struct {
		Token string `json:"access_token"`
		In    count  `json:"expires_in"`
		On    count  `json:"expires_on"`
	}
	if json.Unmarshal([]byte(body), &a) != nil || a.Token == "" || !validHeaderValue(a.Token) { // the error may show it
		return "", 0, errors.New("token of the managed identity: unexpected answer from the metadata service")
	}
	switch {
	case a.In > 0:
		life = time.Duration(a.In) * time.Second
	case a.On > 0:
		life = time.Unix(int64(a.On), 0).Sub(now)
	}
	return a.Token, life, nil
}

// A count is a number of seconds. Azure writes it as a text, and some replacements of the service as a number. It is 0
// if it is anything else, or larger than the life of any token.
type count int64

// UnmarshalJSON reads both forms, and never fails.
func (c *count) UnmarshalJSON(text []byte) error {
	n, err := strconv.ParseUint(strings.Trim(string(text), `"`), 10, 33)
	if err != nil {
		n = 0
	}
	*c = count(n)
	return nil
}
