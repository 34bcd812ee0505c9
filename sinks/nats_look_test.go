package sinks

import (
	"bytes"
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/delivery"
)

// However a stream is set up, what is said to be stored in it is there for whoever reads it. One that acknowledges what
// it throws away is named by check, and by each attempt.
func TestNATSWhatIsStoredCanBeRead(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stream func(*jetstream.StreamConfig)
		reads  string // subjects of a consumer that is there before
		checks string // what check says
		says   string // what history says, or why not
		again  string // the same of a copy
		gone   bool   // nobody can read it
	}{
		"keeps everything": {says: "stored in stream FOREWARN, message 1"},
		"interest, nobody's": {
			stream: func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }, gone: true,
			checks: "stream FOREWARN has retention interest and no consumer, so it acknowledges every message and keeps none",
			says:   "add a durable consumer, or use a stream with retention limits",
		},
		"interest": {
			stream: func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }, reads: "forewarn.>",
			checks: "its retention is interest", says: "kept only until its consumers have it in stream FOREWARN, message 1",
			again: "already stored in stream FOREWARN, message 1",
		},
		"interest in others": { // no user may see what a consumer reads, so nothing is claimed
			stream: func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }, reads: "forewarn.bridge.>",
			checks: "its retention is interest", says: "kept only until its consumers have it in stream FOREWARN, message",
			gone: true,
		},
		"a work queue": {
			stream: func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
			checks: "each message goes to one reader only", says: "stored in stream FOREWARN, message 1",
		},
		"smaller than a message": {
			stream: func(c *jetstream.StreamConfig) { c.MaxBytes = 100 }, gone: true,
			says: "and has dropped it already; its max_bytes or max_age is too small",
		},
		"in memory, smaller than a message": {
			stream: func(c *jetstream.StreamConfig) { c.MaxBytes, c.Storage = 100, jetstream.MemoryStorage }, gone: true,
			checks: "it is in memory", says: "has dropped it already",
		},
		"in memory": {
			stream: func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
			checks: "it is in memory", says: "stored in stream FOREWARN, message 1",
		},
		"one message": {stream: func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 }, says: "stored"},
		"one message a subject, new ones refused": {
			stream: func(c *jetstream.StreamConfig) {
				c.MaxMsgsPerSubject, c.Discard, c.DiscardNewPerSubject = 1, jetstream.DiscardNew, true
			}, says: "stored",
		},
		"direct reads":     {stream: func(c *jetstream.StreamConfig) { c.AllowDirect = true }, says: "stored"},
		"for a day":        {stream: func(c *jetstream.StreamConfig) { c.MaxAge = 24 * time.Hour }, says: "stored"},
		"messages may end": {stream: func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true }, says: "stored"},
		"nothing is deleted": {
			stream: func(c *jetstream.StreamConfig) { c.DenyDelete, c.DenyPurge = true, true }, says: "stored",
		},
		"written later": {
			stream: func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode }, says: "stored",
		},
		"published again": {
			stream: func(c *jetstream.StreamConfig) {
				c.RePublish = &jetstream.RePublish{Source: "forewarn.>", Destination: "again.>", HeadersOnly: true}
			}, says: "stored",
		},
		"renamed": {
			stream: func(c *jetstream.StreamConfig) {
				c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "forewarn.>", Destination: "kept.>"}
			}, says: "stored",
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := natsServe(t, nil)
			_, js := natsClient(t, srv.ClientURL())
			stream := natsStream(t, js, tt.stream)
			if tt.reads != "" {
				natsConsumer(t, stream, tt.reads)
			}
			s := mustOpen(t, "nats", "url: "+srv.ClientURL(), testHost(t))
			checked, err := s.(delivery.Connecter).Connect(t.Context())
			if err != nil {
				checked += err.Error()
			}
			if !strings.Contains(checked, tt.checks) {
				t.Errorf("check says %q, want %q", checked, tt.checks)
			}
			for i, want := range []string{tt.says, cmp.Or(tt.again, tt.says)} {
				answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
				said := answer.Status
				if err != nil {
					said = err.Error()
				}
				if !strings.Contains(said, want) || err != nil && classOf(err) != blocked {
					t.Errorf("Deliver, time %d = %+v, %v; want %q", i+1, answer, err, want)
				}
			}
			info, err := stream.Info(t.Context())
			if err != nil || (info.State.Msgs == 1) == tt.gone {
				t.Errorf("the stream holds %d messages (%v)", info.State.Msgs, err)
			}
		})
	}
}

// What a stream threw away because nobody read it is stored as soon as somebody does.
func TestNATSWhatWasThrownAwayIsStoredOnceSomebodyReads(t *testing.T) {
	t.Parallel()
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	stream := natsStream(t, js, func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy })
	s := mustOpen(t, "nats", "url: "+srv.ClientURL(), testHost(t))
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); classOf(err) != blocked {
		t.Errorf("without a consumer: %v, want it blocked", err)
	}
	reader := natsConsumer(t, stream, "forewarn.>")
	if _, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
		t.Errorf("with a consumer: %v", err)
	}
	msg, err := reader.Next(jetstream.FetchMaxWait(10 * time.Second))
	if err != nil || msg.Headers().Get("ce-id") != natsFirst+"-scheduled" {
		t.Errorf("the consumer gets %v (%v), want the CloudEvent", msg, err)
	}
}

func natsConsumer(t *testing.T, stream jetstream.Stream, subjects string) jetstream.Consumer {
	t.Helper()
	c, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
		Durable: "reader", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: subjects,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A stream that gives the subjects of several publishers one name holds what another VM says of a change, and that
// counts. What only looks like it doesn't.
func TestNATSUnderARenamedSubjectOnlyTheSameChangeCounts(t *testing.T) {
	t.Parallel()
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	const another = "forewarn.events.s.rg.web.Reboot.scheduled."
	for name, tt := range map[string]struct {
		settings string
		forge    func(*nats.Msg)
		want     string
	}{
		"the very message":        {forge: func(*nats.Msg) {}, want: accepted},
		"the very message, whole": {settings: "mode: structured", forge: func(*nats.Msg) {}, want: accepted},
		"another VM's": {want: accepted, forge: func(m *nats.Msg) {
			m.Header.Set("ce-observer", "vm-1")
			m.Header.Set("ce-source", "urn:forewarn:vm-1")
			m.Header.Set("ce-time", "2022-04-11T22:12:03Z")
			m.Data = bytes.Replace(m.Data, []byte(`"observer":{"name":"vm-0"`), []byte(`"observer":{"name":"vm-1"`), 1)
			m.Data = bytes.Replace(m.Data, []byte(`"documentIncarnation":1`), []byte(`"documentIncarnation":2`), 1)
		}},
		"no body":      {want: rejected, forge: func(m *nats.Msg) { m.Data = nil }},
		"another body": {want: rejected, forge: func(m *nats.Msg) { m.Data = []byte(`{"change":"vanished"}`) }},
		"another reason": {want: rejected, forge: func(m *nats.Msg) {
			m.Data = bytes.Replace(m.Data, []byte("hello"), []byte("sleep"), 1)
		}},
		"another reason, whole": {settings: "mode: structured", want: rejected, forge: func(m *nats.Msg) {
			m.Data = bytes.Replace(m.Data, []byte("hello"), []byte("sleep"), 1)
		}},
		"milder": {want: rejected, forge: func(m *nats.Msg) { m.Header.Set("ce-severitynumber", "9") }},
		"later": {want: rejected, forge: func(m *nats.Msg) {
			m.Header.Set("ce-aznotbefore", "2032-04-11T22:26:58Z")
		}},
		"says more":       {want: rejected, forge: func(m *nats.Msg) { m.Header.Set("ce-over", "true") }},
		"said twice":      {want: rejected, forge: func(m *nats.Msg) { m.Header.Add("ce-azeventtype", "Freeze") }},
		"read as a whole": {want: rejected, forge: func(m *nats.Msg) { m.Header.Set("Content-Type", structuredType) }},
	} {
		t.Run(name, func(t *testing.T) {
			stream := natsStream(t, js, func(c *jetstream.StreamConfig) {
				c.Storage = jetstream.MemoryStorage // a file is still there for a while after it is deleted
				c.SubjectTransform = &jetstream.SubjectTransformConfig{
					Source: "forewarn.events.*.*.*.*.*.*", Destination: "kept.{{wildcard(6)}}",
				}
			})
			defer js.DeleteStream(t.Context(), "FOREWARN")
			s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\n"+tt.settings, testHost(t)).(*natsSink)
			one := deliveries(t)[:1]
			msg, err := s.message(one[0])
			if err != nil {
				t.Fatal(err)
			}
			msg.Subject = another + one[0].Event.ID()
			before := string(msg.Data)
			tt.forge(msg)
			if strings.Contains(name, "reason") && string(msg.Data) == before {
				t.Fatal("the body is the same")
			}
			if _, err := js.PublishMsg(t.Context(), msg); err != nil {
				t.Fatal(err)
			}
			answer, err := s.Deliver(t.Context(), one)
			if classOf(err) != tt.want {
				t.Errorf("Deliver = %+v, %v; want it %s", answer, err, tt.want)
			}
			if n := len(natsStored(t, stream)); n != 1 {
				t.Errorf("the stream holds %d messages, want 1", n)
			}
		})
	}
}
