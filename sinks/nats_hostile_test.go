package sinks

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	hostileCost     = 16 << 20 // bytes that one connection may make the sink allocate, in all
	hostileAttempts = 3
)

// natsHostile is every way to hurt a client that we know of.
var natsHostile = map[string]func(conn net.Conn, r *bufio.Reader){
	// Before the client says anything.
	"silence":                 func(net.Conn, *bufio.Reader) {},
	"hangs up":                func(conn net.Conn, _ *bufio.Reader) { conn.Close() },
	"INFO without end":        func(conn net.Conn, _ *bufio.Reader) { natsEndless(conn, `INFO {"x":"`, "xxxxxxxx") },
	"spaces without end":      func(conn net.Conn, _ *bufio.Reader) { natsEndless(conn, "INFO ", "        ") },
	"INFO of a megabyte":      func(conn net.Conn, _ *bufio.Reader) { natsGreets(conn, natsMany(`"a.example:1"`, 1<<20)) },
	"INFO of many servers":    func(conn net.Conn, _ *bufio.Reader) { natsGreets(conn, natsMany(`""`, 60<<10)) },
	"deep INFO":               func(conn net.Conn, _ *bufio.Reader) { natsGreets(conn, strings.Repeat("[", 60<<10)) },
	"INFO in drops":           func(conn net.Conn, _ *bufio.Reader) { natsDrip(conn, fmt.Sprintf(natsInfo, "")) },
	"INFO that is no JSON":    func(conn net.Conn, _ *bufio.Reader) { io.WriteString(conn, "INFO hello\r\n") },
	"INFO of wrong types":     func(conn net.Conn, _ *bufio.Reader) { io.WriteString(conn, `INFO {"max_payload":"x"}`+"\r\n") },
	"garbage for an INFO":     func(conn net.Conn, _ *bufio.Reader) { natsEndless(conn, "", "\x00\xff\x16\x03") },
	"another protocol":        func(conn net.Conn, _ *bufio.Reader) { io.WriteString(conn, "220 mail.example.com ESMTP\r\n") },
	"-ERR for an INFO":        func(conn net.Conn, _ *bufio.Reader) { natsEndless(conn, "", "-ERR 'go away'\r\n") },
	"wants TLS, talks on":     func(conn net.Conn, _ *bufio.Reader) { fmt.Fprintf(conn, natsInfo+"PONG\r\n", `,"tls_required":true`) },
	"wants TLS, has none":     func(conn net.Conn, r *bufio.Reader) { wantTLS(conn, r); natsEndless(conn, "", "\x00\xff\x16\x03") },
	"wants TLS, never starts": wantTLS,
	"max_payload 0":           natsSays(`INFO {"headers":true,"max_payload":0}`),
	"max_payload -1":          natsSays(`INFO {"headers":true,"max_payload":-1}`),
	"max_payload missing":     natsSays(`INFO {"headers":true}`),
	"-ERR for a PONG": func(conn net.Conn, r *bufio.Reader) {
		fmt.Fprintf(conn, natsInfo, "")
		go drain(r)
		natsEndless(conn, "-ERR '", "xxxxxxxx")
	},
	"messages for a PONG": func(conn net.Conn, r *bufio.Reader) {
		fmt.Fprintf(conn, natsInfo, "")
		go drain(r)
		natsEndless(conn, "", "MSG a 1 5\r\nhello\r\n")
	},

	// Once it is connected.
	"a length that overflows":          natsThen("", "MSG a 1 9223372036854775000\r\n"),
	"a length of 8 GB":                 natsThen("", "MSG a 1 8000000000\r\n"),
	"a length of 100 MB":               natsThen("", "MSG a 1 100000000\r\n"),
	"a length beyond 64 bits":          natsThen("", "MSG a 1 18446744073709551617\r\n"),
	"a negative length":                natsThen("", "MSG a 1 -5\r\nhello\r\n"),
	"no length":                        natsThen("", "MSG a 1 \r\n"),
	"no MSG":                           natsThen("", "MSG\r\n"),
	"a header that overflows":          natsThen("", "HMSG a 1 9223372036854775000 9223372036854775000\r\n"),
	"a header longer than its message": natsThen("", "HMSG a 1 9 5\r\nhello\r\n"),
	"a negative header":                natsThen("", "HMSG a 1 -1 5\r\nhello\r\n"),
	"a message with a wrong end":       natsThen("MSG a 1 5\r\nhelloMSG a 1 5\r\nhello", "MSG a 1 5\r\nhello"),
	"a line without end":               natsThen("-ERR '", "xxxxxxxxxxxxxxxx"),
	"a MSG without end":                natsThen("MSG ", "xxxxxxxxxxxxxxxx"),
	"-ERR without end":                 natsThen("", "-ERR 'Permissions Violation for Publish to \"a\"'\r\n"),
	"short -ERR without end":           natsThen("", "-ERR 'Permissions Violation\r\n"),
	"long -ERR without end":            natsThen("", "-ERR 'Permissions Violation "+strings.Repeat("x", 60<<10)+"\r\n"),
	"too many subscriptions":           natsThen("", "-ERR 'maximum subscriptions exceeded'\r\n"),
	"-ERR that ends it":                natsThen("", "-ERR 'boo'\r\n"),
	"expired credentials":              natsThen("", "-ERR 'User Authentication Expired'\r\n"),
	"PING without end":                 natsThen("", "PING\r\n"),
	"PONG without end":                 natsThen("", "PONG\r\n"),
	"+OK without end":                  natsThen("", "+OK\r\n"),
	"garbage":                          natsThen("", "\x00\xff\x16\x03"),
	"INFO again and again":             natsThen("", `INFO {"max_payload":1048576,"headers":true}`+"\r\n"),
	"large INFO again and again":       natsThen("", "INFO {"+natsMany(`"a.example:1"`, 60<<10)+"}\r\n"),
	"INFO with another max_payload":    natsThen("", `INFO {"headers":true,"max_payload":-1}`+"\r\n"),
	"messages to everyone":             natsThen("", "MSG _INBOX.x.y 1 5\r\nhello\r\n"),

	// When it is asked to store a message.
	"an empty answer":           natsReplies(""),
	"an answer that is no JSON": natsReplies("+OK"),
	"an answer of null":         natsReplies("null"),
	"an answer without stream":  natsReplies(`{"seq":1}`),
	"an answer of wrong types":  natsReplies(`{"stream":7,"seq":"x"}`),
	"a deep answer":             natsReplies(strings.Repeat("[", 200<<10)),
	"a deep stream":             natsReplies(`{"stream":` + strings.Repeat(`{"a":`, 40<<10)),
	"an answer of 250 KB":       natsReplies(`{"error":{"code":503,"err_code":1,"description":"` + strings.Repeat("x", 250_000) + `"}}`),
	"an answer of 60 MB": natsLet(func(conn net.Conn, r *bufio.Reader) {
		natsAsked(conn, r, func(_, reply, sid string) string {
			natsEndless(conn, fmt.Sprintf("MSG %s %s 60000000\r\n", reply, sid), "xxxxxxxx")
			return ""
		})
	}),
	"an answer in drops": natsLet(func(conn net.Conn, r *bufio.Reader) {
		natsAsked(conn, r, func(_, reply, sid string) string { return fmt.Sprintf("MSG %s %s 100\r\n", reply, sid) })
		natsDrip(conn, strings.Repeat("x", 100))
	}),
	"many headers": natsLet(func(conn net.Conn, r *bufio.Reader) {
		natsAsked(conn, r, func(_, reply, sid string) string { return natsHeaded(reply, sid, 60<<10) })
	}),
	"a header of 200 KB": natsLet(func(conn net.Conn, r *bufio.Reader) {
		natsAsked(conn, r, func(_, reply, sid string) string { return natsHeaded(reply, sid, 200<<10) })
	}),
	"a stream of many sources": natsLet(func(conn net.Conn, r *bufio.Reader) {
		natsAsked(conn, r, func(subject, reply, sid string) string {
			body := `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"}}`
			switch {
			case subject == "$JS.API.STREAM.NAMES":
				body = `{"total":1,"streams":["FOREWARN"]}`
			case strings.HasPrefix(subject, "$JS."):
				body = `{"config":{"name":"FOREWARN","sources":[` + strings.Repeat("{},", 80_000) + `{}]}}`
			}
			return natsMessage(reply, sid, body)
		})
	}),
	"many streams": natsLet(func(conn net.Conn, r *bufio.Reader) {
		natsAsked(conn, r, func(subject, reply, sid string) string {
			body := `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"}}`
			if strings.HasPrefix(subject, "$JS.") {
				body = `{"total":80000,"streams":[` + strings.Repeat(`"",`, 80_000) + `""]}`
			}
			return natsMessage(reply, sid, body)
		})
	}),
	"hangs up for an answer": natsLet(func(conn net.Conn, r *bufio.Reader) {
		natsAsked(conn, r, func(string, string, string) string { conn.Close(); return "" })
	}),
	"PING for an answer": natsLet(func(conn net.Conn, r *bufio.Reader) {
		natsAsked(conn, r, func(string, string, string) string { return "PING\r\n" })
	}),
}

// A hostile server ends its connection and nothing else: no delivery is lost, nothing of it is taken for an answer, no
// connection costs more memory than hostileCost, and once an honest server answers there, it gets what is owed.
func TestNATSHostileServerEndsOnlyItsConnection(t *testing.T) {
	for name, talk := range natsHostile {
		for _, core := range []bool{false, true} {
			kind := map[bool]string{false: "stream", true: "core"}[core]
			t.Run(name+"/"+kind, func(t *testing.T) {
				ats.Register() // one clock for all NATS servers of a process, which no bubble can hold
				defer ats.Unregister()
				synctest.Test(t, func(t *testing.T) { natsSurvives(t, talk, core) })
			})
		}
	}
}

func natsSurvives(t *testing.T, talk func(net.Conn, *bufio.Reader), core bool) {
	wire := &natsWire{talk: talk}
	h := testHost(t)
	h.Dial = wire.dial
	s := mustOpen(t, "nats", fmt.Sprintf("{url: 'nats://127.0.0.1', token: s3cr3t-token, core: %t}", core), h)
	attempt := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), natsTerms.Timeout)
		defer cancel()
		_, err := s.Deliver(ctx, deliveries(t)[:1])
		return err
	}
	for range hostileAttempts {
		err := attempt()
		if err == nil && !core || classOf(err) == rejected { // plain NATS cannot tell a PONG from another
			t.Errorf("Deliver = %v, want it to be tried again", err)
		}
		if err != nil && (len(err.Error()) > 1000 || strings.Contains(err.Error(), "s3cr3t")) {
			t.Errorf("Deliver says %q", err)
		}
		time.Sleep(time.Minute)
	}
	wire.end()
	if cost := wire.highest(); cost > hostileCost {
		t.Errorf("a connection cost %.1f MiB, want at most %d", float64(cost)/(1<<20), hostileCost>>20)
	}

	srv, err := server.NewServer(&server.Options{
		DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(), Authorization: "s3cr3t-token",
	})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	defer natsStop(srv)
	conn, err := nats.Connect("", nats.InProcessServer(srv), nats.Token("s3cr3t-token"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream := natsStream(t, js, func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage })
	wire.becomes(srv.InProcessConn)
	for tries := 0; ; tries++ {
		if err = attempt(); err == nil {
			break
		} else if tries == 5 {
			t.Fatalf("with an honest server: %v", err)
		}
		time.Sleep(time.Second)
	}
	if got := natsIDs(t, stream); len(got) != 1 && !core {
		t.Errorf("the stream holds %q, want the delivery", got)
	}
}

// natsWire is the network between a sink and a hostile server.
type natsWire struct {
	mu     sync.Mutex
	talk   func(net.Conn, *bufio.Reader)
	honest func() (net.Conn, error)
	open   []net.Conn
	before uint64 // bytes that were allocated before the newest connection
	most   uint64
}

func (w *natsWire) dial(context.Context, string, string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.honest != nil {
		return w.honest()
	}
	w.count()
	here, there := net.Pipe()
	w.open = append(w.open, there)
	go func() {
		defer there.Close()
		r := bufio.NewReader(there)
		w.talk(there, r)
		drain(r)
	}()
	return here, nil
}

// count closes the account of the newest connection. The caller holds mu.
func (w *natsWire) count() {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if w.before > 0 {
		w.most = max(w.most, m.TotalAlloc-w.before)
	}
	w.before = m.TotalAlloc
}

func (w *natsWire) highest() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count()
	return w.most
}

// end hangs up on the sink.
func (w *natsWire) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, conn := range w.open {
		conn.Close()
	}
}

func (w *natsWire) becomes(honest func() (net.Conn, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.honest = honest
}

func drain(r io.Reader) { io.Copy(io.Discard, r) }

// natsEndless says something and then something else over and over: 64 MiB of it, which is more than anybody should hear.
func natsEndless(conn net.Conn, first, more string) {
	io.WriteString(conn, first)
	chunk := bytes.Repeat([]byte(more), max(1, 8<<10/len(more)))
	for said := 0; said < 64<<20; said += len(chunk) {
		if _, err := conn.Write(chunk); err != nil {
			return
		}
	}
}

// natsDrip says something slowly, a byte in five seconds.
func natsDrip(conn net.Conn, text string) {
	for _, b := range []byte(text) {
		if _, err := conn.Write([]byte{b}); err != nil {
			return
		}
		time.Sleep(5 * time.Second)
	}
}

// natsMany is a field of an INFO that holds an item as often as fits in so many bytes.
func natsMany(item string, size int) string {
	return `"connect_urls":[` + strings.Repeat(item+",", size/(len(item)+1)) + item + "]"
}

// natsGreets says an INFO with more in it.
func natsGreets(conn net.Conn, more string) { fmt.Fprintf(conn, natsInfo, ","+more) }

func wantTLS(conn net.Conn, r *bufio.Reader) {
	fmt.Fprintf(conn, natsInfo, `,"tls_required":true`)
	r.ReadByte()
}

// natsSays lets a client in with an INFO of the test's own, and answers nothing.
func natsSays(info string) func(net.Conn, *bufio.Reader) {
	return func(conn net.Conn, r *bufio.Reader) {
		io.WriteString(conn, info+"\r\n")
		natsPongs(conn, r)
	}
}

// natsThen lets a client in and then says something, and something else without end.
func natsThen(first, more string) func(net.Conn, *bufio.Reader) {
	return natsLet(func(conn net.Conn, r *bufio.Reader) {
		go drain(r)
		natsEndless(conn, first, more)
	})
}

// natsReplies lets a client in and gives one answer to whatever it asks.
func natsReplies(body string) func(net.Conn, *bufio.Reader) {
	return natsLet(func(conn net.Conn, r *bufio.Reader) {
		natsAsked(conn, r, func(_, reply, sid string) string { return natsMessage(reply, sid, body) })
	})
}

func natsMessage(subject, sid, body string) string {
	return fmt.Sprintf("MSG %s %s %d\r\n%s\r\n", subject, sid, len(body), body)
}

// natsHeaded is a message whose header, of so many bytes, has as many fields as it can.
func natsHeaded(subject, sid string, size int) string {
	var b strings.Builder
	b.WriteString("NATS/1.0\r\n")
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "%x:\r\n", i)
	}
	b.WriteString("\r\n")
	return fmt.Sprintf("HMSG %s %s %d %d\r\n%s\r\n", subject, sid, b.Len(), b.Len(), b.String())
}

// A server that does not read keeps nothing waiting.
func TestNATSServerThatDoesNotRead(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := testHost(t)
	h.Dial = func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe() // which holds nothing that is not read
		go natsLet(func(net.Conn, *bufio.Reader) { cancel() })(there, bufio.NewReader(there))
		return here, nil
	}
	s := mustOpen(t, "nats", "url: 'nats://nats.example.com'", h)
	if _, err := s.Deliver(ctx, deliveries(t)[:1]); !errors.Is(err, context.Canceled) {
		t.Errorf("Deliver = %v, want it to end with its context", err)
	}
}

// What was said before TLS is from anybody on the way: it neither leads the sink to another server, which would collect
// its credentials, nor settles what is owed.
func TestNATSBelievesNothingBeforeTLS(t *testing.T) {
	ca := newAuthority(t)
	var heard bytes.Buffer
	collector := func(conn net.Conn) {
		cert := ca.issue(t, "collector.example.com", time.Hour)
		fmt.Fprintf(conn, natsInfo, `,"tls_required":true`)
		r := bufio.NewReader(tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}))
		io.Copy(&heard, r)
	}
	srv := natsServe(t, func(o *server.Options) {
		cert := ca.issue(t, "nats.example.com", time.Hour)
		o.Username, o.Password, o.TLSTimeout = "azure", "hunter2", 5
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	})
	at := strings.TrimPrefix(strings.TrimPrefix(srv.ClientURL(), "nats://"), "tls://")
	_, js := natsClient(t, "tls://"+at, nats.UserInfo("azure", "hunter2"), nats.Secure(&tls.Config{
		RootCAs: ca.pool(), ServerName: "nats.example.com",
	}))
	natsStream(t, js, nil)

	var mu sync.Mutex
	var dialed []string
	down := false
	h := testHost(t)
	h.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		dialed = append(dialed, address)
		switch {
		case address != "nats.example.com:4222":
			here, there := net.Pipe()
			go collector(there)
			return here, nil
		case down:
			return nil, os.ErrDeadlineExceeded
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, at)
		if err != nil {
			return nil, err
		}
		return onTheWay(conn, `INFO {"headers":true,"max_payload":1,"tls_required":true,"connect_urls":["collector.example.com:4222"]}`), nil
	}
	s := mustOpen(t, "nats", "{url: 'tls://nats.example.com', username: azure, password: hunter2, tls: {ca_file: "+ca.file+"}}", h)
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
		t.Errorf("Deliver = %v, want it stored in spite of the max_payload of the man on the way", err)
	}
	mu.Lock()
	down = true
	mu.Unlock()
	natsStop(srv)
	for range 3 {
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err == nil {
			t.Error("without a server: Deliver was accepted")
		}
	}
	closeSink(s)
	mu.Lock()
	defer mu.Unlock()
	for _, address := range dialed {
		if address != "nats.example.com:4222" {
			t.Errorf("the sink went to %s, of which only the man on the way had told", address)
		}
	}
	if heard.Len() > 0 {
		t.Errorf("the collector heard %d bytes", heard.Len())
	}
}

// onTheWay is a connection on which somebody has put another INFO in place of the server's.
func onTheWay(conn net.Conn, info string) net.Conn {
	r := bufio.NewReader(conn)
	r.ReadString('\n')
	return &hijacked{conn, io.MultiReader(strings.NewReader(info+"\r\n"), r)}
}

type hijacked struct {
	net.Conn
	r io.Reader
}

func (h *hijacked) Read(p []byte) (int, error) { return h.r.Read(p) }

// A sink that wants TLS says nothing to a server that offers none.
func TestNATSSaysNothingWithoutTLS(t *testing.T) {
	for name, settings := range map[string]string{
		"by the URL":         "url: 'tls://nats.example.com'",
		"by tls":             "url: 'nats://nats.example.com', tls: {server_name: nats.example.com}",
		"by handshake_first": "url: 'nats://nats.example.com', tls: {handshake_first: true}",
	} {
		t.Run(name, func(t *testing.T) {
			var heard bytes.Buffer
			ended := make(chan struct{})
			h := testHost(t)
			h.Dial = func(context.Context, string, string) (net.Conn, error) {
				here, there := net.Pipe()
				go func() {
					defer close(ended)
					go fmt.Fprintf(there, natsInfo, "")
					io.Copy(&heard, there)
				}()
				return here, nil
			}
			s := mustOpen(t, "nats", "{"+settings+", username: azure, password: hunter2}", h)
			ctx, cancel := context.WithTimeout(t.Context(), natsDial)
			defer cancel()
			if _, err := s.Deliver(ctx, deliveries(t)[:1]); err == nil {
				t.Error("Deliver was accepted")
			}
			<-ended
			if bytes.Contains(heard.Bytes(), []byte("hunter2")) || bytes.Contains(heard.Bytes(), []byte("CONNECT")) {
				t.Errorf("the server heard %q", heard.Bytes())
			}
		})
	}
}

// A server that begins with TLS and says nothing before is reached with handshake_first.
func TestNATSHandshakeFirst(t *testing.T) {
	ca := newAuthority(t)
	srv := natsServe(t, func(o *server.Options) {
		o.Username, o.Password, o.TLSTimeout, o.TLSHandshakeFirst = "azure", "hunter2", 5, true
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", time.Hour)}, MinVersion: tls.VersionTLS12}
	})
	at := strings.TrimPrefix(strings.TrimPrefix(srv.ClientURL(), "nats://"), "tls://")
	_, js := natsClient(t, "tls://"+at, nats.UserInfo("azure", "hunter2"), nats.TLSHandshakeFirst(), nats.Secure(&tls.Config{RootCAs: ca.pool()}))
	natsStream(t, js, nil)
	for _, scheme := range []string{"tls", "nats"} {
		s := mustOpen(t, "nats", fmt.Sprintf("{url: '%s://%s', username: azure, password: hunter2, tls: {ca_file: %s, handshake_first: true}}", scheme, at, ca.file), testHost(t))
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Errorf("%s: Deliver = %v", scheme, err)
		}
	}
}

// The error about a server that says nothing names the key that one with handshake_first needs.
func TestNATSSilenceNamesHandshakeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wire := &natsWire{talk: natsHostile["silence"]}
		h := testHost(t)
		h.Dial = wire.dial
		s := mustOpen(t, "nats", "url: 'tls://nats.example.com'", h)
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != again || !strings.Contains(err.Error(), "handshake_first: true") {
			t.Errorf("Deliver = %v, want it to be tried again, and the key", err)
		}
	})
}

// What a server may say is read to the last byte, and what comes after it; one byte more ends the connection.
func TestNATSReadsWhatItAllows(t *testing.T) {
	for name, tt := range map[string]struct {
		say string
		ok  bool
	}{
		"the longest line":        {"-ERR " + strings.Repeat("x", natsMaxLine-7) + "\r\n", true},
		"a longer line":           {"-ERR " + strings.Repeat("x", natsMaxLine-6) + "\r\n", false},
		"the longest message":     {natsMessage("a", "1", strings.Repeat("x", natsMaxMessage)), true},
		"a longer message":        {natsMessage("a", "1", strings.Repeat("x", natsMaxMessage+1)), false},
		"the longest header":      {fmt.Sprintf("HMSG a b 1 %d %d\r\n%s\r\n", natsMaxHeader, natsMaxHeader+1, strings.Repeat("x", natsMaxHeader+1)), true},
		"a longer header":         {fmt.Sprintf("HMSG a b 1 %d %d\r\n%s\r\n", natsMaxHeader+1, natsMaxHeader+1, strings.Repeat("x", natsMaxHeader+1)), false},
		"an empty message":        {"MSG a 1 0\r\n\r\n", true},
		"lines and messages":      {"PING\r\n+OK\r\nMSG a 1 2\r\n\r\n\r\nPONG\r\nINFO {\"max_payload\":1}\r\n", true},
		"a message with no end":   {"MSG a 1 2\r\nabcPING\r\n", false},
		"a number that is no one": {"MSG a 1 0x5\r\nhello\r\n", false},
		"lower case":              {"ping\r\n", false},
	} {
		said, want := tt.say, tt.say+"PING\r\n"
		here, there := net.Pipe()
		go func() {
			io.WriteString(there, said+"PING\r\n")
			there.Close()
		}()
		got, err := io.ReadAll(newNATSConn(here, here))
		if tt.ok && (err != nil || string(got) != want) || !tt.ok && (err == nil || len(got) > len(want)-len("PING\r\n")) {
			t.Errorf("%s: read %d bytes of %d, %v", name, len(got), len(want), err)
		}
	}
}

// Whatever a server says, nats.go survives it behind a bounded connection.
func FuzzNATSServer(f *testing.F) {
	for _, said := range []string{
		"PING\r\n", "MSG _INBOX.x 1 5\r\nhello\r\n", "HMSG a 1 12 17\r\nNATS/1.0\r\n\r\nhello\r\n", "-ERR 'x'\r\n", "MSG a 1 9223372036854775000\r\n",
		"HMSG a 1 9223372036854775000 9223372036854775000\r\n", "INFO {}\r\n", "MSG a\t1 5\r\nhello\r\n", "MSG a 1 5\r5\r\nhello\r\n", "+OK\r\nPONG\r\n",
	} {
		f.Add(said)
	}
	f.Fuzz(func(t *testing.T, said string) {
		h := testHost(t)
		h.Dial = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go natsLet(func(conn net.Conn, r *bufio.Reader) {
				go drain(r)
				io.WriteString(conn, said)
				conn.Close()
			})(there, bufio.NewReader(there))
			return here, nil
		}
		s := mustOpen(t, "nats", "url: 'nats://nats.example.com'", h)
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err == nil {
			t.Errorf("Deliver was accepted")
		}
	})
}
