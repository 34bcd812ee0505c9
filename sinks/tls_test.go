package sinks

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// A destination is reached only over TLS that is verified: by the authorities that are trusted, for the name that is
// asked for, at this time.
func TestTLSIsVerified(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	day := 24 * time.Hour
	good := &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", day)}}
	named := &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "hooks.example.com", day)}}
	expired := &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", -day)}}
	old := &tls.Config{Certificates: good.Certificates, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	for name, tt := range map[string]struct {
		server   *tls.Config
		settings string
		want     string
	}{
		"own authority":          {good, "tls: {ca_file: " + ca.file + "}", accepted},
		"the system's":           {good, "", blocked},
		"another authority":      {good, "tls: {ca_file: " + other.file + "}", blocked},
		"another host":           {named, "tls: {ca_file: " + ca.file + "}", blocked},
		"another host, by name":  {named, "tls: {ca_file: " + ca.file + ", server_name: hooks.example.com}", accepted},
		"expired":                {expired, "tls: {ca_file: " + ca.file + "}", blocked},
		"only TLS 1.1":           {old, "tls: {ca_file: " + ca.file + "}", blocked},
		"wrong name asked for":   {good, "tls: {ca_file: " + ca.file + ", server_name: hooks.example.com}", blocked},
		"own authority, no name": {named, "tls: {server_name: hooks.example.com}", blocked},
	} {
		t.Run(name, func(t *testing.T) {
			var r recorder
			srv := serveTLS(t, &r, tt.server)
			s := mustOpen(t, "webhook", "url: "+srv.URL+"\n"+tt.settings, testHost(t))
			_, err := s.Deliver(t.Context(), deliveries(t)[:1])
			if got := classOf(err); got != tt.want || (len(r.all()) > 0) != (tt.want == accepted) {
				t.Errorf("Deliver = %v with %d requests, want it %s", err, len(r.all()), tt.want)
			}
		})
	}
}

// A destination that wants a certificate gets it; one that gets none, or one that it does not trust, blocks. In TLS 1.3
// it says so only after the handshake, and the end of the connection may overtake what it says: then the attempt fails
// like any other, and a later one blocks.
func TestClientCertificate(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		srv := serveTLS(t, new(recorder), &tls.Config{
			Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", time.Hour)},
			ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ca.pool(), MaxVersion: version,
		})
		for name, tt := range map[string]struct{ files, want string }{
			"with":        {files(t, ca.issue(t, "vm-0", time.Hour)), accepted},
			"without":     {"", blocked},
			"of another":  {files(t, other.issue(t, "vm-0", time.Hour)), blocked},
			"out of date": {files(t, ca.issue(t, "vm-0", -time.Hour)), blocked},
		} {
			s := mustOpen(t, "webhook", "url: "+srv.URL+"\ntls: {ca_file: "+ca.file+tt.files+"}", testHost(t))
			_, err := s.Deliver(t.Context(), deliveries(t)[:1])
			for tries := 1; version == tls.VersionTLS13 && classOf(err) == again && tries < 50; tries++ {
				_, err = s.Deliver(t.Context(), deliveries(t)[:1])
			}
			if classOf(err) != tt.want {
				t.Errorf("%s, %s: %v, want it %s", tls.VersionName(version), name, err, tt.want)
			}
		}
	}
}

// Certificates that are renewed on disk are used from the next attempt on, without a restart; while they are missing or
// broken the sink is blocked.
func TestRenewedCertificatesArePickedUp(t *testing.T) {
	first, second := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	caFile, certFile, keyFile := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"),
		filepath.Join(dir, "key.pem")
	var age time.Duration
	install := func(ca authority) {
		cert, key := pemOf(t, ca.issue(t, "vm-0", time.Hour))
		age += time.Second // file systems have coarse clocks
		for name, text := range map[string][]byte{caFile: read(t, ca.file), certFile: cert, keyFile: key} {
			if err := os.WriteFile(name, text, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(name, monday, monday.Add(age)); err != nil {
				t.Fatal(err)
			}
		}
	}
	server := func(ca authority) *httptest.Server {
		return serveTLS(t, new(recorder), &tls.Config{
			Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", time.Hour)},
			ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ca.pool(),
		})
	}
	install(first)
	urlFile := writeFile(t, "url", server(first).URL)
	settings := "url_file: " + urlFile + "\ntls: {ca_file: " + caFile + ", cert_file: " + certFile + ", key_file: " +
		keyFile + "}"
	opened, err := open("webhook", settings, testHost(t))
	if err != nil || len(opened.Secrets) != 4 {
		t.Fatalf("open = %q, %v; want the four files to watch", opened.Secrets, err)
	}
	s := opened.Sink
	defer closeSink(s)
	deliver := func(when, want string) {
		t.Helper()
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != want {
			t.Errorf("%s: %v, want it %s", when, err, want)
		}
	}
	deliver("at first", accepted)
	if err := os.WriteFile(urlFile, []byte(server(second).URL), 0o600); err != nil {
		t.Fatal(err)
	}
	deliver("before the files are renewed", blocked)
	install(second)
	deliver("after they are renewed", accepted)
	if err := os.WriteFile(certFile, []byte("half a fi"), 0o600); err != nil {
		t.Fatal(err)
	}
	deliver("while one is broken", blocked)
	if err := os.Remove(certFile); err != nil {
		t.Fatal(err)
	}
	deliver("while one is missing", blocked)
	install(second)
	deliver("when it is back", accepted)
}

// serveHTTP2 is a destination that speaks HTTP/2, with a certificate of ca.
func serveHTTP2(t *testing.T, h http.Handler, ca authority) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", time.Hour)}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

// HTTP/2 is spoken where the destination speaks it.
func TestHTTP2IsSpoken(t *testing.T) {
	var r recorder
	ca := newAuthority(t)
	srv := serveHTTP2(t, &r, ca)
	s := mustOpen(t, "webhook", "url: "+srv.URL+"\ntls: {ca_file: "+ca.file+"}", testHost(t))
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
		t.Fatal(err)
	}
	if got := r.all()[0].Proto; got != "HTTP/2.0" {
		t.Errorf("spoke %s, want HTTP/2.0", got)
	}
}

// A connection of HTTP/2 that has gone dead, as when a NAT forgets it, costs one attempt: the next one makes another.
func TestDeadHTTP2ConnectionCostsOneAttempt(t *testing.T) {
	var r recorder
	ca := newAuthority(t)
	srv := serveHTTP2(t, &r, ca)
	for range 5 { // the dead connection was chosen again now and then
		h, dials := testHost(t), 0
		var dead atomic.Bool
		h.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if dials++; dials == 1 {
				c = hole{c, &dead}
			}
			return c, err
		}
		s := mustOpen(t, "webhook", "url: "+srv.URL+"\ntls: {ca_file: "+ca.file+"}", h)
		try := func(limit time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := s.Deliver(ctx, deliveries(t)[:1])
			return err
		}
		if err := try(20 * time.Second); err != nil {
			t.Fatal(err)
		}
		dead.Store(true)
		if err := try(100 * time.Millisecond); err == nil {
			t.Error("the dead connection delivers")
		}
		if err := try(5 * time.Second); err != nil {
			t.Errorf("the attempt after it: %v", err)
		}
	}
}

// A hole is a connection that swallows what is written once it is dead.
type hole struct {
	net.Conn
	dead *atomic.Bool
}

func (c hole) Write(p []byte) (int, error) {
	if c.dead.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// An authority issues certificates; file holds its own.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a := authority{cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of " + t.Name()},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = writeFile(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	return a
}

// issue makes a certificate for a name or address that ends after some time; it began two days before that.
func (a authority) issue(t *testing.T, name string, valid time.Duration) tls.Certificate {
	t.Helper()
	end := time.Now().Add(valid)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: end.Add(-48 * time.Hour), NotAfter: end,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		cert.IPAddresses = []net.IP{ip}
	} else {
		cert.DNSNames = []string{name}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func pemOf(t *testing.T, c tls.Certificate) (cert, key []byte) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// files returns the settings of a certificate, behind others of tls.
func files(t *testing.T, c tls.Certificate) string {
	cert, key := pemOf(t, c)
	return ", cert_file: " + writeFile(t, "cert.pem", string(cert)) + ", key_file: " + writeFile(t, "key.pem", string(key))
}

// serveTLS starts a server over TLS that ends with the test and complains to nobody.
func serveTLS(t *testing.T, h http.Handler, config *tls.Config) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.TLS = config
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}
