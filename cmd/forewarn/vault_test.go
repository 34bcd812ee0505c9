package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// A vault is a Key Vault behind a proxy. It answers each request for a secret alike.
type vault struct {
	mu     sync.Mutex
	answer string // the secret, or the status and the inner code of an error
	asked  int
}

// vaultVerb has the vault answer so from now on, with a secret or an error such as "403 ForbiddenByRbac". The first time
// it starts the vault, with the certificate and the proxy for forewarn in the environment. "asked N" waits until it was
// asked so often.
func vaultVerb(ts *testscript.TestScript, _ bool, args []string) {
	s := in(ts)
	if s.vault == nil {
		s.vault = new(vault)
		s.vault.start(ts)
	}
	v := s.vault
	if args[0] == "asked" {
		count := func() int { v.mu.Lock(); defer v.mu.Unlock(); return v.asked }
		eventually(ts, func() bool { return fmt.Sprint(count()) == args[1] },
			func() string { return fmt.Sprintf("the vault was asked %d times, not %s", count(), args[1]) })
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.answer = strings.Join(args, " ")
}

func (v *vault) start(ts *testscript.TestScript) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	ts.Check(err)
	its := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"forewarn.vault.azure.net"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	raw, err := x509.CreateCertificate(crand.Reader, its, its, key.Public(), key)
	ts.Check(err)
	file := ts.MkAbs("vault.pem")
	ts.Check(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), 0o600))

	srv := httptest.NewUnstartedServer(v)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}}}
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	srv.StartTLS()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != "forewarn.vault.azure.net:443" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		to, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer to.Close()
		from, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer from.Close()
		io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
		go io.Copy(to, from)
		io.Copy(from, to)
	}))
	in(ts).ends = append(in(ts).ends, srv.Close, proxy.Close)
	ts.Setenv("SSL_CERT_FILE", file)
	ts.Setenv("HTTPS_PROXY", proxy.URL)
}

func (v *vault) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked++
	word, code, _ := strings.Cut(v.answer, " ")
	status, err := strconv.Atoi(word)
	if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer emulated.") {
		status, code, err = http.StatusUnauthorized, "", nil
	}
	if err != nil {
		json.NewEncoder(w).Encode(map[string]string{"value": v.answer})
		return
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{
		"code": "Forbidden", "message": "No.", "innererror": map[string]string{"code": code}}})
}
