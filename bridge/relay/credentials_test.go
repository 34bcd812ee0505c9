package relay_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// An issuer signs credentials, as the owner of an account does.
type issuer struct {
	t        *testing.T
	operator jwt.OperatorClaims
	accounts map[string]string // signed, by id
	system   string            // the id of the servers' own
	account  nkeys.KeyPair
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	keys := func(made nkeys.KeyPair, err error) (nkeys.KeyPair, string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		id, err := made.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		return made, id
	}
	operator, operatorID := keys(nkeys.CreateOperator())
	i := &issuer{t: t, operator: *jwt.NewOperatorClaims(operatorID), accounts: map[string]string{}}
	made := func(change func(*jwt.AccountClaims)) (nkeys.KeyPair, string) {
		t.Helper()
		account, id := keys(nkeys.CreateAccount())
		a := jwt.NewAccountClaims(id)
		change(a)
		signed, err := a.Encode(operator)
		if err != nil {
			t.Fatal(err)
		}
		i.accounts[id] = signed
		return account, id
	}
	_, i.system = made(func(*jwt.AccountClaims) {})
	i.account, _ = made(func(a *jwt.AccountClaims) {
		a.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	})
	if _, err := i.operator.Encode(operator); err != nil {
		t.Fatal(err)
	}
	return i
}

// trust makes a server take what the issuer signs.
func (i *issuer) trust(o *server.Options) {
	resolver := &server.MemAccResolver{}
	for id, signed := range i.accounts {
		if err := resolver.Store(id, signed); err != nil {
			i.t.Fatal(err)
		}
	}
	o.SystemAccount = i.system
	o.TrustedOperators, o.AccountResolver = []*jwt.OperatorClaims{&i.operator}, resolver
}

// user makes credentials that expire at a time; zero for never.
func (i *issuer) user(expires time.Time) nats.Option {
	made, err := nkeys.CreateUser()
	if err != nil {
		i.t.Fatal(err)
	}
	id, err := made.PublicKey()
	if err != nil {
		i.t.Fatal(err)
	}
	claims := jwt.NewUserClaims(id)
	if !expires.IsZero() {
		claims.Expires = expires.Unix()
	}
	signed, err := claims.Encode(i.account)
	if err != nil {
		i.t.Fatal(err)
	}
	return nats.UserJWT(func() (string, error) { return signed, nil }, made.Sign)
}

// Credentials that expire under a running relay make it say so, and not be ready. New ones are taken up by themselves,
// and what came meanwhile is told, once.
func TestCredentialsThatExpireAreTakenUpAnew(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		i := newIssuer(t)
		forever := i.user(time.Time{})
		srv := startServerWith(t, i.trust, forever)
		f := &fleet{T: t}
		f.conn = srv.connect(&cable{server: srv, options: func() []nats.Option { return []nats.Option{forever} }})
		defer f.conn.Close()
		var err error
		if f.js, err = jetstream.New(f.conn); err != nil {
			t.Fatal(err)
		}
		var credentials atomic.Value
		credentials.Store(i.user(time.Now().Add(time.Minute)))
		sink := newRecorder()
		wire := &cable{server: srv, options: func() []nats.Option { return []nats.Option{credentials.Load().(nats.Option)} }}
		r, stop := f.start(relay.Options{Routes: []bridge.Route{route("hook", sink)},
			Connect: func(ctx context.Context) (*nats.Conn, error) { return wire.dial(ctx) }})
		defer stop()
		pause(2 * time.Second)
		a := eventNo(1)
		first, second := a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1")
		f.publish(first)
		pause(50 * time.Second)
		if s := r.Status(); !s.Ready {
			t.Errorf("before the credentials expire: %q", s.Reasons)
		}
		pause(20 * time.Second)
		f.publish(second)
		pause(2 * time.Minute)
		s := r.Status()
		if s.Ready || len(s.Reasons) == 0 || !strings.Contains(strings.ToLower(s.Reasons[0]), "auth") {
			t.Errorf("with expired credentials it is ready: %v, reasons %q; want it to say that the servers refuse it", s.Ready,
				s.Reasons)
		}
		wantIDs(t, "with expired credentials", sink.all(), first)
		credentials.Store(i.user(time.Now().Add(time.Hour)))
		pause(10 * time.Second)
		wantIDs(t, "with new ones", sink.all(), first, second)
		if s := r.Status(); !s.Ready {
			t.Errorf("with new ones it is not ready: %q", s.Reasons)
		}
	})
}

// A relay that may not hear answers, or may not ask, says so, and not only that nobody answered.
func TestWhatARelayMayNotDoIsSaid(t *testing.T) {
	admin := nats.UserInfo("admin", "admin")
	inBubble(t, func(t *testing.T) {
		all := &server.SubjectPermission{Allow: []string{">"}}
		none := &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.INFO.>", "_INBOX.>"}}
		srv := startServerWith(t, func(o *server.Options) {
			o.Users = []*server.User{
				{Username: "admin", Password: "admin"},
				{Username: "deaf", Password: "pw", Permissions: &server.Permissions{Publish: all, Subscribe: none}},
				{Username: "mute", Password: "pw", Permissions: &server.Permissions{Publish: none, Subscribe: all}},
			}
		}, admin)
		for user, want := range map[string]string{
			"deaf": "this user may not hear the answers; set inbox_prefix to one that it may subscribe to: ",
			"mute": "this user may not ask for that: ",
		} {
			wire := &cable{server: srv, options: func() []nats.Option { return []nats.Option{nats.UserInfo(user, "pw")} }}
			f := &fleet{T: t}
			r, stop := f.start(relay.Options{Routes: []bridge.Route{route("hook", newRecorder())}, Connect: wire.dial})
			pause(10 * time.Second)
			if s := r.Status(); s.Ready || len(s.Reasons) == 0 || !strings.Contains(s.Reasons[0], want) {
				t.Errorf("%s: ready %v because of %q, want that %s", user, s.Ready, s.Reasons, want)
			}
			stop()
			conn := srv.connect(wire)
			_, err := relay.NewPlan(t.Context(), conn, "", "FOREWARN", relay.Retention{})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: NewPlan = %v, want that %s", user, err, want)
			}
			conn.Close()
		}
	})
}

// So does one that may not ask for messages, for as long as it may not.
func TestThatARelayMayNotAskForMessagesIsSaid(t *testing.T) {
	admin := nats.UserInfo("admin", "admin")
	inBubble(t, func(t *testing.T) {
		srv := startServerWith(t, func(o *server.Options) {
			o.Users = []*server.User{{Username: "admin", Password: "admin"}, {Username: "relay", Password: "pw",
				Permissions: &server.Permissions{Publish: &server.SubjectPermission{
					Allow: []string{">"}, Deny: []string{"$JS.API.CONSUMER.MSG.NEXT.FOREWARN.>"},
				}}}}
		}, admin)
		wire := &cable{server: srv, options: func() []nats.Option { return []nats.Option{nats.UserInfo("relay", "pw")} }}
		f := &fleet{T: t}
		r, stop := f.start(relay.Options{Routes: []bridge.Route{route("hook", newRecorder())}, Connect: wire.dial})
		defer stop()
		for range 5 {
			pause(7 * time.Second)
			reasons := strings.Join(r.Status().Reasons, "\n")
			for _, want := range []string{"hook", "this user may not ask for that", "CONSUMER.MSG.NEXT.FOREWARN."} {
				if !strings.Contains(reasons, want) {
					t.Errorf("the reasons are %q, want %q among them", reasons, want)
				}
			}
		}
	})
}

// A dead letter whose number is taken needs no right that a relay doesn't have, also where its stream allows direct
// reads: without one, the sink would hear nothing more.
func TestADeadLetterNeedsNoFurtherRight(t *testing.T) {
	admin := nats.UserInfo("admin", "admin")
	inBubble(t, func(t *testing.T) {
		srv := startServerWith(t, func(o *server.Options) {
			may := []string{"$JS.API.STREAM.NAMES", "$JS.FC.>", "$JS.API.STREAM.MSG.DELETE.FOREWARN_dead", "$KV.>",
				"$JS.ACK.FOREWARN.>",
				"forewarn_dead.FOREWARN.>", "forewarn.relay.>", "forewarn.bridge.relay.>"}
			for _, of := range []string{"INFO", "MSG.GET"} {
				for _, stream := range []string{"FOREWARN", "FOREWARN_dead", "KV_FOREWARN_records", "KV_FOREWARN_leases"} {
					may = append(may, "$JS.API.STREAM."+of+"."+stream, "$JS.API.CONSUMER.*."+stream+".>",
						"$JS.API.CONSUMER.MSG.NEXT."+stream+".>")
				}
			}
			o.Users = []*server.User{{Username: "admin", Password: "admin"}, {Username: "relay", Password: "relay",
				Permissions: &server.Permissions{
					Publish:   &server.SubjectPermission{Allow: may},
					Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_relay.>"}},
				}}}
		}, admin)
		f := &fleet{T: t}
		f.conn = srv.connect(&cable{server: srv, options: func() []nats.Option { return []nats.Option{admin} }})
		defer f.conn.Close()
		var err error
		if f.js, err = jetstream.New(f.conn); err != nil {
			t.Fatal(err)
		}
		(&stage{fleet: f, server: srv}).change("FOREWARN_dead", func(c *jetstream.StreamConfig) { c.AllowDirect = true })
		wire := &cable{server: srv, options: func() []nats.Option {
			return []nats.Option{nats.UserInfo("relay", "relay"), nats.CustomInboxPrefix("_INBOX_relay")}
		}}
		one, two := newRecorder(), newRecorder()
		_, stop := f.start(relay.Options{Routes: []bridge.Route{route("one", one), route("two", two)}, Connect: wire.dial})
		pause(2 * time.Second)
		f.publishRaw("forewarn.events.x", nats.Header{}, []byte("no CloudEvent, for both"))
		said := eventNo(1).say(t, imds.Scheduled, "vm-1")
		f.publish(said)
		pause(2 * time.Minute)
		wantIDs(t, "the one is told", one.all(), said)
		wantIDs(t, "the other is told", two.all(), said)
		stop()
	})
}

// That a relay lacks the right to acknowledge is said if the servers have said so, and not after another error.
func TestThatTheRightToAcknowledgeIsMissingIsSaidOnlyIfItIs(t *testing.T) {
	for what, want := range map[string]int{"may not": 1, "may": 0} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				admin, as := nats.UserInfo("admin", "admin"), "admin"
				if what == "may not" {
					as = "relay"
				}
				srv := startServerWith(t, func(o *server.Options) {
					o.Users = []*server.User{{Username: "admin", Password: "admin"}, {Username: "relay", Password: "relay",
						Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.ACK.>"}}}}}
				}, admin)
				wire := &cable{server: srv, options: func() []nats.Option { return []nats.Option{nats.UserInfo(as, as)} }}
				conn := srv.connect(wire)
				f := &fleet{T: t, conn: conn}
				var err error
				if f.js, err = jetstream.New(conn); err != nil {
					t.Fatal(err)
				}
				f.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
				if what == "may" {
					wire.fail("$JS.ACK.")
					f.floods(conn)
				}
				var log systemtest.Log
				_, stop := f.start(relay.Options{Routes: []bridge.Route{route("hook", newRecorder())},
					Connect: func(context.Context) (*nats.Conn, error) { return conn, nil },
					Log:     log.Logger()})
				pause(5 * time.Minute)
				stop()
				if n := log.Count("acknowledged in vain"); n != want {
					t.Errorf("it is logged %d times, want %d", n, want)
				}
			})
		})
	}
}

// floods has a connection report a subscriber that is too slow.
func (f *fleet) floods(conn *nats.Conn) {
	f.Helper()
	slow, err := conn.SubscribeSync("flood")
	if err == nil {
		err = slow.SetPendingLimits(1, -1)
	}
	for range 3 {
		err = errors.Join(err, conn.Publish("flood", nil))
	}
	pause(time.Second)
	if err != nil || !errors.Is(conn.LastError(), nats.ErrSlowConsumer) {
		f.Fatalf("the last error is %v, want %v; %v", conn.LastError(), nats.ErrSlowConsumer, err)
	}
}
