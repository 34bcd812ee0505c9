package imdstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// watch runs a scenario and returns the different documents that it showed: the second of each, and the type, status and
// resources of each event. It reads the document once a second, in the middle of the second.
func watch(t *testing.T, s *Server, sc Scenario, speed float64) (seen []string) {
	t.Helper()
	begin, stop := time.Now(), make(chan struct{})
	done := make(chan []string)
	go func() {
		var seen []string
		last := 1
		time.Sleep(time.Second / 2)
		for tick := time.NewTicker(time.Second); ; {
			if n := s.Incarnation(); n != last {
				last = n
				line := fmt.Sprint(time.Since(begin).Truncate(time.Second))
				for _, e := range s.Events() {
					line += fmt.Sprint(" ", e.Type, " ", e.Status, " ", strings.Join(e.Resources, ","))
				}
				seen = append(seen, line)
			}
			select {
			case <-tick.C:
			case <-stop:
				tick.Stop()
				done <- seen
				return
			}
		}
	}()
	if err := s.Play(t.Context(), sc, speed); err != nil {
		t.Error(err)
	}
	time.Sleep(time.Second)
	close(stop)
	return <-done
}

func builtin(t *testing.T, name string) Scenario {
	t.Helper()
	sc, err := Builtin(name)
	if err != nil {
		t.Fatal(err)
	}
	return sc
}

// The built-in scenarios run their steps at their times divided by the speed.
func TestBuiltinScenariosRunOnTime(t *testing.T) {
	for _, tt := range []struct {
		name  string
		speed float64
		want  []string
	}{
		{"reboot", 1, []string{"10s Reboot Scheduled vm_0", "15m10s Reboot Started vm_0", "25m10s"}},
		{"reboot", 10, []string{"1s Reboot Scheduled vm_0", "1m31s Reboot Started vm_0", "2m31s"}},
		{"redeploy", 1, []string{"10s Redeploy Scheduled vm_0", "10m10s Redeploy Started vm_0", "20m10s"}},
		{"freeze", 1, []string{"10s Freeze Scheduled vm_0", "15m10s Freeze Started vm_0", "20m10s"}},
		{"preempt", 1, []string{"10s Preempt Scheduled vm_0", "40s Preempt Started vm_0", "45s"}},
		{"terminate", 1, []string{"10s Terminate Scheduled vm_0", "5m10s Terminate Started vm_0", "6m10s"}},
		{"canceled", 1, []string{"10s Reboot Scheduled vm_0", "8m10s"}},
		{"updated", 1, []string{"10s Reboot Scheduled vm_0", "5m10s Reboot Scheduled vm_0", "12m10s Reboot Scheduled vm_0,vm_1",
			"35m10s Reboot Started vm_0,vm_1", "45m10s"}},
		{"hardware-failure", 1, []string{"10s Reboot Started vm_0", "10m10s"}},
		{"degraded", 60, []string{"0s Redeploy Scheduled vm_0", "2h48m0s Redeploy Started vm_0", "2h48m10s"}},
		{"two-events", 1, []string{"10s Reboot Scheduled vm_0 Reboot Scheduled vm_1", "15m10s Reboot Started vm_0 Reboot Started vm_1",
			"23m10s Reboot Started vm_1", "25m10s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			got := watch(t, New(Options{}), builtin(t, tt.name), tt.speed)
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s at speed %v:\ngot  %s\nwant %s", tt.name, tt.speed, strings.Join(got, "; "), strings.Join(tt.want, "; "))
			}
		})
	}
}

// The busy week ends with no event open, and its faults occur.
func TestBusyWeekEndsWithoutOpenEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		seen := watch(t, s, builtin(t, "busy-week"), 10)
		if len(s.Events()) != 0 || !slices.Equal(s.VMs(), []string{"vm_0", "vm_1", "vm_2"}) {
			t.Errorf("VMs %v, open %v", s.VMs(), s.Events())
		}
		if s.Incarnation() > 5 {
			t.Errorf("incarnation %d: the count did not start over", s.Incarnation())
		}
		for _, kind := range []string{"Freeze", "Reboot", "Redeploy", "Terminate"} {
			if !strings.Contains(strings.Join(seen, ";"), kind+" Started") {
				t.Errorf("no %s has started", kind)
			}
		}
	})
}

// An event has the same EventId in each play. If a step starts it, only that step or an approval does.
func TestEventWithAStartStepDoesNotStartByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sc, err := ParseScenario("own.yaml", []byte(`
approve_delay: 20s
steps:
  - {at: 0s, schedule: {event: A, notice: 1m}}
  - {at: 0s, schedule: {event: B, notice: 1m, id: given}}
  - {at: 2m, start: A}
  - {at: 3m, end: A}
`))
		if err != nil {
			t.Fatal(err)
		}
		s := New(Options{Speed: 2})
		if err := s.Play(t.Context(), Scenario{Name: "none"}, 1); err == nil {
			t.Error("a scenario without steps was played")
		}
		go func() {
			if err := s.Play(t.Context(), sc, 0); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		a, b := s.Events()[0], s.Events()[1]
		if a.ID != strings.ToUpper(uuidOf("scenario own A")) || b.ID != "given" {
			t.Errorf("ids %s, %s", a.ID, b.ID)
		}
		time.Sleep(40 * time.Second)
		a, b = s.Events()[0], s.Events()[1]
		if a.Status != Scheduled || b.Status != Started {
			t.Errorf("A %s, B %s, want only B started", a.Status, b.Status)
		}
		ask(s, "POST", eventsURL, `{"StartRequests":[{"EventId":"`+a.ID+`"}]}`)
		time.Sleep(9 * time.Second)
		if a, _ = s.Event(a.ID); a.Status != Scheduled {
			t.Error("started before the scenario's delay")
		}
		time.Sleep(time.Second)
		if a, _ = s.Event(a.ID); a.Status != Started {
			t.Error("not started after the scenario's delay")
		}
		time.Sleep(time.Minute)
	})
}

// A scenario with vm_0 and vm_1 runs with the names that the server was given.
func TestScenarioRunsWithTheVMsOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{VMs: []string{"web-1"}})
		got := watch(t, s, builtin(t, "two-events"), 1)
		if !strings.HasSuffix(got[0], "Reboot Scheduled web-1 Reboot Scheduled vm_1") || !slices.Equal(s.VMs(), []string{"web-1", "vm_1"}) {
			t.Errorf("VMs %v, %s", s.VMs(), got[0])
		}
	})
}

// The duration of a scenario's fault is divided by its speed. A reset empties the document.
func TestStepsSetFaultsAndReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sc, err := ParseScenario("own.yaml", []byte(`
steps:
  - {at: 0s, schedule: {event: A}}
  - {at: 10s, fault: {status: 503, for: 1m}}
  - {at: 2m, reset: true}
  - {at: 2m, schedule: {event: A}}
`))
		if err != nil {
			t.Fatal(err)
		}
		s := New(Options{})
		for wait, want := range map[time.Duration]int{4 * time.Second: 200, 6 * time.Second: 503, 34 * time.Second: 503, 36 * time.Second: 200} {
			time.AfterFunc(wait, func() {
				if resp := ask(s, "GET", eventsURL, ""); resp.StatusCode != want {
					t.Errorf("%d after %v, want %d", resp.StatusCode, wait, want)
				}
			})
		}
		if err := s.Play(t.Context(), sc, 2); err != nil {
			t.Error(err)
		}
		if len(s.Events()) != 1 || s.Incarnation() != 2 {
			t.Errorf("incarnation %d, events %v", s.Incarnation(), s.Events())
		}
	})
}

// Play returns when its context ends.
func TestPlayEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := New(Options{}).Play(ctx, builtin(t, "reboot"), 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want a deadline exceeded", err)
		}
	})
}
