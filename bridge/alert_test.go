package bridge_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
)

// Who hears that an event isn't started early hears when it begins after all and that it is over, also if its filter
// leaves the event out: else people wait for a time that no longer holds, and an incident is never resolved. A list of
// changes still holds for the changes. What starts something gets no event that its filter leaves out, and no rule counts
// what a sink accepts only because of the trouble.
func TestWhoHearsThatAnApprovalFailedHearsWhatBecomesOfTheEvent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		other := namedRule()
		other.Name, other.After = "once people know", []string{"on-call"}
		s.opts.Rules = []bridge.Rule{namedRule(), other}
		ofTrouble := func(r *bridge.Terms) { r.Bridge = bridge.LevelTrouble }
		drain := answering(delivery.ErrRejected)
		onCall, ends, page, job := &recorder{}, &recorder{}, &recorder{}, &recorder{}
		last := ends.all("ends").With(ofTrouble).OnlyChanges("first", "vanished")
		routes := []bridge.Route{
			drain.all("drain").With(func(r *bridge.Terms) { r.Acts = true }), last,
			onCall.all("on-call").With(ofTrouble).OnlyTypes("Freeze"),
			page.all("page").With(ofTrouble).With(func(r *bridge.Terms) { r.Late = delivery.LateLatest }).OnlyTypes("Freeze"),
			job.all("job").With(ofTrouble).With(func(r *bridge.Terms) { r.Late = delivery.LateDrop }).OnlyTypes("Freeze"),
		}
		b := s.up(routes...)
		s.userReboot(idA)
		pause(2 * time.Minute)
		wantIDs(t, s.approvals())
		b.end()
		b = s.start(routes...)
		pause(time.Minute)
		drain.say(nil)
		for _, letter := range b.deadLetters() {
			b.replay(letter, "")
		}
		pause(time.Minute)
		wantIDs(t, s.approvals(), idA)
		s.azure.Start(idA)
		pause(time.Minute)
		s.azure.End(idA)
		pause(time.Minute)
		wantIDs(t, eventTypes(onCall), "scheduled", "approved", "approved", "started", "vanished")
		wantIDs(t, eventTypes(page), "approved", "approved", "started", "vanished")
		first := slices.IndexFunc(page.accepted(), func(h heard) bool { return strings.HasSuffix(h.Event.Type(), ".approved") })
		wantEqual(t, "missed, as people read with the failure", len(page.accepted()[first].Missed), 1)
		wantEqual(t, "the change that they missed", page.accepted()[first].Missed[0].Change, "scheduled")
		wantIDs(t, eventTypes(ends), "scheduled", "approved", "approved", "vanished")
		wantIDs(t, eventTypes(job), "approved", "approved")
	})
}

// A sink that was told of the event in another one's place isn't told of it anew when its approval fails.
func TestAFallbackThatHearsOfTroubleIsNotToldOfTheEventAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Rules = []bridge.Rule{namedRule()}
		drain, mail := answering(errSinkDown), &recorder{}
		chat := answering(errRefused).all("chat").With(func(r *bridge.Terms) {
			r.Fallback = delivery.Fallback{Sink: "mail", After: 10 * time.Second}
		})
		s.start(drain.all("drain"), chat, mail.all("mail").OnlyTypes("Freeze").With(func(r *bridge.Terms) {
			r.Bridge, r.Late = bridge.LevelTrouble, delivery.LateLatest
		}))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(30 * time.Second)
		drain.say(always(delivery.ErrRejected))
		pause(2 * time.Minute)
		s.azure.Start(idA)
		pause(time.Minute)
		wantIDs(t, eventTypes(mail), "scheduled", "approved", "started")
		for _, h := range mail.accepted() {
			wantEqual(t, "missed", len(h.Missed), 0)
		}
	})
}

// eventTypes returns the types of what was accepted about events.
func eventTypes(e *recorder) []string {
	return slices.DeleteFunc(e.types(), func(typ string) bool { return strings.Contains(typ, ".") })
}

// Azure refuses an approval of what ended meanwhile. Who never heard of the event isn't told then that it is to come.
func TestARefusalAfterTheEndAnnouncesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPost {
					s.azure.End(idA)
					pause(5 * time.Second)
				}
				return next.RoundTrip(r)
			})
		}
		audit, page := &recorder{}, &recorder{}
		b := s.start(audit.all("audit"), page.all("page").OnlyTypes("Freeze").With(func(r *bridge.Terms) {
			r.Bridge = bridge.LevelTrouble
		}))
		pause(1500 * time.Millisecond)
		s.userReboot(idA)
		pause(1500 * time.Millisecond)
		b.approve(idA, cloudevent.ResultRefused)
		pause(5 * time.Second)
		wantIDs(t, eventTypes(audit), "scheduled", "vanished", "approved")
		wantIDs(t, eventTypes(page), "approved")
	})
}
