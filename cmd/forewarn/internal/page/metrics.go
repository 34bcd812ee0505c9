package page

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/wording"
)

// Metrics is a bridge.Meter that serves its counters to Prometheus. Counters survive reloads: a sink removed from the
// settings keeps its counters until the next start, and its gauges until nothing is pending for it.
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
	families   []*family // all of them
}

// pollAnswers are the values of the label answer.
var pollAnswers = map[imds.PollClass]string{
	imds.PollDocument: "document", imds.PollUnchanged: "unchanged", imds.PollEmpty: "empty",
	imds.PollRetry: "failed", imds.PollSettings: "refused",
}

// NewMetrics returns metrics with all series that do not depend on sinks, at 0.
func NewMetrics() *Metrics {
	m := &Metrics{started: time.Now()}
	add := func(f *family) *family {
		m.families = append(m.families, f)
		return f
	}
	counter := func(name, help string, labels ...string) *family {
		return add(&family{name: "forewarn_" + name, help: help, kind: "counter", labels: labels})
	}
	histogram := func(name, help string, bounds ...float64) *family {
		return add(&family{name: "forewarn_" + name, help: help, kind: "histogram", labels: []string{"sink"}, bounds: bounds})
	}
	m.polls = counter("polls_total",
		"Polls of the endpoint, by answer; document, unchanged and empty are valid.", "answer")
	m.events = counter("events_total", "CloudEvents created, by type.", "type")
	m.delivered = counter("deliveries_total", "Deliveries that the sink accepted.", "sink")
	m.superseded = counter("deliveries_superseded_total",
		"Deliveries that an accepted newer one of the same event replaced; not those that became obsolete without one.", "sink")
	m.failed = counter("deliveries_failed_total", "Deliveries that failed and will be tried again "+
		"(blocked, rate_limited, timeout, again) or became dead letters (the other reasons).", "reason", "sink")
	m.requests = counter("delivery_requests_total", "Delivery attempts; one may carry several deliveries.", "sink")
	m.forgotten = counter("records_dropped_total", "Outbox records dropped because of size or age.", "what")
	m.duration = histogram("delivery_duration_seconds", "Duration of one attempt.",
		.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900)
	m.lag = histogram("delivery_lag_seconds",
		"Time from when a delivery was due until the sink accepted it, over all attempts.",
		.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400)
	for _, answer := range pollAnswers {
		m.polls.expect(answer)
	}
	for _, ceType := range cloudevent.Types {
		m.events.expect(ceType)
	}
	m.forgotten.expect(outbox.ForgotDeadLetter)
	m.forgotten.expect(outbox.ForgotHistory)
	return m
}

// expect makes the series of a sink, so that they exist with value 0 before anything happens.
func (m *Metrics) expect(sink string) {
	for _, reason := range bridge.FailureReasons {
		m.failed.expect(reason, sink)
	}
	for _, f := range []*family{m.delivered, m.superseded, m.requests, m.duration, m.lag} {
		f.expect(sink)
	}
}

// Polled counts a poll.
func (m *Metrics) Polled(class imds.PollClass) { m.polls.add(1, pollAnswers[class]) }

// Committed counts a CloudEvent by its type.
func (m *Metrics) Committed(ceType string) { m.events.add(1, ceType) }

// Forgot counts records that the outbox dropped.
func (m *Metrics) Forgot(what string, n int) { m.forgotten.add(float64(n), what) }

// Failed counts a delivery that failed or became a dead letter.
func (m *Metrics) Failed(sink, reason string) { m.failed.add(1, reason, sink) }

// Superseded counts deliveries that a newer one replaced.
func (m *Metrics) Superseded(sink string, n int) { m.superseded.add(float64(n), sink) }

// Attempted counts an attempt and its duration.
func (m *Metrics) Attempted(sink string, took time.Duration) {
	m.requests.add(1, sink)
	m.duration.observe(took.Seconds(), sink)
}

// Accepted counts a delivery and the time since it was due.
func (m *Metrics) Accepted(sink string, lag time.Duration) {
	m.delivered.add(1, sink)
	m.lag.observe(lag.Seconds(), sink)
}

// Handler serves the metrics, with gauges from the status and from the process.
func (m *Metrics) Handler(status func() bridge.Status) http.Handler {
	status = cached(statusAge, status)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		st := status()
		for _, k := range st.Sinks {
			m.expect(k.Name)
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(exposition(m.families, statusFamilies(st),
			processFamilies(m.started))) // fails if the client is gone
	})
}

// statusFamilies returns the gauges of a status.
func statusFamilies(st bridge.Status) (all []*family) {
	gauge := func(name, help string, labels ...string) *family {
		f := &family{name: "forewarn_" + name, help: help, kind: "gauge", labels: labels}
		all = append(all, f)
		return f
	}
	gauge("build_info", "Always 1; the version of forewarn.", "goversion", "version").set(1, runtime.Version(), st.Version)
	vm := gauge("vm_info", "Always 1; this VM, once instance metadata has named it.", "location", "scale_set", "vm")
	if o := st.Observer; o.Name != "" {
		vm.set(1, o.Location, o.ScaleSet, o.Name)
	}
	if st.Relay == nil { // a relay polls nothing, so its last poll would always be too long ago
		gauge("poll_last_success_timestamp_seconds", "Time of the endpoint's last valid answer; 0 before the first.").
			set(seconds(st.IMDS.LastAnswer))
		gauge("document_incarnation", "Incarnation of the last document; 0 before the first.").
			set(jsonNumber(st.IMDS.Incarnation))
		gauge("document_problems", "Problems in the last document: unreadable fields and entries, events above 10,000.").
			set(float64(len(st.IMDS.Problems)))
	}
	gauge("events_open", "Azure events that are scheduled or started, of all VMs in the document.").
		set(float64(len(st.Events)))
	left := gauge("event_seconds_to_not_before",
		"Seconds until an open Azure event may start; 0 if that has passed or is unknown. At most the 300 nearest.",
		"affects_self", "event", "status", "type")
	for _, e := range wording.First(wording.ByUrgency(st.Events), wording.ShownSeries) {
		left.set(e.SecondsLeft, strconv.FormatBool(e.AffectsSelf), e.Known.ID, label(e.Known.Status), label(e.Known.Type))
	}
	if st.Relay != nil {
		fleetGauges(gauge, st.Relay.VMs)
	}
	gauge("outbox_bytes", "Size of the outbox on disk.").set(float64(st.Outbox.Bytes))
	gauge("outbox_durable",
		"1 while everything is on disk; 0 while the outbox cannot be written and forewarn runs from memory.").
		set(boolToFloat(st.Outbox.Durable))
	pending := gauge("outbox_pending", "Pending deliveries.", "sink")
	held := gauge("outbox_muted", "Pending deliveries that a mute holds back.", "sink")
	oldest := gauge("outbox_oldest_pending_seconds",
		"Age of the oldest pending delivery that is not muted; 0 without any.", "sink")
	dead := gauge("deadletters", "Dead letters: deliveries that failed for good, kept for replay.", "sink")
	needs := gauge("sink_needs_somebody",
		"1 while status says of the sink that it needs you: blocked, urgent overdue, or nothing accepted for 5 minutes.", "sink")
	muted := gauge("sink_muted", "1 while the sink is muted for all VMs and types.", "sink")
	gauge("mutes", "Mutes that hold something back.").set(float64(len(st.Mutes)))
	for _, k := range st.Sinks {
		held.set(float64(k.Muted), k.Name)
		muted.set(boolToFloat(!k.MutedUntil.IsZero()), k.Name)
		pending.set(float64(k.Pending), k.Name)
		oldest.set(k.OldestPendingSeconds, k.Name)
		dead.set(float64(k.DeadLetters), k.Name)
		needs.set(boolToFloat(k.NeedsSomebody(time.Now())), k.Name)
	}
	gauge("config_hash", "Always 1; the hash of the settings in force.", "hash").set(1, st.Settings.Hash)
	gauge("config_last_reload_successful", "0 if the last reload failed, else 1.").
		set(boolToFloat(st.Settings.LastError == ""))
	gauge("config_last_reload_success_timestamp_seconds", "When the settings in force were loaded.").
		set(seconds(st.Settings.LoadedAt))
	return all
}

// maxFleetSeries limits the VMs, and the sets, with series of their own.
const maxFleetSeries = 1000

// fleetGauges are what a relay knows of VMs. One that it has forgotten has no series any more.
func fleetGauges(gauge func(name, help string, labels ...string) *family, vms []bridge.FleetVM) {
	all := gauge("fleet_vms", "VMs that a relay knows, by scale set; at most 1,000 sets.", "set")
	mute := gauge("fleet_vms_silent", "VMs of them whose heartbeats stopped.", "set")
	heard := gauge("fleet_vm_last_heard_timestamp_seconds",
		"When a VM was last heard; 0 for never. At most 1,000 VMs: those with events, silent ones, and others.", "set", "vm")
	left := gauge("fleet_vm_not_before_timestamp_seconds",
		"NotBefore of the nearest event of a VM that has one. At most 1,000 VMs.", "set", "vm")
	sets := map[string][2]int{}
	for _, v := range vms {
		n := sets[v.Set]
		n[0]++
		n[1] += boolToInt(v.Silent)
		sets[v.Set] = n
	}
	for i, set := range slices.Sorted(maps.Keys(sets)) {
		if i < maxFleetSeries {
			all.set(float64(sets[set][0]), label(set))
			mute.set(float64(sets[set][1]), label(set))
		}
	}
	seen := map[[2]string]bool{} // VMs of two resource groups may have one name: the first of them needs somebody most
	for _, v := range wording.First(vms, maxFleetSeries) {
		if seen[[2]string{v.Set, v.Name}] {
			continue
		}
		seen[[2]string{v.Set, v.Name}] = true
		heard.set(seconds(v.LastHeard), label(v.Set), label(v.Name))
		if !v.NotBefore.IsZero() {
			left.set(seconds(v.NotBefore), label(v.Set), label(v.Name))
		}
	}
}

// label makes text from outside fit for a label: short, valid UTF-8.
func label(s string) string { return strings.ToValidUTF8(fmt.Sprintf("%.64s", s), "?") }

// seconds returns a time in Unix seconds; 0 for none.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// jsonNumber parses a JSON number; 0 for anything else.
func jsonNumber(v json.RawMessage) float64 {
	n, _ := strconv.ParseFloat(string(v), 64)
	return n
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
