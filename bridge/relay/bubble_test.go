package relay_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"

	"forewarn/bridge/relay"
)

// inBubble runs f in a synctest bubble, in which NATS servers live too: they and their clients talk over pipes, so that
// hours pass in a second. Only one bubble may be there at a time, and no test that runs beside it may use NATS: call
// it only in tests that aren't parallel.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	// The server's clock for the age of its caches is one for the whole process, so it must not begin in a bubble. Nor
	// may nats.go's timers, which it keeps in a pool, leave one: a pool is empty after two collections.
	ats.Register()
	defer ats.Unregister()
	empty := func() { runtime.GC(); runtime.GC() }
	empty()
	defer empty()
	synctest.Test(t, f)
}

// A bubbleServer is a NATS server with JetStream that may be off for a while.
type bubbleServer struct {
	t       *testing.T
	dir     string
	options func(*server.Options) // nil for none

	mu     sync.Mutex
	server *server.Server // nil while it is off
}

// startServer starts a server in a bubble, and makes the stream and what a relay keeps beside it.
func startServer(t *testing.T) *bubbleServer {
	t.Helper()
	return startServerWith(t, nil)
}

// startServerWith starts a server with options of its own, for clients with others.
func startServerWith(t *testing.T, options func(*server.Options), client ...nats.Option) *bubbleServer {
	t.Helper()
	s := &bubbleServer{t: t, dir: t.TempDir(), options: options}
	s.on()
	t.Cleanup(s.off)
	conn := s.connect(&cable{server: s, options: func() []nats.Option { return client }})
	defer conn.Close()
	plan, err := relay.NewPlan(t.Context(), conn, "", "FOREWARN", relay.Retention{})
	if err == nil {
		err = plan.Do(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *bubbleServer) on() {
	o := &server.Options{
		ServerName: "nats-1", DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: s.dir,
		SyncInterval: 24 * time.Hour, // no power fails in a bubble, where hours pass in a moment
	}
	if s.options != nil {
		s.options(o)
	}
	started, err := server.NewServer(o)
	if err != nil {
		s.t.Error(err)
		return
	}
	started.Start()
	if !started.ReadyForConnections(time.Minute) {
		s.t.Error("the server takes no connections")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = started
}

func (s *bubbleServer) off() {
	s.mu.Lock()
	running := s.server
	s.server = nil
	s.mu.Unlock()
	if running != nil {
		// Shutdown sleeps with a lock, and whoever waits for that keeps a bubble's clock from moving. So what was asked
		// before is answered first, and nothing more gets through.
		time.Sleep(time.Nanosecond)
		running.Shutdown()
		running.WaitForShutdown()
	}
}

func (s *bubbleServer) isOff() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server == nil
}

// connect opens a connection that never gives up.
func (s *bubbleServer) connect(c *cable) *nats.Conn {
	s.t.Helper()
	conn, err := c.dial(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return conn
}

// A cable leads from a machine to the server. What is sent takes a moment.
type cable struct {
	server  *bubbleServer
	options func() []nats.Option // those of a new connection; nil for none
	says    func([]byte)         // changes what the server says, in place; nil for nothing
	hears   func([]byte)         // changes what the server hears, likewise

	mu      sync.Mutex
	latency time.Duration
	fault   string // "", hangs: nothing gets through; deaf: nothing comes back; else messages that hold this text get lost
	conns   []net.Conn
}

func (c *cable) dial(context.Context) (*nats.Conn, error) {
	options := []nats.Option{
		nats.InProcessServer(c), nats.MaxReconnects(-1), nats.ReconnectWait(200 * time.Millisecond), nats.ReconnectBufSize(-1),
		nats.Timeout(2 * time.Second), nats.PingInterval(5 * time.Second), nats.MaxPingsOutstanding(2),
	}
	if c.options != nil {
		options = append(options, c.options()...)
	}
	return nats.Connect("", options...)
}

// InProcessConn is nats.go's way to a server.
func (c *cable) InProcessConn() (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server.mu.Lock()
	to := c.server.server
	c.server.mu.Unlock()
	if to == nil || c.fault == "hangs" || c.fault == "deaf" {
		return nil, errors.New("connection refused")
	}
	pipe, err := to.InProcessConn()
	if err != nil {
		return nil, err
	}
	conn := newCabled(pipe, c)
	c.conns = append(c.conns, conn)
	return conn, nil
}

// fail makes a cable fail; "" mends it, and breaks breaks its connections for once. Connections from before are broken
// when it is mended, because bytes of theirs are lost.
func (c *cable) fail(how string) {
	c.mu.Lock()
	was, conns := c.fault, c.conns
	if c.fault = how; how == "breaks" {
		c.fault = ""
	}
	if (was == "hangs" || was == "deaf") && how == "" || how == "breaks" {
		c.conns = nil
	} else {
		conns = nil
	}
	c.mu.Unlock()
	for _, conn := range conns {
		conn.Close()
	}
}

// slow changes how long it takes to send something.
func (c *cable) slow(latency time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latency = latency
}

func (c *cable) now() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fault
}

// A cabled connection sends in a goroutine of its own: nats.go holds a lock while it writes, and a bubble's time stands
// still while somebody waits for a lock. It holds that lock through the whole greeting too, so a greeting takes no time:
// it comes through at once, or the connection breaks.
type cabled struct {
	net.Conn
	cable   *cable
	sent    chan parcel
	over    chan struct{}
	close   func()
	greeted atomic.Bool // a PONG came, which ends the greeting
}

type parcel struct {
	due  time.Time
	data []byte
}

func newCabled(conn net.Conn, c *cable) *cabled {
	over := make(chan struct{})
	x := &cabled{Conn: conn, cable: c, sent: make(chan parcel, 1<<12), over: over, close: sync.OnceFunc(func() { close(over) })}
	go func() {
		for {
			select {
			case p := <-x.sent:
				if wait := time.Until(p.due); wait > 0 {
					select {
					case <-time.After(wait):
					case <-over:
					}
				}
				passed := p.data
				if c.hears != nil {
					c.hears(passed)
				}
				switch fault := c.now(); fault {
				case "", "deaf":
				case "hangs":
					passed = nil
				default:
					passed = without(p.data, fault)
				}
				if len(passed) < len(p.data) && !x.greeted.Load() {
					x.Close()
				}
				if len(passed) == 0 || c.server.isOff() {
					continue
				}
				if _, err := conn.Write(passed); err != nil {
					return
				}
			case <-over:
				return
			}
		}
	}()
	return x
}

// without returns what nats.go sends at once, without the messages that hold a text: the others, such as a lease that is
// renewed at the same moment, get through. What is sent at once has whole messages, as NATS's client protocol writes them.
func without(sent []byte, text string) []byte {
	var left []byte
	for len(sent) > 0 {
		line, rest, _ := bytes.Cut(sent, []byte("\r\n"))
		size := len(sent) - len(rest)
		if fields := bytes.Fields(line); bytes.HasSuffix(bytes.ToUpper(fields[0]), []byte("PUB")) {
			payload, err := strconv.Atoi(string(fields[len(fields)-1]))
			if err != nil {
				panic(err)
			}
			size += payload + len("\r\n")
		}
		if one := sent[:size]; !bytes.Contains(one, []byte(text)) {
			left = append(left, one...)
		}
		sent = sent[size:]
	}
	return left
}

func (c *cabled) Write(p []byte) (int, error) {
	due := time.Now()
	if c.greeted.Load() {
		c.cable.mu.Lock()
		due = due.Add(c.cable.latency)
		c.cable.mu.Unlock()
	}
	select {
	case c.sent <- parcel{due, slices.Clone(p)}:
		return len(p), nil
	case <-c.over:
		return 0, net.ErrClosed
	}
}

func (c *cabled) Close() error {
	c.close()
	return c.Conn.Close()
}

func (c *cabled) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if c.cable.says != nil {
			c.cable.says(p[:n])
		}
		fault := c.cable.now()
		switch lost := fault == "hangs" || fault == "deaf"; {
		case err == nil && lost && c.greeted.Load():
			continue
		case err == nil && lost:
			c.Close()
			return 0, net.ErrClosed
		case bytes.Contains(p[:n], []byte("PONG\r\n")):
			c.greeted.Store(true)
		}
		return n, err
	}
}

// Somebody who asks for something while a connection is made waits for a lock, and then no time passes in a bubble.
func TestAGreetingTakesNoTimeInABubble(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := startServer(t)
		c := &cable{server: s, latency: time.Second}
		conn := s.connect(c)
		defer conn.Close()
		over := time.Now().Add(time.Minute)
		var asking sync.WaitGroup
		asking.Go(func() {
			for time.Now().Before(over) {
				_, _ = conn.Request("somebody", nil, 10*time.Millisecond)
				time.Sleep(time.Millisecond)
			}
		})
		for range 10 {
			time.Sleep(5 * time.Second)
			c.fail("breaks")
		}
		asking.Wait()
		if n := conn.Stats().Reconnects; n != 10 {
			t.Errorf("connected again %d times, want 10", n)
		}
	})
}
