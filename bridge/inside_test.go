package bridge

import (
	"testing"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

// someEvent is the EventId of tests that see the inside.
const someEvent = "AAAAAAAA-0000-4000-8000-000000000001"

// How an event ended is said as far as one can know, and unknown otherwise.
func TestTheOutcomeIsHonest(t *testing.T) {
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	later, sooner := now.Add(time.Minute), now.Add(-time.Minute)
	scheduled := func(typ string, notBefore time.Time) imds.Event {
		return imds.Event{ID: someEvent, Status: "Scheduled", Type: typ, Resources: []string{"vm-0"}, NotBefore: notBefore}
	}
	for _, tt := range []struct {
		claim string
		event imds.Event
		op    openEvent
		self  string
		want  cloudevent.Outcome
	}{
		{"it had begun", imds.Event{Status: "Started", Type: "Reboot"}, openEvent{Begun: sooner}, "vm-0", cloudevent.OutcomeCompleted},
		{"it had begun, and there was a gap", imds.Event{Status: "Started", Type: "Reboot"}, openEvent{Begun: sooner, Gap: true}, "vm-0", cloudevent.OutcomeCompleted},
		{"it had begun, and was scheduled again", scheduled("Reboot", later), openEvent{Begun: sooner}, "vm-0", cloudevent.OutcomeCompleted},
		{"a Preempt had begun", imds.Event{Status: "Started", Type: "Preempt"}, openEvent{Begun: sooner}, "vm-0", cloudevent.OutcomeCompleted},
		{"this VM rebooted in the gap", scheduled("Reboot", sooner), openEvent{Gap: true, Rebooted: true}, "VM-0", cloudevent.OutcomeCompleted},
		{"this VM rebooted, and the event is another's", scheduled("Reboot", sooner), openEvent{Gap: true, Rebooted: true}, "vm-1", cloudevent.OutcomeUnknown},
		{"this VM rebooted, and has no name", scheduled("Reboot", sooner), openEvent{Gap: true, Rebooted: true}, "", cloudevent.OutcomeUnknown},
		{"its time had not come", scheduled("Reboot", later), openEvent{}, "vm-0", cloudevent.OutcomeCanceled},
		{"its time had not come, for another VM", scheduled("Freeze", later), openEvent{}, "vm-1", cloudevent.OutcomeCanceled},
		{"its time had come", scheduled("Reboot", sooner), openEvent{}, "vm-0", cloudevent.OutcomeUnknown},
		{"nobody watched for a while", scheduled("Reboot", later), openEvent{Gap: true}, "vm-0", cloudevent.OutcomeUnknown},
		{"its time is now", scheduled("Reboot", now), openEvent{}, "vm-0", cloudevent.OutcomeUnknown},
		{"it had no time", scheduled("Reboot", time.Time{}), openEvent{}, "vm-0", cloudevent.OutcomeUnknown},
		{"a Preempt before its time", scheduled("Preempt", later), openEvent{}, "vm-0", cloudevent.OutcomeUnknown},
		{"a Terminate before its time", scheduled("Terminate", later), openEvent{}, "vm-0", cloudevent.OutcomeUnknown},
		{"a status nobody knows", imds.Event{Status: "Advisory", Type: "Reboot", NotBefore: later}, openEvent{}, "vm-0", cloudevent.OutcomeUnknown},
	} {
		s := situation{observation: observation{now: now}}
		s.common.Observer.Name = tt.self
		if got := s.end(imds.Change{Event: tt.event}, &tt.op).Outcome; got != tt.want {
			t.Errorf("%s: outcome is %s, want %s", tt.claim, got, tt.want)
		}
	}
}

// A standstill is what passed since the last sign of life beyond the usual time between two, by the clock that went
// furthest: while a VM is frozen its monotonic clock may stand still, and the wall clock is set afterwards.
func TestAStandstillIsMeasuredByTheClockThatWentFurthest(t *testing.T) {
	start := time.Now()
	for _, tt := range []struct {
		claim string
		after time.Time
		want  time.Duration
	}{
		{"in time", start.Add(time.Second), 0},
		{"a little late", start.Add(1400 * time.Millisecond), 0},
		{"half a second late", start.Add(1500 * time.Millisecond), 500 * time.Millisecond},
		{"both clocks went on", start.Add(8200 * time.Millisecond), 7200 * time.Millisecond},
		{"only the wall clock did", start.Round(0).Add(8200 * time.Millisecond), 7200 * time.Millisecond},
		{"the wall clock was set back", start.Round(0).Add(-time.Hour), 0},
	} {
		p := pauseDetector{every: time.Second, last: start}
		if got := p.standstill(tt.after); got != tt.want {
			t.Errorf("%s: stood still for %v, want %v", tt.claim, got, tt.want)
		}
	}
}

// What a wait is counted from has a reading of the monotonic clock, without which a step of the clock would end it early.
func TestAWaitIsCountedByTheMonotonicClock(t *testing.T) {
	var r reviews
	if from := r.firstSeen(someEvent, 1, "drain", time.Now()); from == from.Round(0) {
		t.Errorf("it is counted from %v, want a monotonic reading too", from)
	}
}
