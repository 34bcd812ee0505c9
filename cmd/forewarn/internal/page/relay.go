package page

import (
	"net/http"

	"forewarn/bridge"
)

// A Relay is a Source that knows the events of a fleet.
type Relay interface {
	Source
	// Histories returns the events of the last days, oldest first, and whether there are older ones.
	Histories() (histories []bridge.EventHistory, more bool)
}

// RelayHandler serves what Handler does, for a relay.
func RelayHandler(r Relay, metrics http.Handler, listen string) http.Handler {
	return handler(r, func() pageFacts {
		f := pageFacts{Status: r.Status()}
		f.Histories, f.MoreHistories = r.Histories()
		return f
	}, metrics, listen)
}
