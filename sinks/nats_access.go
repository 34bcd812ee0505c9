package sinks

import (
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// NATSSettings are the keys by which the servers of NATS are reached. They stand in the section of whoever connects.
type NATSSettings struct {
	URL          natsURLs `yaml:"url" doc:"server, or list of all servers of a cluster; nats:// or tls://"`
	URLFile      string   `yaml:"url_file"`
	URLEnv       string   `yaml:"url_env"`
	CredsFile    string   `yaml:"creds_file" doc:"credentials file: user JWT and seed"`
	NKeyFile     string   `yaml:"nkey_file" doc:"file with the seed of an NKey"`
	Username     string   `yaml:"username" doc:"user name"`
	Password     Secret   `yaml:"password" doc:"password"`
	PasswordFile string   `yaml:"password_file"`
	PasswordEnv  string   `yaml:"password_env"`
	Token        Secret   `yaml:"token" doc:"authentication token"`
	TokenFile    string   `yaml:"token_file"`
	TokenEnv     string   `yaml:"token_env"`
	TLS          natsTLS  `yaml:"tls" doc:"require TLS; nothing is sent before the handshake"`
	Insecure     bool     `yaml:"insecure" doc:"send credentials without TLS to another machine"`
	InboxPrefix  string   `yaml:"inbox_prefix" doc:"prefix of the subjects for answers (default: _INBOX)"`
}

// NATS is the way to the servers that NATSSettings name. What lets one in is read at the moment of use.
type NATS struct {
	urls     sources
	creds    string // path of a file
	nkey     string // path of a file
	username string
	password source
	token    source
	insecure bool // credentials may be sent without TLS
	tls      tlsSettings
	secure   bool // nothing is said before TLS
	first    bool // nor does the server say anything before
	getenv   func(string) string

	name  string // of the connections
	inbox string // what the subjects of answers begin with, "" for _INBOX
	link  Dialer
	log   *slog.Logger
}

// natsAccess is what a NATS says at one moment, and the veil that covers it.
type natsAccess struct {
	servers []*url.URL
	login   nats.Option
	tls     *tls.Config
	secure  bool   // nothing is said before TLS
	away    bool   // a server is on another machine
	inClear string // the key of credentials that go there without TLS, "" for none
	stamp   string // differs once anything of it has changed
	veil    *veil
}

// natsTLS is the key tls.
type natsTLS struct {
	CAFile         string `yaml:"ca_file" doc:"CA bundle (default: the system's)"`
	CertFile       string `yaml:"cert_file" doc:"client certificate; needs key_file"`
	KeyFile        string `yaml:"key_file" doc:"private key of the client certificate"`
	ServerName     string `yaml:"server_name" doc:"name that the server's certificate must have (default: the host's)"`
	HandshakeFirst bool   `yaml:"handshake_first" doc:"start with the TLS handshake, as the server must too"`
}

// natsURLs are one address, or a list of them.
type natsURLs []Value

// UnmarshalYAML reads both forms.
func (u *natsURLs) UnmarshalYAML(unmarshal func(any) error) error {
	var one Secret
	if unmarshal(&one) == nil && one.text != nil {
		*u = natsURLs{{Text: one}}
		return nil
	}
	var list []Value
	if err := unmarshal(&list); err != nil {
		return errors.New("expected an address such as nats://nats.example.com:4222, or a list of them")
	}
	*u = list
	return nil
}

// NewNATS checks the settings and reads all values once. Its errors are *KeyError.
func NewNATS(s NATSSettings, h Host) (*NATS, error) {
	n := &NATS{
		creds: s.CredsFile, nkey: s.NKeyFile, username: s.Username, getenv: h.Getenv, insecure: s.Insecure,
		tls:    tlsSettings{s.TLS.CAFile, s.TLS.CertFile, s.TLS.KeyFile, s.TLS.ServerName},
		secure: s.TLS != natsTLS{}, first: s.TLS.HandshakeFirst,
		password: spelled("password", s.Password, s.PasswordFile, s.PasswordEnv),
		token:    spelled("token", s.Token, s.TokenFile, s.TokenEnv),
		name:     strings.TrimSpace(h.Agent + " " + h.Name), inbox: s.InboxPrefix, link: h.dialer(natsDial), log: h.Log,
	}
	var text Secret
	if len(s.URL) == 1 && s.URL[0].Text.text != nil {
		text = s.URL[0].Text
	}
	var wrong KeyErrors
	const twice = "url is given too; expected only one of them"
	wrong.when(len(s.URL) > 0 && s.URLFile != "", "url_file", twice)
	wrong.when(len(s.URL) > 0 && s.URLEnv != "", "url_env", twice)
	wrong.when(len(s.URL) == 0 && s.URLFile == "" && s.URLEnv == "", "url", "missing; expected url, url_file or url_env")
	if one := spelled("url", text, s.URLFile, s.URLEnv); one.given() {
		n.urls = sources{one}
	} else {
		for i, v := range s.URL {
			n.urls = append(n.urls, nested("url."+strconv.Itoa(i), v))
		}
	}
	if len(wrong) == 0 {
		wrong.add(n.sources().check())
	}
	if len(wrong) == 0 {
		_, err := n.read()
		wrong.add(err)
	}
	wrong.when(s.InboxPrefix != "" && sanitised(s.InboxPrefix) != s.InboxPrefix, "inbox_prefix",
		"%q is no subject; expected tokens of "+
			"A-Z, a-z, 0-9, _ and - with dots between them, such as _INBOX_forewarn", s.InboxPrefix)
	wrong.when(n.username != "" && !n.password.given(), "username",
		"needs password, password_file or password_env beside it")
	wrong.when(n.username == "" && n.password.given(), "password", "needs username beside it")
	return n, wrong.err()
}

// sources are all values but those that are only ever files.
func (n *NATS) sources() sources { return append(slices.Clone(n.urls), n.password, n.token) }

// Secrets are the files whose change means new credentials.
func (n *NATS) Secrets() []string {
	names := slices.Concat(n.tls.files(), n.sources().files(), []string{n.creds, n.nkey})
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// Notes are what an operator may not expect of the settings.
func (n *NATS) Notes() []string {
	if a, err := n.read(); err == nil && a.inClear != "" {
		return []string{noteInClear(a.inClear)}
	}
	return nil
}

// read gets all values as they are now. Its errors are *KeyError and hold no secret.
func (n *NATS) read() (natsAccess, error) {
	a := natsAccess{veil: new(veil), login: func(*nats.Options) error { return nil }, secure: n.secure}
	sum := sha256.New()
	var logins []string // the keys that let one in, of which there is at most one
	user, err := n.readURLs(&a)
	if err != nil {
		return a, err
	}
	if user {
		logins = append(logins, "url")
	}
	for _, s := range a.servers {
		fmt.Fprintf(sum, "%q", s)
	}
	for _, l := range []struct {
		key   string
		given bool
		read  func(*natsAccess) (string, error)
	}{
		{"creds_file", n.creds != "", n.readCreds},
		{"nkey_file", n.nkey != "", n.readNKey},
		{"username", n.password.given(), n.readPassword},
		{"token", n.token.given(), n.readToken},
	} {
		if !l.given {
			continue
		}
		if logins = append(logins, l.key); len(logins) > 1 {
			return a, &KeyError{l.key, fmt.Errorf("%s holds credentials too; expected only one of them", logins[0])}
		}
		text, err := l.read(&a)
		if err != nil {
			return a, err
		}
		fmt.Fprintf(sum, "%q", text)
	}
	if a.tls, err = n.tls.load(); err != nil {
		return a, err
	}
	looks, err := n.tls.stamp()
	if err != nil {
		return a, err
	}
	a.stamp = string(sum.Sum(nil)) + looks
	return a, n.refuseInClear(&a, logins)
}

// refuseInClear refuses to show what lets one in to whoever is between here and the servers. An nkey shows nothing: its
// seed signs what the server asks, and stays here.
func (n *NATS) refuseInClear(a *natsAccess, logins []string) error {
	if a.secure || !a.away || len(logins) == 0 || logins[0] == "nkey_file" {
		return nil
	}
	switch a.inClear = logins[0]; a.inClear {
	case "url":
		a.inClear = n.urls[0].from()
	case "username":
		a.inClear = n.password.from()
	case "token":
		a.inClear = n.token.from()
	}
	if n.insecure {
		return nil
	}
	return &KeyError{a.inClear, errInClear}
}

// readURLs reads the servers. user says that one of them holds credentials.
func (n *NATS) readURLs(a *natsAccess) (user bool, err error) {
	for _, s := range n.urls {
		text, err := s.read(n.getenv)
		if err != nil {
			return false, err
		}
		for one := range strings.SplitSeq(text, ",") {
			u, err := natsURL(strings.TrimSpace(one))
			if err != nil {
				return false, s.wrong(err)
			}
			if err := checkHost(u); err != nil {
				return false, s.wrong(err)
			}
			a.veil.hideHost(u, s.from())
			a.away = a.away || !isLocal(u.Hostname())
			if u.User != nil {
				user = true
				a.veil.hideURL(u, s.from())
				a.veil.hide(u.User.Username()) // alone it is a token
			}
			a.secure = a.secure || u.Scheme == "tls"
			u.Scheme = "nats" // for nats.go, which leaves TLS to us
			a.servers = append(a.servers, u)
		}
	}
	return user, nil
}

// natsURL reads the address of a server. Its errors do not show it.
func natsURL(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = "nats://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || !oneOf(u.Scheme, "nats", "tls") || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, errors.New("is no address of a NATS server; expected one such as nats://nats.example.com:4222, or tls://…")
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "4222")
	}
	return &url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host}, nil
}

func (n *NATS) readCreds(a *natsAccess) (string, error) {
	text, err := readSmall(n.creds)
	if err != nil {
		return "", &KeyError{"creds_file", err}
	}
	token, err := nkeys.ParseDecoratedJWT(text)
	if err != nil || strings.Count(token, ".") != 2 {
		return "", &KeyError{"creds_file", fmt.Errorf("%s holds no user JWT; expected a file made by nsc or by nats auth", n.creds)}
	}
	pair, err := nkeys.ParseDecoratedUserNKey(text)
	if err != nil {
		return "", &KeyError{"creds_file", fmt.Errorf("%s holds no user seed; expected a file made by nsc or by nats auth", n.creds)}
	}
	a.veil.hide(token, seedOf(pair))
	a.login = nats.UserCredentialBytes(text)
	return string(text), nil
}

func (n *NATS) readNKey(a *natsAccess) (string, error) {
	text, err := readSmall(n.nkey)
	if err != nil {
		return "", &KeyError{"nkey_file", err}
	}
	pair, err := nkeys.ParseDecoratedUserNKey(text)
	if err != nil {
		return "", &KeyError{"nkey_file", fmt.Errorf("%s holds no seed of a user; expected one that begins with SU", n.nkey)}
	}
	public, err := pair.PublicKey()
	if err != nil {
		return "", &KeyError{"nkey_file", fmt.Errorf("%s: %w", n.nkey, err)}
	}
	a.veil.hide(seedOf(pair))
	a.login = nats.Nkey(public, pair.Sign)
	return string(text), nil
}

func seedOf(pair nkeys.KeyPair) string {
	seed, _ := pair.Seed() // a pair that was made of a seed has one
	return string(seed)
}

func (n *NATS) readPassword(a *natsAccess) (string, error) {
	password, err := n.password.read(n.getenv)
	if err != nil {
		return "", err
	}
	a.veil.hideBasic(n.username, password)
	a.login = nats.UserInfo(n.username, password)
	return password, nil
}

func (n *NATS) readToken(a *natsAccess) (string, error) {
	token, err := n.token.read(n.getenv)
	if err != nil {
		return "", err
	}
	a.veil.hide(token)
	a.login = nats.Token(token)
	return token, nil
}
