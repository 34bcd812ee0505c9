package settings

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
	_ "time/tzdata"

	"forewarn/bridge/delivery"
	"forewarn/sinks"
)

func parseGood(t *testing.T, name string) *Settings {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	s, err := testLoader().Parse(name, data)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// linuxDefaults are the places where root has them on Linux. They are names here: a test that opens something names a
// place of its own.
var linuxDefaults = SystemDefaults("linux", 0, func(string) string { return "" })

func testLoader() Loader {
	return Loader{Kinds: testKinds, Host: sinks.Host{Getenv: func(string) string { return "" }}, Defaults: linuxDefaults}
}

// A testSink is settings of every type that a kind may have.
type testSink struct {
	URL     sinks.Value            `yaml:"url"`
	Mode    string                 `yaml:"mode"`
	Headers map[string]sinks.Value `yaml:"headers"`
	Signing []sinks.Value          `yaml:"signing_secrets"`
	TLS     *testTLS               `yaml:"tls"`
	Token   sinks.Value            `yaml:"token"`
	Channel string                 `yaml:"channel"`
	Path    string                 `yaml:"path"`
	Keep    int                    `yaml:"keep"`
	Gzip    bool                   `yaml:"gzip"`
	Tags    []string               `yaml:"tags"`
	Wait    time.Duration          `yaml:"wait"`
	Size    testSize               `yaml:"size"`
}

type testTLS struct {
	CAFile string `yaml:"ca_file"`
	Mode   string `yaml:"mode"`
}

// written is a secret that stands in the settings.
func written(text string) sinks.Value { return sinks.Value{Text: sinks.NewSecret(text)} }

type testSize int

func (s *testSize) UnmarshalText(b []byte) error {
	_, err := fmt.Sscanf(string(b), "%dMB", (*int)(s))
	if err != nil {
		return errors.New("not a size; expected one such as 100MB")
	}
	return nil
}

func (s *testSink) Deliver(context.Context, []delivery.Delivery) (delivery.Answer, error) {
	return delivery.Answer{}, nil
}

var testKinds = map[string]sinks.Kind{
	"webhook": {Open: openTestWebhook, Terms: terms(delivery.LateSend, 0)},
	"slack":   {Open: openTestSink, Terms: withGroups(terms(delivery.LateLatest, 1)), For: sinks.People},
	"file":    {Open: openTestSink, Terms: terms(delivery.LateSend, 100)},
}

func terms(late delivery.Late, batch int) delivery.Terms {
	return delivery.Terms{Timeout: 10 * time.Second, Late: late, Batch: batch}
}

func withGroups(t delivery.Terms) delivery.Terms {
	t.DigestAbove = 5
	return t
}

func openTestSink(decode func(any) error, _ sinks.Host) (sinks.Opened, error) {
	s := &testSink{}
	return sinks.Opened{Sink: s}, decode(s)
}

func openTestWebhook(decode func(any) error, _ sinks.Host) (sinks.Opened, error) {
	s := &testSink{}
	if err := decode(s); err != nil {
		return sinks.Opened{}, fmt.Errorf("read settings: %w", err)
	}
	if s.URL == (sinks.Value{}) {
		return sinks.Opened{}, &sinks.KeyError{Key: "url",
			Err: errors.New("missing; expected the address that takes the CloudEvents")}
	}
	if s.Mode != "" && s.Mode != "binary" && s.Mode != "structured" {
		return sinks.Opened{}, &sinks.KeyError{Key: "mode",
			Err: fmt.Errorf("%q is unknown; expected binary or structured", s.Mode)}
	}
	if s.TLS != nil && s.TLS.CAFile == "" {
		return sinks.Opened{}, &sinks.KeyError{Key: "tls.ca_file", Err: errors.New("missing")}
	}
	if s.Channel != "" {
		return sinks.Opened{}, errors.New("a webhook has no channel")
	}
	var files []string
	for _, h := range s.Headers {
		if h.File != "" {
			files = append(files, string(h.File))
		}
	}
	return sinks.Opened{Sink: s, Secrets: files}, nil
}
