package bridge

import (
	"context"
	"time"

	"forewarn/bridge/outbox"
)

// The timing of the search for the endpoint.
const (
	seekAfter = time.Minute     // without a valid answer of the endpoint in use
	seekTick  = 5 * time.Second // how often the bridge looks whether it is time to search
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

// seek looks for the endpoint at the start, and again whenever the one in use has given no valid answer for a minute,
// until ctx is done. The one in use is polled meanwhile, so that a search delays nothing. An endpoint that DHCP named
// is stored once it gave a valid answer, so that the next search finds it without DHCP.
func (b *Bridge) seek(ctx context.Context) {
	if b.Discover == nil {
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
			found, err = b.Discover(ctx, StoredEndpoint(b.Outbox))
			if ctx.Err() != nil {
				return
			}
			searched = time.Now()
			due = searched.Add(seekPauses[min(searches, len(seekPauses)-1)])
			searches++
			switch {
			case err != nil && err.Error() != lastErr:
				lastErr = err.Error()
				b.Log.Warn("the endpoint was not found; trying again for as long as it takes", "polled", b.Client.Endpoint(),
					"err", err)
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

// moveTo uses the endpoint that was found from now on. It says so if it is news that it was found, or where.
func (b *Bridge) moveTo(found Found, news bool) {
	moved := b.Client.MoveTo(found.Endpoint)
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

// StoredEndpoint is the one that was found by DHCP and then gave a valid answer, "" if there was none.
func StoredEndpoint(o *outbox.Outbox) string { return string(o.Value(valueEndpoint)) }

// keepEndpoint stores it. A crash may forget it, which costs a search.
func (b *Bridge) keepEndpoint(endpoint string) {
	if StoredEndpoint(b.Outbox) != endpoint {
		b.keepValue(valueEndpoint, []byte(endpoint))
	}
}
