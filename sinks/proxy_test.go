package sinks

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A proxy is used as the settings have it: that of the environment, none, or one of their own with its credentials.
func TestProxyIsUsedAsAsked(t *testing.T) {
	environment, own := newProxy(t), newProxy(t)
	h := testHost(t)
	h.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(environment.url) }
	ca := newAuthority(t)
	secure := serveTLS(t, new(recorder), &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", time.Hour)}})
	plain := serve(t, new(recorder))
	withUser := strings.Replace(own.url, "://", "://azure:p%40ss@", 1)
	for _, destination := range []string{"url: " + plain.URL, "url: " + secure.URL + "\ntls: {ca_file: " + ca.file + "}"} {
		for _, tt := range []struct {
			proxy       string
			environment int32
			own         int32
		}{
			{"", 1, 0}, {"''", 1, 0}, {"none", 0, 0}, {own.url, 0, 1}, {withUser, 0, 1},
		} {
			environment.asked.Store(0)
			own.asked.Store(0)
			s := mustOpen(t, "webhook", destination+"\nproxy: "+tt.proxy, h)
			if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
				t.Errorf("proxy %q: %v", tt.proxy, err)
			}
			if e, o := environment.asked.Load(), own.asked.Load(); e != tt.environment || o != tt.own {
				t.Errorf("proxy %q: the environment's was asked %d times, our own %d; want %d and %d", tt.proxy, e, o,
					tt.environment, tt.own)
			}
			want := ""
			if tt.proxy == withUser {
				want = "Basic " + base64.StdEncoding.EncodeToString([]byte("azure:p@ss"))
			}
			if got, _ := own.authorization.Load().(string); tt.own > 0 && got != want {
				t.Errorf("proxy %q: authorized by %q, want %q", tt.proxy, got, want)
			}
		}
	}
}

// The settings of TLS are the destination's. An https proxy would be verified by them too, so it is refused with them.
func TestHTTPSProxyIsRefusedWithTheDestinationsTLS(t *testing.T) {
	_, err := open("webhook", "{url: 'https://destination.example', proxy: 'https://proxy.example', "+
		"tls: {server_name: foo.internal}}", testHost(t))
	if err == nil || !strings.Contains(err.Error(), "https proxy") {
		t.Errorf("open = %v, want the proxy refused", err)
	}
	mustOpen(t, "webhook", "url: https://destination.example\nproxy: https://proxy.example", testHost(t))
}

// What a proxy refuses is never the CloudEvent's fault.
func TestProxyRejectsNothing(t *testing.T) {
	proxy := newProxy(t)
	s := mustOpen(t, "webhook", "url: https://destination.example\nproxy: "+proxy.url, testHost(t))
	for status, want := range map[int]string{
		400: blocked, 403: blocked, 404: blocked, 407: blocked, 302: blocked, 422: blocked, 429: again, 500: again,
		502: again, 504: again,
	} {
		proxy.refuse.Store(int32(status))
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if classOf(err) != want || !strings.Contains(err.Error(), "the proxy answered "+statusLine(status)) {
			t.Errorf("%d: %v, want it %s", status, err, want)
		}
	}
}

// A broken proxy setting in the environment blocks, and does not show itself: it may hold a password.
func TestProxyOfTheEnvironmentMayBeBroken(t *testing.T) {
	h := testHost(t)
	h.Proxy = func(*http.Request) (*url.URL, error) { return nil, errors.New("invalid proxy address s3cr3t") }
	s := mustOpen(t, "webhook", "url: http://127.0.0.1:1", h)
	_, err := s.Deliver(t.Context(), deliveries(t)[:1])
	if classOf(err) != blocked || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("Deliver = %v, want it blocked and the setting hidden", err)
	}
}

// A proxy passes requests on, and tunnels.
type proxy struct {
	url           string
	asked         atomic.Int32
	refuse        atomic.Int32 // with this status
	authorization atomic.Value // of the last request
}

func newProxy(t *testing.T) *proxy {
	p := new(proxy)
	p.url = serve(t, p).URL
	return p
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.asked.Add(1)
	p.authorization.Store(r.Header.Get("Proxy-Authorization"))
	if status := p.refuse.Load(); status != 0 {
		w.WriteHeader(int(status))
		return
	}
	if r.Method != http.MethodConnect {
		io.Copy(io.Discard, r.Body) // that it came here is all that counts
		return
	}
	there, err := net.Dial("tcp", r.Host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	here, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		there.Close()
		return
	}
	io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n")
	go func() {
		defer there.Close()
		io.Copy(there, here)
	}()
	go func() {
		defer here.Close()
		io.Copy(here, there)
	}()
}
