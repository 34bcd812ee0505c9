package imdstest

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Running is a Server that listens.
type Running struct {
	*Server
	URL        string // of the metadata endpoint, without a final slash
	ControlURL string // of the control API; "" when it is not served

	servers []*http.Server
	serving sync.WaitGroup
}

// Listen serves the metadata endpoint and the control API at these addresses until Close. Port 0 takes a free one; an
// empty control address serves no control API.
func (s *Server) Listen(metadata, control string) (*Running, error) {
	r := &Running{Server: s}
	var err error
	r.URL, err = r.listen(metadata, s.Metadata())
	if err != nil {
		return nil, err
	}
	if control == "" {
		return r, nil
	}
	r.ControlURL, err = r.listen(control, s.Control())
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Running) listen(address string, h http.Handler) (url string, err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return "", fmt.Errorf("emulate metadata service: %w", err)
	}
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
	}
	r.servers = append(r.servers, server)
	r.serving.Go(func() { _ = server.Serve(l) }) // until Close
	return "http://" + reachableAddr(l.Addr().(*net.TCPAddr)), nil
}

// reachableAddr returns the address at which this machine reaches a listener: loopback if it listens on all addresses.
func reachableAddr(a *net.TCPAddr) string {
	if a.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(a.Port))
	}
	return a.String()
}

// Close stops listening and breaks off open requests.
func (r *Running) Close() error {
	var errs []error
	for _, server := range r.servers {
		errs = append(errs, server.Close())
	}
	r.serving.Wait()
	return errors.Join(errs...)
}

// Serve listens on free local ports until the test ends. A *testing.T is a TB.
func Serve(t TB, o Options) *Running {
	t.Helper()
	r, err := New(o).Listen("127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// TB is the part of testing.TB that Serve needs. The program has this package in it and must not contain testing.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}
