package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/outbox"
)

// The timing of a search for the endpoint.
const (
	probePatience = 5 * time.Second // for one address; Azure asks for three seconds at least
	seekAfter     = time.Minute     // without a valid answer of the endpoint in use
	seekTick      = 5 * time.Second // how often it is asked whether it is time to search
)

// seekPauses are the times from one search to the next while no valid answer comes; the last one stays.
var seekPauses = []time.Duration{10 * time.Second, 30 * time.Second, time.Minute}

// The ways in which an endpoint is found.
const (
	FoundFixed  = "fixed"  // at the address that every VM in a virtual network has
	FoundStored = "stored" // where it was before
	FoundDHCP   = "dhcp"   // as option 245 of a DHCP answer says
)

// Found is an endpoint and how it was found.
type Found struct {
	Endpoint string `json:"endpoint"`
	How      string `json:"how"`
}

// A Discovery says where to look for the endpoint. VMs outside a virtual network, of which hardly any are left, do not
// have it at the fixed address.
type Discovery struct {
	Fixed     string   // "" is DefaultEndpoint
	Stored    []string // URLs that are tried after it
	DHCP      func(ctx context.Context) (netip.Addr, error)
	Transport http.RoundTripper // nil but in tests
}

// Find returns the first endpoint that is there: the fixed one, a stored one, or what DHCP names. It never asks for
// scheduled events, because that switches them on; so of an address other than the fixed one it only knows that
// something answers there.
func (d Discovery) Find(ctx context.Context) (Found, error) {
	var failed []error
	try := func(endpoint, how string) (Found, bool) {
		err := d.probe(ctx, endpoint, how)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s (%s): %w", endpoint, how, err))
		}
		return Found{endpoint, how}, err == nil
	}
	if found, ok := try(cmp.Or(d.Fixed, DefaultEndpoint), FoundFixed); ok {
		return found, nil
	}
	for _, endpoint := range d.Stored {
		if found, ok := try(endpoint, FoundStored); ok {
			return found, nil
		}
	}
	if d.DHCP != nil {
		addr, err := d.DHCP(ctx)
		if err != nil {
			failed = append(failed, err)
		} else {
			for _, endpoint := range EndpointsAt(addr) {
				if found, ok := try(endpoint, FoundDHCP); ok {
					return found, nil
				}
			}
		}
	}
	return Found{}, fmt.Errorf("no endpoint found: %w", reasons(failed))
}

// reasons are errors in one line.
type reasons []error

func (r reasons) Unwrap() []error { return r }

func (r reasons) Error() string {
	var texts []string
	for _, err := range r {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

// EndpointsAt are the URLs that the service may have at an address that is not the fixed one: Azure's own programs
// disagree about the port.
func EndpointsAt(addr netip.Addr) []string {
	return []string{"http://" + addr.String(), "http://" + netip.AddrPortFrom(addr, 8080).String()}
}

// probe says why there is no service at the endpoint, nil if there is one.
func (d Discovery) probe(ctx context.Context, endpoint, how string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, probePatience, fmt.Errorf("no answer within %v", probePatience))
	defer cancel()
	c := NewClient(endpoint, DefaultAPIVersion, slog.New(slog.DiscardHandler), d.Transport)
	defer c.http.CloseIdleConnections()
	resp, err := c.get(ctx, "/metadata/versions", "", "")
	if err != nil {
		return err
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody)) // what was cut does not list versions
	resp.Body.Close()
	if how != FoundFixed || isMetadata(resp.StatusCode, resp.Header.Get("Server"), body) {
		return nil
	}
	// An old host may know no list of versions; every host knows who the VM is.
	if _, err := c.Instance(ctx); err == nil {
		return nil
	}
	return fmt.Errorf("something answers there, but not as Azure's metadata service: %s: %s", resp.Status, excerpt(body))
}

// isMetadata says whether this is how Azure's metadata service answers when it is asked for its versions. One that asks
// for patience is there too: going on to another address because of it would be worse than waiting.
func isMetadata(status int, server string, body []byte) bool {
	switch status {
	case http.StatusGone, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable:
		return true
	case http.StatusOK:
		var list struct{ APIVersions []string }
		if json.Unmarshal(body, &list) == nil && len(list.APIVersions) > 0 {
			return true
		}
	}
	return strings.HasPrefix(server, "IMDS/")
}

// seek looks for the endpoint at the start, and again whenever the one in use has given no valid answer for a while,
// until ctx is done. Meanwhile the one in use is polled as ever, so that a search delays nothing. An endpoint that was
// found and then gave a valid answer is stored, so that the next search finds it without DHCP.
func (b *Bridge) seek(ctx context.Context) {
	if b.Discovery == nil {
		return
	}
	var (
		found    Found
		searched time.Time
		searches int // since the last valid answer
		lastErr  string
		told     bool // that it was found
		due      = time.Now()
	)
	for {
		b.mu.Lock()
		answered := b.imds.lastAnswer
		b.mu.Unlock()
		if answered.After(searched) {
			searches = 0
			due = answered.Add(seekAfter)
			// An answer that was under way during the search may be another endpoint's.
			if found.How == FoundDHCP && answered.Sub(searched) > patience {
				b.keepEndpoint(found.Endpoint)
			}
		}
		if now := time.Now(); !now.Before(due) {
			var err error
			found, err = b.find(ctx)
			if ctx.Err() != nil {
				return
			}
			searched = time.Now()
			due = searched.Add(seekPauses[min(searches, len(seekPauses)-1)])
			searches++
			switch {
			case err != nil && err.Error() != lastErr:
				lastErr = err.Error()
				b.Log.Warn("the endpoint was not found; trying again for as long as it takes", "polled", b.Client.Endpoint(), "err", err)
			case err == nil:
				b.moveTo(found, !told || lastErr != "")
				told, lastErr = true, ""
			}
		}
		select {
		case <-time.After(seekTick):
		case <-ctx.Done():
			return
		}
	}
}

// find searches once, with what the outbox remembers.
func (b *Bridge) find(ctx context.Context) (Found, error) {
	d := *b.Discovery
	if kept := StoredEndpoint(b.Outbox); kept != "" {
		d.Stored = append([]string{kept}, slices.DeleteFunc(slices.Clone(d.Stored), func(s string) bool { return s == kept })...)
	}
	return d.Find(ctx)
}

// moveTo uses the endpoint that was found from now on. It says so if it is news that it was found, or where.
func (b *Bridge) moveTo(found Found, news bool) {
	moved := b.Client.moveTo(found.Endpoint)
	if moved || news {
		b.Log.Info("found the endpoint", "endpoint", found.Endpoint, "how", found.How)
	}
	if !moved {
		return
	}
	select {
	case b.identity <- struct{}{}: // it can be asked who this VM is
	default:
	}
}

// moveTo makes the client ask another endpoint, and says whether it is another.
func (c *Client) moveTo(endpoint string) bool {
	endpoint = strings.TrimSuffix(endpoint, "/")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.endpoint == endpoint {
		return false
	}
	c.endpoint, c.version = endpoint, c.preferred
	return true
}

// StoredEndpoint is the one that was found by DHCP and then gave a valid answer, "" if there was none.
func StoredEndpoint(o *outbox.Outbox) string { return string(o.Value(valueEndpoint)) }

// keepEndpoint stores it. A crash may forget it, which costs a search.
func (b *Bridge) keepEndpoint(endpoint string) {
	if StoredEndpoint(b.Outbox) != endpoint {
		b.commit(commit{values: map[string][]byte{valueEndpoint: []byte(endpoint)}}, time.Now())
	}
}
