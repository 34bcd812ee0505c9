package sinks

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/conf"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// natsDocumented returns the permissions that the README lists for a bridge's user.
func natsDocumented(t *testing.T) (publish, subscribe []string) {
	t.Helper()
	_, list, found := strings.Cut(Manual, "```\npublish: [")
	list, _, closed := strings.Cut(list, "```")
	if !found || !closed {
		t.Fatal("the README lists no permissions")
	}
	parsed, err := conf.Parse("publish: [" + list)
	if err != nil {
		t.Fatal(err)
	}
	texts := func(key string) (all []string) {
		for _, one := range parsed[key].([]any) {
			all = append(all, one.(string))
		}
		return all
	}
	return texts("publish"), texts("subscribe")
}

// natsNeedy does all that a bridge does with a stream, and returns what failed.
func natsNeedy(t *testing.T, publish, subscribe []string, keys string, stream func(*jetstream.StreamConfig)) error {
	t.Helper()
	srv := natsServe(t, natsMay(&server.Permissions{
		Publish: &server.SubjectPermission{Allow: publish}, Subscribe: &server.SubjectPermission{Allow: subscribe},
	}))
	_, js := natsClient(t, srv.ClientURL(), nats.UserInfo("test", "test"))
	made := natsStream(t, js, func(c *jetstream.StreamConfig) {
		c.Duplicates, c.AllowDirect = time.Minute, true
		stream(c)
	})
	open := func() delivery.Sink {
		return mustOpen(t, "nats",
			"url: "+srv.ClientURL()+"\nusername: vm\npassword: hunter2hunter2\ninbox_prefix: _INBOX_vm\n"+keys, testHost(t))
	}
	s := open()
	if _, err := s.(delivery.Connecter).Connect(t.Context()); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	beat, err := cloudevent.WrapBridge(cloudevent.BridgeHeartbeat, nil, imds.Observer{Name: "vm-0"}, monday)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := s.Deliver(t.Context(), []delivery.Delivery{{Event: beat, Attempt: 1}})
	if err != nil || strings.HasPrefix(answer.Status, "not stored") {
		return fmt.Errorf("a heartbeat: %q, %w", answer.Status, err)
	}
	about, err := cloudevent.WrapBridge(cloudevent.BridgeStarted, nil, imds.Observer{Name: "vm-0"}, monday)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Deliver(t.Context(), []delivery.Delivery{{Event: about, Attempt: 1}}); err != nil {
		return fmt.Errorf("about the bridge: %w", err)
	}
	for i := range 3 { // stored; a duplicate; a copy whose id the stream has forgotten
		if i == 2 {
			brief := made.CachedInfo().Config
			brief.Duplicates = 100 * time.Millisecond
			if _, err := js.UpdateStream(t.Context(), brief); err != nil {
				t.Fatal(err)
			}
			natsForgets(t, js, i)
		}
		if _, err := open().Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			return fmt.Errorf("time %d: %w", i+1, err)
		}
	}
	want := 3
	if strings.Contains(keys, "once: false") { // a copy that comes late is stored
		want = 4
	}
	if got := natsIDs(t, made); len(got) != want {
		t.Errorf("%s: the stream holds %q, want %d messages", keys, got, want)
	}
	return nil
}

// A user with exactly the permissions that the README lists can do all that a sink does; without one of them something
// fails, and says what.
func TestNATSNeedsTheDocumentedPermissions(t *testing.T) {
	t.Parallel()
	publish, subscribe := natsDocumented(t)
	without := func(one string) []string {
		return slices.DeleteFunc(slices.Clone(publish), func(p string) bool { return p == one })
	}
	as := func(*jetstream.StreamConfig) {}
	const direct, look = "$JS.API.DIRECT.GET.FOREWARN.>", "$JS.API.STREAM.INFO.FOREWARN"
	for name, tt := range map[string]struct {
		publish []string
		keys    string
		stream  func(*jetstream.StreamConfig)
	}{
		"as listed":                 {publish, "", as},
		"with a look at the stream": {append(slices.Clone(publish), look), "", as},
		"without direct reads": {append(without(direct), look, "$JS.API.STREAM.MSG.GET.FOREWARN"), "",
			func(c *jetstream.StreamConfig) { c.AllowDirect = false }},
		"without once": {append(slices.Clone(publish), "$JS.API.DIRECT.GET.FOREWARN"), "once: false", as},
		"with provision": {append(slices.Clone(publish), look, "$JS.API.STREAM.CREATE.FOREWARN", "$JS.API.STREAM.UPDATE.FOREWARN"),
			"provision: {stream: FOREWARN, duplicates: 1m}",
			func(c *jetstream.StreamConfig) { c.Subjects = []string{"forewarn.probe", "forewarn.heartbeat.>"} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := natsNeedy(t, tt.publish, subscribe, tt.keys, tt.stream); err != nil {
				t.Error(err)
			}
		})
	}
	words := map[string]string{
		"$JS.API.STREAM.NAMES": "this user may not look for the stream",
		direct:                 "this user may not look whether the stream has this message",
		"forewarn.events.>":    "this user may not publish there",
		"forewarn.bridge.>":    "this user may not publish there",
		"forewarn.heartbeat.>": "this user may not publish there",
	}
	if got := slices.Sorted(maps.Keys(words)); !slices.Equal(got, slices.Sorted(slices.Values(publish))) {
		t.Errorf("the README lists %q, want %q", publish, got)
	}
	for one, want := range words {
		t.Run("without "+one, func(t *testing.T) {
			t.Parallel()
			if err := natsNeedy(t, without(one), subscribe, "", as); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want that %s", err, want)
			}
		})
	}
}

// A user that may not look at a stream sees all the same that it keeps nothing, before a delivery counts. Over one
// connection a stream is seen to keep messages once.
func TestNATSSeesWithoutALookThatAStreamKeepsNothing(t *testing.T) {
	t.Parallel()
	publish, subscribe := natsDocumented(t)
	interest := func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }
	err := natsNeedy(t, publish, subscribe, "", interest)
	const want = "doesn't have it on its subject; to see why, let this user publish to $JS.API.STREAM.INFO.FOREWARN"
	if classOf(err) != blocked || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want it blocked, and that the stream %s", err, want)
	}
	if err := natsNeedy(t, append(publish, "$JS.API.STREAM.INFO.FOREWARN"), subscribe, "", interest); err == nil ||
		!strings.Contains(err.Error(), "retention interest and no consumer") {
		t.Errorf("with a look: %v, want it to say why", err)
	}
}

// looks counts the looks at a stream that a log says were refused.
type looks struct{ atomic.Int32 }

func (l *looks) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("STREAM.INFO")) {
		l.Add(1)
	}
	return len(line), nil
}

// A user that may not look at a stream asks once whether it may, not over each connection, because the server logs each
// refusal. Once a delivery fails it asks again.
func TestNATSAsksOnceWhetherItMayLook(t *testing.T) {
	t.Parallel()
	publish, subscribe := natsDocumented(t)
	srv := natsServe(t, natsMay(&server.Permissions{
		Publish: &server.SubjectPermission{Allow: publish}, Subscribe: &server.SubjectPermission{Allow: subscribe},
	}))
	_, js := natsClient(t, srv.ClientURL(), nats.UserInfo("test", "test"))
	stream := natsStream(t, js, func(c *jetstream.StreamConfig) { c.AllowDirect = true })
	var refused looks
	h := testHost(t)
	h.Log = slog.New(slog.NewTextHandler(&refused, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\nusername: vm\npassword: hunter2hunter2\ninbox_prefix: _INBOX_vm", h)
	deliver := func(n int) error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := s.Deliver(ctx, deliveries(t)[n:n+1])
		return err
	}
	asked := func(when string, want int) {
		t.Helper()
		if got := int(refused.Load()); got != want {
			t.Errorf("%s it has asked %d times, want %d", when, got, want)
		}
	}
	for n := range 3 {
		if n > 0 { // the connection is lost
			all, err := srv.Connz(&server.ConnzOptions{Username: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range all.Conns {
				if c.AuthorizedUser == "vm" {
					_ = srv.DisconnectClientByID(c.Cid)
				}
			}
		}
		for deliver(n) != nil && t.Context().Err() == nil {
			time.Sleep(10 * time.Millisecond) // until it is made again
		}
	}
	asked("after three connections", 1)
	closed := stream.CachedInfo().Config
	closed.AllowDirect = false
	if _, err := js.UpdateStream(t.Context(), closed); err != nil {
		t.Fatal(err)
	}
	if err := deliver(3); err == nil {
		t.Error("a delivery to a stream of which nothing can be read counts as made")
	}
	asked("at the failure", 1)
	_ = deliver(3)
	asked("after the failure", 2)
}

// A user that may not hear answers is told so at every attempt, although the stream has the message since the first. As
// soon as it may, the next attempt finds it.
func TestNATSAnInboxThatIsNotAllowedIsSaidEachTime(t *testing.T) {
	t.Parallel()
	may := func(inbox string) func(*server.Options) {
		return func(o *server.Options) {
			natsMay(&server.Permissions{
				Publish:   &server.SubjectPermission{Allow: []string{">"}},
				Subscribe: &server.SubjectPermission{Allow: []string{inbox}},
			})(o)
		}
	}
	var options *server.Options // to change
	srv := natsServe(t, func(o *server.Options) { may("allowed.>")(o); options = o })
	_, js := natsClient(t, srv.ClientURL(), nats.UserInfo("test", "test"))
	stream := natsStream(t, js, nil)
	s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\nusername: vm\npassword: hunter2hunter2", testHost(t))
	const want = `this user may not hear the answers; set inbox_prefix to one that it may subscribe to: ` +
		`Permissions Violation for Subscription to "_INBOX.`
	for i := range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err := s.Deliver(ctx, deliveries(t)[:1])
		cancel()
		if classOf(err) != blocked || !strings.Contains(err.Error(), want) {
			t.Errorf("Deliver, time %d = %v, want it blocked: …%s…", i+1, err, want)
		}
	}
	answer, err := s.(delivery.Connecter).Connect(t.Context())
	if classOf(err) != blocked || !strings.Contains(err.Error(), want) || !strings.HasPrefix(answer, "connected to") {
		t.Errorf("Connect = %q, %v; want it connected, and to say %s", answer, err, want)
	}
	if got := natsIDs(t, stream); len(got) != 1 {
		t.Errorf("the stream holds %q, want the message once", got)
	}
	next := options.Clone()
	may("_INBOX.>")(next)
	if err := srv.ReloadOptions(next); err != nil {
		t.Fatal(err)
	}
	found, err := s.Deliver(t.Context(), deliveries(t)[:1])
	if err != nil || !strings.HasPrefix(found.Status, "already") {
		t.Errorf("once it may: Deliver = %+v, %v; want it found", found, err)
	}
}

// At a leaf node a stream of the hub takes messages, and can't be asked without its domain. That is said before
// anything is sent, and by every VM.
func TestNATSAtALeafNodeTheDomainIsNamed(t *testing.T) {
	t.Parallel()
	for name, jetStream := range map[string]bool{"without JetStream": false, "with its own": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var options *server.Options // which get the port
			hub := natsServe(t, func(o *server.Options) {
				options, o.JetStreamDomain = o, "hub"
				o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", -1
			})
			publish, subscribe := natsDocumented(t)
			for i, subject := range publish {
				publish[i] = strings.Replace(subject, "$JS.API.", "$JS.hub.API.", 1)
			}
			leaf := natsServe(t, func(o *server.Options) {
				natsMay(&server.Permissions{
					Publish:   &server.SubjectPermission{Allow: publish},
					Subscribe: &server.SubjectPermission{Allow: subscribe},
				})(o)
				o.ServerName, o.JetStream, o.JetStreamDomain = "leaf-1", jetStream, "leaf"
				to := &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", options.LeafNode.Port)}
				o.LeafNode.Remotes = []*server.RemoteLeafOpts{{URLs: []*url.URL{to}}}
			})
			_, js := natsClient(t, hub.ClientURL())
			stream := natsStream(t, js, func(c *jetstream.StreamConfig) { c.AllowDirect = true })
			conn, _ := natsClient(t, leaf.ClientURL(), nats.UserInfo("test", "test"))
			natsReaches(t, conn)
			open := func(keys string) delivery.Sink {
				return mustOpen(t, "nats", "url: "+leaf.ClientURL()+"\n"+keys, testHost(t))
			}
			const unrestricted = "username: test\npassword: test\n"
			const want = "at a leaf node, set the key domain to the JetStream domain of the servers that have the stream"
			if _, err := open(unrestricted).(delivery.Connecter).Connect(t.Context()); classOf(err) != blocked ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("Connect = %v, want it to say %s", err, want)
			}
			for _, vm := range []string{"the first VM", "another VM"} {
				_, err := open(unrestricted).Deliver(t.Context(), deliveries(t)[:1])
				if classOf(err) != blocked || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, want it blocked: %s", vm, err, want)
				}
			}
			s := open("domain: hub\nusername: vm\npassword: hunter2hunter2\ninbox_prefix: _INBOX_vm")
			if got, err := s.(delivery.Connecter).Connect(t.Context()); err != nil || !strings.Contains(got, "stream FOREWARN") {
				t.Errorf("with the domain: Connect = %q, %v", got, err)
			}
			answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
			if err != nil || !strings.HasPrefix(answer.Status, "already") {
				t.Errorf("with the domain: Deliver = %+v, %v; want it found", answer, err)
			}
			if got := natsIDs(t, stream); len(got) != 1 {
				t.Errorf("the stream holds %q, want the message once", got)
			}
		})
	}
}

// natsReaches returns when a publisher at a leaf node reaches a stream of the hub.
func natsReaches(t *testing.T, conn *nats.Conn) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := conn.Request("forewarn.probe", nil, time.Second); err == nil {
			return
		}
	}
	t.Fatal("the leaf node does not reach the hub")
}
