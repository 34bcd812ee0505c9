package main

import (
	"fmt"
	"net"
	"net/http"
	"strings"

	"forewarn/bridge"
)

// probes serves what machines ask for: health and metrics.
func probes(b *bridge.Bridge, metrics http.Handler) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		var reasons []string
		if err := b.Alive(); err != nil {
			reasons = []string{err.Error()}
		}
		health(w, reasons)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { health(w, b.Status().Reasons) })
	return mux
}

// page serves what may be seen on TCP: health, metrics and status. Nothing here changes anything.
func page(b *bridge.Bridge, metrics http.Handler, listen string) http.Handler {
	mux := probes(b, metrics)
	mux.HandleFunc("GET /status.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = printJSON(w, b.Status())
	})
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
	fmt.Fprintln(w, strings.Join(reasons, "\n"))
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
		w.Header().Set("X-Content-Type-Options", "nosniff")
		h.ServeHTTP(w, r)
	})
}
