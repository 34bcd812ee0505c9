package bridge_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/iotest"
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
		s.up((&recorder{}).all("a"))
		s.azure.SetFault(imdstest.Fault{Hang: true})
		pollsAnHour := func() int {
			before := s.polls()
			pause(time.Hour)
			return s.polls() - before
		}
		pause(time.Hour)
		first := pollsAnHour()
		pause(24 * time.Hour)
		wantWithin(t, "polls in an hour, after a day", pollsAnHour(), first*9/10, first*2)
	})
}

// Who asks an endpoint that never answered is told that it may be the wrong one; later that is no longer in question.
func TestAnEndpointThatNeverAnsweredMayBeTheWrongOne(t *testing.T) {
	for claim, doubts := range map[string]int{"never": 1, "once": 0} {
		subtest(t, "it answered "+claim, func(t *testing.T, s *stage) {
			fault := imdstest.Fault{Status: 503}
			if claim == "never" {
				s.azure.SetFault(fault)
			}
			s.start()
			pause(5 * time.Second)
			s.azure.SetFault(fault)
			pause(5 * time.Second)
			s.wantLogged("no valid answer from the endpoint; known events stay")
			s.wantLoggedTimes(doubts, imds.EndpointHint("http://azure.test"))
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

// So it does of one whose errors differ only in the port of this side, wherever in an answer the connection breaks.
func TestTheLogSaysOnceThatConnectionsBreak(t *testing.T) {
	for claim, inBody := range map[string]bool{"before the answer": false, "in the answer": true} {
		subtest(t, claim, func(t *testing.T, s *stage) {
			port := 50000
			s.intercept(func(r *http.Request, azure http.RoundTripper) (*http.Response, error) {
				port++
				broken := &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 4), Port: port},
					Addr: &net.TCPAddr{IP: net.IPv4(169, 254, 169, 254), Port: 80}, Err: errors.New("connection reset by peer")}
				if !inBody {
					return nil, broken
				}
				resp, err := azure.RoundTrip(r)
				if err == nil {
					resp.Body = io.NopCloser(iotest.ErrReader(broken))
				}
				return resp, err
			})
			s.start()
			pause(time.Hour)
			s.wantLoggedTimes(1, "no valid answer from the endpoint; known events stay")
			s.wantLogged("read tcp 169.254.169.254:80: connection reset by peer")
		})
	}
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

// A hint that the first answer takes Azure long is given after 10 s without one of any kind, once, and not after an error.
func TestAnErrorIsNotTakenForTheLongFirstAnswer(t *testing.T) {
	const hint = "answer can take two minutes"
	for _, tt := range []struct {
		claim string
		fault imdstest.Fault
		hints int
	}{
		{"no answer at all", imdstest.Fault{Hang: true}, 1},
		{"an answer after 40 s", imdstest.Fault{Delay: 40 * time.Second}, 1},
		{"a refusal", imdstest.Fault{Status: 403}, 0},
		{"not found", imdstest.Fault{Status: 404}, 0},
		{"a page", imdstest.Fault{HTML: true}, 0},
		{"an answer", imdstest.Fault{}, 0},
	} {
		subtest(t, tt.claim, func(t *testing.T, s *stage) {
			s.azure.SetFault(tt.fault)
			s.start((&recorder{}).all("a"))
			pause(9 * time.Second)
			s.wantLoggedTimes(0, hint)
			for range 2 {
				pause(1500 * time.Millisecond)
				s.wantLoggedTimes(tt.hints, hint)
				pause(time.Minute)
			}
		})
	}
}

// A start while the endpoint hangs waits as long for it as any poll does when events were switched on already, and as
// long as switching them on may take when they were not, or nobody has asked for them for a day.
func TestAStartWaitsLongOnlyForTheVeryFirstAnswer(t *testing.T) {
	const heard = idA + "-scheduled"
	for claim, tt := range map[string]struct {
		away time.Duration // since it ran last; 0 if it never did
		soon []string      // is heard within 20 s
	}{
		"the first start":        {0, nil},
		"a restart":              {time.Minute, []string{heard}},
		"a restart within a day": {24*time.Hour - time.Minute, []string{heard}},
		"a restart after a day":  {24*time.Hour + time.Minute, nil},
	} {
		subtest(t, claim, func(t *testing.T, s *stage) {
			audit := &recorder{}
			if tt.away > 0 {
				s.up(audit.all("audit")).end()
				pause(tt.away)
			}
			s.azure.SetFault(imdstest.Fault{Hang: true, Times: 1})
			s.reboot(idA)
			s.start(audit.all("audit"))
			pause(20 * time.Second)
			wantIDs(t, audit.ids(), tt.soon...)
			pause(3 * time.Minute)
			wantIDs(t, audit.ids(), heard)
		})
	}
}
