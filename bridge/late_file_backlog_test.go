package bridge_test

import (
	"fmt"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// A late file's backlog about an event that was delivered anew, or ended, is out of date for sinks that want the latest
// state, and for a lead. Sinks that want everything get it.
func TestALateFilesBacklogIsNotDeliveredAsNews(t *testing.T) {
	systemtest.Alone(t)
	for _, ended := range []bool{false, true} {
		subtest(t, fmt.Sprintf("ended %t", ended), func(t *testing.T, s *stage) {
			s.opts.Interval = seldom
			down := answering(errSinkDown)
			audit, chat, drain, plan := &recorder{}, &recorder{}, &recorder{}, &recorder{}
			chatty := func(e *recorder) bridge.Route {
				return e.all("chat").With(func(t *bridge.Terms) { t.Late = delivery.LateLatest })
			}
			drains := drain.leads("drain", 10*time.Minute, "scheduled")
			plans := plan.leads("plan", 10*time.Minute, "scheduled").With(func(t *bridge.Terms) { t.Late = delivery.LateSend })
			s.redeploy(idA, 70*time.Minute)
			b := s.start(down.all("audit"), chatty(down), drains, plans)
			pause(time.Minute)
			_, bring := s.lateFile(b, func() {}, audit.all("audit"), chatty(chat), drains, plans)
			pause(20 * time.Second)
			if ended {
				s.azure.End(idA)
			} else {
				s.postpone(idA, time.Hour)
			}
			pause(20 * time.Second)
			heard := len(chat.ids())
			bring()
			pause(100 * time.Minute)
			wantIDs(t, chat.types()[heard:])
			wantIDs(t, audit.types()[2:], "scheduled") // what was pending too
			wantIDs(t, append(drain.types(), plan.types()...))
			pause(time.Hour)
			due := map[bool][]string{false: {"scheduled"}, true: nil}[ended]
			wantIDs(t, drain.types(), due...)
			wantIDs(t, plan.types(), due...)
		})
	}
}

// A lead that came before the file did waits for the next poll, as after a start: the event is over by now.
func TestALeadThatALateFileRemembersWaitsForAzure(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = 3 * time.Second
		plan := &recorder{}
		r := plan.leads("plan", 10*time.Minute, "scheduled").With(func(t *bridge.Terms) { t.Late = delivery.LateSend })
		b := s.up(r)
		s.redeploy(idA, 30*time.Minute)
		pause(time.Minute)
		_, bring := s.lateFile(b, func() {
			s.azure.End(idA)
			pause(25 * time.Minute)
		}, r)
		pause(40 * time.Second)
		bring()
		pause(time.Minute)
		wantIDs(t, plan.ids())
	})
}

// So is a reminder in it of an event that was announced anew, whoever gets it: that was told a moment ago.
func TestALateFilesReminderIsNotDeliveredAfterTheNews(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		down, chat := answering(errSinkDown), &recorder{}
		s.redeploy(idA, 45*time.Minute)
		b := s.start(down.reminds("chat", 30*time.Minute))
		pause(17 * time.Minute) // the reminder is pending
		_, bring := s.lateFile(b, func() {}, chat.reminds("chat", 30*time.Minute))
		pause(20 * time.Second)
		wantIDs(t, chat.types(), "scheduled")
		bring()
		pause(5 * time.Minute)
		wantIDs(t, chat.types(), "scheduled", "scheduled") // what was pending is told too, but for the reminder
	})
}

// A stop does not wait to hear which VM this is, also while a file that came late does.
func TestAStopDoesNotWaitForTheName(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		b := s.start(answering(errSinkDown).all("a"))
		s.reboot(idA)
		pause(3 * time.Second)
		b, bring := s.lateFile(b, s.nameless, e.all("a"))
		pause(30 * time.Second)
		bring()
		pause(5500 * time.Millisecond) // the file is looked for every five
		s.reboot(idB)                  // which waits until it is known which ids the file has
		pause(1500 * time.Millisecond)
		wantWithin(t, "the stop", b.endsIn(), 0, time.Second)
	})
}

// A file that comes late may be another machine's, so its backlog waits until that is known, as at a start.
func TestALateFilesBacklogWaitsForTheName(t *testing.T) {
	for _, tt := range []struct {
		claim   string
		vm      string
		unknown time.Duration
		down    error // that the sink answered before
		want    []string
	}{
		{"it is this machine's", "", 6 * time.Second, errSinkDown, []string{idA + "-scheduled", idA + "-vanished"}},
		{"it is another's", "vm-1", 6 * time.Second, errSinkDown, nil},
		{"nobody can say", "", time.Minute, errSinkDown, []string{idA + "-scheduled", idA + "-vanished"}},
		{"it is this machine's, and only an end is to be told", "", 6 * time.Second, nil, []string{idA + "-vanished"}},
		{"it is another's, and only an end would be to be told", "vm-1", 6 * time.Second, nil, nil},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			e := &recorder{}
			b := s.start(answering(tt.down).all("a"))
			s.reboot(idA)
			pause(3 * time.Second)
			s.vm = tt.vm
			b, bring := s.lateFile(b, func() {
				s.azure.End(idA)
				s.metadata(imdstest.Fault{Status: 503, For: 2*time.Second + tt.unknown})
			}, e.all("a"))
			pause(4 * time.Second)
			bring()
			pause(3500 * time.Millisecond)
			b.reload(e.all("a")) // whose worker waits too
			pause(100 * time.Millisecond)
			wantIDs(t, e.ids())
			pause(20 * time.Second)
			wantIDs(t, e.ids(), tt.want...)
		})
	}
}
