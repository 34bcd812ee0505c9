package imdstest

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Every kind of step is read, in both styles of YAML.
func TestScenarioIsRead(t *testing.T) {
	sc, err := ParseScenario("dir/own.yaml", []byte(`
vms: [a, b]
approve_delay: 5s
steps:
  - at: 10s
    schedule: {event: A, id: X, type: Freeze, resources: [a], notice: 1d12h, source: User, description: "", duration: 0}
  - {at: 10s, update: {event: A, notice: 20m}}
  - {at: 1m, start: A}
  - {at: 2m, fault: {status: 503, for: 30s}}
  - at: 3m
    end: A
  - {at: 3m, reset: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	if sc.Name != "own" || !slices.Equal(sc.VMs, []string{"a", "b"}) || sc.ApproveDelay != 5*time.Second || len(sc.Steps) != 6 {
		t.Errorf("got %+v", sc)
	}
	c := sc.Steps[0].Schedule
	if c.ID != "X" || *c.Notice != 36*time.Hour || *c.Duration != 0 || *c.Description != "" || c.Source != "User" {
		t.Errorf("schedule %+v", c)
	}
	if f := sc.Steps[3].Fault; f.For != 30*time.Second || !sc.Steps[5].Reset || sc.Steps[4].End != "A" {
		t.Errorf("fault %+v, steps %+v", f, sc.Steps)
	}
}

// An invalid scenario is refused with the position of its first error.
func TestScenarioErrorsHaveAPosition(t *testing.T) {
	const head = "name: x\nsteps:\n"
	for _, tt := range []struct{ text, err string }{
		{"", "s.yaml:1:1: expected one YAML document with name and steps"},
		{"- a", "s.yaml:1:1: expected keys and values, got"},
		{"name: x", "s.yaml:1:5: steps: expected at least one"},
		{"name: x\nsteps: [", "s.yaml:2:8: "},
		{"name: x\nstep: []", "s.yaml:2:7: step: unknown key, expected one of approve_delay, name, steps, vms"},
		{"name: x\nname: y", "s.yaml:2:1: mapping key \"name\" already defined at [1:1]"},
		{"name: x\n---\nname: y", "s.yaml:1:1: expected one YAML document"},
		{"name: 5\nsteps: []", "s.yaml:1:7: name: expected text, got 5"},
		{"a: &a [x]\nsteps: *a", "s.yaml:1:2: a scenario has no aliases"},
		{head + "  - {at: 10, start: A}", "s.yaml:3:10: steps.0.at: expected a duration such as 30s or 15m, not negative, got 10"},
		{head + "  - {at: -10s, start: A}", "s.yaml:3:10: steps.0.at: expected a duration"},
		{head + "  - {at: 9999d, start: A}", "s.yaml:3:10: steps.0.at: expected a duration"},
		{head + "  - {start: A}", "s.yaml:3:5: steps.0.at: missing"},
		{head + "  - {at: 1s}", "s.yaml:3:5: steps.0: expected one of schedule, update, start, end, fault, reset, got 0"},
		{head + "  - {at: 1s, start: A, end: A}", "s.yaml:3:5: steps.0: expected one of schedule, update, start, end, fault, reset, got 2"},
		{"name: s\nvms: [db-1]\nsteps:\n  - {at: 1s, fault: {vm: db-2, status: 500}}", `s.yaml:4:26: steps.0.fault.vm: expected one of db-1, got "db-2"`},
		{head + "  - {at: 1s, start: A}", `s.yaml:3:21: steps.0.start: event "A" is not scheduled yet`},
		{head + "  - {at: 1s, end: A}", `s.yaml:3:19: steps.0.end: event "A" is not scheduled yet`},
		{head + "  - {at: 1s, update: {event: A}}", `s.yaml:3:30: steps.0.update.event: event "A" is not scheduled yet`},
		{head + "  - {at: 1s, update: {id: A}}", `s.yaml:3:27: steps.0.update.id: an event keeps its id`},
		{head + "  - {at: 1s, schedule: {type: Reboot}}", "steps.0.schedule.event: missing, expected a label"},
		{head + "  - {at: 1s, schedule: }", "steps.0.schedule: expected keys and values, got null"},
		{head + "  - {at: 1s, schedule: {event: A, notice: soon}}", "s.yaml:3:43: steps.0.schedule.notice: expected a duration"},
		{head + "  - {at: 1s, schedule: {event: A, duration: 1.5}}", "s.yaml:3:45: steps.0.schedule.duration: expected a whole number, got 1.5"},
		{head + "  - {at: 1s, schedule: {event: A, resources: vm_0}}", "s.yaml:3:46: steps.0.schedule.resources: expected a list"},
		{"vms: [a, b/c]\nsteps:\n  - {at: 1s, reset: true}", `s.yaml:1:10: vms.1: expected a name that can stand in a path, got "b/c"`},
		{"vms: [a, b, A]\nsteps:\n  - {at: 1s, reset: true}", `s.yaml:1:13: vms.2: A is there already; names ignore case`},
		{head + "  - {at: 1s, fault: {status: 7}}", "s.yaml:3:30: steps.0.fault.status: expected a code from 200 to 599, got 7"},
		{head + "  - {at: 1s, fault: {hung: true}}", "s.yaml:3:28: steps.0.fault.hung: unknown key, expected one of approve,"},
		{head + "  - {at: 2s, reset: true}\n  - {at: 1s, reset: true}", "s.yaml:4:10: steps.1.at: 1s is before the step above it, at 2s"},
		{head + "  - {at: 1s, schedule: {event: A}}\n  - {at: 1s, schedule: {event: A}}", "s.yaml:4:32: steps.1.schedule.event: event A is scheduled already"},
		{head + "  - {at: 1s, schedule: {event: A}}\n  - {at: 1s, reset: true}\n  - {at: 1s, end: A}", "s.yaml:5:19: "},
	} {
		_, err := ParseScenario("s.yaml", []byte(tt.text))
		if err == nil || !strings.HasPrefix(err.Error(), "s.yaml:") || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q:\ngot  %v\nwant %s", tt.text, err, tt.err)
		}
	}
}

// Each built-in scenario can be read and has the name of its file, and every documented one exists.
func TestBuiltinScenariosAreRead(t *testing.T) {
	want := []string{
		"busy-week", "canceled", "degraded", "freeze", "hardware-failure", "preempt",
		"reboot", "redeploy", "terminate", "two-events", "updated", "user-reboot",
	}
	if !slices.Equal(Names(), want) {
		t.Errorf("got %v, want %v", Names(), want)
	}
	for _, name := range Names() {
		if sc, err := Builtin(name); err != nil || sc.Name != name {
			t.Errorf("%s is named %q, %v", name, sc.Name, err)
		}
	}
	if _, err := Builtin("none"); err == nil || !strings.Contains(err.Error(), "busy-week") {
		t.Errorf("got %v, want an error that names those there are", err)
	}
}
