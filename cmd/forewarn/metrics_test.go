package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/page"
)

// answering is a sink that answers everything in one way.
type answering struct{ err error }

func (a answering) Deliver(context.Context, []delivery.Delivery) (delivery.Answer, error) {
	return delivery.Answer{}, a.err
}

// A measured bridge is one that runs, with its metrics.
type measured struct {
	*bridge.Bridge
	box   *outbox.Outbox
	t     *testing.T
	azure *imdstest.Running
	url   string
}

// measure runs a bridge with routes of these names, whose sinks answer so.
func measure(t *testing.T, routes map[string]error) *measured {
	t.Helper()
	azure, err := imdstest.New(imdstest.Options{VMs: []string{"vm-0"}}).Listen("127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { azure.Close() })
	log := slog.New(slog.DiscardHandler)
	box, err := outbox.Open(t.TempDir(), outbox.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	counters := page.NewMetrics()
	b, err := bridge.New(bridge.Options{
		Client: imds.NewClient(azure.URL, imds.DefaultAPIVersion, log, nil), Outbox: box, Routes: routesOf(routes), Log: log,
		Interval: 100 * time.Millisecond, Version: "1.2.3", Meter: counters, Settings: bridge.SettingsInfo{Hash: "abc",
			LoadedAt: time.Unix(1e9, 0)},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(page.Probes(b, counters.Handler(b.Status)))
	t.Cleanup(server.Close)
	return &measured{b, box, t, azure, server.URL}
}

func routesOf(answers map[string]error) (routes []bridge.Route) {
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		routes = append(routes, bridge.Route{Name: name, Kind: "answering", Sink: answering{answers[name]},
			Terms: bridge.Terms{Terms: delivery.Terms{Timeout: time.Second}}})
	}
	return routes
}

// run runs the bridge until the test ends.
func (m *measured) run() {
	ctx, cancel := context.WithCancel(m.t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	m.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			m.t.Errorf("Run = %v", err)
		}
	})
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// series are the series that are scraped, by name and labels, without those of the process.
func (m *measured) series() map[string]float64 {
	m.t.Helper()
	status, text := get(m.t, m.url+"/metrics")
	if status != http.StatusOK {
		m.t.Fatalf("/metrics answers %d: %s", status, text)
	}
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		i := strings.LastIndexByte(line, ' ')
		if !strings.HasPrefix(line, "forewarn_") {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64)
		if err != nil {
			m.t.Fatalf("%s: %v", line, err)
		}
		all[line[:i]] = v
	}
	return all
}

// wants waits until these series have these values, and returns all.
func (m *measured) wants(want map[string]float64) (all map[string]float64) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		all = m.series()
		var wrong []string
		for name, v := range want {
			if got, ok := all[name]; !ok || got != v {
				wrong = append(wrong, fmt.Sprintf("%s is %v (there: %v), want %v", name, got, ok, v))
			}
		}
		if len(wrong) == 0 {
			return all
		}
		if time.Now().After(deadline) {
			m.t.Fatal(strings.Join(wrong, "\n"))
		}
	}
}

// Every series exists from the start with the value 0, for each sink and reason.
func TestEverySeriesExistsFromTheStart(t *testing.T) {
	t.Parallel()
	m := measure(t, map[string]error{"a": nil, "b": nil})
	want := map[string]float64{
		`forewarn_poll_last_success_timestamp_seconds`: 0, `forewarn_document_incarnation`: 0,
		`forewarn_document_problems`: 0, `forewarn_events_open`: 0,
		`forewarn_outbox_durable`: 1, `forewarn_config_last_reload_successful`: 1, `forewarn_config_hash{hash="abc"}`: 1,
		`forewarn_config_last_reload_success_timestamp_seconds`: 1e9,
		`forewarn_records_dropped_total{what="history"}`:        0, `forewarn_records_dropped_total{what="dead_letter"}`: 0,
	}
	for _, sink := range []string{"a", "b"} {
		for _, name := range []string{"deliveries_total", "deliveries_superseded_total", "delivery_requests_total",
			"delivery_duration_seconds_count",
			"delivery_lag_seconds_count", "outbox_pending", "outbox_oldest_pending_seconds", "deadletters", "sink_needs_somebody"} {
			want[fmt.Sprintf("forewarn_%s{sink=%q}", name, sink)] = 0
		}
		for _, reason := range bridge.FailureReasons {
			want[fmt.Sprintf("forewarn_deliveries_failed_total{reason=%q,sink=%q}", reason, sink)] = 0
		}
	}
	for _, ceType := range cloudevent.Types {
		want[fmt.Sprintf("forewarn_events_total{type=%q}", ceType)] = 0
	}
	for _, answer := range []string{"document", "unchanged", "empty", "failed", "refused"} {
		want[fmt.Sprintf("forewarn_polls_total{answer=%q}", answer)] = 0
	}
	m.wants(want)
	m.run()
	m.wants(map[string]float64{`forewarn_document_incarnation`: 1})
	if err := m.box.Durable(); err != nil {
		t.Fatal(err)
	}
}

// The metrics show what happened, and the current state. Counters survive a reload. A new sink has its series at once.
// A removed one has no gauges when nothing is pending for it.
func TestMetricsFollowTheBridge(t *testing.T) {
	t.Parallel()
	m := measure(t, map[string]error{"well": nil, "strict": delivery.ErrRejected,
		"busy": &delivery.RetryAfter{After: time.Hour, Err: errors.New("busy")}})
	m.run()
	id := eventID("A")
	m.azure.Schedule(imdstest.Event{ID: id, Type: "Reboot", NotBefore: time.Now().Add(time.Hour)})
	all := m.wants(map[string]float64{
		`forewarn_events_open`: 1,
		`forewarn_events_total{type="dev.forewarn.scheduledevent.scheduled"}`: 1,
		`forewarn_deliveries_total{sink="well"}`:                              1,
		`forewarn_delivery_lag_seconds_count{sink="well"}`:                    1,
		`forewarn_delivery_duration_seconds_count{sink="well"}`:               1,
		`forewarn_delivery_requests_total{sink="well"}`:                       1,
		`forewarn_deliveries_failed_total{reason="rejected",sink="strict"}`:   1,
		`forewarn_deliveries_failed_total{reason="again",sink="strict"}`:      0,
		`forewarn_deadletters{sink="strict"}`:                                 1,
		`forewarn_deliveries_failed_total{reason="rate_limited",sink="busy"}`: 1,
		`forewarn_outbox_pending{sink="busy"}`:                                1,
		`forewarn_outbox_pending{sink="well"}`:                                0,
		`forewarn_events_total{type="dev.forewarn.scheduledevent.vanished"}`:  0,
		`forewarn_deliveries_total{sink="busy"}`:                              0,
		`forewarn_delivery_duration_seconds_bucket{sink="well",le="+Inf"}`:    1,
		`forewarn_delivery_lag_seconds_bucket{sink="well",le="900"}`:          1,
	})
	left := fmt.Sprintf(`forewarn_event_seconds_to_not_before{affects_self="true",event=%q,status="Scheduled",type="Reboot"}`, id)
	if got := all[left]; got < 3500 || got > 3600 {
		t.Errorf("%s is %v, want about an hour", left, got)
	}
	if got := all["forewarn_poll_last_success_timestamp_seconds"]; time.Since(time.UnixMilli(int64(got*1000))).Abs() > time.Minute {
		t.Errorf("the last valid answer was at %v, want about now", got)
	}
	if all["forewarn_outbox_bytes"] == 0 || all[`forewarn_outbox_oldest_pending_seconds{sink="busy"}`] == 0 {
		t.Errorf("the outbox has %v bytes, its oldest delivery waits %v s; want more than 0 of both",
			all["forewarn_outbox_bytes"], all[`forewarn_outbox_oldest_pending_seconds{sink="busy"}`])
	}

	err := m.Reload(t.Context(), routesOf(map[string]error{"busy": nil, "new": nil}), nil, bridge.SettingsInfo{Hash: "def"})
	if err != nil {
		t.Fatal(err)
	}
	m.SettingsFailed(errors.New("line 7: no such key"))
	all = m.wants(map[string]float64{
		`forewarn_config_hash{hash="def"}`:                                    1,
		`forewarn_config_last_reload_successful`:                              0,
		`forewarn_deliveries_total{sink="well"}`:                              1,
		`forewarn_deliveries_failed_total{reason="rate_limited",sink="busy"}`: 1,
		`forewarn_deliveries_total{sink="busy"}`:                              1,
		`forewarn_deliveries_failed_total{reason="rejected",sink="new"}`:      0,
		`forewarn_deadletters{sink="strict"}`:                                 1,
		`forewarn_sink_needs_somebody{sink="new"}`:                            0,
	})
	for _, gone := range []string{`forewarn_outbox_pending{sink="well"}`, `forewarn_sink_needs_somebody{sink="well"}`,
		`forewarn_config_hash{hash="abc"}`} {
		if _, ok := all[gone]; ok {
			t.Errorf("%s is still there", gone)
		}
	}
	m.azure.End(id)
	m.wants(map[string]float64{`forewarn_events_open`: 0})
	if all = m.series(); all[left] != 0 {
		t.Errorf("%s is still there", left)
	}
}

// No text from Azure breaks the metrics.
func TestMetricsEscapeTextFromAzure(t *testing.T) {
	t.Parallel()
	m := measure(t, map[string]error{"a": nil})
	m.azure.SetDocument([]byte(`{"DocumentIncarnation":"later","Events":[
		{"EventId":"a\"}\n1","EventType":"` + strings.Repeat("ä", 100) + `\u0000\"\n","EventStatus":"\ud800","Resources":["vm-0"]},
		{"EventId":"` + strings.Repeat("x", 70) + `1"},{"EventId":"` + strings.Repeat("x", 70) + `2"}]}`))
	m.run()
	m.wants(map[string]float64{`forewarn_events_open`: 3, `forewarn_document_incarnation`: 0})
}

// promtool accepts /metrics.
func TestMetricsPassPromtool(t *testing.T) {
	t.Parallel()
	promtool := promtool(t)
	m := measure(t, map[string]error{"a": nil})
	m.run()
	m.azure.Schedule(imdstest.Event{ID: eventID("A"), Type: "Reboot"})
	m.wants(map[string]float64{`forewarn_events_open`: 1})
	_, text := get(t, m.url+"/metrics")
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil || said.Len() > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, said.String())
	}
}

// promtool is where Prometheus' own checks are.
func promtool(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: on Debian it comes with the package prometheus")
	}
	return path
}
