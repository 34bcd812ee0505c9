// Package discovery finds the metadata service. Every VM in a virtual network has it at a fixed address; the few that
// are left outside of one learn its address from DHCP. A search never asks for scheduled events, because that switches
// them on.
package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/imds"
)

// patience is how long one address may take to answer. Azure asks for three seconds at least.
const patience = 5 * time.Second

// A Search says where to look. Its zero value looks at the fixed address alone.
type Search struct {
	Fixed     string                                        // an URL; "" is imds.DefaultEndpoint
	Known     []string                                      // URLs to try next
	DHCP      func(ctx context.Context) (netip.Addr, error) // asked last; nil asks nobody. See AskDHCP
	Transport http.RoundTripper                             // nil is a transport of its own, without a proxy
}

// Find returns the first endpoint where something answers: the fixed one, stored (where it was before; "" if that is
// not known), a known one, or what DHCP names. What answers at the fixed one has to be Azure's metadata service, since
// other clouds have theirs at the same address. An error says for each place why it is out of the question. Each place
// has five seconds.
func (s Search) Find(ctx context.Context, stored string) (bridge.Found, error) {
	var failed reasons
	try := func(endpoint, how string) (bridge.Found, bool) {
		err := s.probe(ctx, endpoint, how)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s (%s): %w", endpoint, how, err))
		}
		return bridge.Found{Endpoint: endpoint, How: how}, err == nil
	}
	if found, ok := try(cmp.Or(s.Fixed, imds.DefaultEndpoint), bridge.FoundFixed); ok {
		return found, nil
	}
	known := s.Known
	if stored != "" && !slices.Contains(known, stored) {
		known = append([]string{stored}, known...)
	}
	for _, endpoint := range known {
		if found, ok := try(endpoint, bridge.FoundStored); ok {
			return found, nil
		}
	}
	if s.DHCP != nil {
		addr, err := s.DHCP(ctx)
		if err != nil {
			failed = append(failed, err)
		} else {
			for _, endpoint := range Endpoints(addr) {
				if found, ok := try(endpoint, bridge.FoundDHCP); ok {
					return found, nil
				}
			}
		}
	}
	return bridge.Found{}, fmt.Errorf("no endpoint found: %w", failed)
}

// probe returns why the endpoint is out of the question, nil if it is not.
func (s Search) probe(ctx context.Context, endpoint, how string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	c := imds.NewClient(endpoint, imds.DefaultAPIVersion, slog.New(slog.DiscardHandler), s.Transport)
	defer c.CloseIdleConnections()
	err := c.Probe(ctx)
	if !errors.Is(err, imds.ErrNotAzure) {
		return err
	}
	if how != bridge.FoundFixed {
		return nil // the service behind it may answer this question otherwise
	}
	if _, e := c.Instance(ctx); e == nil {
		return nil // an old host, which knows no list of versions
	}
	return err
}

// Endpoints returns the URLs that the service may have at an address other than the fixed one. Azure's own programs
// disagree about the port.
func Endpoints(addr netip.Addr) []string {
	return []string{"http://" + addr.String(), "http://" + netip.AddrPortFrom(addr, 8080).String()}
}

// reasons are errors on one line.
type reasons []error

func (r reasons) Unwrap() []error { return r }

func (r reasons) Error() string {
	var texts []string
	for _, err := range r {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}
