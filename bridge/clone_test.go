package bridge_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
)

// Nothing of a clone's outbox is sent, not even what is open in it, and the new VM's events are told from the start.
func TestNothingOfAClonedOutboxIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.up(answering(errSinkDown).all("a"))
		s.reboot(idA)
		pause(5 * time.Second)
		b.end()
		s.vm = "vm-1"
		s.azure.End(idA)
		s.reboot(idB)
		e := &recorder{}
		b = s.start(e.all("a").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelAll }))
		pause(5 * time.Minute)
		told := e.types()
		slices.Sort(told)
		wantIDs(t, told, "scheduled", "started")
		for _, h := range e.accepted() {
			if strings.Contains(h.Event.ID(), idA) {
				t.Errorf("heard %s of the other VM", h.Event.ID())
			}
			wantSays(t, h, map[string]any{"gap": nil, "notEarlierThan": nil}) // since the other VM's last answer
		}
		wantEqual(t, "this VM", b.Status().Observer.Name, "vm-1")
	})
}

// That holds for a sink that comes with a reload in the first seconds too, while it isn't known yet whose the outbox is.
func TestNothingOfAClonedOutboxIsOfferedToASinkThatAReloadBrings(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.up((&recorder{}).all("a"))
		s.reboot(idA)
		pause(5 * time.Second)
		b.end()
		s.vm = "vm-1"
		s.azure.End(idA)
		s.metadata(imdstest.Fault{Status: 503, For: 5 * time.Second})
		b = s.up((&recorder{}).all("a"))
		comes := &recorder{}
		b.reload(comes.all("comes"))
		pause(time.Minute)
		wantIDs(t, comes.types())
	})
}

// Whose the outbox is may be known only when the first events are open already. They are the new VM's and go on, though
// the rest of the outbox is forgotten.
func TestTheEventsOfACloneOutliveItsOutbox(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		b := s.start((&recorder{}).all("a"))
		pause(5 * time.Second)
		b.end()
		s.vm = "vm-1"
		s.reboot(idA)
		s.metadata(imdstest.Fault{Status: 503, For: 20 * time.Second})
		e := &recorder{}
		b = s.start(e.all("a"))
		pause(5 * time.Minute)
		wantEqual(t, "events are open", len(b.Status().Events), 1)
		s.azure.End(idA)
		pause(5 * time.Second)
		wantEqual(t, "heard last", e.last(t).Change, imds.Vanished)
	})
}

// An outbox that comes late and is another VM's is set aside all the same.
func TestAForeignOutboxThatComesLateIsSetAside(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.vm = "vm-1"
		b := s.start(answering(errSinkDown).all("a"))
		s.reboot(idA)
		pause(5 * time.Second)
		e := &recorder{}
		b, bring := s.lateFile(b, func() {
			s.azure.End(idA)
			s.vm = ""
		}, e.all("a"))
		pause(2 * time.Second)
		s.reboot(idB)
		pause(2 * time.Second)
		bring()
		pause(20 * time.Second)
		wantIDs(t, e.ids(), idB+"-scheduled")
		wantEqual(t, "files set aside", len(asides(t, s.dir, "foreign")), 1)
		b.end()
		wantEqual(t, "it belongs to nobody", stored(t, s.dir).Owner() == "", false)
	})
}
