package main

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"syscall"
)

// A switchboard is a network in memory, so that a bubble of testing/synctest can hold both ends of each connection.
type switchboard struct {
	mu    sync.Mutex
	lines map[string]*line // by address
}

// line adds a place that is reached at address; answer makes the connections to it.
func (b *switchboard) line(address string, answer func() (net.Conn, error)) *line {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &line{answer: answer}
	b.lines[address] = l
	return l
}

// serve adds an HTTP server.
func (b *switchboard) serve(address string, h http.Handler) *line {
	l := newMemoryListener()
	line := b.line(address, l.dial)
	srv := &http.Server{Handler: line.spoilt(h), ErrorLog: log.New(io.Discard, "", 0)}
	go srv.Serve(l)
	line.close = func() { srv.Close() }
	return line
}

// dial is a sinks.Dialer.
func (b *switchboard) dial(ctx context.Context, _, address string) (net.Conn, error) {
	b.mu.Lock()
	l := b.lines[address]
	b.mu.Unlock()
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return l.dial(ctx)
}

// close ends every place.
func (b *switchboard) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.lines {
		l.set("")
		if l.close != nil {
			l.close()
		}
	}
}

// A line is the way to one place, and what is wrong with it: "" is nothing, refuse lets nobody connect, lost neither
// connects nor refuses, and the words for servers of HTTP are those of spoilt.
type line struct {
	answer func() (net.Conn, error)
	close  func()

	mu      sync.Mutex
	trouble string
	conns   map[net.Conn]bool
}

// set changes what is wrong. Connections that are open break with it.
func (l *line) set(trouble string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trouble = trouble
	for c := range l.conns {
		c.Close()
	}
	clear(l.conns)
}

func (l *line) is() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

func (l *line) dial(ctx context.Context) (net.Conn, error) {
	switch l.is() {
	case "refuse":
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case "lost":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	c, err := l.answer()
	if err != nil {
		return nil, err
	}
	tracked := &lineConn{c, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil {
		l.conns = map[net.Conn]bool{}
	}
	l.conns[c] = true
	return tracked, nil
}

type lineConn struct {
	net.Conn
	line *line
}

// Close ends the connection.
func (c *lineConn) Close() error {
	c.line.mu.Lock()
	delete(c.line.conns, c.Conn)
	c.line.mu.Unlock()
	return c.Conn.Close()
}

// spoilt is h while nothing is wrong; with hang there is no answer, with cut the connection ends in one, with limit
// there is 429 with a Retry-After, and anything else is an error of the server.
func (l *line) spoilt(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch l.is() {
		case "":
			h.ServeHTTP(w, r)
		case "hang":
			io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		case "cut":
			panic(http.ErrAbortHandler)
		case "limit":
			w.Header().Set("Retry-After", "90")
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
}

// A memoryListener takes the connections that dial makes.
type memoryListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newMemoryListener() *memoryListener {
	return &memoryListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *memoryListener) dial() (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
}

// Accept waits for the next connection.
func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (l *memoryListener) Close() error { l.once.Do(func() { close(l.done) }); return nil }

// Addr is one that the server's log can show.
func (l *memoryListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
