package bridge_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// Whatever the endpoint answers for a minute, unless it is a valid document, what is known stays: nothing is told, and
// what happens afterwards is told as if nothing had been.
func TestAFailedPollChangesNothing(t *testing.T) {
	systemtest.Alone(t)
	body := func(s string) imdstest.Fault { return imdstest.Fault{Body: s} }
	for _, tt := range []struct {
		claim string
		fault imdstest.Fault
	}{
		{"an error of the service", imdstest.Fault{Status: 500}},
		{"a service that is being restarted", imdstest.Fault{Status: 503}},
		{"too many requests", imdstest.Fault{Status: 429}},
		{"no such page", imdstest.Fault{Status: 404}},
		{"gone", imdstest.Fault{Status: 410}},
		{"forbidden", imdstest.Fault{Status: 403}},
		{"a redirect", imdstest.Fault{Status: 302}},
		{"no content", imdstest.Fault{Status: 204}},
		{"a proxy's page", imdstest.Fault{HTML: true}},
		{"a proxy's page with an error status", imdstest.Fault{Status: 502, HTML: true}},
		{"a body that was cut", imdstest.Fault{Truncate: 30}},
		{"a body that was cut and looks whole", imdstest.Fault{Truncate: 30, NoLength: true}},
		{"an empty body ended by the connection", imdstest.Fault{Empty: true, NoLength: true}},
		{"a body ended by the connection", imdstest.Fault{Body: `{"DocumentIncarnation":9,"Events":[]}`, NoLength: true}},
		{"a body shorter than it says", imdstest.Fault{ContentLength: 5000}},
		{"no answer", imdstest.Fault{Hang: true}},
		{"an answer that comes too late", imdstest.Fault{Delay: 15 * time.Second}},
		{"JSON of something else", body(`{"error":"Internal Server Error"}`)},
		{"Events that are no list", body(`{"DocumentIncarnation":9,"Events":"none"}`)},
		{"a list", body(`[]`)},
		{"a word", body(`"ok"`)},
		{"null", body(`null`)},
		{"an entry without EventId", body(`{"DocumentIncarnation":9,"Events":[{"EventType":"Reboot"}]}`)},
		{"an EventId that is no text", body(`{"DocumentIncarnation":9,"Events":[{"EventId":7}]}`)},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			e := &recorder{}
			s.up(e.all("a"))
			s.reboot(idA)
			pause(2 * time.Second)
			tt.fault.For = time.Minute
			s.azure.SetFault(tt.fault)
			pause(100 * time.Second)
			wantIDs(t, e.ids(), idA+"-scheduled")
			s.azure.Start(idA)
			pause(2 * time.Second)
			s.azure.End(idA)
			pause(2 * time.Second)
			wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started", idA+"-vanished")
		})
	}
}

// A failed poll is followed by another soon, and the waits stay short: half a minute is all the notice some events
// give.
func TestAFailingEndpointIsAskedAgainSoon(t *testing.T) {
	for _, tt := range []struct {
		fault   imdstest.Fault
		atLeast int // polls in five minutes
		atMost  int
	}{
		{imdstest.Fault{Status: 503}, 18, 60},
		{imdstest.Fault{Status: 403}, 9, 12}, // the same until somebody acts
		{imdstest.Fault{Status: 429, RetryAfter: "20"}, 14, 17},
		{imdstest.Fault{Status: 503, RetryAfter: "3600"}, 5, 7},
	} {
		subtest(t, fmt.Sprint(tt.fault.Status, " ", tt.fault.RetryAfter), func(t *testing.T, s *stage) {
			s.start((&recorder{}).all("a"))
			pause(10 * time.Second)
			before := s.polls()
			s.azure.SetFault(tt.fault)
			pause(5 * time.Minute)
			wantWithin(t, "polls in five minutes", s.polls()-before, tt.atLeast, tt.atMost)
		})
	}
}

// While requests fail, the waits double from one second to a limit, and stay there: sixteen seconds for the document,
// a minute for instance metadata, for which the first document asks once more.
func TestTheWaitsAfterFailuresDouble(t *testing.T) {
	for path, want := range map[string][]int{
		imdstest.ScheduledEvents: {1, 2, 4, 8, 16, 16, 16},
		imdstest.InstanceFacts:   {0, 1, 2, 4, 8, 16, 32, 60, 60},
	} {
		subtest(t, path, func(t *testing.T, s *stage) {
			s.opts.Random = func() float64 { return 0.9999 } // so that no wait is cut
			s.azure.SetFault(imdstest.Fault{Path: path, Status: 500})
			s.start((&recorder{}).all("a"))
			pause(4 * time.Minute)
			isOther := func(r imdstest.Request) bool { return !strings.Contains(r.Path, path) }
			requests := slices.DeleteFunc(s.azure.Requests(), isOther)
			var waits []int
			for i := range want {
				wait := requests[i+1].Time.Sub(requests[i].Time)
				waits = append(waits, int(wait.Round(time.Second).Seconds()))
			}
			if !slices.Equal(waits, want) {
				t.Errorf("the waits are %v s, want %v", waits, want)
			}
		})
	}
}

// An empty answer, or null for Events, means no events when the next answer says so too.
func TestAnEmptyAnswerCountsOnlyWhenTheNextConfirmsIt(t *testing.T) {
	empty := imdstest.Fault{Empty: true}
	null := imdstest.Fault{Body: `{"DocumentIncarnation":9,"Events":null}`}
	failed := imdstest.Fault{Status: 503}
	for _, tt := range []struct {
		claim   string
		answers []imdstest.Fault
		over    bool
	}{
		{"one empty answer", []imdstest.Fault{empty}, false},
		{"two", []imdstest.Fault{empty, empty}, true},
		{"one null", []imdstest.Fault{null}, false},
		{"two", []imdstest.Fault{null, null}, true},
		{"one of each", []imdstest.Fault{empty, null}, true},
		{"two with a document between", []imdstest.Fault{empty, {}, empty}, false},
		{"two with a failure between", []imdstest.Fault{empty, failed, empty}, false},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			e := &recorder{}
			s.up(e.all("a"))
			s.reboot(idA)
			pause(1500 * time.Millisecond)
			for _, answer := range tt.answers {
				s.answersOnce(answer)
				s.azure.ClearFaults()
			}
			wantEqual(t, "over", slices.Contains(e.types(), "vanished"), tt.over)
		})
	}
}

// answersOnce has the next poll answered so, and waits for it.
func (s *stage) answersOnce(answer imdstest.Fault) {
	before := s.polls()
	answer.Times = 1
	s.azure.SetFault(answer)
	for s.polls() == before {
		pause(100 * time.Millisecond)
	}
	pause(100 * time.Millisecond)
}

// That holds too when the last valid answer was empty as well.
func TestAnEmptyAnswerAfterFailuresIsToBeConfirmed(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Empty: true})
		e := &recorder{}
		s.start(e.all("a"))
		pause(10 * time.Second)
		s.azure.SetFault(imdstest.Fault{Status: 503})
		pause(2 * time.Minute)
		s.reboot(idA)
		s.answersOnce(imdstest.Fault{Empty: true})
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled")
		// If one empty answer counted as valid, what came while the endpoint failed would not be found late.
		wantEqual(t, "whileAway", e.last(t).WhileAway, true)
	})
}

// The endpoint is healthy and empty for hours by way of empty answers: that is not trouble.
func TestEmptyAnswersAreAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Empty: true})
		e := &recorder{}
		b := s.start(e.all("a").With(func(x *bridge.Terms) { x.Bridge = bridge.LevelTrouble }))
		pause(20 * time.Minute)
		if st := b.Status(); !st.Ready || st.IMDS.LastError != "" {
			t.Errorf("status is %v %v", st.Ready, st.IMDS.LastError)
		}
		wantIDs(t, e.ids())
		wantEqual(t, "If-None-Match, without a document", strings.Join(s.conditions(), ""), "")
	})
}

// What is in a document counts, and not its number: that starts over, and stays the same while the content changes.
func TestTheIncarnationNumberIsNotLookedAt(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		s.up(e.all("a"))
		s.reboot(idA)
		s.reboot(idB)
		pause(2 * time.Second)
		s.azure.ResetIncarnation()
		pause(65 * time.Second)
		s.azure.End(idB)
		s.azure.SetIncarnation(s.azure.Incarnation() - 1)
		pause(65 * time.Second) // the ETag says that nothing changed, until the poll that does not ask so
		wantIDs(t, e.ids(), idA+"-scheduled", idB+"-scheduled", idB+"-vanished")
	})
}

// A document holding an entry that cannot be read makes nothing vanish, and what can be read in it counts.
func TestAPartialDocumentMakesNothingVanish(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{}
		s.up(e.all("a"))
		s.reboot(idA)
		pause(2 * time.Second)
		s.document(9, `{"EventType":"Freeze"}`, rebootEntry(idB, "Scheduled"))
		pause(2 * time.Minute)
		wantIDs(t, e.ids(), idA+"-scheduled", idB+"-scheduled")
		s.document(10, `{"EventType":"Freeze"}`, rebootEntry(idB, "Started"))
		pause(2 * time.Minute)
		wantIDs(t, e.ids(), idA+"-scheduled", idB+"-scheduled", idB+"-started")
		s.wantLoggedTimes(1, "no readable EventId")
	})
}

// If-None-Match is sent with the ETag of the document that is committed and understood, and left out when that could
// hide something.
func TestIfNoneMatch(t *testing.T) {
	for _, tt := range []struct {
		claim    string
		happens  func(s *stage, b *running)
		expected []string // with the polls of the next seconds
	}{
		{"is that of the newest document", func(s *stage, _ *running) { s.reboot(idA) }, []string{"1", "2"}},
		{"is left out after a failed poll", func(s *stage, _ *running) {
			s.azure.SetFault(imdstest.Fault{Status: 503, Times: 1})
		}, []string{"1", "", "1"}},
		{"is left out after an empty answer", func(s *stage, _ *running) {
			s.azure.SetFault(imdstest.Fault{Empty: true, Times: 1})
		}, []string{"1", "", "1"}},
		{"is left out after a reload", func(_ *stage, b *running) { b.reload((&recorder{}).all("b")) }, []string{"", "1"}},
		{"is never of a document that was not understood", func(s *stage, _ *running) {
			s.document(7, `{"EventId":"`+idA+`","NotBefore":"tomorrow"}`)
			pause(4 * time.Second)
			s.azure.SetDocument(nil)
		}, []string{"1", "", "", "", "", "1"}},
		{"is never of an empty answer", func(s *stage, _ *running) {
			s.azure.SetDocument([]byte(`{"DocumentIncarnation":7,"Events":null}`))
		}, []string{"1", "", "", ""}},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			b := s.up((&recorder{}).all("a"))
			pause(time.Minute)
			before := s.polls()
			tt.happens(s, b)
			pause(5 * time.Second)
			wantIDs(t, s.conditions()[before:][:len(tt.expected)], tt.expected...)
		})
	}
	subtest(t, "is sent from the second poll on, and never kept for the next start", func(t *testing.T, s *stage) {
		for range 2 {
			b := s.start((&recorder{}).all("a"))
			pause(2500 * time.Millisecond)
			b.end()
		}
		wantIDs(t, s.conditions(), "", "1", "1", "", "1", "1")
	})
	subtest(t, "is left out once a minute", func(t *testing.T, s *stage) {
		s.start((&recorder{}).all("a"))
		pause(4*time.Minute + 500*time.Millisecond)
		full := slices.DeleteFunc(s.conditions(), func(c string) bool { return c != "" })
		wantEqual(t, "polls in four minutes", s.polls(), 241)
		wantEqual(t, "polls without it", len(full), 5)
	})
	subtest(t, "is left out while the outbox is not on disk", func(t *testing.T, s *stage) {
		s.dir = notADirectory(t)
		b := s.start((&recorder{}).all("a"))
		s.reboot(idA)
		pause(10 * time.Second)
		wantEqual(t, "conditions", strings.Join(s.conditions(), ""), "")
		b.cancel()
		<-b.done
	})
}

// sameIncarnation is what the log says when Azure breaks its own rule for DocumentIncarnation.
const sameIncarnation = "the document changed but its incarnation did not"

// A document that changes under one incarnation is compared all the same, and the log says once that Azure does that. Of
// changes with a number of their own it says nothing, nor of documents without one, nor of the same document that is
// read again after a reload and until the disk takes it.
func TestAChangeUnderTheSameIncarnationIsLogged(t *testing.T) {
	subtest(t, "with numbers", func(t *testing.T, s *stage) {
		e := &recorder{}
		b := s.start(e.all("a"))
		serve := func(logged, incarnation int, entries ...string) {
			s.document(incarnation, entries...)
			pause(bridge.FullPoll + 5*time.Second) // the number is the ETag too
			s.wantLoggedTimes(logged, sameIncarnation)
		}
		serve(0, 5)
		s.disk.fail(errFull)
		serve(0, 6, rebootEntry(idA, "Scheduled"))
		s.disk.fail(nil)
		pause(time.Minute)
		b.reload(b.Routes...)
		pause(time.Minute)
		s.wantLoggedTimes(0, sameIncarnation)
		serve(1, 6, rebootEntry(idA, "Started"))
		serve(1, 7)
		wantIDs(t, e.types(), "scheduled", "started", "vanished")
	})
	subtest(t, "without", func(t *testing.T, s *stage) {
		e := &recorder{}
		s.start(e.all("a"))
		for _, status := range []string{"Scheduled", "Started"} {
			s.azure.SetDocument([]byte(`{"Events":[` + rebootEntry(idA, status) + `]}`))
			pause(bridge.FullPoll + 5*time.Second)
		}
		wantIDs(t, e.types(), "scheduled", "started")
		s.wantLoggedTimes(0, sameIncarnation)
	})
}

// A host that goes back to the configured api-version shows more of the same document; nobody is alarmed by that, and
// nothing counts as updated.
func TestAReturnToTheConfiguredVersionIsNoChange(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		s.azure.SetFault(imdstest.Fault{NewestVersion: "2019-08-01"})
		e := &recorder{}
		s.up(e.all("a"))
		s.redeploy(idA, 5*time.Hour)
		pause(time.Minute)
		s.azure.ClearFaults()
		pause(time.Hour) // after which the configured one is tried again
		wantIDs(t, e.ids(), idA+"-scheduled")
		s.wantLogged("accepts the configured api-version again")
		s.wantLoggedTimes(0, sameIncarnation)
	})
}
