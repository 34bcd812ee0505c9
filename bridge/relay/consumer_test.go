package relay_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/internal/streams"
	"forewarn/bridge/relay"
	"forewarn/bridge/systemtest"
)

// Whatever somebody does to the consumer of a sink, all that comes is told, once and in order, within a minute, also what
// was pending then.
func TestAConsumerThatSomebodyTouchesLosesNothing(t *testing.T) {
	const name = "forewarn-hook"
	changes := func(change func(*jetstream.ConsumerConfig)) func(*stage) error {
		return func(s *stage) error { return s.changeConsumer(name, change) }
	}
	for what, touch := range map[string]func(s *stage) error{
		"nothing": func(*stage) error { return nil },
		"deletes": func(s *stage) error { return s.js.DeleteConsumer(s.Context(), "FOREWARN", name) },
		"takes from": func(s *stage) error {
			consumer, err := s.js.Consumer(s.Context(), "FOREWARN", name)
			if err != nil {
				return err
			}
			pause(3 * time.Second)
			go func() { // it waits for the next message, beside the relay
				if msg, err := consumer.Next(jetstream.FetchMaxWait(20 * time.Second)); err == nil {
					_ = msg.Ack()
				}
			}()
			return nil
		},
		"pauses": func(s *stage) error {
			_, err := s.js.PauseConsumer(s.Context(), "FOREWARN", name, time.Now().Add(time.Hour))
			return err
		},
		"bounds":  changes(func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 1 }),
		"hurries": changes(func(c *jetstream.ConsumerConfig) { c.AckWait = 2 * time.Second }),
		"filters": changes(func(c *jetstream.ConsumerConfig) { c.FilterSubject = "forewarn.events.other" }),
		"filters all but one": changes(func(c *jetstream.ConsumerConfig) {
			c.FilterSubject = "forewarn.events.*.*.*.*.00000000-0000-4000-8000-000000000006-scheduled"
		}),
		"leaves out bodies":       changes(func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true }),
		"bounds requests":         changes(func(c *jetstream.ConsumerConfig) { c.MaxRequestBatch = 1 }),
		"bounds requests in time": changes(func(c *jetstream.ConsumerConfig) { c.MaxRequestExpires = time.Second }),
		"bounds requests in size": changes(func(c *jetstream.ConsumerConfig) { c.MaxRequestMaxBytes = 100 }),
		"resets": func(s *stage) error {
			_, err := s.js.ResetConsumerToSequence(s.Context(), "FOREWARN", name, 1)
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			if what != "deletes" && what != "takes from" {
				systemtest.Alone(t)
			}
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}, From: time.Now().Add(-time.Hour)})
				pause(2 * time.Second)
				var all []event.Event
				say := func(n int) {
					ce := eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
					all = append(all, ce)
					s.publish(ce)
				}
				say(1)
				pause(time.Second)
				refused := eventNo(2).in(24*time.Hour).say(t, imds.Scheduled, "vm-1").ID()
				sink.say(func(batch []delivery.Delivery) (delivery.Answer, error) {
					if batch[0].Event.ID() == refused {
						return delivery.Answer{}, errRefused
					}
					return delivery.Answer{}, nil
				})
				say(2)
				pause(time.Second)
				before := s.consumer(name)
				if err := touch(s); err != nil {
					t.Fatal(err)
				}
				for n := range 5 {
					say(3 + n)
				}
				pause(time.Minute)
				wantIDs(t, "told in a minute", sorted(sink.all()), append(all[:1:1], all[2:]...)...)
				sink.say(nil)
				pause(5 * time.Minute)
				wantIDs(t, "told", sorted(sink.all()), all...)
				s.settled("hook")
				after := s.consumer(name)
				if again := !after.Created.Equal(before.Created); what == "nothing" && again {
					t.Error("the consumer was made again")
				}
				after.Config.OptStartSeq = before.Config.OptStartSeq
				if !reflect.DeepEqual(after.Config, before.Config) || after.Paused {
					t.Errorf("the consumer is %+v, want %+v as before", after.Config, before.Config)
				}
				stop()
			})
		})
	}
}

// What a stream has from another one by sources is told as if it had been published to it, and what a relay puts there for
// one sink too.
func TestAStreamThatSourcesAnotherIsRead(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		for _, name := range []string{"FOREWARN", "FOREWARN_heartbeats"} {
			if err := s.js.DeleteStream(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []jetstream.StreamConfig{
			{Name: "ORIGIN", Subjects: []string{"forewarn.events.>", "forewarn.bridge.>"}},
			{Name: "FOREWARN", Subjects: []string{"forewarn.relay.>"}, Sources: []*jetstream.StreamSource{{Name: "ORIGIN"}}},
		} {
			if _, err := s.js.CreateStream(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		hook := newRecorder()
		r, stop := s.run(route("hook", hook))
		pause(2 * time.Second)
		a := eventNo(1).in(24 * time.Hour)
		scheduled, started := a.say(t, imds.Scheduled, "vm-1"), a.say(t, imds.Started, "vm-1")
		s.publish(scheduled, started, a.say(t, imds.Started, "vm-2"))
		pause(10 * time.Second)
		wantIDs(t, "told", hook.all(), scheduled, started)
		part, err := r.ReplayPast(t.Context(), relay.ReplayRequest{Sink: "hook", Run: "one"})
		if err != nil || len(part.Replayed) != 2 {
			t.Errorf("ReplayPast = %+v, %v; want both changes", part, err)
		}
		pause(10 * time.Second)
		wantIDs(t, "with what is replayed", hook.all(), scheduled, started, scheduled, started)
		stop()
	})
}

// consumer looks at a consumer of the stream.
func (s *stage) consumer(name string) *jetstream.ConsumerInfo {
	s.Helper()
	consumer, err := s.js.Consumer(s.Context(), "FOREWARN", name)
	if err != nil {
		s.Fatal(err)
	}
	return consumer.CachedInfo()
}

// changeConsumer changes a consumer of the stream.
func (s *stage) changeConsumer(name string, change func(*jetstream.ConsumerConfig)) error {
	config := s.consumer(name).Config
	change(&config)
	_, err := s.js.UpdateConsumer(s.Context(), "FOREWARN", config)
	return err
}

// puller reads the stream of the test with a consumer of its own.
func (s *stage) puller() *streams.Puller {
	s.Helper()
	c, err := s.js.CreateConsumer(s.Context(), "FOREWARN", jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: time.Hour,
	})
	if err != nil {
		s.Fatal(err)
	}
	p, err := streams.NewPuller(s.js, "FOREWARN", c.CachedInfo().Name)
	if err != nil {
		s.Fatal(err)
	}
	return p
}

// What came one by one while a reader was busy it gets at once, as far as it wants.
func TestWhatCameWhileAReaderWasBusyIsOneBatch(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		p := s.puller()
		defer p.Close()
		for _, one := range []struct{ come, most, want int }{
			{come: 1, most: streams.ReadAhead, want: 1}, {come: 10, most: streams.ReadAhead, want: 10},
			{come: 10, most: 7, want: 7}, {come: 0, most: streams.ReadAhead, want: 3},
		} {
			for range one.come {
				s.publishRaw("forewarn.events.x", nil, []byte("it"))
			}
			pause(time.Millisecond)
			if got, err := p.Batch(t.Context(), one.most); err != nil || len(got) != one.want {
				t.Errorf("it read %d messages: %v, want %d", len(got), err, one.want)
			}
		}
	})
}

// Whoever reads a stream may be busy for seconds, and then reads on: what the server sent meanwhile isn't said to be missing.
func TestAReaderThatWasBusyForSecondsReadsOn(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		p := s.puller()
		defer p.Close()
		for n := range 50 {
			s.publishRaw("forewarn.events.x", nil, []byte("before"))
			if got, err := p.Batch(t.Context(), streams.ReadAhead); err != nil || len(got) != 1 {
				t.Fatalf("before it was busy for the %dth time it read %d messages: %v, want 1", n+1, len(got), err)
			}
			pause(10 * time.Second)
			if got, err := p.Batch(t.Context(), streams.ReadAhead); err != nil || len(got) > 0 {
				t.Fatalf("after it was busy for the %dth time it read %d messages: %v, want none", n+1, len(got), err)
			}
		}
	})
}

// What nats.go takes for a word of the server's, because of its headers, is read like any other message.
func TestAMessageThatLooksLikeAWordOfTheServersIsRead(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		_, stop := s.run(route("hook", sink))
		for _, status := range []string{"100", "404", "408", "409", "503"} {
			s.publishRaw("forewarn.events.x", nats.Header{"Status": {status}, "Description": {"Consumer Deleted"}}, nil)
		}
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(10 * time.Second)
		wantIDs(t, "told", sink.all(), ce)
		s.settled("hook")
		stop()
	})
}

// What such a consumer leaves out is told although it goes on behind that: when it lets a later message pass, leaves out
// only bodies, or another relay takes the sink over before the first one has noticed.
func TestWhatAChangedConsumerLeavesOutIsTold(t *testing.T) {
	for what, change := range map[string]func(*jetstream.ConsumerConfig){
		"bodies": func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true },
		"all":    func(c *jetstream.ConsumerConfig) { c.FilterSubject = "forewarn.events.other" },
		"but a last": func(c *jetstream.ConsumerConfig) {
			c.FilterSubject = "forewarn.events.*.*.*.*." + eventNo(3).id + "-scheduled"
		},
	} {
		t.Run(what, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				sink := newRecorder()
				_, stop := s.run(route("hook", sink))
				var all []event.Event
				for n := range 4 {
					ce := eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
					all = append(all, ce)
					s.publish(ce)
					pause(2 * time.Second)
					if n > 0 {
						continue
					}
					if err := s.changeConsumer("forewarn-hook", change); err != nil {
						t.Fatal(err)
					}
				}
				stop()
				r, stop := s.run(route("hook", sink))
				pause(time.Minute)
				wantIDs(t, "told", sorted(sink.all()), all...)
				if list, _, err := r.List(t.Context(), relay.Selection{State: "dead"}, 10); err != nil || len(list) > 0 {
					t.Errorf("dead letters are %+v, %v; want none", list, err)
				}
				stop()
			})
		})
	}
}

// A consumer that was deleted while no relay ran costs nothing, and repeats nothing.
func TestAConsumerThatIsDeletedBetweenRelaysLosesNothing(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink := newRecorder()
		_, stop := s.run(route("hook", sink))
		first, second := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"), eventNo(2).say(t, imds.Scheduled, "vm-1")
		s.publish(first)
		pause(time.Second)
		sink.say(fails(errRefused))
		s.publish(second)
		pause(time.Second)
		stop()
		if err := s.js.DeleteConsumer(t.Context(), "FOREWARN", "forewarn-hook"); err != nil {
			t.Fatal(err)
		}
		third := eventNo(3).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(third)
		sink.say(nil)
		_, stop = s.run(route("hook", sink))
		pause(time.Minute)
		wantIDs(t, "told", sorted(sink.all()), first, second, third)
		stop()
	})
}

// What a sink does not get is settled at once, also while the record of its event is written. So the consumer goes on, and
// nothing is missing when the stream's limits delete what everybody has.
func TestWhatComesWhileARecordIsWrittenIsSettled(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		sink, wire := newRecorder(), &cable{}
		sink.answer = func([]delivery.Delivery) (delivery.Answer, error) {
			wire.slow(time.Second)
			return delivery.Answer{}, nil
		}
		hook := route("hook", sink)
		hook.Filter.Only.Changes = []string{"scheduled"}
		_, stop := s.start(relay.Options{Routes: []bridge.Route{hook}, Connect: s.over(wire)})
		pause(2 * time.Second)
		a := eventNo(1)
		scheduled := a.say(t, imds.Scheduled, "vm-1")
		s.publish(scheduled)
		pause(500 * time.Millisecond)
		s.publish(a.say(t, imds.Reminder, "vm-1"))
		pause(2 * time.Minute)
		wantIDs(t, "told", sink.all(), scheduled)
		wire.slow(0)
		s.settled("hook")
		stop()
		stream, err := s.js.Stream(t.Context(), "FOREWARN")
		if err == nil {
			err = stream.Purge(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		r, stop := s.run(hook)
		if w := strings.Join(r.Status().Warnings, "\n"); strings.Contains(w, "deleted") {
			t.Errorf("the next relay warns: %s", w)
		}
		stop()
	})
}

// A stream that can't be what a relay reads is refused by name, with what to do.
func TestAStreamThatARelayCannotReadIsRefused(t *testing.T) {
	for _, tt := range []struct {
		what   string
		config jetstream.StreamConfig
		want   []string
	}{
		{"interest", jetstream.StreamConfig{Retention: jetstream.InterestPolicy}, []string{"FOREWARN", "interest", "limits"}},
		{"work queue", jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy}, []string{"FOREWARN", "workqueue", "limits"}},
		{"no ack", jetstream.StreamConfig{NoAck: true}, []string{"FOREWARN", "no_ack"}},
		{"mirror", jetstream.StreamConfig{Mirror: &jetstream.StreamSource{Name: "ORIGIN"}}, []string{"FOREWARN", "mirror", "sources"}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				if err := s.js.DeleteStream(t.Context(), "FOREWARN"); err != nil {
					t.Fatal(err)
				}
				origin := jetstream.StreamConfig{Name: "ORIGIN", Subjects: []string{"forewarn.>"}}
				tt.config.Name = "FOREWARN"
				if tt.config.Mirror == nil {
					tt.config.Subjects = []string{"forewarn.events.>", "forewarn.relay.>"}
					origin.Subjects = []string{"other.>"}
				}
				for _, c := range []jetstream.StreamConfig{origin, tt.config} {
					if c.Name == "ORIGIN" && tt.config.Mirror == nil {
						continue
					}
					if err := s.js.DeleteStream(t.Context(), "FOREWARN_heartbeats"); tt.config.Mirror != nil && c.Name == "ORIGIN" && err != nil {
						t.Fatal(err)
					}
					if _, err := s.js.CreateStream(t.Context(), c); err != nil {
						t.Fatal(err)
					}
				}
				r, stop := s.run(route("hook", newRecorder()))
				reasons := strings.Join(r.Status().Reasons, "\n")
				for _, word := range tt.want {
					if !strings.Contains(reasons, word) {
						t.Errorf("the reasons are %q, want the word %s", reasons, word)
					}
				}
				stop()
			})
		})
	}
}

// So is one that is changed to such a stream under a running relay: nothing more is acknowledged, so that the server keeps
// all that is not told yet.
func TestAStreamThatBecomesOneThatARelayCannotReadIsRefused(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook := newRecorder()
		r, stop := s.run(route("hook", hook))
		retention := func(policy jetstream.RetentionPolicy) {
			s.change("FOREWARN", func(c *jetstream.StreamConfig) { c.Retention = policy })
			pause(10 * time.Second)
		}
		say := func(n int) event.Event {
			ce := eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
			s.publish(ce)
			pause(10 * time.Second)
			return ce
		}
		first := say(1)
		retention(jetstream.InterestPolicy)
		second := say(2)
		if st := r.Status(); st.Ready || !strings.Contains(strings.Join(st.Reasons, "\n"), "FOREWARN has the retention interest") {
			t.Errorf("ready %v because of %q, want that it says that the stream has the retention interest", st.Ready, st.Reasons)
		}
		wantIDs(t, "told meanwhile", hook.all(), first)
		retention(jetstream.LimitsPolicy)
		wantIDs(t, "told", hook.all(), first, second)
		if st := r.Status(); !st.Ready {
			t.Errorf("then it isn't ready, because of %q", st.Reasons)
		}
		stop()
	})
}

// A relay whose server is too old says so, and reads nothing.
func TestARelayOfAServerThatIsTooOldIsNotReady(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		is := strings.Split(server.VERSION, ".")[1]
		old := strings.Repeat("0", len(is)-1) + "8"
		hook, wire := newRecorder(), &cable{says: saysInstead(`"version":"2.`+is+".", `"version":"2.`+old+".")}
		r, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)}, Connect: s.over(wire)})
		s.publish(eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		pause(10 * time.Second)
		if st := r.Status(); st.Ready || !strings.Contains(strings.Join(st.Reasons, "\n"), "a relay needs 2.9 or later") {
			t.Errorf("ready %v because of %q, want that the server is too old", st.Ready, st.Reasons)
		}
		wantIDs(t, "told", hook.all())
		stop()
	})
}

// A relay that could not make the consumer again says only that there is none: nobody else deleted it.
func TestAMissingConsumerIsNotCalledDeleted(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		var log systemtest.Log
		sink, wire := newRecorder(), &cable{}
		wire.fail("CONSUMER.CREATE.FOREWARN.forewarn-hook")
		_, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", sink)}, Connect: s.over(wire),
			Log: log.Logger()})
		pause(time.Minute)
		ce := eventNo(1).in(24*time.Hour).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		wire.fail("")
		pause(time.Minute)
		wantIDs(t, "told", sink.all(), ce)
		if said, deleted := log.Count("this sink has no consumer"), log.Count("deleted"); said == 0 || deleted > 0 {
			t.Errorf("that there is no consumer is logged %d times, and that it was deleted %d times", said, deleted)
		}
		stop()
	})
}
