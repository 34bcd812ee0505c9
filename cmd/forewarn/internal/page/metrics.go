package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/wording"
)

// Metrics count what the bridge tells its Meter. They live as long as the program, through every reload: a sink that is
// gone from the settings keeps its counters until the next start, and loses its gauges with the last that it is owed.
type Metrics struct {
	started    time.Time
	polls      *family
	events     *family
	delivered  *family
	superseded *family
	failed     *family
	requests   *family
	forgotten  *family
	duration   *family
	lag        *family
}

// pollAnswers are the words for the classes of polls.
var pollAnswers = map[imds.PollClass]string{
	imds.PollDocument: "document", imds.PollUnchanged: "unchanged", imds.PollEmpty: "empty",
	imds.PollRetry: "failed", imds.PollSettings: "refused",
}

// NewMetrics makes counters that are 0, of everything that is known before there are sinks.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *family {
		return &family{name: "forewarn_" + name, help: help, kind: "counter", labels: labels}
	}
	histogram := func(name, help string, bounds ...float64) *family {
		return &family{name: "forewarn_" + name, help: help, kind: "histogram", labels: []string{"sink"}, bounds: bounds}
	}
	m := &Metrics{
		started:    time.Now(),
		polls:      counter("polls_total", "Polls of the endpoint by their answer: document, unchanged and empty are valid.", "answer"),
		events:     counter("events_total", "CloudEvents made, by type.", "type"),
		delivered:  counter("deliveries_total", "Deliveries that the sink accepted.", "sink"),
		superseded: counter("deliveries_superseded_total", "Deliveries never made because a newer one of the same event stood for them.", "sink"),
		failed: counter("deliveries_failed_total", "Deliveries that an attempt left to be tried again (blocked, rate_limited, timeout, "+
			"again), or that were given up and are dead letters (the other reasons).", "reason", "sink"),
		requests:  counter("delivery_requests_total", "Attempts to deliver; one may hold several deliveries.", "sink"),
		forgotten: counter("records_dropped_total", "Records of the outbox dropped for want of room, or of age.", "what"),
		duration:  histogram("delivery_duration_seconds", "How long an attempt took.", .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900),
		lag: histogram("delivery_lag_seconds", "How long a delivery took from when it was due until the sink accepted it, through all attempts.",
			.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400),
	}
	for _, answer := range pollAnswers {
		m.polls.expect(answer)
	}
	for _, ceType := range cloudevent.Types {
		m.events.expect(ceType)
	}
	m.forgotten.expect(bridge.ForgotDeadLetter)
	m.forgotten.expect(bridge.ForgotHistory)
	return m
}

// expect makes the series of a sink, so that they are there, with 0, before anything happens.
func (m *Metrics) expect(sink string) {
	for _, reason := range bridge.FailureReasons {
		m.failed.expect(reason, sink)
	}
	for _, f := range []*family{m.delivered, m.superseded, m.requests, m.duration, m.lag} {
		f.expect(sink)
	}
}

func (m *Metrics) Polled(class imds.PollClass)   { m.polls.add(1, pollAnswers[class]) }
func (m *Metrics) Committed(ceType string)       { m.events.add(1, ceType) }
func (m *Metrics) Forgot(what string, n int)     { m.forgotten.add(float64(n), what) }
func (m *Metrics) Failed(sink, reason string)    { m.failed.add(1, reason, sink) }
func (m *Metrics) Superseded(sink string, n int) { m.superseded.add(float64(n), sink) }

func (m *Metrics) Attempted(sink string, took time.Duration) {
	m.requests.add(1, sink)
	m.duration.observe(took.Seconds(), sink)
}

func (m *Metrics) Accepted(sink string, lag time.Duration) {
	m.delivered.add(1, sink)
	m.lag.observe(lag.Seconds(), sink)
}

// families are the counters and histograms.
func (m *Metrics) families() []*family {
	return []*family{m.polls, m.events, m.delivered, m.superseded, m.failed, m.requests, m.forgotten, m.duration, m.lag}
}

// Handler serves the metrics, and what of the status is worth a graph.
func (m *Metrics) Handler(status func() bridge.Status) http.Handler {
	status = shared(statusAge, status)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		st := status()
		for _, k := range st.Sinks {
			m.expect(k.Name)
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(exposition(m.families(), statusFamilies(st), processFamilies(m.started))) // whoever went away needs nothing
	})
}

// statusFamilies are the gauges of a status.
func statusFamilies(st bridge.Status) (all []*family) {
	gauge := func(name, help string, labels ...string) *family {
		f := &family{name: "forewarn_" + name, help: help, kind: "gauge", labels: labels}
		all = append(all, f)
		return f
	}
	gauge("build_info", "Always 1; which forewarn this is.", "goversion", "version").set(1, runtime.Version(), st.Version)
	vm := gauge("vm_info", "Always 1; which VM this is, once Azure has said so.", "location", "scale_set", "vm")
	if o := st.Observer; o.Name != "" {
		vm.set(1, o.Location, o.ScaleSet, o.Name)
	}
	gauge("poll_last_success_timestamp_seconds", "When the endpoint last gave a valid answer, 0 while it has not since the start.").
		set(seconds(st.IMDS.LastAnswer))
	gauge("document_incarnation", "The incarnation of the document seen last, 0 while there is none.").set(jsonNumber(st.IMDS.Incarnation))
	gauge("document_problems", "What of the document seen last was not understood or not taken: fields, entries, events above 10,000.").
		set(float64(len(st.IMDS.Problems)))
	gauge("events_open", "Azure events that are announced or under way, of all machines of the document.").set(float64(len(st.Events)))
	left := gauge("event_seconds_to_not_before",
		"Seconds until an open Azure event may begin, 0 when it may have begun or nobody knows; of very many, the most urgent.",
		"affects_self", "event", "status", "type")
	for _, e := range wording.First(wording.ByUrgency(st.Events), wording.ShownSeries) {
		left.set(e.SecondsLeft, strconv.FormatBool(e.AffectsSelf), e.Known.ID, label(e.Known.Status), label(e.Known.Type))
	}
	gauge("outbox_bytes", "Size of the outbox on disk.").set(float64(st.Outbox.Bytes))
	gauge("outbox_durable", "1 while everything is on disk, 0 while the disk cannot be written and memory has to do.").
		set(boolean(st.Outbox.Durable))
	pending := gauge("outbox_pending", "Deliveries that are pending.", "sink")
	oldest := gauge("outbox_oldest_pending_seconds", "How long the oldest of them has been pending, 0 when there is none.", "sink")
	dead := gauge("deadletters", "Dead letters: deliveries that were given up, kept to be looked at.", "sink")
	blocked := gauge("sink_blocked", "1 while the sink takes nothing until somebody acts.", "sink")
	for _, k := range st.Sinks {
		pending.set(float64(k.Pending), k.Name)
		oldest.set(k.OldestPendingSeconds, k.Name)
		dead.set(float64(k.DeadLetters), k.Name)
		blocked.set(boolean(k.State == bridge.SinkIsBlocked), k.Name)
	}
	gauge("config_hash", "Always 1; which settings are in force.", "hash").set(1, st.Settings.Hash)
	gauge("config_last_reload_successful", "0 while settings newer than those in force were refused, else 1.").
		set(boolean(st.Settings.LastError == ""))
	gauge("config_last_reload_success_timestamp_seconds", "When the settings in force were read.").set(seconds(st.Settings.LoadedAt))
	return all
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

// jsonNumber is a JSON number, 0 for anything else.
func jsonNumber(v json.RawMessage) float64 {
	n, _ := strconv.ParseFloat(string(v), 64)
	return n
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
