package bridge_test

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imdstest"
)

// A town has a metadata service at those hosts that are open, and nothing at the others. DHCP names every open one but
// azure.test, which has the fixed address.
type town struct {
	service http.RoundTripper
	mu      sync.Mutex
	open    []string
	looked  int // searches
	dhcp    int // searches that came to DHCP
}

func (w *town) RoundTrip(r *http.Request) (*http.Response, error) {
	if !w.isOpen(r.URL.Host) {
		return nil, errSinkDown
	}
	return w.service.RoundTrip(r)
}

func (w *town) isOpen(host string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.open, host)
}

func (w *town) set(open ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = open
}

// search finds what is open; DHCP names nothing at the first so many times.
func (w *town) search(inVain int) func(context.Context, string) (bridge.Found, error) {
	return func(_ context.Context, stored string) (bridge.Found, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.looked++
		if slices.Contains(w.open, "azure.test") {
			return bridge.Found{"http://azure.test", bridge.FoundFixed}, nil
		}
		if slices.Contains(w.open, strings.TrimPrefix(stored, "http://")) {
			return bridge.Found{stored, bridge.FoundStored}, nil
		}
		if w.dhcp++; w.dhcp <= inVain || len(w.open) == 0 {
			return bridge.Found{}, errors.New("no endpoint found: DHCP on eth0: nobody answered")
		}
		return bridge.Found{"http://" + w.open[0], bridge.FoundDHCP}, nil
	}
}

func (w *town) dhcpAsked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dhcp
}

// While nothing answers, searches are 10 s, 30 s and then a minute apart, for as long as it takes.
func TestSearchesForTheEndpointBecomeRarer(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		w := &town{service: s.azure.RoundTripper()}
		s.proxy = func(http.RoundTripper) http.RoundTripper { return w }
		var at []time.Duration
		began := time.Now()
		s.opts.Discover = func(context.Context, string) (bridge.Found, error) {
			at = append(at, time.Since(began))
			return bridge.Found{}, errors.New("no endpoint found")
		}
		b := s.start((&ear{}).all("a"))
		pause(170 * time.Second)
		b.end()
		want := []time.Duration{0, 10 * time.Second, 40 * time.Second, 100 * time.Second, 160 * time.Second}
		if !slices.Equal(at, want) {
			t.Errorf("searched after %v, want %v", at, want)
		}
	})
}

// The endpoint is looked for at the start and for as long as it takes; then it is polled, shown, and stored, so that
// after a restart DHCP is not needed. When it goes away it is looked for again.
func TestABridgeFindsItsEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		w := &town{service: s.azure.RoundTripper()}
		w.set("168.63.129.16:8080")
		s.proxy = func(http.RoundTripper) http.RoundTripper { return w }
		s.opts.Discover = w.search(3)
		e := &ear{}
		b := s.start(e.all("a"))
		pause(30 * time.Second)
		if got := b.Status().IMDS.Endpoint; got != "http://azure.test" {
			t.Errorf("with nothing found it polls %s", got)
		}
		s.wantLogged("endpoint not found; searching again")
		s.wantLogged("DHCP on eth0: nobody answered")
		if n := strings.Count(s.log.String(), "endpoint not found"); n != 1 {
			t.Errorf("the same failure was logged %d times", n)
		}
		pause(3 * time.Minute)
		s.reboot(idA)
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled")
		if got := b.Status().IMDS.Endpoint; got != "http://168.63.129.16:8080" || b.Status().Observer.Name != "vm-0" {
			t.Errorf("it polls %s as %q", got, b.Status().Observer.Name)
		}
		s.wantLogged("endpoint found")
		b.end()

		asked := w.dhcpAsked()
		if asked != 4 {
			t.Errorf("DHCP was asked %d times, want 4", asked)
		}
		b = s.start(e.all("a"))
		pause(30 * time.Second)
		s.azure.Start(idA)
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started")

		w.set("azure.test") // it has moved into a virtual network
		pause(3 * time.Minute)
		s.azure.End(idA)
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started", idA+"-vanished")
		if got := b.Status().IMDS.Endpoint; got != "http://azure.test" {
			t.Errorf("it polls %s, want the fixed one again", got)
		}
		if n := w.dhcpAsked(); n != asked {
			t.Errorf("DHCP was asked %d times more", n-asked)
		}
		b.end()
		if got := string(stored(t, s.dir).Value(bridge.ValueEndpoint)); got != "http://168.63.129.16:8080" {
			t.Errorf("stored is %q", got)
		}
	})
}

// The log names each endpoint that is moved to, and one that is found again after a search in vain, and no other.
func TestTheLogNamesTheEndpointThatWasFound(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Status: 503})
		finds := []string{"http://a.test", "http://a.test", "", "http://a.test", "http://a.test", "http://b.test", "http://b.test"}
		s.opts.Discover = func(context.Context, string) (bridge.Found, error) {
			found := finds[0]
			if finds = finds[min(1, len(finds)-1):]; found == "" {
				return bridge.Found{}, errors.New("nobody answered")
			}
			return bridge.Found{found, bridge.FoundDHCP}, nil
		}
		b := s.start((&ear{}).all("a"))
		pause(20 * time.Minute)
		b.end()
		var found []string
		for _, line := range regexp.MustCompile(`msg="endpoint found" endpoint=(\S+)`).FindAllStringSubmatch(s.log.String(), -1) {
			found = append(found, line[1])
		}
		wantIDs(t, found, "http://a.test", "http://a.test", "http://b.test")
	})
}

// A new endpoint is asked at once which VM this is, however long nobody could say.
func TestANewEndpointIsAskedForTheNameAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		w := &town{service: s.azure.RoundTripper()}
		s.proxy = func(http.RoundTripper) http.RoundTripper { return w }
		s.opts.Discover = w.search(0)
		s.opts.Random = func() float64 { return 0.9999 } // so that no wait is cut
		b := s.start((&ear{}).all("a"))
		pause(10*time.Minute + 500*time.Millisecond)
		w.set("168.63.129.16")
		for range 120 {
			if b.Endpoint() == "http://168.63.129.16" {
				break
			}
			pause(time.Second)
		}
		pause(time.Second)
		if name := b.Status().Observer.Name; name != "vm-0" {
			t.Errorf("a second after it was found the name is %q", name)
		}
		b.end()
	})
}

// Each outage is searched as the first: soon, and then more and more rarely.
func TestEachOutageIsSearchedAnew(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		w := &town{service: s.azure.RoundTripper()}
		s.proxy = func(http.RoundTripper) http.RoundTripper { return w }
		s.opts.Discover = w.search(0)
		w.set("azure.test")
		b := s.start()
		for n := range 2 {
			pause(3 * time.Minute)
			before := w.dhcpAsked()
			w.set()
			pause(115 * time.Second)
			if got := w.dhcpAsked() - before; got != 3 {
				t.Errorf("in outage %d it was looked for %d times in two minutes, want 3", n+1, got)
			}
			w.set("azure.test")
		}
		b.end()
	})
}

// An endpoint that never gave a valid answer is not stored: it may be somebody else's.
func TestOnlyAnEndpointThatAnsweredIsStored(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		w := &town{service: s.azure.RoundTripper()}
		w.set("168.63.129.16")
		s.azure.SetFault(imdstest.Fault{Status: 404})
		s.proxy = func(http.RoundTripper) http.RoundTripper { return w }
		s.opts.Discover = w.search(0)
		b := s.start()
		pause(5 * time.Minute)
		if got := b.Endpoint(); got != "http://168.63.129.16" {
			t.Errorf("it polls %s", got)
		}
		b.end()
		if got := string(stored(t, s.dir).Value(bridge.ValueEndpoint)); got != "" {
			t.Errorf("stored is %q, want nothing", got)
		}
	})
}

// An answer that the endpoint of before gives late says nothing about the one that was found meanwhile.
func TestALateAnswerOfAnotherEndpointStoresNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		w := &town{service: s.azure.RoundTripper()}
		w.set("azure.test")
		late := 0
		s.proxy = func(http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				switch {
				case w.isOpen("azure.test"):
					return w.RoundTrip(r)
				case r.URL.Host != "azure.test": // what is found never answers
					return nil, errSinkDown
				}
				time.Sleep(9900 * time.Millisecond)
				if w.dhcpAsked() == 0 || !strings.HasSuffix(r.URL.Path, "/scheduledevents") {
					return nil, errSinkDown
				}
				late++
				return w.service.RoundTrip(r)
			})
		}
		s.opts.Discover = w.search(0)
		b := s.start()
		pause(time.Minute)
		w.set("168.63.129.16")
		pause(5 * time.Minute)
		b.end()
		if late != 1 {
			t.Errorf("%d answers came late, want 1", late)
		}
		if got := string(stored(t, s.dir).Value(bridge.ValueEndpoint)); got != "" {
			t.Errorf("stored is %q, want nothing", got)
		}
	})
}

// While the endpoint answers nothing is looked for: the service counts requests.
func TestAnEndpointThatAnswersIsNotLookedFor(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.opts.Interval = seldom
		w := &town{service: s.azure.RoundTripper()}
		w.set("azure.test")
		s.proxy = func(http.RoundTripper) http.RoundTripper { return w }
		s.opts.Discover = w.search(0)
		b := s.start()
		pause(time.Hour)
		b.end()
		if w.looked != 1 || w.dhcp != 0 {
			t.Errorf("in an hour it was looked for %d times, DHCP asked %d times; want once and never", w.looked, w.dhcp)
		}
	})
}
