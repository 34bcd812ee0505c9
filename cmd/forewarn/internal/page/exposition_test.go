package page

import (
	"math"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"forewarn/bridge"
)

// parseExposition reads the text as Prometheus does.
func parseExposition(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return families
}

// Written metrics can be parsed again: help and labels with any character, counters, gauges and cumulative buckets.
func TestExpositionRoundTrips(t *testing.T) {
	const odd = "a \\ \" \n ä {}"
	c := &family{name: "c_total", help: odd, kind: "counter", labels: []string{"a", "b"}}
	c.expect(odd, "")
	c.add(2, odd, "x")
	c.add(0.5, odd, "x")
	g := &family{name: "g", help: "G.", kind: "gauge"}
	g.set(1e9 + 0.25)
	h := &family{name: "h_seconds", help: "H.", kind: "histogram", labels: []string{"sink"}, bounds: []float64{0.1, 1}}
	h.expect("quiet")
	for _, v := range []float64{0.05, 0.1, 0.5, 7} {
		h.observe(v, "busy")
	}
	none := &family{name: "none", help: "Nothing.", kind: "gauge"}
	all := parseExposition(t, string(exposition([]*family{none, h}, []*family{g, c})))

	if len(all) != 3 {
		t.Errorf("%d families, want those three that have series: %v", len(all), all)
	}
	m := all["c_total"].GetMetric()
	if all["c_total"].GetHelp() != odd || all["c_total"].GetType() != dto.MetricType_COUNTER || len(m) != 2 {
		t.Fatalf("the counter is %v, want its help, type and two series", all["c_total"])
	}
	for i, want := range []float64{0, 2.5} {
		if m[i].GetCounter().GetValue() != want || m[i].GetLabel()[0].GetValue() != odd {
			t.Errorf("series %d is %v, want %v with the label %q", i, m[i], want, odd)
		}
	}
	if v := all["g"].GetMetric()[0].GetGauge().GetValue(); v != 1e9+0.25 {
		t.Errorf("the gauge is %v, want %v", v, 1e9+0.25)
	}
	for i, want := range [][3]uint64{{2, 3, 4}, {0, 0, 0}} { // busy, quiet: at most 0.1, at most 1, all
		got := all["h_seconds"].GetMetric()[i].GetHistogram()
		if got.GetSampleCount() != want[2] || len(got.GetBucket()) != 3 {
			t.Fatalf("histogram %d is %v, want %d values in 3 buckets", i, got, want[2])
		}
		for j, bound := range []float64{0.1, 1, math.Inf(1)} {
			if b := got.GetBucket()[j]; b.GetUpperBound() != bound || b.GetCumulativeCount() != want[j] {
				t.Errorf("histogram %d, bucket %d is %v, want %d up to %v", i, j, b, want[j], bound)
			}
		}
	}
	if got := all["h_seconds"].GetMetric()[0].GetHistogram().GetSampleSum(); got != 7.65 {
		t.Errorf("the sum is %v, want 7.65", got)
	}
}

// A counter or histogram that was forgotten in NewMetrics or expect would not be there until something happens.
func TestEveryFamilyIsServedFromTheStart(t *testing.T) {
	m := NewMetrics()
	m.expect("quiet")
	served := parseExposition(t, string(exposition(m.families)))
	for _, f := range m.families {
		if served[f.name] == nil {
			t.Errorf("%s has no series at the start; expect it in NewMetrics, or for each sink in expect", f.name)
		}
	}
}

// Of two VMs with one name in different resource groups, the series are those of the one that needs somebody.
func TestVMsWithOneNameShowTheOneThatNeedsSomebody(t *testing.T) {
	silent := time.Now().Add(-time.Hour)
	st := bridge.Status{Relay: &bridge.RelayStatus{VMs: []bridge.FleetVM{
		{Name: "web_0", Set: "web", Group: "rg-eu", LastHeard: silent, Silent: true},
		{Name: "web_0", Set: "web", Group: "rg-us", LastHeard: time.Now()},
	}}}
	all := parseExposition(t, string(exposition(statusFamilies(st))))
	series := all["forewarn_fleet_vm_last_heard_timestamp_seconds"].GetMetric()
	if len(series) != 1 || int64(series[0].GetGauge().GetValue()) != silent.Unix() {
		t.Errorf("%v, want the time of the silent one", series)
	}
}

// A relay polls nothing, so it has no time of a last poll: an alert on a stale poll would always fire.
func TestRelayHasNoSeriesOfPolls(t *testing.T) {
	text := string(exposition(statusFamilies(bridge.Status{Relay: &bridge.RelayStatus{}})))
	for _, name := range []string{"forewarn_poll", "forewarn_document", "forewarn_vm_info"} {
		if strings.Contains(text, name) {
			t.Errorf("a relay has %s:\n%s", name, text)
		}
	}
}
