// Package discovery finds the metadata service. A VM in a virtual network reaches it at a fixed address; the few VMs
// outside of one learn its address from DHCP. A search never asks for scheduled events, because the first request for
// them makes Azure enable them for the VM.
package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"forewarn/bridge/imds"
)

// probeTimeout is the time that one address has to answer. Azure recommends at least three seconds.
const probeTimeout = 5 * time.Second

// The ways to find an endpoint.
const (
	Fixed  = "fixed"  // at the address that it has for every VM in a virtual network
	Stored = "stored" // at an address that an earlier search stored
	DHCP   = "dhcp"   // from option 245 of a DHCP answer
)

// A Found is an endpoint, and how it was found.
type Found struct {
	Endpoint string `json:"endpoint"`
	Method   string `json:"method"`
}

// A Search holds the places to search. The zero value tries only the fixed address. It is safe for concurrent use if
// its DHCP and Transport are.
type Search struct {
	Fixed     string                                        // URL to try first; "" for imds.DefaultEndpoint
	Stored    []string                                      // URLs to try after that one
	DHCP      func(ctx context.Context) (netip.Addr, error) // the last resort, such as AskDHCP; may be nil
	Transport http.RoundTripper                             // nil for a transport without a proxy
}

// Find returns the first endpoint that answers, tried in this order: the fixed one, the stored ones, and the ones that
// DHCP names. At the fixed address it must be Azure's metadata service, because other clouds use the same address. Each
// address has five seconds to answer. If none does, the error says why each of them failed, and wraps those errors.
func (s Search) Find(ctx context.Context) (Found, error) {
	var failed reasons
	try := func(endpoint, how string) (Found, bool) {
		err := s.probe(ctx, endpoint, how)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s (%s): %w", endpoint, how, err))
		}
		return Found{Endpoint: endpoint, Method: how}, err == nil
	}
	if found, ok := try(cmp.Or(s.Fixed, imds.DefaultEndpoint), Fixed); ok {
		return found, nil
	}
	for _, endpoint := range s.Stored {
		if found, ok := try(endpoint, Stored); ok {
			return found, nil
		}
	}
	if s.DHCP != nil {
		addr, err := s.DHCP(ctx)
		if err != nil {
			failed = append(failed, err)
		} else {
			for _, endpoint := range Endpoints(addr) {
				if found, ok := try(endpoint, DHCP); ok {
					return found, nil
				}
			}
		}
	}
	return Found{}, fmt.Errorf("no endpoint found: %w", failed)
}

// probe returns nil if the endpoint can be used, else why it cannot.
func (s Search) probe(ctx context.Context, endpoint, how string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, fmt.Errorf("no answer within %v", probeTimeout))
	defer cancel()
	c := imds.NewClient(endpoint, imds.DefaultAPIVersion, slog.New(slog.DiscardHandler), s.Transport)
	defer c.CloseIdleConnections()
	err := c.Probe(ctx)
	if !errors.Is(err, imds.ErrNotAzure) {
		return err
	}
	if how != Fixed {
		return nil // Azure named the address, so a server that does not list its versions is accepted
	}
	if _, e := c.Instance(ctx); e == nil {
		return nil // an old host without a list of versions
	}
	return err
}

// Endpoints returns the possible URLs of the service at an address from DHCP: with port 80 and with port 8080, because
// Azure's own programs disagree about the port.
func Endpoints(addr netip.Addr) []string {
	return []string{"http://" + addr.String(), "http://" + netip.AddrPortFrom(addr, 8080).String()}
}

// reasons is a list of errors whose text is on one line.
type reasons []error

func (r reasons) Unwrap() []error { return r }

func (r reasons) Error() string {
	var texts []string
	for _, err := range r {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}
