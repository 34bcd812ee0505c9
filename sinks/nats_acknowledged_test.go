package sinks

import (
	"bufio"
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// An acknowledgement counts only if the stream that it names has the message, whatever the user may look at: another
// program may answer. Once the stream takes the message, it is stored.
func TestNATSAnAcknowledgementIsNotBelieved(t *testing.T) {
	t.Parallel()
	publish, subscribe := natsDocumented(t)
	may := func(more ...string) *server.Permissions {
		return &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: append(slices.Clone(publish), more...)},
			Subscribe: &server.SubjectPermission{Allow: subscribe},
		}
	}
	const doesNotTake = "doesn't take forewarn.events."
	for name, tt := range map[string]struct {
		rights *server.Permissions
		says   string
		want   string
		keys   string
		stream func(*jetstream.StreamConfig)
	}{
		"a number that is not there": {may("$JS.API.STREAM.INFO.FOREWARN"), `"seq":4242`, doesNotTake, "", nil},
		"another's message":          {may("$JS.API.STREAM.INFO.FOREWARN"), `"seq":1`, doesNotTake, "", nil},
		"no number":                  {may("$JS.API.STREAM.INFO.FOREWARN"), `"seq":0`, doesNotTake, "", nil},
		"a duplicate":                {may("$JS.API.STREAM.INFO.FOREWARN"), `"seq":1,"duplicate":true`, "does another program", "", nil},
		"without a look":             {may(), `"seq":1`, "doesn't have it on its subject", "", nil},
		"with all rights":            {nil, `"seq":1`, doesNotTake, "", nil},
		"without once":               {nil, `"seq":1`, doesNotTake, "once: false", nil},
		"a work queue": {nil, `"seq":1`, doesNotTake, "",
			func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }},
		"renamed": {nil, `"seq":1`, doesNotTake, "", func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "forewarn.>", Destination: "kept.>"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := natsServe(t, natsMay(tt.rights))
			conn, js := natsClient(t, srv.ClientURL(), nats.UserInfo("test", "test"))
			stream := natsStream(t, js, func(c *jetstream.StreamConfig) {
				c.AllowDirect, c.Subjects = true, []string{"forewarn.bridge.>", "other.>"}
				if tt.stream != nil {
					tt.stream(c)
				}
			})
			if _, err := js.Publish(t.Context(), "other.noise", []byte("noise")); err != nil {
				t.Fatal(err)
			}
			fake, err := conn.Subscribe("forewarn.events.>", func(m *nats.Msg) {
				_ = m.Respond([]byte(`{"stream":"FOREWARN",` + tt.says + `}`))
			})
			if err == nil {
				err = conn.Flush()
			}
			if err != nil {
				t.Fatal(err)
			}
			s := mustOpen(t, "nats", "url: "+srv.ClientURL()+
				"\nusername: vm\npassword: hunter2hunter2\ninbox_prefix: _INBOX_vm\n"+tt.keys, testHost(t))
			for i := range 2 {
				answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("Deliver, time %d = %+v, %v; want an error with %q", i+1, answer, err, tt.want)
				}
			}
			if err := fake.Unsubscribe(); err != nil {
				t.Fatal(err)
			}
			config := stream.CachedInfo().Config
			config.Subjects = []string{"forewarn.>"}
			if _, err := js.UpdateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
			if err != nil || !strings.HasPrefix(answer.Status, "stored in stream FOREWARN, message 2") {
				t.Errorf("once the stream takes it: Deliver = %+v, %v; want it stored", answer, err)
			}
		})
	}
}

// So it is where the stream takes the subject but refused this message.
func TestNATSAnAcknowledgementInPlaceOfARefusalIsNotBelieved(t *testing.T) {
	for name, tt := range map[string]struct{ read, want string }{
		"the subject has none":    {`{"error":{"code":404,"err_code":10037,"description":"no message found"}}`, "doesn't have it on its subject"},
		"the subject has another": {`{"message":{"subject":"x","seq":1,"data":"e30="}}`, "doesn't have it on its subject"},
		"later ones were lost":    {`{"error":{"code":404,"err_code":10037,"description":"no message found"}}`, "has no message 3"},
	} {
		t.Run(name, func(t *testing.T) {
			natsBubble(t, func(t *testing.T) {
				seq := map[bool]string{true: "3", false: "1"}[strings.HasPrefix(name, "later")]
				wire := &natsWire{talk: func(conn net.Conn, r *bufio.Reader) {
					natsLet(func(conn net.Conn, r *bufio.Reader) {
						natsAsked(conn, r, func(subject, reply, sid string) string {
							body := `{"stream":"FOREWARN","seq":` + seq + `}`
							switch {
							case strings.HasPrefix(subject, "$JS.API.STREAM.INFO."):
								body = `{"config":{"name":"FOREWARN","subjects":["forewarn.>"]},"state":{"first_seq":1,"last_seq":2}}`
							case strings.HasPrefix(subject, "$JS.API.STREAM.MSG.GET."):
								body = tt.read
							}
							return natsMessage(reply, sid, body)
						})
					})(conn, r)
				}}
				h := testHost(t)
				h.Dial = wire.dial
				s := mustOpen(t, "nats", "{url: 'nats://127.0.0.1', token: s3cr3t-token}", h)
				answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("Deliver = %+v, %v; want an error with %q", answer, err, tt.want)
				}
				closeSink(s)
				wire.end()
			})
		})
	}
}

// What somebody stored before under a message's own subject and id is not taken for it, unless it is about the same
// change, as what another VM says of it is.
func TestNATSJunkUnderTheMessagesOwnIDCountsForNothing(t *testing.T) {
	t.Parallel()
	replace := func(from, to string) func(*nats.Msg) {
		return func(m *nats.Msg) {
			if !bytes.Contains(m.Data, []byte(from)) {
				t.Errorf("%s has no %s", m.Data, from)
			}
			m.Data = bytes.ReplaceAll(m.Data, []byte(from), []byte(to))
		}
	}
	for name, tt := range map[string]struct {
		keys  string
		forge func(*nats.Msg)
		want  string
	}{
		"junk": {"", func(m *nats.Msg) {
			m.Data, m.Header = []byte(`{"junk":true}`), nats.Header{jetstream.MsgIDHeader: m.Header[jetstream.MsgIDHeader]}
		}, rejected},
		"junk, whole":         {"mode: structured", func(m *nats.Msg) { m.Data = []byte(`{"junk":true}`) }, rejected},
		"nothing":             {"", func(m *nats.Msg) { m.Data = nil }, rejected},
		"another event":       {"", replace(strings.ToLower(natsFirst), strings.Repeat("0", len(natsFirst))), rejected},
		"another change":      {"", replace(`"change":"scheduled"`, `"change":"vanished"`), rejected},
		"another type":        {"", func(m *nats.Msg) { m.Header.Set("ce-type", "com.example.other") }, rejected},
		"without once":        {"once: false", func(m *nats.Msg) { m.Data = nil }, accepted},
		"the very same":       {"", func(*nats.Msg) {}, accepted},
		"the very same again": {"mode: structured", func(*nats.Msg) {}, accepted},
		"another VM's, which saw more": {"", func(m *nats.Msg) {
			replace(`"observer":{"name":"vm-0"`, `"rules":[{"name":"rule 1"}],"observer":{"name":"vm-1"`)(m)
			m.Header.Set("ce-observer", "vm-1")
			m.Header.Set("ce-aznotbefore", "2032-04-11T22:26:58Z")
		}, accepted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := natsServe(t, nil)
			_, js := natsClient(t, srv.ClientURL())
			stream := natsStream(t, js, func(c *jetstream.StreamConfig) { c.AllowDirect = true })
			s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\n"+tt.keys, testHost(t)).(*natsSink)
			msg, err := s.message(deliveries(t)[0])
			if err != nil {
				t.Fatal(err)
			}
			msg.Header.Del(jetstream.ExpectedLastSubjSeqHeader)
			tt.forge(msg)
			if _, err := js.PublishMsg(t.Context(), msg); err != nil {
				t.Fatal(err)
			}
			for i := range 2 { // the stream knows the id, then only the subject
				answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
				if classOf(err) != tt.want {
					t.Errorf("Deliver, time %d = %+v, %v; want it %s", i+1, answer, err, tt.want)
				}
			}
			got := natsStored(t, stream)
			if stored := len(got) > 1; stored != strings.Contains(tt.keys, "once") {
				t.Errorf("the stream holds %d messages", len(got))
			}
		})
	}
}
