package relay_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

// plan returns what provisioning would do: the actions by name, and the changes.
func (s *stage) plan(stream string, want relay.Retention) (p relay.Plan, does map[string]string) {
	s.Helper()
	p, err := relay.NewPlan(s.Context(), s.conn, "", stream, want)
	if err != nil {
		s.Fatal(err)
	}
	does = map[string]string{}
	for _, step := range p.Steps {
		does[step.Name] = step.Action + ": " + strings.Join(step.Changes, ", ")
	}
	return p, does
}

// change changes a stream as an operator would.
func (s *stage) change(name string, f func(*jetstream.StreamConfig)) {
	s.Helper()
	stream, err := s.js.Stream(s.Context(), name)
	if err == nil {
		c := stream.CachedInfo().Config
		f(&c)
		_, err = s.js.UpdateStream(s.Context(), c)
	}
	if err != nil {
		s.Fatal(err)
	}
}

// A plan names each change before it is made, leaves alone what nobody asked for, and has nothing left to do
// afterwards.
func TestAPlanNamesEveryChange(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		_, does := s.plan("FOREWARN", relay.Retention{})
		for name, what := range does {
			if !strings.HasPrefix(what, "keep: ") {
				t.Errorf("on what is provisioned already: %s %s", name, what)
			}
		}
		s.change("KV_FOREWARN_records", func(c *jetstream.StreamConfig) { c.AllowDirect, c.MaxAge = true, time.Hour })
		p, does := s.plan("FOREWARN", relay.Retention{
			Subjects: []string{"forewarn.events.>", "more.>"}, MaxAge: time.Hour, MaxBytes: 1 << 30,
		})
		for name, want := range map[string]string{
			"FOREWARN": "update: subject more.> is added, max_age 0s → 1h0m0s, max_bytes -1 → 1073741824, " +
				"duplicates 24h0m0s → 1h0m0s",
			"KV_FOREWARN_records": "update: only its leader answers, max_age 1h0m0s → 960h0m0s",
		} {
			if does[name] != want {
				t.Errorf("%s: %s\nwant %s", name, does[name], want)
			}
		}
		if err := p.Do(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, does = s.plan("FOREWARN", relay.Retention{MaxBytes: 1 << 30})
		if got := does["FOREWARN"]; !strings.HasPrefix(got, "keep: ") || !strings.Contains(got, "at most 1073741824 bytes") {
			t.Errorf("after the changes: %s", got)
		}
		_, does = s.plan("FOREWARN", relay.Retention{Duplicates: time.Minute})
		if want := "update: duplicates 1h0m0s → 1m0s"; does["FOREWARN"] != want {
			t.Errorf("FOREWARN: %s\nwant %s", does["FOREWARN"], want)
		}
		if _, does = s.plan("NEW", relay.Retention{Subjects: []string{"forewarn.>"}, MaxAge: time.Hour}); len(does) != 4 ||
			!strings.Contains(does["NEW"], "kept for 1h") || !strings.Contains(does["NEW"], "duplicates within 1h") {
			t.Errorf("a stream that takes heartbeats itself, and keeps nothing longer: %v", does)
		}
	})
}

// Records are kept as long as the stream keeps messages, so that none is told again, and for 40 days at least.
func TestRecordsAreKeptAsLongAsMessages(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		for kept, want := range map[time.Duration]string{
			0: "kept for ever", 24 * time.Hour: "kept for 40d", 90 * 24 * time.Hour: "kept for 90d",
		} {
			_, does := s.plan("NEW", relay.Retention{Subjects: []string{"forewarn.>"}, MaxAge: kept})
			if got := does["KV_NEW_records"]; !strings.Contains(got, want) {
				t.Errorf("beside a stream that keeps messages for %v: %s, want %s", kept, got, want)
			}
		}
		s.change("FOREWARN", func(c *jetstream.StreamConfig) { c.MaxAge = 100 * 24 * time.Hour })
		_, does := s.plan("FOREWARN", relay.Retention{})
		if want := "update: max_age 0s → 2400h0m0s"; does["KV_FOREWARN_records"] != want {
			t.Errorf("beside one that is there: %s, want %s", does["KV_FOREWARN_records"], want)
		}
	})
}

// Heartbeats that another stream takes stay there. What the server refuses is said with the step and the name.
func TestWhatTheServerRefusesToProvisionIsSaid(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		p, does := s.plan("OTHER", relay.Retention{Subjects: []string{"other.>"}})
		if want := "keep: takes forewarn.heartbeat.>"; does["FOREWARN_heartbeats"] != want {
			t.Errorf("the stream of heartbeats: %v, want %s", does, want)
		}
		if err := p.Do(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "create OTHER: ") {
			t.Errorf("subjects that another stream has: %v", err)
		}
		p, does = s.plan("FOREWARN", relay.Retention{Replicas: 3})
		if want := "update: replicas 1 → 3"; does["FOREWARN"] != want {
			t.Errorf("FOREWARN: %s, want %s", does["FOREWARN"], want)
		}
		if err := p.Do(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "update FOREWARN with 3 replicas, which takes as many servers; with fewer set nats.provision.replicas: 1: ") {
			t.Errorf("replicas that one server can't have: %v", err)
		}
		s.conn.Close()
		if _, err := relay.NewPlan(t.Context(), s.conn, "", "FOREWARN", relay.Retention{}); err == nil ||
			!strings.HasPrefix(err.Error(), "look for stream FOREWARN: ") {
			t.Errorf("without a connection: %v", err)
		}
	})
}

// A relay that begins before it is provisioned names what is missing and how to make it, and begins once it is there.
func TestWhatIsMissingIsNamed(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		for name, want := range map[string]string{
			"FOREWARN":            "there is no stream FOREWARN; ",
			"KV_FOREWARN_records": "there is no bucket FOREWARN_records; ",
			"KV_FOREWARN_leases":  "there is no bucket FOREWARN_leases; ",
			"FOREWARN_dead":       "there is no stream FOREWARN_dead; ",
		} {
			if err := s.js.DeleteStream(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			r, stop := s.run(route("hook", newRecorder()))
			st := r.Status()
			if want += "forewarn relay --provision creates it"; st.Ready || !slices.Equal(st.Reasons, []string{want}) {
				t.Errorf("without %s it is ready %v, because of %q", name, st.Ready, st.Reasons)
			}
			s.provision(relay.Retention{})
			pause(5 * time.Second)
			if st := r.Status(); !st.Ready || st.Sinks[0].State != bridge.SinkOK {
				t.Errorf("with %s again it isn't ready, because of %q", name, st.Reasons)
			}
			stop()
		}
	})
}

// What a relay can work without is a warning in the status.
func TestWhatARelayCanDoWithoutIsAWarning(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		if err := s.js.DeleteStream(t.Context(), "FOREWARN_heartbeats"); err != nil {
			t.Fatal(err)
		}
		s.change("FOREWARN", func(c *jetstream.StreamConfig) { c.Subjects = []string{"forewarn.events.>"} })
		sink := newRecorder()
		r, stop := s.run(route("hook", sink))
		ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(5 * time.Second)
		wantIDs(t, "told", sink.all(), ce)
		got := strings.Join(r.Status().Warnings, "\n")
		for _, want := range []string{"no stream takes forewarn.heartbeat.>", "FOREWARN does not take forewarn.relay.>"} {
			if !strings.Contains(got, want) {
				t.Errorf("the warnings are %q, want %q among them", got, want)
			}
		}
		_, err := r.ReplayPast(t.Context(), relay.ReplayRequest{Sink: "hook", Run: "one"})
		if err == nil || !strings.Contains(err.Error(), "forewarn relay --provision adds it") {
			t.Errorf("a replay that nothing takes: %v", err)
		}
		stop()
	})
}

// A relay works in JetStream's domain too.
func TestARelayInADomain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		server := startServerWith(t, func(o *server.Options) { o.JetStreamDomain = "hub" })
		s := &stage{fleet: &fleet{T: t}, server: server}
		s.connect = (&cable{server: server}).dial
		s.conn = server.connect(&cable{server: server})
		defer s.conn.Close()
		var err error
		if s.js, err = jetstream.NewWithDomain(s.conn, "hub"); err != nil {
			t.Fatal(err)
		}
		sink := newRecorder()
		_, stop := s.start(relay.Options{Domain: "hub", Routes: []bridge.Route{route("hook", sink)}})
		lost, stopLost := s.start(relay.Options{Domain: "elsewhere", Name: "lost"})
		pause(10 * time.Second)
		ce := eventNo(1).say(t, imds.Scheduled, "vm-1")
		s.publish(ce)
		pause(5 * time.Second)
		wantIDs(t, "told", sink.all(), ce)
		if st := lost.Status(); st.Ready || !strings.Contains(strings.Join(st.Reasons, " "), "look for stream FOREWARN") {
			t.Errorf("in a domain that isn't there it is ready %v, because of %q", st.Ready, st.Reasons)
		}
		stop()
		stopLost()
	})
}
