package sinks

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"forewarn/bridge/delivery"
)

// The likeliest error of all is a typo in a host, so the host and the port of an address are shown in whatever is said
// about it. Its user, its path and its query are not.
func TestHostOfASecretAddressIsShown(t *testing.T) {
	file := writeFile(t, "url", "https://hook.exmaple/S3CR3T-path")
	ca := newAuthority(t)
	for settings, host := range map[string]string{
		"webhook {url: 'https://hook.exmaple/S3CR3T-path?key=S3CR3T'}":                                     "hook.exmaple",
		"webhook {url: 'https://hook.exmaple/hook.exmaple/S3CR3T'}":                                        "hook.exmaple",
		"webhook {url: 'https://azure-user:S3CR3T@hook.exmaple:8443'}":                                     "hook.exmaple:8443",
		"webhook {url_file: " + file + "}":                                                                 "hook.exmaple",
		"webhook {url: 'https://hook.example/S3CR3T', proxy: 'http://gatekeeper:S3CR3T@azrue:3128'}":       "azrue",
		"webhook {url: 'http://127.0.0.1:1/S3CR3T', proxy: 'http://gatekeeper:S3CR3T@azrue:3128'}":         "azrue",
		"webhook {url: 'https://hook.example/S3CR3T', proxy: 'socks5://gatekeeper:S3CR3T@azrue'}":          "azrue",
		"webhook {url: 'https://hook.exmaple/S3CR3T', azure_identity: {resource: 'https://grid.example'}}": "",
		"slack {webhook_url: 'https://hooks.exmaple/services/S3CR3T'}":                                     "hooks.exmaple",
		"slack {token: xoxb-S3CR3T, channel: C1, proxy: 'http://gatekeeper:S3CR3T@azrue:3128'}":            "azrue",
		"nats {url: 'tls://S3CR3T@nats.exmaple'}":                                                          "nats.exmaple",
		"nats {url: ['tls://gatekeeper:S3CR3T@nats.exmaple', 'tls://nats-2.example']}":                     "nats.exmaple",
		"nats {url: 'nats.exmaple:4222,nats-2.example', token: S3CR3T, insecure: true}":                    "nats.exmaple:4222",
		"environment {url: 'https://hook.example/S3CR3T'}":                                                 "azrue",
	} {
		for how, dial := range unreachable(t, ca) {
			t.Run(settings+" "+how, func(t *testing.T) {
				t.Parallel()
				timeout := 200 * time.Millisecond
				if how == "no such host" { // which is said at once, on a busy machine later
					timeout = 10 * time.Second
				}
				said, blocked := saysOf(t, settings, dial, timeout)
				if strings.Contains(strings.ToLower(said), "s3cr3t") {
					t.Errorf("it shows a secret:\n%s", said)
				}
				if how == "no such host" && host != "" &&
					(!blocked || !strings.Contains(said, host) || !strings.Contains(said, "no such host")) {
					t.Errorf("blocked %v, want it so, and that it names %s:\n%s", blocked, host, said)
				}
			})
		}
	}
}

// saysOf returns all that a sink says that does not reach its destination; settings begin with its kind. "environment"
// is a webhook with a proxy of the environment.
func saysOf(t *testing.T, settings string, dial Dialer, timeout time.Duration) (said string, blocked bool) {
	kind, keys, _ := strings.Cut(settings, " ")
	var log strings.Builder
	h := testHost(t)
	h.Dial, h.Endpoint = dial, "http://127.0.0.1:1"
	h.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if kind == "environment" {
		kind = "webhook"
		h.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse("http://gatekeeper:S3CR3T@azrue:3128") }
	}
	opened, err := open(kind, keys, h)
	if err != nil {
		t.Fatal(err)
	}
	s := opened.Sink
	attempt := func(do func(context.Context) (string, error)) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		answer, err := do(ctx)
		said += answer + "\n"
		for e := err; e != nil; e = errors.Unwrap(e) { // somebody may log a cause alone
			said += e.Error() + "\n"
		}
		return err
	}
	if err = attempt(func(ctx context.Context) (string, error) {
		answer, err := s.Deliver(ctx, deliveries(t)[:1])
		return answer.Status, err
	}); err == nil {
		t.Error("Deliver = nil, want an error")
	}
	attempt(s.(delivery.Connecter).Connect)
	attempt(func(context.Context) (string, error) { return s.(delivery.Renderer).Render(deliveries(t)[0]) })
	closeSink(s)
	return said + log.String(), errors.Is(err, delivery.ErrBlocked)
}

// An IP address and localhost are shown too.
func TestAddressesWithoutANameAreShown(t *testing.T) {
	for settings, want := range map[string]string{
		"webhook {url: 'http://127.0.0.1:1/s3cr3t'}":       "127.0.0.1:1",
		"webhook {url: 'http://localhost:1/s3cr3t'}":       "localhost:1",
		"webhook {url: 'http://[::1]:1/s3cr3t'}":           "[::1]:1",
		"slack {webhook_url: 'http://127.0.0.1:1/s3cr3t'}": "127.0.0.1:1",
		"nats {url: 'nats://127.0.0.1:1'}":                 "127.0.0.1:1",
	} {
		kind, keys, _ := strings.Cut(settings, " ")
		_, err := mustOpen(t, kind, keys, testHost(t)).Deliver(t.Context(), deliveries(t)[:1])
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to say %s", settings, err, want)
		}
	}
}

// A host that no resolver could know is refused when the settings are read, and not shown.
func TestHostThatIsNoneIsRefused(t *testing.T) {
	for _, settings := range []string{
		"webhook {url: 'https://hook.example,S3CR3T'}",
		"webhook {url: 'https://müller.exampleS3CR3T/'}",
		"webhook {url: 'https://hook.example:123456/'}",
		"webhook {url: 'https://hook.example', proxy: 'http://a!S3CR3T:3128'}",
		"slack {webhook_url: 'https://hooks.example;S3CR3T/x'}",
		"nats {url: 'nats://nats*S3CR3T.example'}",
		"nats {url: 'nats://nats.example:99999'}",
	} {
		kind, keys, _ := strings.Cut(settings, " ")
		var wrong *KeyError
		if _, err := open(kind, keys, testHost(t)); !errors.As(err, &wrong) || strings.Contains(err.Error(), "S3CR3T") {
			t.Errorf("%s: %v, want an error that does not show it", settings, err)
		}
	}
}

// unreachable returns the ways in which a destination is not reached, by name.
func unreachable(t *testing.T, ca authority) map[string]Dialer {
	other := serveTLS(t, http.NotFoundHandler(),
		&tls.Config{Certificates: []tls.Certificate{ca.issue(t, "other.example", time.Hour)}})
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		io.WriteString(w, "no "+r.Method+" of "+r.Host+r.RequestURI)
	}))
	t.Cleanup(echo.Close)
	to := func(address string) Dialer {
		return func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	}
	return map[string]Dialer{
		"no such host": failingDialer(&net.DNSError{Err: "no such host", Server: "10.0.0.2:53", IsNotFound: true}),
		"no resolver": failingDialer(&net.DNSError{Err: "i/o timeout", Server: "10.0.0.2:53", IsTimeout: true,
			IsTemporary: true}),
		"refused": failingDialer(os.NewSyscallError("connect", syscall.ECONNREFUSED)),
		"no answer": func(ctx context.Context, network, address string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"another's certificate": to(other.Listener.Addr().String()),
		"an echo":               to(echo.Listener.Addr().String()),
	}
}

// failingDialer fails as that of package net does.
func failingDialer(err error) Dialer {
	return func(_ context.Context, network, address string) (net.Conn, error) {
		host, _, splitErr := net.SplitHostPort(address)
		if splitErr != nil {
			return nil, &net.OpError{Op: "dial", Net: network, Err: splitErr}
		}
		if e, ok := err.(*net.DNSError); ok {
			if net.ParseIP(host) != nil {
				return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
			}
			named := *e
			named.Name = host
			return nil, &net.OpError{Op: "dial", Net: network, Err: &named}
		}
		return nil, &net.OpError{Op: "dial", Net: network, Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 4), Port: 443}, Err: err}
	}
}
