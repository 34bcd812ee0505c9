package sinks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/systemtest"
)

const (
	// hostileCost is how many bytes one attempt on one connection may make the sink allocate, in all.
	hostileCost     = 16 << 20
	hostileAttempts = 3
)

// natsHostile is every way to hurt a client that we know of.
var natsHostile = map[string]func(conn net.Conn, r *bufio.Reader){
	// Before the client says anything.
	"silence":              func(net.Conn, *bufio.Reader) {},
	"hangs up":             func(conn net.Conn, _ *bufio.Reader) { conn.Close() },
	"INFO without end":     func(conn net.Conn, _ *bufio.Reader) { natsEndless(conn, `INFO {"x":"`, "xxxxxxxx") },
	"spaces without end":   func(conn net.Conn, _ *bufio.Reader) { natsEndless(conn, "INFO ", "        ") },
	"INFO of a megabyte":   func(conn net.Conn, _ *bufio.Reader) { natsGreets(conn, natsMany(`"a.example:1"`, 1<<20)) },
	"INFO of many servers": func(conn net.Conn, _ *bufio.Reader) { natsGreets(conn, natsMany(`""`, 60<<10)) },
	"deep INFO":            func(conn net.Conn, _ *bufio.Reader) { natsGreets(conn, strings.Repeat("[", 60<<10)) },
	"INFO in drops":        func(conn net.Conn, _ *bufio.Reader) { natsDrip(conn, fmt.Sprintf(natsInfo, "")) },
	"INFO that is no JSON": natsOpens("INFO hello\r\n"),
	"INFO of wrong types":  natsOpens(`INFO {"max_payload":"x"}` + "\r\n"),
	"garbage for an INFO":  func(conn net.Conn, _ *bufio.Reader) { natsEndless(conn, "", "\x00\xff\x16\x03") },
	"another protocol":     natsOpens("220 mail.example.com ESMTP\r\n"),
	"-ERR for an INFO":     func(conn net.Conn, _ *bufio.Reader) { natsEndless(conn, "", "-ERR 'go away'\r\n") },
	"wants TLS, talks on":  natsOpens(fmt.Sprintf(natsInfo, `,"tls_required":true`) + "PONG\r\n"),
	"wants TLS, has none": func(conn net.Conn, r *bufio.Reader) {
		wantTLS(conn, r)
		natsEndless(conn, "", "\x00\xff\x16\x03")
	},
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
	"an answer of 250 KB": natsReplies(`{"error":{"code":503,"description":"` +
		strings.Repeat("x", 250_000) + `"}}`),
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
// attempt costs more memory than hostileCost, and once an honest server answers there, it gets what is pending.
func TestNATSHostileServerEndsOnlyItsConnection(t *testing.T) {
	systemtest.Alone(t)
	emptyTimerPools()
	for name, talk := range natsHostile {
		for _, core := range []bool{false, true} {
			kind := map[bool]string{false: "stream", true: "core"}[core]
			t.Run(name+"/"+kind, func(t *testing.T) {
				natsNextBubble(t, func(t *testing.T) { natsSurvives(t, talk, core) })
			})
		}
	}
}

// natsBubble is synctest.Test for NATS.
func natsBubble(t *testing.T, test func(*testing.T)) {
	emptyTimerPools()
	natsNextBubble(t, test)
}

// natsNextBubble is natsBubble after another one.
func natsNextBubble(t *testing.T, test func(*testing.T)) {
	ats.Register() // one clock for all NATS servers of a process, which no bubble can hold
	defer ats.Unregister()
	defer emptyTimerPools()
	synctest.Test(t, test)
}

// emptyTimerPools keeps the pools of nats.go from lending a timer of one bubble to another, or to none.
func emptyTimerPools() {
	runtime.GC()
	runtime.GC()
}

func natsSurvives(t *testing.T, talk func(net.Conn, *bufio.Reader), core bool) {
	wire := &natsWire{talk: talk}
	h := testHost(t)
	h.Dial = wire.dial
	s := mustOpen(t, "nats", fmt.Sprintf("{url: 'nats://127.0.0.1', token: s3cr3t-token, core: %t}", core), h)
	pending := deliveries(t)[:1]
	attempt := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), natsTerms.Timeout)
		defer cancel()
		_, err := s.Deliver(ctx, pending)
		return err
	}
	for range hostileAttempts {
		wire.highest()
		err := attempt()
		if err == nil && !core || classOf(err) == rejected { // plain NATS cannot tell a PONG from another
			t.Errorf("Deliver = %v, want it to be tried again", err)
		}
		if err != nil && (len(err.Error()) > 1000 || strings.Contains(err.Error(), "s3cr3t")) {
			t.Errorf("Deliver says %q", err)
		}
		time.Sleep(5 * time.Second)
	}
	wire.end()
	if cost := wire.highest(); cost > hostileCost {
		t.Errorf("it cost %.1f MiB, want at most %d", float64(cost)/(1<<20), hostileCost>>20)
	}

	srv, stream := natsInMemory(t)
	wire.becomes(srv.InProcessConn)
	for tries := 0; ; tries++ {
		err := attempt()
		if err == nil {
			break
		}
		if tries == 5 {
			t.Fatalf("with an honest server: %v", err)
		}
		time.Sleep(time.Second)
	}
	if got := natsIDs(t, stream); len(got) != 1 && !core {
		t.Errorf("the stream holds %q, want the delivery", got)
	}
}

// natsInMemory returns a server in a bubble, with a token and the stream FOREWARN.
func natsInMemory(t *testing.T) (*server.Server, jetstream.Stream) {
	t.Helper()
	const token = "s3cr3t-token"
	srv := natsStart(t, func(o *server.Options) { o.DontListen, o.Authorization = true, token })
	_, js := natsClient(t, "", nats.InProcessServer(srv), nats.Token(token))
	return srv, natsStream(t, js, func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage })
}

// natsWire is the network between a sink and a hostile server.
type natsWire struct {
	mu     sync.Mutex
	talk   func(net.Conn, *bufio.Reader)
	honest func() (net.Conn, error)
	open   []net.Conn
	before uint64 // bytes that were allocated before the newest connection, or attempt
	most   uint64
}

func (w *natsWire) dial(context.Context, string, string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.honest != nil {
		conn, err := w.honest()
		if err == nil {
			w.open = append(w.open, conn)
		}
		return conn, err
	}
	w.count()
	here, there := net.Pipe()
	w.open = append(w.open, there)
	go func() {
		defer there.Close()
		w.talk(there, bufio.NewReader(there))
		drain(there) // until the sink hangs up
	}()
	return here, nil
}

// count closes the account of the newest connection or attempt. The caller holds mu.
func (w *natsWire) count() {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if w.before > 0 {
		w.most = max(w.most, m.TotalAlloc-w.before)
	}
	w.before = m.TotalAlloc
}

// highest returns the most that one of them cost.
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

// natsEndless says something and then something else over and over: 64 MiB of it, more than a client should read.
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

// natsMany returns a field of an INFO that holds an item as often as fits in so many bytes.
func natsMany(item string, size int) string {
	return `"connect_urls":[` + strings.Repeat(item+",", size/(len(item)+1)) + item + "]"
}

// natsOpens begins with a text.
func natsOpens(text string) func(net.Conn, *bufio.Reader) {
	return func(conn net.Conn, _ *bufio.Reader) { io.WriteString(conn, text) }
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

// natsHeaded returns a message whose header, of so many bytes, has as many fields as it can.
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

// A server that tells of others once it has let the sink in tells in vain: the settings list the servers.
func TestNATSServersAnnouncedLaterAreNotUsed(t *testing.T) {
	natsBubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var dialed []string
		h := testHost(t)
		h.Dial = func(ctx context.Context, _, address string) (net.Conn, error) {
			mu.Lock()
			dialed = append(dialed, address)
			mu.Unlock()
			if address != "nats.example.com:4222" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			here, there := net.Pipe()
			go natsLet(func(conn net.Conn, r *bufio.Reader) {
				go drain(r)
				fmt.Fprintf(conn, natsInfo, `,"connect_urls":["collector.example.com:4222"]`)
				conn.Close()
			})(there, bufio.NewReader(there))
			return here, nil
		}
		s := mustOpen(t, "nats", "url: 'nats://nats.example.com'", h)
		for range 5 {
			if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err == nil {
				t.Error("Deliver was accepted by a server that stores nothing")
			}
			time.Sleep(5 * time.Second)
		}
		closeSink(s)
		mu.Lock()
		defer mu.Unlock()
		i := slices.IndexFunc(dialed, func(a string) bool { return a != "nats.example.com:4222" })
		if i >= 0 || len(dialed) < 2 {
			t.Errorf("the sink went to %q, want it to return to the one server of its settings only", dialed)
		}
	})
}
