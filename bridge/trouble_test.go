package bridge

import (
	"fmt"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
)

// hearing is a route that hears about the bridge.
func (e *ear) hearing(name string, level Level) Route {
	return e.all(name).with(func(t *Terms) { t.Bridge = level })
}

// A blocked sink is told to the others, once, and so is that it accepts again; never to itself.
func TestABlockedSinkIsToldToTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		sick, ops, deaf := &ear{answer: always(fmt.Errorf("%w: 401 token refused", ErrBlocked))}, &ear{}, &ear{}
		b := s.start(sick.hearing("sick", LevelTrouble), ops.hearing("ops", LevelTrouble), deaf.hearing("deaf", LevelNone))
		pause(1500 * time.Millisecond)
		s.reboot(idA)
		pause(4 * time.Minute)
		wantTypes(t, ops, "scheduled", "sink.blocked")
		wantTypes(t, deaf, "scheduled")
		told := tellingOf(t, ops.accepted()[1].Event)
		if told["sink"] != "sick" || told["kind"] != "ear" || told["pending"] != 1.0 || told["error"] == "" {
			t.Errorf("sink.blocked holds %v", told)
		}
		sick.say(nil)
		pause(2 * time.Minute)
		wantTypes(t, ops, "scheduled", "sink.blocked", "sink.recovered")
		wantTypes(t, sick, "scheduled")
		b.end()
	})
}

// A sink that has accepted nothing for five minutes, while something about an Azure event is owed, counts as blocked.
func TestASinkThatAcceptsNothingForFiveMinutesIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		down, ops := &ear{answer: always(errDown)}, &ear{}
		b := s.start(down.hearing("down", LevelAll), ops.hearing("ops", LevelTrouble))
		pause(20 * time.Minute)
		wantTypes(t, ops) // only something about the bridge is owed, which never causes another
		s.reboot(idA)
		pause(4 * time.Minute)
		wantTypes(t, ops, "scheduled")
		pause(2 * time.Minute)
		wantTypes(t, ops, "scheduled", "sink.blocked")
		b.end()
	})
}

// An endpoint without a valid answer for five minutes is told, and when it answers again, with the gap.
func TestAnUnavailableEndpointIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		ops := &ear{}
		b := s.start(ops.hearing("ops", LevelTrouble))
		pause(5 * time.Second)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		pause(4*time.Minute + 50*time.Second)
		wantTypes(t, ops)
		pause(30 * time.Second)
		wantTypes(t, ops, "imds.unavailable")
		s.azure.ClearFaults()
		pause(30 * time.Second)
		wantTypes(t, ops, "imds.unavailable", "imds.recovered")
		gap, _ := tellingOf(t, ops.accepted()[1].Event)["gap"].(map[string]any)
		if gap["from"] == nil || gap["to"] == nil {
			t.Errorf("imds.recovered has the gap %v", gap)
		}
		b.end()
	})
}

// Before the very first answer that takes ten minutes, because Azure may need some to switch events on.
func TestAnEndpointThatNeverAnsweredIsToldLater(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Status: 503})
		ops := &ear{}
		b := s.start(ops.hearing("ops", LevelTrouble))
		pause(9*time.Minute + 30*time.Second)
		wantTypes(t, ops)
		pause(time.Minute)
		wantTypes(t, ops, "imds.unavailable")
		b.end()
	})
}

// Dead letters are told: the first at once, many of one sink together.
func TestDeadLettersAreToldTogether(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		strict, ops := &ear{answer: always(ErrRejected)}, &ear{}
		b := s.start(strict.all("strict"), ops.hearing("ops", LevelTrouble))
		pause(1500 * time.Millisecond)
		s.reboot(idA)
		pause(5 * time.Second)
		wantTypes(t, ops, "scheduled", "delivery.deadlettered")
		for i := range 20 {
			s.reboot(fmt.Sprintf("EVENT-%d", i))
		}
		pause(2 * time.Minute)
		n := 0
		for _, typ := range ops.types() {
			if typ == "delivery.deadlettered" {
				n++
			}
		}
		if n != 2 {
			t.Errorf("21 dead letters were told in %d CloudEvents, want 2", n)
		}
		all := ops.accepted()
		if got := tellingOf(t, all[len(all)-1].Event)["count"]; got != 20.0 {
			t.Errorf("the second tells of %v, want 20", got)
		}
		b.end()
	})
}

// Who hears all about the bridge hears that it started, with the gap, and that it stops.
func TestStartAndStopAreTold(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		all := &ear{}
		b := s.start(all.hearing("all", LevelAll))
		pause(2 * time.Second)
		b.end()
		wantTypes(t, all, "started", "stopping")
		if gap := tellingOf(t, all.accepted()[0].Event)["gap"]; gap != nil {
			t.Errorf("the first start has the gap %v", gap)
		}
		pause(time.Hour)
		b = s.start(all.hearing("all", LevelAll))
		pause(2 * time.Second)
		b.end()
		wantTypes(t, all, "started", "stopping", "started", "stopping")
		if gap := tellingOf(t, all.accepted()[2].Event)["gap"]; gap == nil {
			t.Error("the second start has no gap")
		}
	})
}

func wantTypes(t *testing.T, e *ear, want ...string) {
	t.Helper()
	wantIDs(t, e.types(), want...)
}
