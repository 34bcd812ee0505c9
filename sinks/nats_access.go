package sinks

import (
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// natsCredentials are where the servers' addresses and what lets one in come from. They are read at the moment of use.
type natsCredentials struct {
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
}

// natsAccess is what natsCredentials say at one moment, and the veil that covers it.
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

// newNATSCredentials checks the settings and reads all values once.
func newNATSCredentials(s natsSettings, h Host) (natsCredentials, error) {
	c := natsCredentials{
		creds: s.CredsFile, nkey: s.NKeyFile, username: s.Username, getenv: h.Getenv, insecure: s.Insecure,
		tls:    tlsSettings{s.TLS.CAFile, s.TLS.CertFile, s.TLS.KeyFile, s.TLS.ServerName},
		secure: s.TLS != natsTLS{}, first: s.TLS.HandshakeFirst,
		password: spelled("password", s.Password, s.PasswordFile, s.PasswordEnv),
		token:    spelled("token", s.Token, s.TokenFile, s.TokenEnv),
	}
	var text Secret
	if len(s.URL) == 1 && s.URL[0].Text.text != nil {
		text = s.URL[0].Text
	}
	switch one := spelled("url", text, s.URLFile, s.URLEnv); {
	case len(s.URL) > 0 && s.URLFile != "":
		return c, &KeyError{"url_file", errors.New("url is given too; expected only one of them")}
	case len(s.URL) > 0 && s.URLEnv != "":
		return c, &KeyError{"url_env", errors.New("url is given too; expected only one of them")}
	case one.given():
		c.urls = sources{one}
	case len(s.URL) == 0:
		return c, &KeyError{"url", errors.New("missing; expected url, url_file or url_env")}
	default:
		for i, v := range s.URL {
			c.urls = append(c.urls, nested("url."+strconv.Itoa(i), v))
		}
	}
	if err := c.sources().check(); err != nil {
		return c, err
	}
	switch {
	case c.username != "" && !c.password.given():
		return c, &KeyError{"username", errors.New("needs password, password_file or password_env beside it")}
	case c.username == "" && c.password.given():
		return c, &KeyError{"password", errors.New("needs username beside it")}
	}
	_, err := c.read()
	return c, err
}

// sources are all values but those that are only ever files.
func (c natsCredentials) sources() sources { return append(slices.Clone(c.urls), c.password, c.token) }

// files are the files whose change means new credentials.
func (c natsCredentials) files() []string {
	names := slices.Concat(c.tls.files(), c.sources().files(), []string{c.creds, c.nkey})
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// read gets all values as they are now. Its errors are *KeyError and hold no secret.
func (c natsCredentials) read() (natsAccess, error) {
	a := natsAccess{veil: new(veil), login: func(*nats.Options) error { return nil }, secure: c.secure}
	sum := sha256.New()
	var logins []string // the keys that let one in, of which there is at most one
	user, err := c.readURLs(&a)
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
		{"creds_file", c.creds != "", c.readCreds},
		{"nkey_file", c.nkey != "", c.readNKey},
		{"username", c.password.given(), c.readPassword},
		{"token", c.token.given(), c.readToken},
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
	if a.tls, err = c.tls.load(); err != nil {
		return a, err
	}
	looks, err := c.tls.stamp()
	if err != nil {
		return a, err
	}
	a.stamp = string(sum.Sum(nil)) + looks
	return a, c.refuseInClear(&a, logins)
}

// refuseInClear refuses to show what lets one in to whoever is between here and the servers. An nkey shows nothing: its
// seed signs what the server asks, and stays here.
func (c natsCredentials) refuseInClear(a *natsAccess, logins []string) error {
	if a.secure || !a.away || len(logins) == 0 || logins[0] == "nkey_file" {
		return nil
	}
	switch a.inClear = logins[0]; a.inClear {
	case "url":
		a.inClear = c.urls[0].from()
	case "username":
		a.inClear = c.password.from()
	case "token":
		a.inClear = c.token.from()
	}
	if c.insecure {
		return nil
	}
	return &KeyError{a.inClear, errInClear}
}

// readURLs reads the servers. user says that one of them holds credentials.
func (c natsCredentials) readURLs(a *natsAccess) (user bool, err error) {
	for _, s := range c.urls {
		text, err := s.read(c.getenv)
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

func (c natsCredentials) readCreds(a *natsAccess) (string, error) {
	text, err := readSmall(c.creds)
	if err != nil {
		return "", &KeyError{"creds_file", err}
	}
	token, err := nkeys.ParseDecoratedJWT(text)
	if err != nil || strings.Count(token, ".") != 2 {
		return "", &KeyError{"creds_file", fmt.Errorf("%s holds no user JWT; expected a file made by nsc or by nats auth", c.creds)}
	}
	pair, err := nkeys.ParseDecoratedUserNKey(text)
	if err != nil {
		return "", &KeyError{"creds_file", fmt.Errorf("%s holds no user seed; expected a file made by nsc or by nats auth", c.creds)}
	}
	a.veil.hide(token, seedOf(pair))
	a.login = nats.UserCredentialBytes(text)
	return string(text), nil
}

func (c natsCredentials) readNKey(a *natsAccess) (string, error) {
	text, err := readSmall(c.nkey)
	if err != nil {
		return "", &KeyError{"nkey_file", err}
	}
	pair, err := nkeys.ParseDecoratedUserNKey(text)
	if err != nil {
		return "", &KeyError{"nkey_file", fmt.Errorf("%s holds no seed of a user; expected one that begins with SU", c.nkey)}
	}
	public, err := pair.PublicKey()
	if err != nil {
		return "", &KeyError{"nkey_file", fmt.Errorf("%s: %w", c.nkey, err)}
	}
	a.veil.hide(seedOf(pair))
	a.login = nats.Nkey(public, pair.Sign)
	return string(text), nil
}

func seedOf(pair nkeys.KeyPair) string {
	seed, _ := pair.Seed() // a pair that was made of a seed has one
	return string(seed)
}

func (c natsCredentials) readPassword(a *natsAccess) (string, error) {
	password, err := c.password.read(c.getenv)
	if err != nil {
		return "", err
	}
	a.veil.hideBasic(c.username, password)
	a.login = nats.UserInfo(c.username, password)
	return password, nil
}

func (c natsCredentials) readToken(a *natsAccess) (string, error) {
	token, err := c.token.read(c.getenv)
	if err != nil {
		return "", err
	}
	a.veil.hide(token)
	a.login = nats.Token(token)
	return token, nil
}
