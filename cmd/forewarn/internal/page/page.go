// Package page serves what can be seen of a running forewarn on TCP, all of it read-only: the page for people, which
// updates itself, status.json, health and the metrics for Prometheus.
//
// The page is made in two steps. A look at the bridge gives facts (live.go), and a pageWriter turns them into words and
// shapes, with no I/O (view.go, event.go, trouble.go, timeline.go); assets/page.html.tmpl lays those out. A browser gets
// the parts that changed as server-sent events. The metrics are counters that the bridge feeds as its Meter, and gauges
// made of its status (metrics.go), in a small writer of Prometheus' text format (exposition.go).
package page

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strings"

	"forewarn/bridge"
	"forewarn/cmd/forewarn/internal/wording"
)

// Probes serves what machines ask for: health and metrics.
func Probes(b *bridge.Bridge, metrics http.Handler) *http.ServeMux {
	mux, status := http.NewServeMux(), shared(statusAge, b.Status)
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		var reasons []string
		if err := b.Alive(); err != nil {
			reasons = []string{err.Error()}
		}
		health(w, reasons)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { health(w, status().Reasons) })
	return mux
}

// Handler serves what may be seen on TCP: the page for people, health, metrics and status. Nothing here changes anything.
func Handler(b *bridge.Bridge, metrics http.Handler, listen string) http.Handler {
	mux := Probes(b, metrics)
	status := shared(statusAge, func() []byte {
		var body bytes.Buffer
		_ = wording.PrintJSON(&body, b.Status()) // a status can be said in JSON
		return body.Bytes()
	})
	mux.HandleFunc("GET /status.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(status()) // whoever went away needs nothing
	})
	newPage(bridgeFacts(b)).routes(mux)
	name, _, _ := net.SplitHostPort(listen)
	return localHost(mux, name)
}

// health answers 200 when there is no reason against it, else 503 with one reason a line.
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

// safety are the headers of every answer: a browser loads nothing from elsewhere, runs nothing that is written into the
// page, shows it in nobody's frame and gives it to no other site.
var safety = map[string]string{
	"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options":       "nosniff",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cross-Origin-Opener-Policy":   "same-origin",
}

// localHost refuses requests under a name that a web page could have rebound to this address.
func localHost(h http.Handler, listen string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if net.ParseIP(strings.Trim(host, "[]")) == nil && !strings.EqualFold(host, "localhost") && !strings.EqualFold(host, listen) {
			http.Error(w, "unknown host", http.StatusMisdirectedRequest)
			return
		}
		for name, value := range safety {
			w.Header().Set(name, value)
		}
		h.ServeHTTP(w, r)
	})
}
