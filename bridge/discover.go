package bridge

import (
	"context"
	"time"

	"forewarn/bridge/outbox"
)

// Timing of the search for the endpoint.
const (
	discoverAfter = time.Minute     // without a valid answer of the endpoint in use
	discoverTick  = 5 * time.Second // how often the bridge looks whether it is time to search
)

// discoverBackoff are the waits between searches while there is no valid answer; the last one repeats.
var discoverBackoff = []time.Duration{10 * time.Second, 30 * time.Second, time.Minute}

// The ways to find an endpoint.
const (
	FoundFixed  = "fixed"  // at the address that it has for every VM in a virtual network
	FoundStored = "stored" // where it was found before
	FoundDHCP   = "dhcp"   // from option 245 of a DHCP answer
)

// A Found is an endpoint, and how it was found.
type Found struct {
	Endpoint string `json:"endpoint"`
	Method   string `json:"method"`
}

// discover searches for the endpoint at the start, and again whenever the current one has given no valid answer for a
// minute, until ctx is done. The current one is still polled meanwhile. An endpoint found by DHCP is stored after its
// first valid answer, so that the next search finds it without DHCP.
func (b *Bridge) discover(ctx context.Context) {
	if b.options.Discover == nil {
		return
	}
	var (
		found    Found
		searched time.Time
		searches int // since the last valid answer
		lastErr  string
		reported bool // the endpoint was found and logged
		due      = time.Now()
	)
	for {
		b.mu.Lock()
		answered := b.imds.lastAnswer
		b.mu.Unlock()
		if answered.After(searched) {
			searches = 0
			due = answered.Add(discoverAfter)
			// An answer right after the search may still come from the previous endpoint.
			if found.Method == FoundDHCP && answered.Sub(searched) > answerTimeout {
				b.keepEndpoint(found.Endpoint)
			}
		}
		if now := time.Now(); !now.Before(due) {
			var err error
			found, err = b.options.Discover(ctx, StoredEndpoint(b.outbox))
			if ctx.Err() != nil {
				return
			}
			searched = time.Now()
			due = searched.Add(discoverBackoff[min(searches, len(discoverBackoff)-1)])
			searches++
			switch {
			case err != nil && err.Error() != lastErr:
				lastErr = err.Error()
				b.log.Warn("endpoint not found; searching again", "polled", b.client.Endpoint(), "err", err)
			case err == nil:
				b.moveTo(found, !reported || lastErr != "")
				reported, lastErr = true, ""
			}
		}
		select {
		case <-time.After(discoverTick):
		case <-ctx.Done():
			return
		}
	}
}

// moveTo switches to the endpoint found, and has it asked for the identity of this VM at once. It logs a new endpoint,
// or any if news is true.
func (b *Bridge) moveTo(found Found, news bool) {
	if moved := b.client.MoveTo(found.Endpoint); moved || news {
		b.log.Info("endpoint found", "endpoint", found.Endpoint, "method", found.Method)
	}
	select {
	case b.identity <- struct{}{}:
	default:
	}
}

// StoredEndpoint returns the last endpoint that was found by DHCP and gave a valid answer; "" for none.
func StoredEndpoint(o *outbox.Outbox) string { return string(o.Value(valueEndpoint)) }

// keepEndpoint stores an endpoint. It does not wait for the disk: losing it in a crash only costs a search.
func (b *Bridge) keepEndpoint(endpoint string) {
	if StoredEndpoint(b.outbox) != endpoint {
		b.keepValue(valueEndpoint, []byte(endpoint))
	}
}
