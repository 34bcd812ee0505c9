package sinks

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
)

// TLSSettings are the settings under the key tls of every destination that is reached over TLS. The destination's
// certificate is always verified, and no setting can change that.
type TLSSettings struct {
	CAFile     Path   `yaml:"ca_file" doc:"CA bundle (default: the system's)"`
	CertFile   Path   `yaml:"cert_file" doc:"client certificate; needs key_file"`
	KeyFile    Path   `yaml:"key_file" doc:"private key of the client certificate"`
	ServerName string `yaml:"server_name" doc:"name that the server's certificate must have (default: the host's)"`
}

// files returns the files that the settings name.
func (s TLSSettings) files() []string { return nonEmpty(s.CAFile, s.CertFile, s.KeyFile) }

// stamp returns a text that differs once one of the files has changed.
func (s TLSSettings) stamp() (string, error) {
	var b strings.Builder
	for _, f := range s.files() {
		info, err := os.Stat(f)
		if err != nil {
			return "", fmt.Errorf("tls: %w", err)
		}
		fmt.Fprintln(&b, info.ModTime().UnixNano(), info.Size())
	}
	return b.String(), nil
}

// load reads the files and returns the configuration for TLS 1.2 or later. No sink shows the private key from then on.
// Its errors are *KeyError or KeyErrors.
func (s TLSSettings) load(h Host) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.ServerName}
	var wrong KeyErrors
	read := func(key string, file Path) []byte {
		if file == "" {
			return nil
		}
		text, err := readText(file)
		wrong.when(err != nil, key, "%w", err)
		return text
	}
	ca, cert, key := read("tls.ca_file", s.CAFile), read("tls.cert_file", s.CertFile), read("tls.key_file", s.KeyFile)
	h.Name += " tls.key_file" // apart from the sink's tokens, so that these push it out of no memory
	h.redactor().hidePrivateKeys(key)
	if ca != nil {
		config.RootCAs = x509.NewCertPool()
		wrong.when(!config.RootCAs.AppendCertsFromPEM(ca), "tls.ca_file", "%s holds no certificate in PEM form", s.CAFile)
	}
	wrong.when(s.CertFile == "" && s.KeyFile != "", "tls.key_file", "needs cert_file beside it")
	wrong.when(s.CertFile != "" && s.KeyFile == "", "tls.cert_file", "needs key_file beside it")
	if cert != nil && key != nil {
		pair, err := tls.X509KeyPair(cert, key)
		wrong.when(err != nil, "tls.cert_file", "%s with key_file %s: %w", s.CertFile, s.KeyFile, err)
		config.Certificates = []tls.Certificate{pair}
	}
	return config, wrong.err()
}

// handshake starts TLS on a connection to a host. The certificate must be for that host, or for the one in config.
func handshake(ctx context.Context, conn net.Conn, config *tls.Config, host string) (*tls.Conn, error) {
	config = config.Clone()
	config.ServerName = cmp.Or(config.ServerName, host)
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return secured, nil
}
