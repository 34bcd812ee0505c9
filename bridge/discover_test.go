package bridge

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"forewarn/bridge/imdstest"
)

var wireServer = netip.MustParseAddr("168.63.129.16")

// A town has a metadata service at those hosts that are open, and nothing at the others.
type town struct {
	service http.RoundTripper
	mu      sync.Mutex
	open    []string
	asked   []string // host and path of all requests
	dhcp    int      // how often it was asked by DHCP
}

func (w *town) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.asked = append(w.asked, r.URL.Host+r.URL.Path)
	open := slices.Contains(w.open, r.URL.Host)
	w.mu.Unlock()
	if !open {
		return nil, errDown
	}
	return w.service.RoundTrip(r)
}

func (w *town) set(open ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = open
}

func (w *town) dhcpAsked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dhcp
}

// dhcp is asked in vain so often before it names the wire server.
func (w *town) answering(inVain int) func(context.Context) (netip.Addr, error) {
	return func(context.Context) (netip.Addr, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.dhcp++; w.dhcp <= inVain {
			return netip.Addr{}, errors.New("DHCP on eth0: nobody answered")
		}
		return wireServer, nil
	}
}

// The fixed address comes first, then what is stored, then DHCP, port 80 before 8080; and nothing after what was found
// is asked.
func TestTheFirstEndpointThatIsThereIsTaken(t *testing.T) {
	for _, tt := range []struct {
		open  string
		want  Found
		asked string
	}{
		{"fixed.test stored.test 168.63.129.16", Found{"http://fixed.test", "fixed"}, "fixed.test"},
		{"stored.test 168.63.129.16", Found{"http://stored.test", "stored"}, "fixed.test stored.test"},
		{"168.63.129.16 168.63.129.16:8080", Found{"http://168.63.129.16", "dhcp"}, "fixed.test stored.test dhcp 168.63.129.16"},
		{"168.63.129.16:8080", Found{"http://168.63.129.16:8080", "dhcp"}, "fixed.test stored.test dhcp 168.63.129.16 168.63.129.16:8080"},
		{"", Found{}, "fixed.test stored.test dhcp 168.63.129.16 168.63.129.16:8080"},
	} {
		w := &town{service: imdstest.New(imdstest.Options{}).RoundTripper(), open: strings.Fields(tt.open)}
		d := Discovery{Fixed: "http://fixed.test", Stored: []string{"http://stored.test"}, Transport: w}
		d.DHCP = func(context.Context) (netip.Addr, error) {
			w.asked = append(w.asked, "dhcp/metadata/versions")
			return wireServer, nil
		}
		got, err := d.Find(t.Context())
		if got != tt.want || (err != nil) != (tt.want == Found{}) {
			t.Errorf("with %q found %v, %v, want %v", tt.open, got, err, tt.want)
		}
		if asked := strings.ReplaceAll(strings.Join(w.asked, " "), "/metadata/versions", ""); asked != tt.asked {
			t.Errorf("with %q it asked %s, want %s", tt.open, asked, tt.asked)
		}
	}
}

// A search that finds nothing says of every place why, in one line.
func TestASearchInVainSaysWhy(t *testing.T) {
	w := &town{service: imdstest.New(imdstest.Options{}).RoundTripper()}
	_, err := Discovery{Fixed: "http://fixed.test", Stored: []string{"http://stored.test"}, DHCP: w.answering(1), Transport: w}.Find(t.Context())
	const want = "no endpoint found: http://fixed.test (fixed): connection refused; " +
		"http://stored.test (stored): connection refused; DHCP on eth0: nobody answered"
	if err == nil || err.Error() != want || !errors.Is(err, errDown) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// To look for the endpoint never asks for scheduled events, which would switch them on, and asks as the service
// demands.
func TestASearchSwitchesNothingOn(t *testing.T) {
	azure := imdstest.Serve(t, imdstest.Options{})
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1") // never used
	found, err := Discovery{Fixed: azure.URL}.Find(t.Context())
	if want := (Found{azure.URL, FoundFixed}); found != want || err != nil {
		t.Fatalf("found %v, %v, want %v", found, err, want)
	}
	requests := azure.Requests()
	if len(requests) != 1 || requests[0].Path != "/metadata/versions" || requests[0].Header.Get("Metadata") != "true" || len(requests[0].Query) > 0 {
		t.Errorf("it asked %+v, want one GET of /metadata/versions", requests)
	}
}

// At the fixed address there may be somebody else, as in other clouds; and Azure's service may be old, or out of order
// for a while.
func TestTheFixedAddressMustBeAzures(t *testing.T) {
	const instance = `{"compute":{"name":"vm-0"}}`
	for _, tt := range []struct {
		claim    string
		status   int // to the question for versions
		server   string
		body     string
		instance string // "" is 404
		azure    bool
	}{
		{"Azure", 200, "", `{"apiVersions":["2017-03-01","2025-04-07"]}`, "", true},
		{"Azure, of a form not known yet", 200, "IMDS/150.870.65.1854", `{"versions":[]}`, "", true},
		{"Azure while it is updated", 404, "IMDS/150.870.65.1854", `API is not found`, "", true},
		{"Azure in old days", 404, "Microsoft-IIS/10.0", `not found`, instance, true},
		{"Azure asking for patience", 429, "", `Too many requests`, "", true},
		{"Azure gone for a minute", 410, "", ``, "", true},
		{"Azure out of order", 503, "", ``, "", true},
		{"no versions", 200, "", `{"apiVersions":[]}`, "", false},
		{"another cloud's list", 200, "EC2ws", "1.0\nlatest", "", false},
		{"another cloud's 404", 404, "", `<html>Not Found</html>`, "", false},
		{"another cloud's 401", 401, "EC2ws", ``, "", false},
		{"a proxy", 502, "", `Bad gateway`, "", false},
		{"a portal", 302, "", ``, "", false},
		{"another's instance", 404, "", ``, `{"name":"x"}`, false},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Server", tt.server)
			switch {
			case r.URL.Path == "/metadata/versions":
				w.WriteHeader(tt.status)
				w.Write([]byte(tt.body))
			case r.URL.Path == "/metadata/instance" && tt.instance != "":
				w.Write([]byte(tt.instance))
			default:
				http.NotFound(w, r)
			}
		}))
		_, err := Discovery{Fixed: srv.URL}.Find(t.Context())
		srv.Close()
		if (err == nil) != tt.azure {
			t.Errorf("%s: %v, want it taken for Azure's %v", tt.claim, err, tt.azure)
		}
		if err != nil && (strings.ContainsAny(err.Error(), "\n\x1b") || !strings.Contains(err.Error(), "not as Azure's")) {
			t.Errorf("%s: %q, want one line that says so", tt.claim, err)
		}
	}
}

// An address where nobody ever answers holds a search up for seconds only.
func TestASearchTakesSecondsOnly(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.azure.SetFault(imdstest.Fault{Hang: true, Path: "versions"})
		began := time.Now()
		_, err := Discovery{Fixed: "http://azure.test", Transport: s.azure.RoundTripper()}.Find(t.Context())
		if took := time.Since(began); took != probePatience || err == nil || !strings.Contains(err.Error(), "no answer within 5s") {
			t.Errorf("after %v: %v, want no answer within 5s", took, err)
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
		s.opts.Discovery = &Discovery{Fixed: "http://azure.test", DHCP: w.answering(3), Transport: w}
		e := &ear{}
		b := s.start(e.all("a"))
		pause(30 * time.Second)
		if got := b.Status().IMDS.Endpoint; got != "http://azure.test" {
			t.Errorf("with nothing found it polls %s", got)
		}
		s.wantLogged("the endpoint was not found; trying again")
		s.wantLogged("DHCP on eth0: nobody answered")
		if n := strings.Count(s.log.String(), "the endpoint was not found"); n != 1 {
			t.Errorf("the same failure was logged %d times", n)
		}
		pause(3 * time.Minute)
		s.reboot(idA)
		pause(2 * time.Second)
		wantIDs(t, e.ids(), idA+"-scheduled")
		if got := b.Status().IMDS.Endpoint; got != "http://168.63.129.16:8080" || b.Status().Observer.Name != "vm-0" {
			t.Errorf("it polls %s as %q", got, b.Status().Observer.Name)
		}
		s.wantLogged("found the endpoint")
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
		if got := string(stored(t, s.dir).Value(valueEndpoint)); got != "http://168.63.129.16:8080" {
			t.Errorf("stored is %q", got)
		}
	})
}

// An endpoint that never gave a valid answer is not stored: it may be somebody else's.
func TestOnlyAnEndpointThatAnsweredIsStored(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		w := &town{service: s.azure.RoundTripper()}
		w.set("168.63.129.16")
		s.azure.SetFault(imdstest.Fault{Status: 404})
		s.proxy = func(http.RoundTripper) http.RoundTripper { return w }
		s.opts.Discovery = &Discovery{Fixed: "http://azure.test", DHCP: w.answering(0), Transport: w}
		b := s.start()
		pause(5 * time.Minute)
		if got := b.Client.Endpoint(); got != "http://168.63.129.16" {
			t.Errorf("it polls %s", got)
		}
		b.end()
		if got := string(stored(t, s.dir).Value(valueEndpoint)); got != "" {
			t.Errorf("stored is %q, want nothing", got)
		}
	})
}

// While the endpoint answers nothing is looked for: the service counts requests.
func TestAnEndpointThatAnswersIsNotLookedFor(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		w := &town{service: s.azure.RoundTripper()}
		w.set("azure.test")
		s.proxy = func(http.RoundTripper) http.RoundTripper { return w }
		s.opts.Discovery = &Discovery{Fixed: "http://azure.test", DHCP: w.answering(0), Transport: w}
		b := s.start()
		pause(time.Hour)
		b.end()
		n := 0
		for _, path := range w.asked {
			if strings.HasSuffix(path, "/metadata/versions") {
				n++
			}
		}
		if n != 1 || w.dhcp != 0 {
			t.Errorf("in an hour it was looked for %d times, DHCP asked %d times; want once and never", n, w.dhcp)
		}
	})
}
