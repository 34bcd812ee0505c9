package sinks

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// Heartbeats go to a subject of their own, whatever the settings say, where a stream keeps the last one of each VM.
// That nobody keeps them, or that they are not allowed, holds up no event.
func TestNATSHeartbeatsHaveASubjectOfTheirOwn(t *testing.T) {
	t.Parallel()
	records := func(c *jetstream.StreamConfig) { c.Subjects = []string{"forewarn.events.>", "forewarn.bridge.>"} }
	for name, tt := range map[string]struct {
		server *server.Permissions
		kept   bool // by a stream of their own
		keys   string
		want   string
	}{
		"a stream keeps them": {kept: true, want: "acknowledged by stream BEATS"},
		"a stream keeps them, by template": {kept: true, keys: "subject: 'forewarn.events.{{.subscription}}.{{.resourcegroup}}.{{.set}}.{{.id}}'",
			want: "acknowledged by stream BEATS"},
		"nobody keeps them": {want: "not stored: no stream takes it"},
		"not allowed": {server: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"forewarn.heartbeat.>"}}},
			want: "not stored: this user may not publish there"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := natsServe(t, nil)
			if tt.server != nil {
				srv = natsServe(t, natsMay(tt.server))
			}
			_, js := natsClient(t, srv.ClientURL(), nats.UserInfo("test", "test"))
			record := natsStream(t, js, records)
			if tt.kept {
				natsStream(t, js, func(c *jetstream.StreamConfig) {
					c.Name, c.Subjects, c.MaxMsgsPerSubject = "BEATS", []string{"forewarn.heartbeat.>"}, 1
				})
			}
			s := mustOpen(t, "nats", "url: "+srv.ClientURL()+"\nusername: vm\npassword: hunter2hunter2\n"+tt.keys, testHost(t))
			o := imds.Observer{Name: "Web_0", SubscriptionID: "5D9B", ResourceGroup: "RG", ScaleSet: "Web"}
			for n := range 2 {
				ce, err := cloudevent.WrapBridge(cloudevent.BridgeHeartbeat, map[string]any{"interval": 300}, o,
					monday.Add(time.Duration(n)))
				if err != nil {
					t.Fatal(err)
				}
				answer, err := s.Deliver(t.Context(), []delivery.Delivery{{Event: ce, Attempt: 1}})
				if err != nil || !strings.HasPrefix(answer.Status, tt.want) {
					t.Fatalf("Deliver of a heartbeat = %q, %v, want %q", answer.Status, err, tt.want)
				}
			}
			if tt.kept {
				beats, err := js.Stream(t.Context(), "BEATS")
				if err != nil {
					t.Fatal(err)
				}
				info, err := beats.Info(t.Context(), jetstream.WithSubjectFilter(">"))
				if want := "forewarn.heartbeat.5d9b.rg.web.web_0"; err != nil || info.State.Subjects[want] != 1 {
					t.Errorf("the stream of heartbeats holds %v (%v), want the last one of %s", info.State.Subjects, err, want)
				}
			}
			if answer, err := s.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
				t.Errorf("Deliver of an event = %+v, %v, want it accepted", answer, err)
			}
			if info, err := record.Info(t.Context()); err != nil || info.State.Msgs != 1 {
				t.Errorf("the record holds %d messages (%v), want the event and no heartbeat", info.State.Msgs, err)
			}
		})
	}
}
