package sinks

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// NATSSettings are the settings of a connection to NATS, in a sink and in a relay. Secrets have four keys; see Value.
type NATSSettings struct {
	URL           []Value `yaml:"url" required:"" doc:"server, or list of all servers of a cluster; nats:// or tls://"`
	URLFile       Path    `yaml:"url_file"`
	URLEnv        string  `yaml:"url_env"`
	URLVault      string  `yaml:"url_vault"`
	CredsFile     Path    `yaml:"creds_file" doc:"credentials file: user JWT and seed"`
	CredsVault    string  `yaml:"creds_vault" doc:"secret in Key Vault with the content of creds_file"`
	NKeyFile      Path    `yaml:"nkey_file" doc:"file with the seed of an NKey"`
	NKeyVault     string  `yaml:"nkey_vault" doc:"secret in Key Vault with the content of nkey_file"`
	Username      string  `yaml:"username" doc:"user name"`
	Password      Secret  `yaml:"password" doc:"password"`
	PasswordFile  Path    `yaml:"password_file"`
	PasswordEnv   string  `yaml:"password_env"`
	PasswordVault string  `yaml:"password_vault"`
	Token         Secret  `yaml:"token" doc:"authentication token"`
	TokenFile     Path    `yaml:"token_file"`
	TokenEnv      string  `yaml:"token_env"`
	TokenVault    string  `yaml:"token_vault"`
	TLS           natsTLS `yaml:"tls" doc:"require TLS; nothing is sent before the handshake"`
	Insecure      bool    `yaml:"insecure" doc:"send credentials without TLS to another machine"`
	InboxPrefix   string  `yaml:"inbox_prefix" doc:"prefix of the subjects for answers (default: _INBOX)"`
}

// A NATS connects to the servers that NATSSettings name. It reads addresses and credentials anew on each use. It is
// safe for concurrent use.
type NATS struct {
	host     Host
	urls     sources
	logins   []natsLogin // those given, at most one
	insecure bool        // credentials may be sent without TLS
	tls      natsTLS
	inbox    string // prefix of the subjects for answers, "" for _INBOX
}

// A natsLogin is a method to log in with a secret.
type natsLogin struct {
	source
	key        string // the settings key, for an error about two logins
	signsNonce bool   // the secret only signs the server's nonce, and is not sent
	use        func(secret string, redact *redactor) (nats.Option, error)
}

// natsAccess holds the addresses and credentials of a NATS at one moment, and the redactor that knows them.
type natsAccess struct {
	servers    []*url.URL
	login      nats.Option
	tls        *tls.Config
	dial       Dialer
	secure     bool   // nothing is sent before TLS
	tlsFirst   bool   // the server waits for the handshake before it sends anything
	signsNonce bool   // the login signs the server's nonce
	remote     string // the key of the address of a server on another machine, or ""
	inClear    string // the key of credentials that travel there without TLS, or ""
	stamp      string // differs once any of this has changed; it holds secrets
	redact     *redactor
}

type natsTLS struct {
	TLSSettings    `yaml:",inline"`
	HandshakeFirst bool `yaml:"handshake_first" doc:"start with the TLS handshake, for a server that has handshake_first set too"`
}

// NewNATS checks the settings, and reads all values once so that their errors are found too. It does not connect. Its
// errors are *KeyError, or KeyErrors if there are several.
func NewNATS(s NATSSettings, h Host) (*NATS, error) {
	n := &NATS{host: h, insecure: s.Insecure, tls: s.TLS, inbox: s.InboxPrefix}
	var wrong KeyErrors
	one := keyedSource("url", Secret{}, s.URLFile, s.URLEnv, s.URLVault)
	wrong.when(len(s.URL) > 0 && one.given(), one.from(), "url is given too; expected only one of them")
	wrong.when(len(s.URL) == 0 && !one.given(), "url", "missing; expected url, url_file, url_env or url_vault")
	if len(s.URL) == 1 && s.URL[0].Text.text != nil {
		one.Text, s.URL = s.URL[0].Text, nil
	}
	n.urls = (sources{one})
	if len(s.URL) > 0 {
		n.urls = listSources("url", s.URL)
	}
	password := keyedSource("password", s.Password, s.PasswordFile, s.PasswordEnv, s.PasswordVault)
	token := keyedSource("token", s.Token, s.TokenFile, s.TokenEnv, s.TokenVault)
	for _, l := range []natsLogin{
		{keyedSource("creds", Secret{}, s.CredsFile, "", s.CredsVault), "creds_file", false, natsCreds},
		{keyedSource("nkey", Secret{}, s.NKeyFile, "", s.NKeyVault), "nkey_file", true, natsNKey},
		{password, "username", false, func(secret string, redact *redactor) (nats.Option, error) {
			redact.hideLogin(s.Username, secret)
			return nats.UserInfo(s.Username, secret), nil
		}},
		{token, "token", false, func(secret string, redact *redactor) (nats.Option, error) {
			redact.hide(secret)
			return nats.Token(secret), nil
		}},
	} {
		if l.given() {
			n.logins = append(n.logins, l)
		}
	}
	if len(wrong) == 0 {
		wrong.add(n.sources().check())
	}
	if len(wrong) == 0 {
		_, err := n.read()
		wrong.add(exceptUnread(err))
	}
	wrong.when(s.InboxPrefix != "" && sanitised(s.InboxPrefix) != s.InboxPrefix, "inbox_prefix",
		"%q is not a subject; expected tokens of A-Z, a-z, 0-9, _ and - with dots between them, such as _INBOX_forewarn",
		s.InboxPrefix)
	wrong.when(s.Username != "" && !password.given(), "username",
		"needs password, password_file, password_env or password_vault beside it")
	wrong.when(s.Username == "" && password.given(), "password", "needs username beside it")
	return n, wrong.err()
}

func (n *NATS) sources() sources {
	all := slices.Clone(n.urls)
	for _, l := range n.logins {
		all = append(all, l.source)
	}
	return all
}

// Secrets returns the paths of the files that hold addresses, credentials and certificates.
func (n *NATS) Secrets() []string { return append(n.tls.files(), n.sources().files()...) }

// Keep is as Opened.Keep.
func (n *NATS) Keep() func(context.Context) error { return n.sources().keep(n.host) }

// Shown returns an error of the servers, such as one of a connection by Dial, in the form that may be shown, or why the
// credentials that it may repeat can't be read.
func (n *NATS) Shown(err error) error {
	a, unread := n.read()
	if unread != nil {
		return unread
	}
	return errors.New(a.redact.line(err.Error(), maxShown))
}

// Notes returns consequences of the settings that an operator may not expect, as Opened.Notes.
func (n *NATS) Notes() []string {
	if a, err := n.read(); exceptUnread(err) == nil && a.inClear != "" {
		return []string{noteInClear(a.inClear)}
	}
	return nil
}

// read returns the current values. Its errors are *KeyError or KeyErrors, and hold no secret.
func (n *NATS) read() (natsAccess, error) {
	a := natsAccess{
		redact: n.host.redactor(), login: func(*nats.Options) error { return nil }, dial: n.host.dialer(natsDial),
		secure: n.tls != natsTLS{}, tlsFirst: n.tls.HandshakeFirst,
	}
	a.redact.showHosts(n.tls.ServerName)
	var wrong KeyErrors
	user, err := n.readURLs(&a)
	wrong.add(err)
	var shown, given string // the keys of the secret that is sent, and of the login
	if user {
		shown, given = n.urls[0].from(), "url"
	}
	a.stamp = fmt.Sprintf("%q %t", a.servers, a.secure)
	for _, l := range n.logins {
		if given != "" {
			wrong.when(true, l.key, "%s holds credentials too; expected only one of them", given)
			continue
		}
		secret, err := l.read(n.host)
		wrong.add(err)
		if exceptUnread(err) != nil {
			continue
		}
		if err == nil {
			a.login, err = l.use(secret, a.redact)
			if err != nil {
				wrong.add(l.wrong(err))
				continue
			}
		}
		a.stamp += secret
		given, a.signsNonce = l.key, l.signsNonce
		if !l.signsNonce {
			shown = l.from()
		}
	}
	a.tls, err = n.tls.load(n.host)
	wrong.add(err)
	if err := exceptUnread(wrong.err()); err != nil {
		return a, wrong.err()
	}
	files, err := n.tls.stamp()
	a.stamp += files
	if err != nil {
		return a, err
	}
	if a.remote != "" && !a.secure {
		a.inClear = shown
	}
	if a.inClear != "" && !n.insecure {
		return a, errInClear(a.inClear, a.remote, "tls://")
	}
	return a, wrong.err()
}

// readURLs reads the addresses into a. user reports whether one of them holds credentials.
func (n *NATS) readURLs(a *natsAccess) (user bool, err error) {
	var wrong KeyErrors
	for _, s := range n.urls {
		text, err := s.read(n.host)
		wrong.add(err)
		if err != nil {
			continue
		}
		for one := range strings.SplitSeq(text, ",") {
			u, err := natsURL(strings.TrimSpace(one))
			if err != nil {
				wrong.add(s.wrong(err))
				continue
			}
			a.redact.hideURL(u)
			if !isLocal(u.Hostname()) {
				a.remote = cmp.Or(a.remote, s.from())
			}
			user = user || u.User != nil
			a.secure = a.secure || u.Scheme == "tls"
			u.Scheme = "nats" // for nats.go, which leaves TLS to us
			a.servers = append(a.servers, u)
		}
	}
	return user, wrong.err()
}

// natsURL parses the address of a server, nats:// by default. Its errors do not show it.
func natsURL(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = "nats://" + text
	}
	const otherwise = "is not the URL of a NATS server; expected one such as nats://nats.example.com:4222, or tls://…"
	u, err := parseURL(text, otherwise, false, "nats", "tls")
	if err == nil && (strings.Trim(u.Path, "/") != "" || u.RawQuery != "") {
		err = says(otherwise)
	}
	if err != nil {
		return nil, err
	}
	host := net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "4222"))
	return &url.URL{Scheme: u.Scheme, User: u.User, Host: host}, nil
}

func natsCreds(text string, redact *redactor) (nats.Option, error) {
	token, err := nkeys.ParseDecoratedJWT([]byte(text))
	if err != nil || strings.Count(token, ".") != 2 {
		return nil, says("has no user JWT; expected a file made by nsc or by nats auth")
	}
	redact.hide(token)
	if _, err := natsNKey(text, redact); err != nil {
		return nil, says("has no user seed; expected a file made by nsc or by nats auth")
	}
	return nats.UserCredentialBytes([]byte(text)), nil
}

func natsNKey(text string, redact *redactor) (nats.Option, error) {
	pair, err := nkeys.ParseDecoratedUserNKey([]byte(text))
	if err != nil {
		return nil, says("holds no seed of a user; expected one that begins with SU")
	}
	seed, _ := pair.Seed() // a pair that was made of a seed has one
	redact.hide(string(seed))
	public, err := pair.PublicKey()
	return nats.Nkey(public, pair.Sign), err
}
