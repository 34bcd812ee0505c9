package sinks

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

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
