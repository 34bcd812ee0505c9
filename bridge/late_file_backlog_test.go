package bridge_test

import (
	"os"
	"path/filepath"
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
		bubble(t, func(t *testing.T, s *stage) {
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
			b, bring := s.lateFile(b, func() {}, audit.all("audit"), chatty(chat), drains, plans)
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
			if more := chat.types()[heard:]; len(more) > 0 {
				t.Errorf("ended %v: chat hears %v when the file has come", ended, more)
			}
			if got := audit.types(); len(got) != 3 || got[2] != "scheduled" {
				t.Errorf("ended %v: audit hears %v, want what was pending too", ended, got)
			}
			wantIDs(t, append(drain.types(), plan.types()...))
			pause(time.Hour)
			if want := map[bool]int{false: 1}[ended]; len(drain.types()) != want || len(plan.types()) != want {
				t.Errorf("ended %v: drain hears %v and plan %v, want %d each", ended, drain.types(), plan.types(), want)
			}
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
		b, bring := s.lateFile(b, func() { s.azure.End(idA); pause(25 * time.Minute) }, r)
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
		b, bring := s.lateFile(b, func() {}, chat.reminds("chat", 30*time.Minute))
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
		before, e := answering(errSinkDown), &recorder{}
		b := s.start(before.all("a"))
		s.reboot(idA)
		pause(3 * time.Second)
		b, bring := s.lateFile(b, func() {
			s.nameless()
		}, e.all("a"))
		pause(30 * time.Second)
		bring()
		pause(5500 * time.Millisecond) // the file is looked for every five
		s.reboot(idB)                  // which waits until it is known which ids the file has
		pause(1500 * time.Millisecond)
		began := time.Now()
		b.end()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the stop took %v", took)
		}
	})
}

// A file that comes late may be another machine's, so its backlog waits until that is known, as at a start.
func TestALateFilesBacklogWaitsForTheName(t *testing.T) {
	for _, tt := range []struct {
		claim   string
		vm      string
		unknown time.Duration
		down    error // that the sink answered before
		want    string
	}{
		{"it is this machine's", "", 6 * time.Second, errSinkDown, idA + "-scheduled"},
		{"it is another's", "vm-1", 6 * time.Second, errSinkDown, ""},
		{"nobody can say", "", time.Minute, errSinkDown, idA + "-scheduled"},
		{"it is this machine's, and only an end is to be told", "", 6 * time.Second, nil, idA + "-vanished"},
		{"it is another's, and only an end would be to be told", "vm-1", 6 * time.Second, nil, ""},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			before, e := answering(tt.down), &recorder{}
			b := s.start(before.all("a"))
			s.reboot(idA)
			pause(3 * time.Second)
			s.vm = tt.vm
			b, bring := s.lateFile(b, func() {
				s.azure.End(idA)
				s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 2*time.Second + tt.unknown})
			}, e.all("a"))
			pause(4 * time.Second)
			bring()
			pause(3500 * time.Millisecond)
			b.reload(e.all("a")) // whose worker waits too
			pause(100 * time.Millisecond)
			wantIDs(t, e.ids())
			pause(20 * time.Second)
			if got := e.ids(); tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) == 0 || got[0] != tt.want) {
				t.Errorf("told %v, want %q", got, tt.want)
			}
		})
	}
}

// Dead letters in a file that comes late are reported when it is known whose they are, and never by another VM.
func TestALateFilesDeadLettersAreReportedByTheirVM(t *testing.T) {
	for vm, want := range map[string][]string{"": {"delivery.deadlettered"}, "vm-1": {}} {
		bubble(t, func(t *testing.T, s *stage) {
			image := filepath.Join(t.TempDir(), "outbox.db")
			refuses, admin := answering(delivery.ErrRejected), &recorder{}
			b := s.start(refuses.all("a"))
			pause(1600 * time.Millisecond)
			s.reboot(idA)
			pause(600 * time.Millisecond) // it is dead, and to be reported within the second
			b.snapshot(image)
			older := filepath.Join(s.dir, "outbox.db")
			s.vm = vm
			b, bring := s.lateFile(b, func() {
				copyFile(t, image, older)
				s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 8 * time.Second})
			}, admin.trouble("admin"), (&recorder{}).all("a"))
			pause(4 * time.Second)
			bring()
			pause(3500 * time.Millisecond)
			wantIDs(t, admin.types())
			pause(time.Minute)
			wantIDs(t, admin.types(), want...)
		})
	}
}

// An outbox that comes late and is another VM's is set aside all the same.
func TestAForeignOutboxThatComesLateIsSetAside(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.vm = "vm-1"
		b := s.start(answering(errSinkDown).all("a"))
		s.reboot(idA)
		pause(5 * time.Second)
		b.end()
		theirs := filepath.Join(s.dir, "outbox.db")
		s.azure.End(idA)
		s.dir, s.vm = notADirectory(t), ""
		e := &recorder{}
		b = s.up(e.all("a"))
		s.reboot(idB)
		pause(2 * time.Second)
		must(t, os.Remove(filepath.Dir(s.dir)))
		must(t, os.MkdirAll(s.dir, 0o700))
		copyFile(t, theirs, filepath.Join(s.dir, "outbox.db"))
		pause(20 * time.Second)
		wantIDs(t, e.ids(), idB+"-scheduled")
		wantEqual(t, "files were set aside", len(asides(t, s.dir, "foreign")), 1)
		b.end()
		if stored(t, s.dir).Owner() == "" {
			t.Error("the outbox belongs to nobody")
		}
	})
}
