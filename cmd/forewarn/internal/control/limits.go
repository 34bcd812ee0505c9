package control

import (
	"context"
	"net/http"
	"time"
)

// timeLimit returns how long the answer to a request may take to begin. The deadlines of the server and the patience of the
// client both come from it, so that no client gives up on what is still being done. 0 is for an answer that never ends.
func timeLimit(path string, relay bool) time.Duration {
	switch {
	case path == "/tail":
		return 0
	case path == "/status":
		return 10 * time.Second // it only reads memory, and monitoring asks for it
	case relay && (path == "/outbox/replay" || path == "/outbox/drop"):
		return 10 * time.Minute // several requests to the servers for each delivery, of which there may be 10,000
	}
	return 30 * time.Second
}

// answerMargin is how much longer the server may write, and the client waits: so long an answer takes that says why
// the request was given up at its limit.
const answerMargin = 5 * time.Second

// inTime serves requests within their time limits, in place of the deadlines of the server.
func inTime(relay bool, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var end time.Time // none
		if limit := timeLimit(r.URL.Path, relay); limit > 0 {
			end = time.Now().Add(limit + answerMargin)
			ctx, cancel := context.WithTimeout(r.Context(), limit)
			defer cancel()
			r = r.WithContext(ctx)
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(end) // at its end the client would count as gone
		_ = control.SetWriteDeadline(end)
		h.ServeHTTP(w, r)
	})
}

// maxFollowers bounds the tail commands at a time, because each keeps one of the server's connections.
const maxFollowers = 16

// atMost serves n requests at a time, and refuses more with a status 503 that says why.
func atMost(n int, why string, h http.HandlerFunc) http.HandlerFunc {
	places := make(chan struct{}, n)
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			h(w, r)
		default:
			w.Header().Set("Connection", "close") // the server has few
			http.Error(w, why, http.StatusServiceUnavailable)
		}
	}
}
