package sinks

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

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

	other, err := s.(*natsSink).message(deliveries(t)[4].Event)
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
			s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\nusername: vm\npassword: hunter2\n"+tt.settings, testHost(t))
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
			"url: "+srv.ClientURL()+"\nusername: vm\npassword: hunter2\nprovision: {stream: FOREWARN}\n"+settings, testHost(t))
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

// A new stream has the limits that are given from the start, and one replica is said to be one.
func TestNATSProvisionsWithLimits(t *testing.T) {
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	opened, err := open("nats",
		"url: "+srv.ClientURL()+"\nprovision: {stream: FOREWARN, subjects: [forewarn.>], max_age: 1h, max_bytes: 1MB, "+
			"duplicates: 30m}", testHost(t))
	if err != nil {
		t.Fatal(err)
	}
	defer closeSink(opened.Sink)
	if len(opened.Notes) != 1 || !strings.Contains(opened.Notes[0], "one replica") {
		t.Errorf("notes are %q, want one about the replica", opened.Notes)
	}
	if _, err := opened.Sink.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "FOREWARN")
	if err != nil {
		t.Fatal(err)
	}
	c := stream.CachedInfo().Config
	if c.MaxAge != time.Hour || c.MaxBytes != 1e6 || c.Duplicates != 30*time.Minute || c.Discard != jetstream.DiscardOld {
		t.Errorf("the stream is %+v", c)
	}
}

// natsMay makes a server let the user vm in with permissions, and the user test with all.
func natsMay(p *server.Permissions) func(*server.Options) {
	return func(o *server.Options) {
		o.Users = []*server.User{{Username: "vm", Password: "hunter2", Permissions: p}, {Username: "test", Password: "test"}}
	}
}

// Names that do not exist block, but only when no server of the list can be hoped for.
func TestNATSAddresses(t *testing.T) {
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	natsStream(t, js, nil)
	gone := natsServe(t, nil)
	natsStop(gone)
	for settings, want := range map[string]string{
		"url: nats://nowhere.invalid":                                blocked,
		"url: " + gone.ClientURL():                                   again,
		"url: [nats://nowhere.invalid, " + gone.ClientURL() + "]":    again,
		"url: [nats://nowhere.invalid, " + srv.ClientURL() + "]":     accepted,
		"url: 'nats://nowhere.invalid, " + srv.ClientURL() + "'":     accepted,
		"url: tls://" + strings.TrimPrefix(srv.ClientURL(), "nats:"): blocked,
	} {
		settings = strings.Replace(settings, "tls:////", "tls://", 1)
		for range 3 { // the order is random
			s := mustOpen(t, "nats", settings, testHost(t))
			if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != want {
				t.Errorf("%s: %v, want it %s", settings, err, want)
			}
		}
	}
}

// Each way to log in lets in who may, and blocks who may not.
func TestNATSLogins(t *testing.T) {
	account, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	operated := natsOperator(t, account)
	good, _, _ := natsUser(t, account, time.Time{})
	expired, _, _ := natsUser(t, account, time.Now().Add(-time.Hour))
	stranger, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	strange, _, _ := natsUser(t, stranger, time.Time{})
	seed, _, public := natsSeed(t)
	otherSeed, _, _ := natsSeed(t)
	users := natsServe(t, func(o *server.Options) { o.Username, o.Password = "azure", "hunter2" })
	token := natsServe(t, func(o *server.Options) { o.Authorization = "hunter2" })
	keys := natsServe(t, func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} })
	at := func(srv *server.Server, user string) string {
		return "url: nats://" + user + strings.TrimPrefix(srv.ClientURL(), "nats://") + "\ncore: true\n"
	}
	for name, tt := range map[string]struct{ settings, want string }{
		"password":        {at(users, "") + "username: azure\npassword: hunter2", accepted},
		"wrong password":  {at(users, "") + "username: azure\npassword: hunter3", blocked},
		"nothing":         {at(users, ""), blocked},
		"in the URL":      {at(users, "azure:hunter2@"), accepted},
		"wrong in it":     {at(users, "azure:hunter3@"), blocked},
		"token":           {at(token, "") + "token: hunter2", accepted},
		"wrong token":     {at(token, "") + "token: hunter3", blocked},
		"token in it":     {at(token, "hunter2@"), accepted},
		"nkey":            {at(keys, "") + "nkey_file: " + seed, accepted},
		"another nkey":    {at(keys, "") + "nkey_file: " + otherSeed, blocked},
		"nkey, no nonces": {at(token, "") + "nkey_file: " + seed, blocked},
		"creds":           {at(operated, "") + "creds_file: " + good, accepted},
		"expired creds":   {at(operated, "") + "creds_file: " + expired, blocked},
		"strange creds":   {at(operated, "") + "creds_file: " + strange, blocked},
	} {
		s := mustOpen(t, "nats", tt.settings, testHost(t))
		if err := natsAnswer(t, s); classOf(err) != tt.want {
			t.Errorf("%s: %v, want it %s", name, err, tt.want)
		}
	}
}

// natsAnswer returns what the sink says of a delivery. On Windows a connection that the server resets can take the
// server's last words with it, and the reason with them. There it is tried again, as the bridge does.
func natsAnswer(t *testing.T, s delivery.Sink) (err error) {
	t.Helper()
	for range 10 {
		_, err = s.Deliver(t.Context(), deliveries(t)[:1])
		if runtime.GOOS != "windows" || err == nil || !strings.Contains(err.Error(), "reset by peer") {
			break
		}
	}
	return err
}

// natsOperator starts a server that trusts the users of an account.
func natsOperator(t *testing.T, account nkeys.KeyPair) *server.Server {
	t.Helper()
	operator, err := nkeys.CreateOperator()
	if err != nil {
		t.Fatal(err)
	}
	public, err := operator.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	name, err := account.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.NewAccountClaims(name).Encode(operator)
	if err != nil {
		t.Fatal(err)
	}
	resolver := &server.MemAccResolver{}
	if err := resolver.Store(name, token); err != nil {
		t.Fatal(err)
	}
	return natsServe(t, func(o *server.Options) {
		o.JetStream, o.TrustedKeys, o.AccountResolver = false, []string{public}, resolver
	})
}

// A server over TLS is verified, and gets the certificate and the login that it asks for.
func TestNATSOverTLSWithLogin(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	srv := natsServe(t, func(o *server.Options) {
		o.Username, o.Password, o.TLSVerify, o.TLSTimeout = "azure", "hunter2", true, 5
		o.TLSConfig = &tls.Config{
			Certificates: []tls.Certificate{ca.issue(t, "127.0.0.1", time.Hour)}, MinVersion: tls.VersionTLS12,
			MaxVersion: tls.VersionTLS12,
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool(),
		}
	})
	host := strings.TrimPrefix(strings.TrimPrefix(srv.ClientURL(), "nats://"), "tls://")
	cert := files(t, ca.issue(t, "vm-0", time.Hour))
	_, js := natsClient(t, "tls://"+host, nats.UserInfo("azure", "hunter2"), nats.Secure(&tls.Config{
		RootCAs: ca.pool(), Certificates: []tls.Certificate{ca.issue(t, "test", time.Hour)},
	}))
	stream := natsStream(t, js, nil)
	for name, tt := range map[string]struct{ scheme, login, tls, want string }{
		"all right":         {"tls", "hunter2", "tls: {ca_file: " + ca.file + cert + "}", accepted},
		"by its own wish":   {"nats", "hunter2", "tls: {ca_file: " + ca.file + cert + "}", accepted},
		"another authority": {"tls", "hunter2", "tls: {ca_file: " + other.file + cert + "}", blocked},
		"the system's":      {"nats", "hunter2", "", blocked},
		"no certificate":    {"tls", "hunter2", "tls: {ca_file: " + ca.file + "}", blocked},
		"another's": {"tls", "hunter2",
			"tls: {ca_file: " + ca.file + files(t, other.issue(t, "vm-0", time.Hour)) + "}", blocked},
		"another name": {"tls", "hunter2", "tls: {ca_file: " + ca.file + cert + ", server_name: nats.example.com}",
			blocked},
		"wrong login": {"tls", "hunter3", "tls: {ca_file: " + ca.file + cert + "}", blocked},
	} {
		s := mustOpen(t, "nats", "url: "+tt.scheme+"://"+host+"\nusername: azure\npassword: "+tt.login+"\n"+tt.tls,
			testHost(t))
		if err := natsAnswer(t, s); classOf(err) != tt.want {
			t.Errorf("%s: %v, want it %s", name, err, tt.want)
		}
	}
	if got, want := natsIDs(t, stream), natsPending(t, 1); !slices.Equal(got, want) {
		t.Errorf("the stream holds %q, want %q", got, want)
	}
}

// Credentials that change in their file are used with the next delivery, on a new connection; while the file is broken
// the sink is blocked, and one that is let in stays so as long as nothing changes.
func TestNATSUsesChangedCredentials(t *testing.T) {
	_, seed, public := natsSeed(t)
	_, next, nextPublic := natsSeed(t)
	srv := natsServe(t, func(o *server.Options) {
		o.JetStream, o.Nkeys = false, []*server.NkeyUser{{Nkey: public}, {Nkey: nextPublic}}
	})
	path := writeFile(t, "nkey", seed)
	opened, err := open("nats", "url: "+srv.ClientURL()+"\ncore: true\nnkey_file: "+path, testHost(t))
	if err != nil || !slices.Equal(opened.Secrets, []string{path}) {
		t.Fatalf("open = %q, %v; want the file to watch", opened.Secrets, err)
	}
	defer closeSink(opened.Sink)
	var names []string
	for _, tt := range []struct{ text, want string }{
		{seed, accepted}, {seed, accepted}, {"half a se", blocked}, {next, accepted},
	} {
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := opened.Sink.Deliver(t.Context(), deliveries(t)[:1])
		if classOf(err) != tt.want || err != nil && !strings.Contains(err.Error(), "nkey_file: "+path) {
			t.Errorf("Deliver = %v, want it %s", err, tt.want)
		}
		info, err := srv.Connz(&server.ConnzOptions{Username: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range info.Conns {
			if c.Stop == nil && !slices.Contains(names, c.AuthorizedUser) {
				names = append(names, c.AuthorizedUser)
			}
		}
	}
	if want := []string{public, nextPublic}; !slices.Equal(names, want) {
		t.Errorf("connected as %q, want %q", names, want)
	}
}

// An address that changes to tls:// is obeyed from the next delivery on: a connection without TLS is not used again.
func TestNATSAddressThatBeginsToWantTLSIsObeyed(t *testing.T) {
	srv := natsServe(t, func(o *server.Options) { o.JetStream = false })
	path := writeFile(t, "url", srv.ClientURL())
	s := mustOpen(t, "nats", "url_file: "+path+"\ncore: true", testHost(t))
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
		t.Fatalf("Deliver = %v", err)
	}
	secure := strings.Replace(srv.ClientURL(), "nats://", "tls://", 1)
	if err := os.WriteFile(path, []byte(secure), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != blocked {
		t.Errorf("Deliver to a server without TLS = %v, want it blocked", err)
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

// provision makes the stream as the settings have it, says what it did, and afterwards does nothing.
func TestNATSProvision(t *testing.T) {
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	for _, tt := range []struct {
		name, provision, logged string
		want                    jetstream.StreamConfig
	}{
		{"new", "{stream: FOREWARN}",
			`msg="stream created" stream=FOREWARN subjects="forewarn.events.> forewarn.bridge.>" replicas=1 ` +
				"max_age=0s max_bytes=-1 duplicates=24h0m0s", jetstream.StreamConfig{
				Subjects: []string{"forewarn.events.>", "forewarn.bridge.>"}, Replicas: 1, MaxBytes: -1, Duplicates: 24 * time.Hour,
			}},
		{"the same", "{stream: FOREWARN}", "", jetstream.StreamConfig{
			Subjects: []string{"forewarn.events.>", "forewarn.bridge.>"}, Replicas: 1, MaxBytes: -1, Duplicates: 24 * time.Hour,
		}},
		{"with limits", "{stream: FOREWARN, max_age: 1h, max_bytes: 1MiB}",
			`msg="stream updated" stream=FOREWARN changed="max_age max_bytes duplicates"`,
			jetstream.StreamConfig{
				Subjects: []string{"forewarn.events.>", "forewarn.bridge.>"}, Replicas: 1, MaxAge: time.Hour, MaxBytes: 1 << 20,
				Duplicates: time.Hour,
			}},
		{"with a subject", "{stream: FOREWARN, subjects: [forewarn.>, more], duplicates: 10m}", "overlaps",
			jetstream.StreamConfig{}},
		{"another, with others' subjects", "{stream: OTHER, subjects: [forewarn.events.>, forewarn.bridge.>]}", "overlap",
			jetstream.StreamConfig{}},
		{"more replicas than servers", "{stream: FOREWARN, replicas: 3}", "replicas > 1 not supported in non-clustered mode",
			jetstream.StreamConfig{}},
	} {
		var log bytes.Buffer
		h := testHost(t)
		h.Log = slog.New(slog.NewTextHandler(&log, nil))
		opened, err := open("nats", "url: "+srv.ClientURL()+"\nprovision: "+tt.provision, h)
		if err != nil {
			t.Fatal(err)
		}
		_, err = opened.Sink.Deliver(t.Context(), deliveries(t)[:1])
		closeSink(opened.Sink)
		if tt.want.Subjects == nil {
			if classOf(err) != blocked || !strings.Contains(err.Error(), tt.logged) {
				t.Errorf("%s: Deliver = %v, want it blocked: …%s…", tt.name, err, tt.logged)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: Deliver = %v", tt.name, err)
			continue
		}
		if got := log.String(); !strings.Contains(got, tt.logged) || (tt.logged == "") != (got == "") {
			t.Errorf("%s: logged %q, want %q", tt.name, got, tt.logged)
		}
		stream, err := js.Stream(t.Context(), "FOREWARN")
		if err != nil {
			t.Fatal(err)
		}
		got, want := stream.CachedInfo().Config, tt.want
		if !slices.Equal(got.Subjects, want.Subjects) || got.Replicas != want.Replicas || got.MaxAge != want.MaxAge ||
			got.MaxBytes != want.MaxBytes || got.Duplicates != want.Duplicates || got.Retention != jetstream.LimitsPolicy {
			t.Errorf("%s: the stream is %+v, want %+v", tt.name, got, want)
		}
	}
}

// A stream that somebody deletes while the connection lasts is made again.
func TestNATSProvisionsAgain(t *testing.T) {
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\nprovision: {stream: FOREWARN}", testHost(t))
	deliver := func() error {
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		return err
	}
	if err := deliver(); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "FOREWARN"); err != nil {
		t.Fatal(err)
	}
	if err := deliver(); classOf(err) != blocked {
		t.Errorf("without the stream: %v, want it blocked", err)
	}
	if err := deliver(); err != nil {
		t.Errorf("Deliver = %v, want the stream made again", err)
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
