// Package page serves everything that a running forewarn shows on TCP, all of it read-only: the live page for people,
// status.json, health checks and the metrics for Prometheus.
//
// The page is made in two steps. live.go reads the facts from the bridge, and a pageWriter turns them into texts and
// positions without I/O (view.go, event.go, trouble.go, timeline.go); assets/page.html.tmpl lays them out. Browsers get
// the parts that changed as server-sent events. The metrics are counters that the bridge feeds as its Meter, and gauges
// made from its status (metrics.go), written in Prometheus' text format (exposition.go).
package page

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strings"

	"forewarn/bridge"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/wording"
)

// A Source is what runs: a bridge or a relay.
type Source interface {
	Status() bridge.Status
	Reasons() []string // Status.Reasons
	Alive() error
}

// Probes serves /healthz, /readyz and /metrics.
func Probes(b Source, metrics http.Handler) *http.ServeMux {
	mux, notReady := http.NewServeMux(), cached(statusAge, b.Reasons)
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		var reasons []string
		if err := b.Alive(); err != nil {
			reasons = []string{err.Error()}
		}
		health(w, reasons)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { health(w, notReady()) })
	return mux
}

// Handler serves the page, status.json and what Probes serves. listen is the address it is served on.
func Handler(b *bridge.Bridge, o *outbox.Outbox, metrics http.Handler, listen string) http.Handler {
	return handler(b, bridgeFacts(b, o), metrics, listen)
}

func handler(b Source, facts func() pageFacts, metrics http.Handler, listen string) http.Handler {
	mux := Probes(b, metrics)
	status := cached(statusAge, func() []byte {
		var body bytes.Buffer
		_ = wording.PrintJSON(&body, b.Status()) // every status can be encoded
		return body.Bytes()
	})
	mux.HandleFunc("GET /status.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(status()) // fails only when the client is gone
	})
	newPage(facts).routes(mux)
	name, _, _ := net.SplitHostPort(listen)
	return localHost(mux, name)
}

// health answers 200, or 503 with one reason per line if there are any.
func health(w http.ResponseWriter, reasons []string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if len(reasons) == 0 {
		fmt.Fprintln(w, "ok")
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	for _, reason := range reasons {
		fmt.Fprintln(w, wording.Printable(reason))
	}
}

// securityHeaders are part of every answer. They forbid scripts inside the page, resources from other sites, frames,
// and access by other sites.
var securityHeaders = map[string]string{
	"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; " +
		"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options":       "nosniff",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cross-Origin-Opener-Policy":   "same-origin",
}

// localHost protects against DNS rebinding: it refuses host names other than localhost and the name of the setting
// listen.
func localHost(h http.Handler, listen string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if net.ParseIP(strings.Trim(host, "[]")) == nil && !strings.EqualFold(host, "localhost") && !strings.EqualFold(host,
			listen) {
			http.Error(w, "unknown host", http.StatusMisdirectedRequest)
			return
		}
		for name, value := range securityHeaders {
			w.Header().Set(name, value)
		}
		h.ServeHTTP(w, r)
	})
}
