package discovery

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/imdstest"
)

var wireServer = netip.MustParseAddr("168.63.129.16")

var errDown = errors.New("connection refused")

// A town has a metadata service at those hosts that are open, and nothing at the others.
type town struct {
	service http.RoundTripper
	open    []string
	asked   []string // host and path of all requests
}

func (w *town) RoundTrip(r *http.Request) (*http.Response, error) {
	w.asked = append(w.asked, r.URL.Host+r.URL.Path)
	if !slices.Contains(w.open, r.URL.Host) {
		return nil, errDown
	}
	return w.service.RoundTrip(r)
}

// The order is the fixed address, the stored one, then DHCP, with port 80 before 8080. Nothing is tried after the
// first that answers.
func TestFirstEndpointThatAnswersIsUsed(t *testing.T) {
	for _, tt := range []struct {
		open  string
		want  Found
		asked string
	}{
		{"fixed.test stored.test 168.63.129.16", Found{Endpoint: "http://fixed.test", Method: "fixed"}, "fixed.test"},
		{"stored.test 168.63.129.16", Found{Endpoint: "http://stored.test", Method: "stored"}, "fixed.test stored.test"},
		{"168.63.129.16 168.63.129.16:8080", Found{Endpoint: "http://168.63.129.16", Method: "dhcp"}, "fixed.test stored.test dhcp 168.63.129.16"},
		{"168.63.129.16:8080", Found{Endpoint: "http://168.63.129.16:8080", Method: "dhcp"}, "fixed.test stored.test dhcp 168.63.129.16 168.63.129.16:8080"},
		{"", Found{}, "fixed.test stored.test dhcp 168.63.129.16 168.63.129.16:8080"},
	} {
		w := &town{service: imdstest.New(imdstest.Options{}).RoundTripper(), open: strings.Fields(tt.open)}
		d := Search{Fixed: "http://fixed.test", Stored: []string{"http://stored.test"}, Transport: w}
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

// If no endpoint answers, the error says in one line why each of them failed.
func TestFailedSearchListsEveryReason(t *testing.T) {
	w := &town{service: imdstest.New(imdstest.Options{}).RoundTripper()}
	nobody := func(context.Context) (netip.Addr, error) {
		return netip.Addr{}, errors.New("DHCP on eth0: nobody answered")
	}
	_, err := Search{Fixed: "http://fixed.test", Stored: []string{"http://stored.test"}, DHCP: nobody, Transport: w}.Find(t.Context())
	const want = "no endpoint found: http://fixed.test (fixed): connection refused; " +
		"http://stored.test (stored): connection refused; DHCP on eth0: nobody answered"
	if err == nil || err.Error() != want || !errors.Is(err, errDown) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// A search never requests scheduled events, because that would enable them. Its requests have the required headers.
func TestSearchNeverRequestsScheduledEvents(t *testing.T) {
	azure := imdstest.Serve(t, imdstest.Options{})
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1") // never used
	found, err := Search{Fixed: azure.URL}.Find(t.Context())
	if want := (Found{Endpoint: azure.URL, Method: Fixed}); found != want || err != nil {
		t.Fatalf("found %v, %v, want %v", found, err, want)
	}
	requests := azure.Requests()
	if len(requests) != 1 || requests[0].Path != "/metadata/versions" || requests[0].Header.Get("Metadata") != "true" || len(requests[0].Query) > 0 {
		t.Errorf("it asked %+v, want one GET of /metadata/versions", requests)
	}
}

// At the fixed address another cloud's service may answer. Azure's own may be old, or temporarily unavailable.
func TestFixedAddressMustBeAzures(t *testing.T) {
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
		_, err := Search{Fixed: srv.URL}.Find(t.Context())
		srv.Close()
		if (err == nil) != tt.azure {
			t.Errorf("%s: %v, want it taken for Azure's %v", tt.claim, err, tt.azure)
		}
		if err != nil && (strings.ContainsAny(err.Error(), "\n\x1b") || !strings.Contains(err.Error(), "not as Azure's")) {
			t.Errorf("%s: %q, want one line that says so", tt.claim, err)
		}
	}
}

// An address that never answers delays a search by seconds only.
func TestSearchWaitsOnlySecondsForAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		azure := imdstest.New(imdstest.Options{})
		azure.SetFault(imdstest.Fault{Hang: true, Path: "versions"})
		began := time.Now()
		_, err := Search{Fixed: "http://azure.test", Transport: azure.RoundTripper()}.Find(t.Context())
		if took := time.Since(began); took != probeTimeout || err == nil || !strings.Contains(err.Error(), "no answer within 5s") {
			t.Errorf("after %v: %v, want no answer within 5s", took, err)
		}
	})
}
