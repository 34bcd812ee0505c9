package sinks

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// natsNoise publishes on a subject of another publisher's, under the id of a message, and claims another subject.
func natsNoise(t *testing.T, js jetstream.JetStream, id, claim string) {
	t.Helper()
	msg := &nats.Msg{Subject: "forewarn.events.s.rg.web.noise",
		Header: nats.Header{jetstream.MsgIDHeader: {id}, jetstream.SubjectHeader: {claim}}}
	if _, err := js.PublishMsg(t.Context(), msg); err != nil {
		t.Fatal(err)
	}
}

// A stream knows an id for all its subjects, so another publisher may have used it on its own. What the stream calls a
// duplicate is accepted only if its own subject holds it; else it is stored, in every mode, and a copy is accepted
// then.
func TestNATSADuplicateCountsOnItsOwnSubjectOnly(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		settings string
		stream   func(*jetstream.StreamConfig)
		again    string // what the answer to a copy begins with
	}{
		"once":         {again: "already stored in stream FOREWARN, message 2"},
		"direct reads": {stream: func(c *jetstream.StreamConfig) { c.AllowDirect = true }, again: "already stored"},
		"structured":   {settings: "mode: structured", again: "already stored in stream FOREWARN, message 2"},
		"without once": {settings: "once: false", again: "already stored in stream FOREWARN, message 2"},
		"direct reads, without once": {settings: "once: false",
			stream: func(c *jetstream.StreamConfig) { c.AllowDirect = true }, again: "already stored"},
		"copies":      {settings: "copies: true", again: "already stored in stream FOREWARN, message 2"},
		"one subject": {settings: "once: false\nsubject: forewarn.all", again: "already stored"},
		"a template":  {settings: "subject: 'forewarn.mine.{{.id}}'", again: "already stored in stream FOREWARN, message 2"},
		"the stream renames subjects": {
			stream: func(c *jetstream.StreamConfig) {
				c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "forewarn.>", Destination: "kept.>"}
			},
			again: "already stored in stream FOREWARN, message 2",
		},
		"it renames them, without once": {
			settings: "once: false",
			stream: func(c *jetstream.StreamConfig) {
				c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "forewarn.>", Destination: "kept.>"}
			},
			again: "stored in stream FOREWARN, message 3", // once more, which is better than never
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := natsServe(t, nil)
			_, js := natsClient(t, srv.ClientURL())
			stream := natsStream(t, js, tt.stream)
			s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\n"+tt.settings, testHost(t)).(*natsSink)
			one := deliveries(t)[:1]
			msg, err := s.message(one[0])
			if err != nil {
				t.Fatal(err)
			}
			natsNoise(t, js, msg.Header.Get(jetstream.MsgIDHeader), msg.Subject)
			for i, want := range []string{"stored in stream FOREWARN, message 2", tt.again} {
				answer, err := s.Deliver(t.Context(), one)
				if err != nil || !strings.HasPrefix(answer.Status, want) {
					t.Errorf("Deliver, time %d = %+v, %v; want it %s", i+1, answer, err, want)
				}
			}
			if got := natsStored(t, stream); len(got) < 2 || len(got[1].Data) == 0 {
				t.Fatalf("the stream holds %d messages, want the CloudEvent behind the noise", len(got))
			}
		})
	}
}

// A stream may have lost a message whose id it still knows: it was purged, has aged out, or was read from a queue. Then
// nobody can get it any more, so it is stored again.
func TestNATSADuplicateThatIsGoneIsStoredAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stream func(*jetstream.StreamConfig)
		lose   func(t *testing.T, js jetstream.JetStream, stream jetstream.Stream)
	}{
		"purged": {lose: func(t *testing.T, _ jetstream.JetStream, stream jetstream.Stream) {
			if err := stream.Purge(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
		"pushed out": {
			stream: func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 },
			lose: func(t *testing.T, js jetstream.JetStream, _ jetstream.Stream) {
				natsNoise(t, js, "other", "")
			},
		},
		"read from a queue": {
			stream: func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
			lose: func(t *testing.T, _ jetstream.JetStream, stream jetstream.Stream) {
				c, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy})
				if err != nil {
					t.Fatal(err)
				}
				msg, err := c.Next()
				if err == nil {
					err = msg.DoubleAck(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := natsServe(t, nil)
			_, js := natsClient(t, srv.ClientURL())
			stream := natsStream(t, js, tt.stream)
			s := mustOpen(t, "nats", "url: "+srv.ClientURL(), testHost(t))
			deliver := func() string {
				answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
				if err != nil {
					t.Fatal(err)
				}
				return answer.Status
			}
			deliver()
			tt.lose(t, js, stream)
			if got := deliver(); !strings.HasPrefix(got, "stored in stream FOREWARN") {
				t.Errorf("Deliver = %q, want it stored again", got)
			}
			info, err := stream.Info(t.Context())
			if err != nil || info.State.Msgs != 1 {
				t.Errorf("the stream holds %d messages (%v), want the CloudEvent", info.State.Msgs, err)
			}
		})
	}
}

// What was stored under a new id is found by the next attempt, when its answer was lost, and by other VMs.
func TestNATSWhatWasStoredUnderANewIDIsFound(t *testing.T) {
	t.Parallel()
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	stream := natsStream(t, js, func(c *jetstream.StreamConfig) { c.Duplicates = 100 * time.Millisecond })
	s := mustOpen(t, "nats", "url: "+srv.ClientURL(), testHost(t)).(*natsSink)
	msg, err := s.message(deliveries(t)[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.PublishMsg(t.Context(), withNewID(msg)); err != nil {
		t.Fatal(err)
	}
	for i := range 2 { // and after the stream has forgotten every id
		answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if err != nil || answer.Status != "already stored in stream FOREWARN, message 1" {
			t.Errorf("Deliver, time %d = %+v, %v; want it found", i+1, answer, err)
		}
		natsForgets(t, js, i)
	}
	if got := natsIDs(t, stream); len(got) != 1 {
		t.Errorf("the stream holds %q, want one message", got)
	}
}

// Nobody can keep a heartbeat out of the stream by its id.
func TestNATSNoiseHoldsBackNoHeartbeat(t *testing.T) {
	t.Parallel()
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	stream := natsStream(t, js, nil)
	s := mustOpen(t, "nats", "url: "+srv.ClientURL(), testHost(t))
	beat, err := cloudevent.WrapBridge(cloudevent.BridgeHeartbeat, nil, imds.Observer{Name: "vm-0"}, monday)
	if err != nil {
		t.Fatal(err)
	}
	natsNoise(t, js, beat.ID(), "")
	if _, err := s.Deliver(t.Context(), []delivery.Delivery{{Event: beat, Attempt: 1}}); err != nil {
		t.Fatal(err)
	}
	if got := natsIDs(t, stream); len(got) != 1 {
		t.Errorf("the stream holds %q, want the heartbeat", got)
	}
}

// A stream that stores and does not say so is found out: check names it, and what it has is accepted all the same.
func TestNATSAStreamThatDoesNotAnswer(t *testing.T) {
	natsBubble(t, func(t *testing.T) {
		srv, stream := natsInMemory(t)
		config := stream.CachedInfo().Config
		config.NoAck = true
		_, js := natsClient(t, "", nats.InProcessServer(srv), nats.Token("s3cr3t-token"))
		if _, err := js.UpdateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		wire := &natsWire{}
		wire.becomes(srv.InProcessConn)
		h := testHost(t)
		h.Dial = wire.dial
		s := mustOpen(t, "nats", "{url: 'nats://127.0.0.1', token: s3cr3t-token}", h)
		_, err := s.(delivery.Connecter).Connect(t.Context())
		if classOf(err) != blocked || !strings.Contains(err.Error(), "stream FOREWARN has no_ack") {
			t.Errorf("Connect = %v, want it to name no_ack", err)
		}
		for i := range 2 {
			answer, err := s.Deliver(t.Context(), deliveries(t)[:1])
			if err != nil || answer.Status != "already stored in stream FOREWARN, message 1" {
				t.Errorf("Deliver, time %d = %+v, %v; want it found in the stream", i+1, answer, err)
			}
		}
		closeSink(s)
	})
}

// With an answer that never comes, the message that the stream does not have is tried again.
func TestNATSSilenceWithoutTheMessageIsTriedAgain(t *testing.T) {
	natsBubble(t, func(t *testing.T) {
		srv, _ := natsInMemory(t)
		conn, js := natsClient(t, "", nats.InProcessServer(srv), nats.Token("s3cr3t-token"))
		if err := js.DeleteStream(t.Context(), "FOREWARN"); err != nil {
			t.Fatal(err)
		}
		natsStream(t, js, func(c *jetstream.StreamConfig) {
			c.Storage, c.Sealed = jetstream.MemoryStorage, false
			c.Subjects = []string{"forewarn.>"}
			c.NoAck, c.MaxMsgSize = true, 10 // it takes nothing, and does not say so
		})
		defer conn.Close()
		wire := &natsWire{}
		wire.becomes(srv.InProcessConn)
		h := testHost(t)
		h.Dial = wire.dial
		s := mustOpen(t, "nats", "{url: 'nats://127.0.0.1', token: s3cr3t-token}", h)
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if classOf(err) != again || !strings.Contains(err.Error(), "no answer from the stream") {
			t.Errorf("Deliver = %v, want it to be tried again", err)
		}
		closeSink(s)
	})
}

// A stream that renames subjects may rename those of two publishers to one. What another has stored there is not taken for
// this sink's message: it is rejected, and so kept as a dead letter.
func TestNATSNoiseUnderARenamedSubjectCountsForNothing(t *testing.T) {
	srv := natsServe(t, nil)
	_, js := natsClient(t, srv.ClientURL())
	stream := natsStream(t, js, func(c *jetstream.StreamConfig) {
		c.SubjectTransform = &jetstream.SubjectTransformConfig{
			Source: "forewarn.events.*.*.*.*.*.*", Destination: "kept.{{wildcard(6)}}",
		}
	})
	s := mustOpen(t, "nats", "url: "+srv.ClientURL(), testHost(t)).(*natsSink)
	all := deliveries(t)
	id := all[0].Event.ID()
	noise := &nats.Msg{Subject: "forewarn.events.s.rg.web.Reboot.scheduled." + id, Data: []byte("noise of web"),
		Header: nats.Header{jetstream.MsgIDHeader: {id}}}
	if _, err := js.PublishMsg(t.Context(), noise); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Deliver(t.Context(), all[:1]); !errors.Is(err, delivery.ErrRejected) {
		t.Errorf("with noise in its place: %v, want it rejected", err)
	}
	for range 2 { // another VM's copy counts
		if _, err := s.Deliver(t.Context(), all[1:2]); err != nil {
			t.Errorf("without noise: %v", err)
		}
	}
	if n := len(natsStored(t, stream)); n != 2 {
		t.Errorf("the stream holds %d messages, want the noise and one of two", n)
	}
}
