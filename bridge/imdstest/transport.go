package imdstest

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
)

// RoundTripper returns a transport to Metadata that needs no socket. Each request has its own in-memory connection
// between net/http's client and server, so that headers, lengths, broken-off bodies and cancelled requests look as they
// do on a network. The host of the URL does not matter. It works inside a testing/synctest bubble.
func (s *Server) RoundTripper() http.RoundTripper {
	return &http.Transport{
		DisableKeepAlives:  true,
		DisableCompression: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			h := &http.Server{Handler: s.Metadata(), ErrorLog: log.New(io.Discard, "", 0)}
			go h.Serve(&oneConnListener{conn: server})
			return client, nil
		},
	}
}

// oneConnListener is a listener with one connection.
type oneConnListener struct{ conn net.Conn }

func (l *oneConnListener) Accept() (net.Conn, error) {
	if l.conn == nil {
		return nil, net.ErrClosed
	}
	c := l.conn
	l.conn = nil
	return c, nil
}

func (l *oneConnListener) Close() error   { return nil }
func (l *oneConnListener) Addr() net.Addr { return memoryAddr{} }

type memoryAddr struct{}

func (memoryAddr) Network() string { return "memory" }
func (memoryAddr) String() string  { return "imdstest" }
