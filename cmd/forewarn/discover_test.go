package main

import (
	"io"
	"log/slog"
	"net/http"
	"slices"
	"testing"

	"forewarn/bridge"
	"forewarn/bridge/discovery"
	"forewarn/bridge/imdstest"
	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
)

// An address that Azure's own program left in the environment is tried at both ports. An invalid one is ignored.
func TestAddressInTheEnvironmentIsTried(t *testing.T) {
	for _, tt := range []struct {
		value string
		want  []string
	}{
		{"168.63.129.16", []string{"http://168.63.129.16", "http://168.63.129.16:8080"}},
		{"", nil},
		{"fe80::1", nil},
		{"http://168.63.129.16", nil},
		{"example.com", nil},
	} {
		p := &program{environment: environment{getenv: func(name string) string { return map[string]string{"SCHEDULEDEVENTSIP": tt.value}[name] }}}
		if got := p.search().Known; !slices.Equal(got, tt.want) {
			t.Errorf("with %q it tries %q, want %q", tt.value, got, tt.want)
		}
	}
}

// A running bridge holds its outbox, but approve and events still use the endpoint that it found.
func TestEndpointOfARunningBridgeIsTried(t *testing.T) {
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	dir := t.TempDir()
	l, err := control.Listen(control.Location{State: dir}.Sockets()[0], slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	running := bridge.Status{IMDS: bridge.IMDSStatus{Endpoint: azure.URL}}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = wording.PrintJSON(w, running) }))
	p := &program{environment: environment{getenv: func(string) string { return "" }, err: io.Discard}}
	found, err := p.discover(t.Context(), &discovery.Search{Fixed: "http://127.0.0.1:9"}, &settings.Settings{State: sinks.Path(dir)})
	if err != nil || found.Endpoint != azure.URL || found.Method != bridge.FoundStored {
		t.Errorf("discover = %+v, %v, want %s, stored", found, err, azure.URL)
	}
}
