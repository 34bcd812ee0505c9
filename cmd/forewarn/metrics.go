package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"forewarn/bridge"
)

// metrics count what the bridge tells its Meter. They live as long as the program, through every reload: a sink that is
// gone from the settings keeps its counters until the next start, and loses its gauges with the last that it is owed.
type metrics struct {
	polls      *prometheus.CounterVec
	events     *prometheus.CounterVec
	delivered  *prometheus.CounterVec
	superseded *prometheus.CounterVec
	failed     *prometheus.CounterVec
	requests   *prometheus.CounterVec
	forgotten  *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	lag        *prometheus.HistogramVec
	gauges     map[string]*prometheus.Desc // by name, without the prefix
}

// pollAnswers are the words for the classes of polls.
var pollAnswers = map[bridge.PollClass]string{
	bridge.PollDocument: "document", bridge.PollUnchanged: "unchanged", bridge.PollEmpty: "empty",
	bridge.PollRetry: "failed", bridge.PollSettings: "refused",
}

// newMetrics makes counters that are 0, of everything that is known before there are sinks.
func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "forewarn_" + name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets ...float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "forewarn_" + name, Help: help, Buckets: buckets, // for scrapers that know no native ones
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}, []string{"sink"})
	}
	m := &metrics{
		polls:      counter("polls_total", "Polls of the endpoint by their answer: document, unchanged and empty are valid.", "answer"),
		events:     counter("events_total", "CloudEvents made, by type.", "type"),
		delivered:  counter("deliveries_total", "Deliveries that the sink accepted.", "sink"),
		superseded: counter("deliveries_superseded_total", "Deliveries never made because a newer one of the same event stood for them.", "sink"),
		failed: counter("deliveries_failed_total",
			"Deliveries that an attempt left to be tried again (blocked, rate_limited, timeout, again), or that were given up and are dead letters (the other reasons).", "sink", "reason"),
		requests:  counter("delivery_requests_total", "Attempts to deliver; one may hold several deliveries.", "sink"),
		forgotten: counter("records_dropped_total", "Records of the outbox dropped for want of room, or of age.", "what"),
		duration:  histogram("delivery_duration_seconds", "How long an attempt took.", .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900),
		lag: histogram("delivery_lag_seconds", "How long a delivery took from when it was due until the sink accepted it, through all attempts.",
			.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400),
		gauges: make(map[string]*prometheus.Desc),
	}
	gauge := func(name, help string, labels ...string) {
		m.gauges[name] = prometheus.NewDesc("forewarn_"+name, help, labels, nil)
	}
	gauge("build_info", "Always 1; which forewarn this is.", "version", "goversion")
	gauge("poll_last_success_timestamp_seconds", "When the endpoint last gave a valid answer, 0 while it has not since the start.")
	gauge("document_incarnation", "The incarnation of the document seen last, 0 while there is none.")
	gauge("document_problems",
		"What of the document seen last was not understood or not taken: fields, entries, events above 10,000.")
	gauge("events_open", "Azure events that are announced or under way, of all machines of the document.")
	gauge("event_seconds_to_not_before",
		"Seconds until an open Azure event may begin, 0 when it may have begun or nobody knows; of very many, the most urgent.",
		"event", "type", "status", "affects_self")
	gauge("outbox_bytes", "Size of the outbox on disk.")
	gauge("outbox_durable", "1 while everything is on disk, 0 while the disk cannot be written and memory has to do.")
	gauge("outbox_pending", "Deliveries that are owed.", "sink")
	gauge("outbox_oldest_pending_seconds", "How long the oldest of them has been owed, 0 when there is none.", "sink")
	gauge("deadletters", "Deliveries given up and kept to be looked at.", "sink")
	gauge("sink_blocked", "1 while the sink takes nothing until somebody acts.", "sink")
	gauge("config_hash", "Always 1; which settings are in force.", "hash")
	gauge("config_last_reload_successful", "0 while settings newer than those in force were refused, else 1.")
	gauge("config_last_reload_success_timestamp_seconds", "When the settings in force were read.")
	for _, answer := range pollAnswers {
		m.polls.WithLabelValues(answer)
	}
	for _, ceType := range bridge.CloudEventTypes {
		m.events.WithLabelValues(ceType)
	}
	m.forgotten.WithLabelValues(bridge.ForgotDeadLetter)
	m.forgotten.WithLabelValues(bridge.ForgotHistory)
	return m
}

// known makes the series of a sink, so that they are there, with 0, before anything happens.
func (m *metrics) known(sink string) {
	for _, reason := range bridge.FailureReasons {
		m.failed.WithLabelValues(sink, reason)
	}
	for _, c := range []*prometheus.CounterVec{m.delivered, m.superseded, m.requests} {
		c.WithLabelValues(sink)
	}
	m.duration.WithLabelValues(sink)
	m.lag.WithLabelValues(sink)
}

func (m *metrics) Polled(class bridge.PollClass) { m.polls.WithLabelValues(pollAnswers[class]).Inc() }
func (m *metrics) Committed(ceType string)       { m.events.WithLabelValues(ceType).Inc() }
func (m *metrics) Forgot(what string, n int)     { m.forgotten.WithLabelValues(what).Add(float64(n)) }
func (m *metrics) Failed(sink, reason string)    { m.failed.WithLabelValues(sink, reason).Inc() }
func (m *metrics) Superseded(sink string, n int) {
	m.superseded.WithLabelValues(sink).Add(float64(n))
}

func (m *metrics) Attempted(sink string, took time.Duration) {
	m.requests.WithLabelValues(sink).Inc()
	m.duration.WithLabelValues(sink).Observe(took.Seconds())
}

func (m *metrics) Accepted(sink string, lag time.Duration) {
	m.delivered.WithLabelValues(sink).Inc()
	m.lag.WithLabelValues(sink).Observe(lag.Seconds())
}

// handler serves the metrics, and what of the status is worth a graph.
func (m *metrics) handler(status func() bridge.Status, log *slog.Logger) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(scrape{m, shared(statusAge, status)}, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		families, err := r.Gather()
		if err != nil { // it gives what could be gathered all the same
			log.Warn("some metrics could not be gathered", "err", err)
		}
		w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
		for _, f := range families {
			if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
				return // whoever asked went away
			}
		}
	})
}

// A scrape collects the counters, and makes gauges of the status as it is then.
type scrape struct {
	*metrics
	status func() bridge.Status
}

// Describe does what a Collector must.
func (s scrape) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.vectors() {
		c.Describe(ch)
	}
	for _, d := range s.gauges {
		ch <- d
	}
}

func (m *metrics) vectors() []prometheus.Collector {
	return []prometheus.Collector{m.polls, m.events, m.delivered, m.superseded, m.failed, m.requests, m.forgotten, m.duration, m.lag}
}

// Collect does what a Collector must. It makes the series of sinks that it has not seen before.
func (s scrape) Collect(ch chan<- prometheus.Metric) {
	st := s.status()
	show := func(name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(s.gauges[name], prometheus.GaugeValue, v, labels...)
	}
	show("build_info", 1, st.Version, runtime.Version())
	show("poll_last_success_timestamp_seconds", seconds(st.IMDS.LastAnswer))
	show("document_incarnation", number(st.IMDS.Incarnation))
	show("document_problems", float64(len(st.IMDS.Problems)))
	show("events_open", float64(len(st.Events)))
	for _, e := range first(byUrgency(st.Events), shownSeries) {
		show("event_seconds_to_not_before", e.SecondsLeft, e.Known.ID, label(e.Known.Type), label(e.Known.Status), strconv.FormatBool(e.AffectsSelf))
	}
	show("outbox_bytes", float64(st.Outbox.Bytes))
	show("outbox_durable", boolean(st.Outbox.Durable))
	for _, k := range st.Sinks {
		s.known(k.Name)
		show("outbox_pending", float64(k.Pending), k.Name)
		show("outbox_oldest_pending_seconds", k.OldestPendingSeconds, k.Name)
		show("deadletters", float64(k.DeadLetters), k.Name)
		show("sink_blocked", boolean(k.State == bridge.SinkIsBlocked), k.Name)
	}
	show("config_hash", 1, st.Settings.Hash)
	show("config_last_reload_successful", boolean(st.Settings.LastError == ""))
	show("config_last_reload_success_timestamp_seconds", seconds(st.Settings.LoadedAt))
	for _, c := range s.vectors() {
		c.Collect(ch)
	}
}

// label is text from outside as a label, which must be UTF-8 and should be short.
func label(s string) string { return strings.ToValidUTF8(fmt.Sprintf("%.64s", s), "?") }

// seconds is a time as Prometheus has it, 0 for none.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// number is a JSON number, 0 for anything else.
func number(v json.RawMessage) float64 {
	n, _ := strconv.ParseFloat(string(v), 64)
	return n
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
