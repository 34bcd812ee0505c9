package sinks

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-smtp"

	"forewarn/bridge/delivery"
)

// mistyped are settings whose host shares letters with a secret: the end of its URL's path, or a password in which the name
// of the company stands, too.
var mistyped = []struct{ kind, settings, host string }{
	{"webhook", "{url: 'https://hooks-contosso.azurewebsites.test/azure'}", "hooks-contosso.azurewebsites.test"},
	{"webhook", "{url: 'https://siem.exampel.test/api/siem'}", "siem.exampel.test"},
	{"webhook", "{url: 'https://alerts.exmaple.test/alerts'}", "alerts.exmaple.test"},
	{"webhook", "{url: 'https://hooks.nort-whind.test', bearer: Nort.Whind.2024}", "hooks.nort-whind.test"},
	{"webhook", "{url: 'https://10.0.0.4', tls: {server_name: hooks.nortwhind.test}, bearer: Nortwhind2024}", "hooks.nortwhind.test"},
	{"webhook", "{url: 'https://a.test', proxy: 'https://gatekeeper:Nortwhind2024@proxy.nortwhind.test'}", "proxy.nortwhind.test"},
	{"slack", "{webhook_url: 'https://chat.exampel.test/services/chat'}", "chat.exampel.test"},
	{"slack", "{token: xoxb-nortwhind-1, channel: C1, api_url: 'https://chat.nortwhind.test'}", "chat.nortwhind.test"},
	{"email", mailTo("smtp.nortwhind.test", "Nortwhind2024!"), "smtp.nortwhind.test"},
	{"email", mailTo("nort-whind.test", "Nort.Whind.2024!"), "nort-whind.test"},
	{"nats", "{url: 'tls://nort-whind.test', token: Nort.Whind.2024!, tls: {handshake_first: true}}", "nort-whind.test"},
	{"nats", "{url: 'tls://10.0.0.4', token: Nortwhind2024!, tls: {handshake_first: true, server_name: nats.nortwhind.test}}",
		"nats.nortwhind.test"},
	{"syslog", "{url: 'tls://log.nortwhind.test'}", "log.nortwhind.test"},
}

func mailTo(host, password string) string {
	return "{host: " + host + ", tls: {mode: implicit}, from: a@a.test, to: [b@a.test], username: u, password: '" + password + "'}"
}

// failuresOf are what a sink says when its destination is not reached, by who asks.
func failuresOf(t *testing.T, kind, settings string, dial Dialer) map[string]error {
	t.Helper()
	h := testHost(t)
	h.Known, h.Dial = new(KnownSecrets), dial
	h.Name = "another"
	mustOpen(t, "email", mailTo("mail.test", "Nortwhind2024!"), h)
	h.Name = "a"
	s := mustOpen(t, kind, settings, h)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, delivered := s.Deliver(ctx, deliveries(t)[:1])
	_, connected := s.(delivery.Connecter).Connect(ctx)
	return map[string]error{"Deliver": delivered, "Connect": connected}
}

// noSuchHost is a network on which no name is known.
func noSuchHost(_ context.Context, network, address string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(address)
	return nil, &net.OpError{Op: "dial", Net: network, Err: &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}}
}

// A typo in a host is the likeliest mistake. What is said of it names the host, whichever secret is spelt like it.
func TestAMistypedHostIsNamed(t *testing.T) {
	t.Parallel()
	for _, tt := range mistyped {
		for who, err := range failuresOf(t, tt.kind, tt.settings, noSuchHost) {
			if got := fmt.Sprint(err); !strings.Contains(got, "dial tcp: lookup ") || !strings.Contains(got, ": no such host") {
				t.Errorf("%s %s: %s says %s", tt.kind, tt.settings, who, got)
			}
		}
	}
}

// Of a name that the network doesn't know all is said, also if a secret is a word of that.
func TestAnErrorOfTheNetworkIsSaid(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"lookup", "dial", "such", "host", "no-such-host"} {
		for who, err := range failuresOf(t, "webhook", "{url: 'https://a.exampel.test/"+word+"'}", noSuchHost) {
			if want := "https://a.exampel.test: dial tcp: lookup a.exampel.test: no such host"; !strings.HasSuffix(fmt.Sprint(err), want) {
				t.Errorf("with the secret %s, %s says %v, want %s", word, who, err, want)
			}
		}
	}
}

// A host whose certificate is for another one is named too.
func TestAHostWithTheCertificateOfAnotherIsNamed(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows asks who signed a certificate before it looks at its names")
	}
	t.Parallel()
	cert := newAuthority(t).issue(t, "another.test", time.Hour)
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, srv.Listener.Addr().String())
	}
	for _, tt := range mistyped {
		for who, err := range failuresOf(t, tt.kind, tt.settings, dial) {
			if want := "certificate is valid for another.test, not " + tt.host; !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%s %s: %s says %v, want %s", tt.kind, tt.settings, who, err, want)
			}
		}
	}
}

// A secret that is spelt like a part of the host is one everywhere else, and so is a longer one of which more than the
// host is repeated.
func TestOnlyTheHostExcusesASecret(t *testing.T) {
	for _, tt := range []struct {
		address, said string
		shown         bool
	}{
		{"https://alerts.exmaple.test/alerts", "no topic alerts", false},
		{"https://alerts.exmaple.test/alerts", "no topic alerts at alerts.exmaple.test", false},
		{"https://alerts.exmaple.test/alerts", "alerts.exmaple.test knows no topic of yours", true},
		{"https://alerts.exmaple.test/alerts", "valid for *.exmaple.test, not alerts.exmaple.test", true},
		{"https://x.azurewebsites.test/azure", "valid for *.azurewebsites.test, not x.azurewebsites.test", true},
		{"https://x.azurewebsites.test/azure", "see https://azure.example", false},
		{"https://azure/azure", "no topic azure", false},
		{"https://gatekeeper:Nort.Whind.2024@nort-whind.test/", "no nort-whind.test", true},
		{"https://gatekeeper:Nort.Whind.2024@nort-whind.test/", "no Nort-Whind-2024", false},
		{"https://gatekeeper:Nort.Whind.2024@nort-whind.test/", "no _Nort_x002E_Whind", false},
		{"https://gatekeeper:Nortwhind2024@nortwhind.test/", "no password nortwhind20", false},
		{"http://ntfy.northwind.test:8080/northwind", "topic northwind: forbidden", false},
		{"http://ntfy.northwind.test:8080/northwind", "topic northwind at ntfy.northwind.test:8080: forbidden", false},
		{"http://ntfy.northwind.test:8080/northwind", "dial tcp: lookup NTFY.northwind.test.: no such host", true},
		{"http://ntfy.northwind.test:8080/northwind", "ntfy.northwind.test:8080,ntfy.northwind.test,*.northwind.test", true},
		{"http://ntfy.northwind.test:8080/northwind", "valid for www.northwind.test, not ntfy.northwind.test", true},
		{"http://ntfy.northwind.test:8080/northwind", `{"at":"\u003cntfy.northwind.test\u003e"}`, true},
		{"http://ntfy.northwind.test:8080/northwind", "no ntfy.northwind.testing", false},
		{"http://ntfy.northwind.test:8080/northwind", "no xntfy.xnorthwind.test", false},
		{"http://ntfy.northwind.test:8080/northwind", "no ntfy.northwind", false},
		{"http://ntfy.northwind.test:8080/northwind", "no ntfy.northwind.test.example", false},
		{"https://gatekeeper:smtp.northwind.test!24@smtp.northwind.test/", "no password smtp.northwind.test!24", false},
		{"https://gatekeeper:smtp.northwind.test!24@smtp.northwind.test/", `no password smtp.northwind.test\u002124`, false},
		{"https://gatekeeper:smtp.northwind.test!24@smtp.northwind.test/", "no password c210cC5ub3J0aHdpbmQudGVzdCEyNA", false},
		{"https://gatekeeper:smtp.northwind.test!24@smtp.northwind.test/", "no host smtp.northwind.test", true},
		{"https://gatekeeper:10.20.30.40@10.20.30.40:8443/", "dial tcp 10.20.30.40:8443: timeout", true},
		{"https://gatekeeper:10.20.30.40@10.20.30.40:8443/", "no 110.20.30.40", false},
		{"https://gatekeeper:20.30.40@10.20.30.40:8443/", "no 20.30.40", false},
		{"https://gatekeeper:2001:db8::7@[2001:db8::7]:443/", "nothing at [2001:db8::7]:443, 2001:db8::7", true},
		{"https://gatekeeper:2001:db8::7@[2001:db8::7]:443/", "no 2001:db8::77", false},
		{"https://northwind/northwind", "topic northwind: forbidden", false},
		{"https://nw.test/nw.test", "no topic nw.test", false},
	} {
		if got := shownBeside(t, tt.address, tt.said); (got == tt.said) != tt.shown {
			t.Errorf("beside %s, %q is shown as %q", tt.address, tt.said, got)
		}
	}
}

// The name of a company is in the host and in the password. The host is named, the password is not.
func TestASecretBesideTheHostIsHidden(t *testing.T) {
	for _, tt := range []struct{ host, secret, hidden, shown string }{
		{"smtp.northwind.test", "Northwind", "535 5.7.8 user azure: password Northwind is wrong",
			"535 5.7.8 smtp.northwind.test: password is wrong"},
		{"smtp.northwind.test", "Northwind", "smtp.northwind.test: password Northwind is wrong",
			"220 smtp.northwind.test ESMTP, SMTP.NORTHWIND.TEST"},
		{"northwind-alerts.azurewebsites.test", "northwind-alerts", "no token northwind-alerts",
			"no northwind-alerts.azurewebsites.test, *.azurewebsites.test"},
		{"nort-whind.test", "Nort.Whind.2024!", "no Nort_x002E_Whind at nort-whind.test", "no nort-whind.test"},
	} {
		for _, whose := range []string{"its own", "another"} {
			h := Host{Name: "a", Known: new(KnownSecrets)}
			redact := h.redactor()
			redact.showHosts(tt.host)
			h.Name = whose
			other := h.redactor()
			other.hide(tt.secret + "-7q")
			if whose == "its own" {
				redact.hide(tt.secret)
			}
			for text, want := range map[string]string{tt.hidden: notShown, tt.shown: tt.shown} {
				if whose == "another" && text == tt.hidden {
					text += " " + tt.secret + "-7q"
				}
				if got := redact.line(text, maxShown); got != want {
					t.Errorf("with %s as the secret of %s sink, %q is shown as %q", tt.secret, whose, text, got)
				}
			}
		}
	}
}

// A host that somebody else names excuses nothing.
func TestAHostOfARedirectionIsNoHostOfTheSettings(t *testing.T) {
	redact := new(redactor)
	redact.hide("s3cr3t-t0ken")
	_, err := judge(nil, response{status: 302, header: map[string][]string{"Location": {"https://s3cr3t-t0ken.test/"}}},
		"https://hook.test", redact)
	if got := fmt.Sprint(err); strings.Contains(got, "t0ken") || !strings.Contains(got, notShown) {
		t.Errorf("it says %s", got)
	}
}

// A server that refuses a recipient names the domain, which is spelt like a password as often as the host is.
func TestTheDomainOfARecipientIsShown(t *testing.T) {
	ca := newAuthority(t)
	box := &mailbox{mechanisms: []string{"PLAIN"}, password: "Nortwhind2024!", refuse: map[string]error{
		"ops@nortwhind.test": &smtp.SMTPError{Code: 550, Message: "<ops@nortwhind.test>: unknown"},
		"dba@nortwhind.test": &smtp.SMTPError{Code: 550, Message: "no Nortwhind20"},
	}}
	mail := serveMail(t, box, "starttls", ca, ca.issue(t, "127.0.0.1", time.Hour))
	got := answerOf(t, "email", mail+"to: [ops@nortwhind.test, dba@nortwhind.test]\nusername: azure\npassword: Nortwhind2024!")
	if !strings.Contains(got, "<ops@nortwhind.test>: unknown") || !strings.Contains(got, "dba@nortwhind.test: 550 "+notShown) {
		t.Errorf("it says %s", got)
	}
}
