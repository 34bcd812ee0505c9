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
			go h.Serve(&single{conn: server})
			return client, nil
		},
	}
}

// single is a listener with one connection.
type single struct{ conn net.Conn }

func (l *single) Accept() (net.Conn, error) {
	if l.conn == nil {
		return nil, net.ErrClosed
	}
	c := l.conn
	l.conn = nil
	return c, nil
}

func (l *single) Close() error   { return nil }
func (l *single) Addr() net.Addr { return memory{} }

type memory struct{}

func (memory) Network() string { return "memory" }
func (memory) String() string  { return "imdstest" }
