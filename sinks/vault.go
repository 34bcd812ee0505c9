package sinks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"forewarn/bridge/delivery"
)

const (
	vaultEvery = time.Hour       // after which a secret is read again
	vaultRetry = time.Minute     // after which one that could not be read is tried again, if a value of it is known
	vaultTime  = 5 * time.Second // for one read, with the token for it
	vaultMax   = 25 << 10        // bytes of a secret; Key Vault stores no longer one
)

// A Vault reads secrets from Azure Key Vault with the managed identity of this VM, and keeps them in memory, for all
// sinks that share it. A value stays in use until another one is read, however long the vault is out of reach. The zero
// value is ready to use. It is safe for concurrent use. A nil Vault knows no secret and reads none.
type Vault struct {
	mu         sync.Mutex
	secrets    map[vaultKey]*vaultSecret
	identities map[vaultKey]*identity // by what their tokens are for

	tls   TLSSettings      // of the vaults; only tests set it
	clock func() time.Time // nil for time.Now
}

// A vaultKey is the URL of a secret, or of what a token is for, and the client id of the identity; see Host.ClientID.
type vaultKey struct{ url, clientID string }

// A vaultSecret is a secret in memory.
type vaultSecret struct {
	turn chan struct{} // holds one while the secret is read

	mu      sync.Mutex
	value   Secret    // the last that was read; the zero value before
	due     time.Time // when it is read again
	refused bool      // a destination has refused the value
	problem string    // why the last read failed; "" if it did not
}

// errUnread is the error of a secret that was not read from Key Vault yet.
var errUnread = errors.New("was not read from Key Vault yet")

// exceptUnread returns err without the errors about secrets that were not read from Key Vault yet. Settings are checked
// before they are.
func exceptUnread(err error) error {
	all, several := err.(KeyErrors)
	if !several {
		all = KeyErrors{err}
	}
	var rest KeyErrors
	for _, err := range all {
		if !errors.Is(err, errUnread) {
			rest.add(err)
		}
	}
	return rest.err()
}

// vaultResources are what a token is for, by the domain of the vault.
var vaultResources = map[string]string{
	"vault.azure.net":         "https://vault.azure.net",
	"vault.azure.cn":          "https://vault.azure.cn",
	"vault.usgovcloudapi.net": "https://vault.usgovcloudapi.net",
}

var (
	vaultName  = onceNeeded(`^[A-Za-z0-9-]{3,24}$`)
	secretPath = onceNeeded(`^/secrets/[A-Za-z0-9-]{1,127}(/[A-Za-z0-9]{1,64})?/?$`)
)

// checkVaultURL returns an error for what is not the URL of a secret in Key Vault. It does not show it, because it may be
// the secret itself.
func checkVaultURL(text string) error {
	const want = "; expected one such as https://NAME.vault.azure.net/secrets/slack-token"
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.User != nil || u.RawQuery+u.Fragment != "" {
		return says("is not the URL of a secret in Key Vault" + want)
	}
	name, domain, _ := strings.Cut(strings.ToLower(u.Host), ".")
	switch {
	case domain == "managedhsm.azure.net":
		return says("is the URL of a managed HSM, which has keys and no secrets" + want)
	case vaultResources[domain] == "" || !vaultName().MatchString(name):
		return says("is not at a host of Key Vault: vault.azure.net, vault.azure.cn or vault.usgovcloudapi.net" + want)
	case !secretPath().MatchString(u.Path):
		return says("does not name a secret" + want + ", perhaps with a version behind it")
	}
	return nil
}

// value returns the value in memory; ok is false if there is none.
func (v *Vault) value(h Host, at string) (text string, ok bool) {
	if v == nil {
		return "", false
	}
	s := v.secret(h, at)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value.plain(), s.value.text != nil
}

// secret returns the secret at a URL.
func (v *Vault) secret(h Host, at string) *vaultSecret {
	v.mu.Lock()
	defer v.mu.Unlock()
	key := vaultKey{strings.TrimSuffix(at, "/"), h.ClientID}
	s := v.secrets[key]
	if s == nil {
		s = &vaultSecret{turn: make(chan struct{}, 1)}
		if v.secrets == nil {
			v.secrets = make(map[vaultKey]*vaultSecret)
		}
		v.secrets[key] = s
	}
	return s
}

func (v *Vault) now() time.Time {
	if v.clock != nil {
		return v.clock()
	}
	return time.Now()
}

// load reads a secret if there is no value in memory, or a destination has refused it; with upkeep also if the value is
// old. It logs the first of equal failures, and the success after them. The error has a class; there is none while there
// is a value.
func (v *Vault) load(ctx context.Context, h Host, at string, upkeep bool) error {
	if v == nil {
		return withClass(delivery.ErrBlocked, at+": "+errUnread.Error())
	}
	s := v.secret(h, at)
	if !s.wanted(v.now(), upkeep) {
		return nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return noAnswer(ctx, at)
	}
	if !s.wanted(v.now(), upkeep) { // another sink has read it
		return nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, vaultTime, fmt.Errorf("no answer within %v", vaultTime))
	defer cancel()
	value, err := v.fetch(limited, h, strings.TrimSuffix(at, "/"))
	if err != nil && ctx.Err() != nil { // which says nothing about the vault
		return err
	}
	return s.settle(value, err, v.now(), h, at)
}

// wanted reports whether load reads the secret.
func (s *vaultSecret) wanted(now time.Time, upkeep bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value.text == nil || (s.refused || upkeep) && !now.Before(s.due)
}

// settle stores the result of a read, says what is new about it, and returns the error of load.
func (s *vaultSecret) settle(value Secret, err error, now time.Time, h Host, at string) error {
	before, kept := s.store(value, err, now)
	switch {
	case err == nil && before != "":
		h.Log.Info("secret read from Key Vault again", "secret", at)
	case err != nil && err.Error() != before:
		h.Log.Warn("secret not read from Key Vault", "secret", at, "last value in use", kept,
			"err", delivery.WithoutClass(err.Error()))
	}
	if kept {
		return nil
	}
	return err
}

// store stores the result of a read. It returns why the one before failed, and whether there is a value.
func (s *vaultSecret) store(value Secret, err error, now time.Time) (before string, kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.problem
	if err == nil {
		s.value, s.due, s.refused, s.problem = value, now.Add(vaultEvery), false, ""
		return before, true
	}
	s.due, s.problem = now.Add(vaultRetry), err.Error()
	if wait, asked := errors.AsType[*delivery.RetryAfter](err); asked {
		s.due = now.Add(max(vaultRetry, min(wait.After, vaultEvery)))
	}
	return before, s.value.text != nil
}

// refuse notes that a destination has refused the value, so that the next load reads the secret again.
func (v *Vault) refuse(h Host, at string) {
	if v == nil {
		return
	}
	s := v.secret(h, at)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = true
	if s.problem == "" { // else it waits as after any failure
		s.due = time.Time{}
	}
}

// Expire has each secret read again when Opened.Keep is called next.
func (v *Vault) Expire() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.secrets {
		s.mu.Lock()
		s.due = time.Time{}
		s.mu.Unlock()
	}
}

// identity returns the source of tokens for the vault of a secret.
func (v *Vault) identity(h Host, at *url.URL) (*identity, error) {
	_, domain, _ := strings.Cut(strings.ToLower(at.Host), ".")
	v.mu.Lock()
	defer v.mu.Unlock()
	key := vaultKey{vaultResources[domain], h.ClientID}
	if i := v.identities[key]; i != nil {
		return i, nil
	}
	i, err := newIdentity(identitySettings{Resource: key.url, ClientID: key.clientID}, h)
	if err != nil {
		return nil, err
	}
	if v.identities == nil {
		v.identities = make(map[vaultKey]*identity)
	}
	v.identities[key] = i
	return i, nil
}

// fetch reads a secret. Its errors have a class, name the secret, and show nothing of it.
func (v *Vault) fetch(ctx context.Context, h Host, at string) (Secret, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"?api-version=7.4", nil)
	if err != nil {
		return Secret{}, fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	i, err := v.identity(h, req.URL)
	if err != nil {
		return Secret{}, fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	token, err := i.get(ctx)
	if err != nil {
		remedy := "; Key Vault is read with the managed identity of an Azure VM: where there is none, keep the secret in a file"
		if errors.Is(err, delivery.ErrBlocked) { // the answer was Azure's
			remedy = ""
		}
		return Secret{}, aboutSecret(at, err, remedy)
	}
	redact := h.redactor()
	redact.hide(token)
	req.Header.Set("Authorization", "Bearer "+token)
	if h.Agent != "" {
		req.Header.Set("User-Agent", h.Agent)
	}
	caller, err := newCaller(v.tls, Secret{}, h)
	if err != nil {
		return Secret{}, fmt.Errorf("%w: %w", delivery.ErrBlocked, err)
	}
	defer caller.Close() // the next read is an hour away
	r, err := caller.fetch(req, redact)
	if err != nil {
		return Secret{}, aboutSecret(at, err, "")
	}
	if r.status != http.StatusOK {
		err = vaultRefusal(at, r, redact)
		if errors.Is(err, delivery.ErrBlocked) {
			i.forget() // permissions are part of some tokens
		}
		return Secret{}, err
	}
	return vaultValue(at, r)
}

// aboutSecret returns an error with the URL of a secret before its text and a remedy behind it. It keeps the class, and
// the wish for a pause.
func aboutSecret(at string, err error, remedy string) error {
	wait, asks := errors.AsType[*delivery.RetryAfter](err)
	if asks {
		err = wait.Err
	}
	var class error
	if errors.Is(err, delivery.ErrBlocked) {
		class = delivery.ErrBlocked
	}
	host, _, _ := strings.Cut(at, "/secrets/")
	err = withClass(class, at+": "+strings.TrimPrefix(delivery.WithoutClass(err.Error()), host+": ")+remedy)
	if asks {
		return &delivery.RetryAfter{After: wait.After, Err: err}
	}
	return err
}

// vaultValue returns the secret that an answer holds. An error shows nothing of the answer.
func vaultValue(at string, r response) (Secret, error) {
	var answer struct {
		Value *string `json:"value"`
	}
	if r.cut {
		return Secret{}, errors.New(at + ": the answer ends early")
	}
	if json.Unmarshal([]byte(r.body), &answer) != nil || answer.Value == nil {
		return Secret{}, errors.New(at + ": unexpected answer; is something else at this address?")
	}
	text := trimNewline(*answer.Value)
	switch {
	case text == "":
		return Secret{}, withClass(delivery.ErrBlocked, at+": the secret is empty")
	case len(text) > vaultMax:
		return Secret{}, withClass(delivery.ErrBlocked, at+": the secret is larger than 25 KiB")
	}
	return NewSecret(text), nil
}

// vaultRemedies are what helps against a refusal, by the code that tells why.
var vaultRemedies = map[string]string{
	"ForbiddenByRbac":       vaultRole,
	"ForbiddenByPolicy":     vaultRole,
	"AccessDenied":          vaultRole,
	"ForbiddenByFirewall":   vaultNetwork,
	"ForbiddenByConnection": vaultNetwork,
	"SecretDisabled":        "enable the secret, or name another version of it",
	"SecretNotFound":        "create the secret, or correct its URL",
	"Unauthorized":          "the VM must be in the tenant of the vault",
}

const (
	vaultRole = `give the VM's managed identity the role "Key Vault Secrets User" on the vault or, if that has access ` +
		"policies, the permission Get for secrets; it can take ten minutes to count"
	vaultNetwork = "the networking of the vault keeps this VM out: allow its subnet, or give the vault a private endpoint there"
)

// vaultRefusal returns the error for an answer without a secret. It never rejects a CloudEvent, which the vault does not
// see.
func vaultRefusal(at string, r response, redact *redactor) error {
	var answer struct {
		Error struct {
			Code, Message string
			Inner         struct{ Code string } `json:"innererror"`
		}
	}
	json.Unmarshal([]byte(r.body), &answer) // what is no JSON has no code
	class := classOfStatus(r.status)
	if class != nil {
		class = delivery.ErrBlocked
	}
	text := at + ": " + statusLine(r.status)
	for _, said := range []string{answer.Error.Inner.Code, answer.Error.Message} {
		if shown := redact.line(said, maxShown); shown != "" {
			text += ": " + shown
		}
	}
	remedy, known := vaultRemedies[answer.Error.Inner.Code]
	if !known {
		remedy, known = vaultRemedies[answer.Error.Code]
	}
	if !known && r.status == http.StatusForbidden {
		remedy = vaultRole
	}
	if remedy != "" {
		text += "; " + remedy
	}
	return r.withRetryAfter(withClass(class, text))
}

// load reads the secrets in Key Vault that are not in memory, or that a destination has refused. Its error has a class.
func (all sources) load(ctx context.Context, h Host) error { return all.loadVault(ctx, h, false) }

// refuse has the next load read the secrets in Key Vault again if err says that a destination refused them.
func (all sources) refuse(h Host, err error) {
	if !errors.Is(err, delivery.ErrBlocked) {
		return
	}
	for _, s := range all {
		if s.Vault != "" {
			h.Vault.refuse(h, s.Vault)
		}
	}
}

// keep returns Opened.Keep.
func (all sources) keep(h Host) func(context.Context) error {
	if !slices.ContainsFunc(all, func(s source) bool { return s.Vault != "" }) {
		return nil
	}
	return func(ctx context.Context) error { return all.loadVault(ctx, h, true) }
}

// loadVault is load; with upkeep it also reads what is old.
func (all sources) loadVault(ctx context.Context, h Host, upkeep bool) error {
	var texts []string
	var class, one error
	for _, s := range all {
		if s.Vault == "" {
			continue
		}
		err := h.Vault.load(ctx, h, s.Vault, upkeep)
		if err == nil {
			continue
		}
		if errors.Is(err, delivery.ErrBlocked) {
			class = delivery.ErrBlocked
		}
		one = err
		texts = append(texts, delivery.WithoutClass(err.Error()))
	}
	if len(texts) > 1 {
		return withClass(class, strings.Join(texts, "; "))
	}
	return one
}
