package bridge_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/imds"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/systemtest"
)

// Only the first answer may take as long as Azure needs to switch events on: an endpoint that stops answering is asked
// as often after a day as before.
func TestAnEndpointThatHangsForADayIsStillAskedOften(t *testing.T) {
	systemtest.Alone(t)
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		s.start((&recorder{}).all("a"))
		pause(2 * time.Second)
		s.azure.SetFault(imdstest.Fault{Hang: true})
		pause(time.Hour)
		before := s.polls()
		pause(time.Hour)
		first := s.polls() - before
		pause(24 * time.Hour)
		before = s.polls()
		pause(time.Hour)
		if last := s.polls() - before; last < first*9/10 {
			t.Errorf("it was asked %d times in the second hour, and %d times after a day", first, last)
		}
	})
}

// The first document waits for the name of this VM, but for three seconds at most, and longer only where the outbox
// may turn out to be another VM's.
func TestTheFirstDocumentWaitsForTheNameButNotLong(t *testing.T) {
	for _, tt := range []struct {
		claim string
		fault imdstest.Fault
		wait  time.Duration
	}{
		{"metadata answers", imdstest.Fault{}, 0},
		{"metadata answers late", imdstest.Fault{Delay: 2 * time.Second}, 2 * time.Second},
		{"metadata hangs", imdstest.Fault{Hang: true}, 3 * time.Second},
		{"metadata refuses to answer", imdstest.Fault{Status: 403}, 0},
		{"metadata has no answer", imdstest.Fault{Status: 404}, 3 * time.Second},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			tt.fault.Path = imdstest.InstanceFacts
			s.azure.SetFault(tt.fault)
			s.reboot(idA)
			e := &recorder{}
			began := time.Now()
			s.start(e.all("a"))
			pause(12 * time.Second)
			if h := e.accepted(); len(h) != 1 || h[0].at.Sub(began).Round(100*time.Millisecond) != tt.wait {
				t.Errorf("heard %v, want it after %v", h, tt.wait)
			}
			said := strings.Contains(s.log.String(), "waiting for the VM name; until then sinks are told only of what begins within 15 minutes")
			if want := tt.wait == 3*time.Second; said != want {
				t.Errorf("the log says that it waits for the name: %t, want %t", said, want)
			}
		})
	}
	subtest(t, "metadata answers late, and the event begins meanwhile", func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Delay: 2 * time.Second})
		s.reboot(idA)
		time.AfterFunc(time.Second, func() { s.azure.Start(idA) })
		e := &recorder{}
		s.start(e.all("a"))
		pause(12 * time.Second)
		wantIDs(t, e.ids(), idA+"-started") // the document of before is too old by then
	})
	subtest(t, "metadata hangs, and something of a past run is pending", func(t *testing.T, s *stage) {
		e := answering(errSinkDown)
		b := s.up(e.all("a"))
		s.reboot(idA)
		pause(2 * time.Second)
		s.azure.End(idA) // so no event is open
		pause(2 * time.Second)
		b.end()
		e.say(nil)
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		began := time.Now()
		b = s.start(e.all("a"))
		pause(12 * time.Second)
		h := e.accepted()
		wantIDs(t, idsOf(h), idA+"-scheduled", idA+"-vanished")
		if len(h) > 0 && h[0].at.Sub(began).Round(100*time.Millisecond) != 10*time.Second {
			t.Errorf("the first was delivered after %v, want 10 s", h[0].at.Sub(began))
		}
	})
	subtest(t, "metadata never answered, so what is pending can't be another VM's", func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Hang: true})
		s.reboot(idA)
		e := answering(errSinkDown)
		b := s.start(e.all("a"))
		pause(10 * time.Second)
		b.end()
		e.say(nil)
		began := time.Now()
		s.start(e.all("a"))
		pause(12 * time.Second)
		h := e.accepted()
		wantIDs(t, idsOf(h), idA+"-scheduled")
		if len(h) > 0 && h[0].at.Sub(began).Round(100*time.Millisecond) != 3*time.Second {
			t.Errorf("it was delivered after %v, want 3 s", h[0].at.Sub(began))
		}
	})
	subtest(t, "the endpoint comes up a minute after the start, and metadata with it", func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Path: imdstest.InstanceFacts, Status: 503, For: 70 * time.Second})
		s.azure.SetFault(imdstest.Fault{Status: 503, For: 70 * time.Second})
		s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot", Resources: []string{"vm-1"}})
		s.proxy = func(next http.RoundTripper) http.RoundTripper {
			return refusing{next, time.Now().Add(70 * time.Second)}
		}
		self, all := &recorder{}, &recorder{}
		r := self.all("self")
		r.Filter.Only.VMs = ""
		s.start(r, all.all("all"))
		pause(2 * time.Minute)
		wantIDs(t, all.ids(), idA+"-scheduled")
		wantIDs(t, self.ids()) // it is known by then that this is vm-0
	})
}

// refusing refuses connections for a while.
type refusing struct {
	http.RoundTripper
	until time.Time
}

func (r refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	if time.Now().Before(r.until) {
		return nil, errSinkDown
	}
	return r.RoundTripper.RoundTrip(req)
}

// Who asks an endpoint that never answered is told that it may be the wrong one; later that is no longer in question.
func TestAnEndpointThatNeverAnsweredMayBeTheWrongOne(t *testing.T) {
	for _, answered := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *stage) {
			fault := imdstest.Fault{Status: 503}
			if !answered {
				s.azure.SetFault(fault)
			}
			s.start()
			pause(5 * time.Second)
			s.azure.SetFault(fault)
			pause(5 * time.Second)
			s.wantLogged("no valid answer from the endpoint; known events stay")
			if doubted := strings.Contains(s.log.String(), imds.EndpointHint("http://azure.test")); doubted == answered {
				t.Errorf("after an answer: %v; the address is doubted: %v", answered, doubted)
			}
		})
	}
}

// Of an outage the log says why, once, and when it is over, however short it was; and so of the next.
func TestTheLogSaysOfEachOutageWhyAndWhenItIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.start((&recorder{}).all("a"))
		pause(10 * time.Second)
		once, long := imdstest.Fault{Status: 503, Times: 1}, imdstest.Fault{Status: 503, For: time.Minute}
		for n, outage := range []imdstest.Fault{once, long, once} {
			s.wantLoggedTimes(n, "endpoint answers again")
			s.azure.SetFault(outage)
			pause(2 * time.Minute)
			s.wantLoggedTimes(n+1, "no valid answer from the endpoint; known events stay")
		}
		s.wantLoggedTimes(2, `"endpoint answers again" after=1`)
	})
}

// A stop that ends a poll is no failure of the endpoint: the log does not speak of one.
func TestAStopIsNoFailureOfTheEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Hang: true})
		b := s.start()
		pause(5 * time.Second)
		b.end()
		s.wantLoggedTimes(0, "no valid answer")
	})
}

// A hint that the first answer takes Azure long is given while there is none of any kind, and not after an error.
func TestAnErrorIsNotTakenForTheLongFirstAnswer(t *testing.T) {
	const hint = "answer can take two minutes"
	for _, tt := range []struct {
		claim  string
		fault  imdstest.Fault
		hinted bool
	}{
		{"no answer at all", imdstest.Fault{Hang: true}, true},
		{"an answer after 40 s", imdstest.Fault{Delay: 40 * time.Second}, true},
		{"a refusal", imdstest.Fault{Status: 403}, false},
		{"not found", imdstest.Fault{Status: 404}, false},
		{"a page", imdstest.Fault{HTML: true}, false},
		{"an answer", imdstest.Fault{}, false},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			s.azure.SetFault(tt.fault)
			s.start((&recorder{}).all("a"))
			pause(9 * time.Second)
			s.wantLoggedTimes(0, hint)
			pause(1500 * time.Millisecond)
			if hinted := strings.Contains(s.log.String(), hint); hinted != tt.hinted {
				t.Errorf("hinted after 10 s: %v, want %v", hinted, tt.hinted)
			}
			pause(time.Minute)
			if n := strings.Count(s.log.String(), hint); (n == 1) != tt.hinted || n > 1 {
				t.Errorf("hinted %d times, want it %v", n, tt.hinted)
			}
		})
	}
}

// A start while the endpoint hangs waits as long for it as any poll does when events were switched on already, and as
// long as switching them on may take when they were not, or nobody has asked for them for a day.
func TestAStartWaitsLongOnlyForTheVeryFirstAnswer(t *testing.T) {
	for claim, tt := range map[string]struct {
		before bool          // it ran
		away   time.Duration // since
		late   bool
	}{
		"the first start":        {false, 0, true},
		"a restart":              {true, time.Minute, false},
		"a restart within a day": {true, 24*time.Hour - time.Minute, false},
		"a restart after a day":  {true, 24*time.Hour + time.Minute, true},
	} {
		subtest(t, claim, func(t *testing.T, s *stage) {
			audit := &recorder{}
			if tt.before {
				b := s.start(audit.all("audit"))
				pause(5 * time.Second)
				b.end()
				pause(tt.away)
			}
			s.azure.SetFault(imdstest.Fault{Hang: true, Times: 1})
			s.reboot(idA)
			s.start(audit.all("audit"))
			pause(20 * time.Second)
			if late := len(audit.ids()) == 0; late != tt.late {
				t.Errorf("after 20 s it has heard %s, want nothing yet: %t", audit.ids(), tt.late)
			}
			pause(3 * time.Minute)
			wantIDs(t, audit.ids(), idA+"-scheduled")
		})
	}
}
