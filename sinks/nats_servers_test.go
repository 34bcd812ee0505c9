package sinks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/delivery"
	"forewarn/bridge/systemtest"
)

// natsPersists delivers until it is accepted, as the bridge would, and gives the failures before. None may be of a
// class that ends or stops deliveries.
func natsPersists(t *testing.T, s delivery.Sink, d delivery.Delivery) (failures []error) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := s.Deliver(ctx, []delivery.Delivery{d})
		cancel()
		if err == nil {
			return failures
		}
		if classOf(err) != again {
			t.Fatalf("Deliver = %v, want it to be tried again", err)
		}
		failures = append(failures, err)
	}
	t.Fatalf("never accepted: %v", failures[len(failures)-1])
	return nil
}

// A server that is gone is tried again and gets, once it is back, what it missed: nothing twice, nothing that was not
// accepted before.
func TestNATSOutageAndRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	port := -1
	start := func() *server.Server {
		srv := natsServe(t, func(o *server.Options) { o.StoreDir, o.Port = dir, port })
		at, err := url.Parse(srv.ClientURL())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Sscan(at.Port(), &port)
		return srv
	}
	srv := start()
	conn, js := natsClient(t, srv.ClientURL())
	natsStream(t, js, nil)
	conn.Close()
	s := mustOpen(t, "nats", "url: "+srv.ClientURL(), testHost(t))
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
		t.Fatal(err)
	}
	natsStop(srv)
	for range 3 {
		if _, err := s.Deliver(t.Context(), deliveries(t)[1:2]); classOf(err) != again {
			t.Errorf("while it is down: %v, want it to be tried again", err)
		}
	}
	srv = start()
	_, js = natsClient(t, srv.ClientURL())
	natsPersists(t, s, deliveries(t)[1])
	stream, err := js.Stream(t.Context(), "FOREWARN")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := natsIDs(t, stream), natsPending(t, 2); !slices.Equal(got, want) {
		t.Errorf("the stream holds %q, want %q", got, want)
	}
}

// natsPending returns the ids of the first deliveries.
func natsPending(t *testing.T, n int) []string {
	t.Helper()
	var ids []string
	for _, d := range deliveries(t)[:n] {
		ids = append(ids, d.Event.ID())
	}
	return ids
}

// natsCluster starts three servers that know of each other.
func natsCluster(t *testing.T) []*server.Server {
	t.Helper()
	var ports []int
	var routes []*url.URL
	for range 3 {
		port := freePort(t)
		number, _ := strconv.Atoi(port)
		ports = append(ports, number)
		routes = append(routes, &url.URL{Scheme: "nats", Host: net.JoinHostPort(hostOf(t), port)})
	}
	var all []*server.Server
	for i, port := range ports {
		all = append(all, natsStart(t, func(o *server.Options) {
			o.ServerName = fmt.Sprint("nats-", i+1)
			o.Cluster = server.ClusterOpts{Name: "test", Host: hostOf(t), Port: port}
			o.Routes, o.Tags = routes, []string{o.ServerName}
		}))
	}
	for _, s := range all {
		if !s.ReadyForConnections(time.Minute) {
			t.Fatal("the cluster takes no connections")
		}
	}
	return all
}

// In a cluster every change is stored once, in order, whichever server leads and whichever is gone.
func TestNATSLeaderChange(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	servers := natsCluster(t)
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.ClientURL())
	}
	conn, js := natsClient(t, strings.Join(urls, ","), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	var stream jetstream.Stream
	var err error
	// until there is a leader
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		stream, err = js.CreateStream(t.Context(),
			jetstream.StreamConfig{Name: "FOREWARN", Subjects: []string{"forewarn.>"}, Replicas: 3})
		if err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, "nats", "url: ["+strings.Join(urls, ", ")+"]", testHost(t))
	natsPersists(t, s, deliveries(t)[0])
	if _, err := conn.Request("$JS.API.STREAM.LEADER.STEPDOWN.FOREWARN", nil, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	natsPersists(t, s, deliveries(t)[1])
	natsPersists(t, s, deliveries(t)[1])

	other, err := s.(*natsSink).message(deliveries(t)[4])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), other.Subject, nil, jetstream.WithMsgID("another"),
		jetstream.WithRetryAttempts(50)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Deliver(t.Context(), deliveries(t)[4:5]); classOf(err) != rejected {
		t.Errorf("a subject that another message has: %v, want it rejected", err)
	}

	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "ALONE", Subjects: []string{"alone.>"}, Placement: &jetstream.Placement{Tags: []string{"nats-1"}},
	}); err != nil {
		t.Fatal(err)
	}
	natsStop(servers[0])
	natsPersists(t, s, deliveries(t)[2])
	s = mustOpen(t, "nats", "url: "+servers[1].ClientURL()+"\nsubject: alone.{{.id}}", testHost(t))
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != again ||
		!strings.Contains(err.Error(), "stream ALONE") {
		t.Errorf("a stream without a leader: %v, want it to be tried again, and the name", err)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, err = stream.Info(t.Context()); err == nil {
			break
		}
	}
	if got, want := natsIDs(t, stream), natsPending(t, 3); !slices.Equal(got, want) {
		t.Errorf("the stream holds %q, want %q", got, want)
	}
}

// What an operator has to mend blocks, with the words to mend it; what may mend itself is tried again; what will never
// be stored is rejected.
func TestNATSFailures(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server   func(*server.Options)
		stream   func(*jetstream.StreamConfig)
		settings string
		want     string
		says     string
	}{
		"stream missing": {want: blocked,
			says: "no stream takes forewarn.events._._.vm-0.Reboot.scheduled." + natsFirst + "-scheduled; create one with the " +
				"subjects forewarn.events.> and forewarn.bridge.>, or let provision do it, or set core: true"},
		"stream missing for a template": {settings: "subject: zz.{{.azeventtype}}.{{.id}}", want: blocked,
			says: "create one with the subjects zz.>, or"},
		"stream missing for a subject": {settings: "subject: zz.all\nonce: false", want: blocked,
			says: "create one with the subjects zz.all, or"},
		"stream missing for anything": {settings: "subject: '{{.azeventtype}}.{{.id}}'", want: blocked,
			says: "create one with the subjects >, or"},
		"stream for other subjects": {
			stream: func(c *jetstream.StreamConfig) { c.Subjects = []string{"forewarn.bridge.>"} }, want: blocked,
			says: "no stream takes",
		},
		"no JetStream": {server: func(o *server.Options) { o.JetStream = false }, want: blocked,
			says: "there is no JetStream for this account"},
		"stream full": {
			stream: func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 100, jetstream.DiscardNew }, want: again,
			says: "maximum bytes exceeded",
		},
		"stream full of messages": {
			stream: func(c *jetstream.StreamConfig) {
				c.Subjects, c.MaxMsgs, c.Discard = append(c.Subjects, "full"), 1, jetstream.DiscardNew
			}, want: again, says: "maximum messages exceeded",
		},
		"larger than the stream takes": {
			stream: func(c *jetstream.StreamConfig) { c.MaxMsgSize = 100 }, want: rejected,
			says: "message size exceeds maximum allowed",
		},
		"larger than the server takes": {server: func(o *server.Options) { o.MaxPayload = 100 }, want: rejected,
			says: "maximum payload exceeded"},
		"may not publish": {
			server: natsMay(&server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"forewarn.>"}}}),
			stream: func(*jetstream.StreamConfig) {}, want: blocked,
			says: `Permissions Violation for Publish to "forewarn.events.`,
		},
		"may not publish, core": {
			server:   natsMay(&server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"forewarn.>"}}}),
			settings: "core: true", want: blocked, says: `Permissions Violation for Publish to "forewarn.events.`,
		},
		"may not hear answers": {
			server: natsMay(&server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{"_INBOX.>"}}}),
			stream: func(*jetstream.StreamConfig) {}, want: blocked, says: `Permissions Violation for Subscription to "_INBOX.`,
		},
		"may not look for streams": {
			server: natsMay(&server.Permissions{Publish: &server.SubjectPermission{Allow: []string{"forewarn.>"}}}),
			want:   blocked,
			says:   `Permissions Violation for Publish to "$JS.API.STREAM.NAMES"`,
		},
		"too many connections": {server: func(o *server.Options) { o.MaxConn = 1 }, want: again}, // its words may be lost,
	} {
		t.Run(name, func(t *testing.T) {
			srv := natsServe(t, tt.server)
			_, js := natsClient(t, srv.ClientURL(), nats.UserInfo("test", "test"))
			if tt.stream != nil {
				natsStream(t, js, tt.stream)
			}
			if strings.Contains(name, "full of") {
				if _, err := js.Publish(t.Context(), "full", nil); err != nil {
					t.Fatal(err)
				}
			}
			s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\nusername: vm\npassword: hunter2hunter2\n"+tt.settings, testHost(t))
			answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
			if classOf(err) != tt.want || !strings.Contains(err.Error(), tt.says) || answer.Status != "" {
				t.Errorf("Deliver = %v, want it %s: …%s…", err, tt.want, tt.says)
			}
			if strings.Contains(err.Error(), "no answer") {
				t.Errorf("Deliver = %v, as if nobody had answered", err)
			}
		})
	}
}

// JetStream of another domain is reached, with answers under a prefix, by a user who may do nothing else.
func TestNATSDomainAndInboxPrefix(t *testing.T) {
	srv := natsServe(t, func(o *server.Options) {
		o.JetStreamDomain = "hub"
		natsMay(&server.Permissions{
			// the second becomes the third
			Publish:   &server.SubjectPermission{Allow: []string{"forewarn.>", "$JS.hub.API.>", "$JS.API.>"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_forewarn.>"}},
		})(o)
	})
	for settings, want := range map[string]string{
		"domain: hub\ninbox_prefix: _INBOX_forewarn":     accepted,
		"domain: hub\ninbox_prefix: _INBOX_forewarn.vm0": accepted,
		"domain: hub": blocked,
		"domain: other\ninbox_prefix: _INBOX_forewarn": blocked,
	} {
		s := mustOpen(t, "nats",
			"url: "+srv.ClientURL()+"\nusername: vm\npassword: hunter2hunter2\nprovision: {stream: FOREWARN}\n"+settings, testHost(t))
		if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != want {
			t.Errorf("%s: %v, want it %s", settings, err, want)
		}
	}
}

// Another program that answers on the subject is no stream: nothing is settled by what it says.
func TestNATSAnswerOfAnotherProgram(t *testing.T) {
	srv := natsServe(t, nil)
	conn, _ := natsClient(t, srv.ClientURL())
	if _, err := conn.Subscribe("forewarn.>", func(m *nats.Msg) { m.Respond([]byte("thanks")) }); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, "nats", "url: "+srv.ClientURL(), testHost(t))
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != again ||
		!strings.Contains(err.Error(), "not from a stream") {
		t.Errorf("Deliver = %v, want it to be tried again", err)
	}
}

// Whatever a server leaves unanswered, the end of the context ends the attempt, and not a timeout of its own.
func TestNATSEndsAtOnce(t *testing.T) {
	attempt := func(name, settings string, began <-chan struct{}) time.Duration {
		s := mustOpen(t, "nats", settings, testHost(t))
		ctx, cancel := context.WithCancel(t.Context())
		var end time.Time
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			<-began
			end = time.Now()
			cancel()
		}()
		_, err := s.Deliver(ctx, deliveries(t)[:1])
		returned := time.Now()
		<-ended
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: Deliver = %v, want %v", name, err, context.Canceled)
		}
		return returned.Sub(end)
	}
	slow := map[string]time.Duration{}
	for try := 0; try == 0 || len(slow) > 0 && try < 10; try++ { // a busy machine may be slow, but not each time
		clear(slow)
		for name, h := range natsHangs(t) {
			if took := attempt(name, h.settings, h.began); took > natsDial/2 {
				slow[name] = took
			}
		}
	}
	if len(slow) > 0 {
		t.Errorf("it took so long after the end: %v", slow)
	}
}

// What a server says out of turn, and why a connection ended, is in the log for whoever looks for it, without secrets.
func TestNATSLogsWhatIsSaidOutOfTurn(t *testing.T) {
	at, _ := natsFake(t, natsLet(func(conn net.Conn, r *bufio.Reader) {
		io.WriteString(conn,
			"-ERR 'Permissions Violation for Publish to \"of hunter2hunter2\"'\r\n-ERR 'User Authentication Expired'\r\n")
		conn.Close()
	}))
	var log bytes.Buffer
	h := testHost(t)
	h.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	opened, err := open("nats", "url: "+at+"\nusername: azure\npassword: hunter2hunter2", h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := opened.Sink.Deliver(t.Context(), deliveries(t)[:1]); err == nil {
		t.Error("Deliver was accepted")
	}
	closeSink(opened.Sink)
	got := log.String()
	if !strings.Contains(got, "level=DEBUG msg=nats server="+at) || !strings.Contains(got, notShown) ||
		!strings.Contains(got, "User Authentication Expired") ||
		strings.Contains(got, "hunter2") {
		t.Errorf("logged\n%s\nwant what the server said, without the password", got)
	}
}

// Plain NATS passes a CloudEvent to who listens, and says that it keeps nothing. It settles nothing that the server has
// not got.
func TestNATSCore(t *testing.T) {
	srv := natsServe(t, func(o *server.Options) { o.JetStream = false })
	conn, _ := natsClient(t, srv.ClientURL())
	heard, err := conn.SubscribeSync("forewarn.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	opened, err := open("nats", "url: "+srv.ClientURL()+"\ncore: true", testHost(t))
	if err != nil {
		t.Fatal(err)
	}
	defer closeSink(opened.Sink)
	if len(opened.Notes) != 1 || !strings.Contains(opened.Notes[0], "keeps nothing") {
		t.Errorf("notes are %q, want one that plain NATS keeps nothing", opened.Notes)
	}
	answer, err := opened.Sink.Deliver(t.Context(), deliveries(t)[:1])
	if err != nil || answer.Status != "taken by nats-1 ("+server.VERSION+")" {
		t.Errorf("Deliver = %+v, %v", answer, err)
	}
	msg, err := heard.NextMsg(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := msg.Header.Get("ce-id"), deliveries(t)[0].Event.ID(); got != want ||
		msg.Header.Get("Nats-Msg-Id") != "" {
		t.Errorf("heard %v, want %s and nothing for a stream", msg.Header, want)
	}
	natsStop(srv)
	if _, err := opened.Sink.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != again {
		t.Errorf("when the server is gone: %v, want it to be tried again", err)
	}
}

// A connection is tried without sending or creating anything, and says where it led.
func TestNATSConnect(t *testing.T) {
	srv := natsServe(t, nil)
	conn, js := natsClient(t, srv.ClientURL())
	connect := func(settings string) (string, error) {
		s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\n"+settings, testHost(t))
		return s.(delivery.Connecter).Connect(t.Context())
	}
	at := "connected to nats-1 (" + server.VERSION + ")"
	if got, err := connect(""); !errors.Is(err, delivery.ErrBlocked) || !strings.Contains(err.Error(), "no stream takes") {
		t.Errorf("without a stream: %q, %v", got, err)
	}
	if got, err := connect("subject: zz.{{.id}}"); !errors.Is(err, delivery.ErrBlocked) ||
		!strings.Contains(err.Error(), "with the subjects zz.>") {
		t.Errorf("without a stream for a template: %q, %v", got, err)
	}
	if got, err := connect("core: true"); err != nil || got != at {
		t.Errorf("core: %q, %v; want %q", got, err, at)
	}
	want := at + ", stream FOREWARN is created with the first delivery"
	if got, err := connect("provision: {stream: FOREWARN}"); err != nil || got != want {
		t.Errorf("with provision: %q, %v; want %q", got, err, want)
	}
	stream := natsStream(t, js, func(c *jetstream.StreamConfig) { c.Subjects = natsDefaultSubjects })
	want = at + ", stream FOREWARN takes forewarn.events.> forewarn.bridge.>"
	if got, err := connect(""); err != nil || got != want {
		t.Errorf("with a stream: %q, %v; want %q", got, err, want)
	}
	if got := natsIDs(t, stream); len(got) > 0 {
		t.Errorf("the stream holds %q, want nothing", got)
	}
	conn.Close()
	natsStop(srv)
	want = "nothing listens at " + strings.TrimPrefix(srv.ClientURL(), "nats://") + " (connection refused)"
	if got, err := connect(""); classOf(err) != again || err.Error() != want {
		t.Errorf("without a server: %q, %v; want %q, and that it is tried again", got, err, want)
	}
}
