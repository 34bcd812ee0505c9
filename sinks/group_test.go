package sinks

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// groupOf returns a group: one announced event of each type, each of another VM.
func groupOf(types ...string) (batch []delivery.Delivery) {
	for i, typ := range types {
		e := azure("Scheduled", typ, "04:10:00", map[string]any{
			"EventId":   fmt.Sprintf("602D9444-D2CD-49C7-8624-86430000000%d", i),
			"Resources": []string{fmt.Sprintf("vm-no-%d", i)},
		})
		batch = append(batch, deliveryOf(cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: e},
			cloudevent.Circumstances{Observer: dbHost, Time: messageTime.clock()}))...)
	}
	return batch
}

// A service for people says all of a group, under an id that none of its events has alone: a
// receiver that drops repeats by it may have got one of them before.
func TestServicesForPeopleSayAllOfAGroup(t *testing.T) {
	t.Parallel()
	for _, s := range Services() {
		if s.For != "people" {
			continue
		}
		for claim, group := range map[string][]delivery.Delivery{
			"alike": groupOf("Reboot", "Reboot", "Reboot"), "after a mute": groupOf("Reboot", "Freeze", "Preempt"),
		} {
			t.Run(s.Name+" "+claim, func(t *testing.T) {
				var body, id, path string
				srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					text, _ := io.ReadAll(r.Body)
					body, id, path = string(text), r.Header.Get("Idempotency-Key"), r.URL.Path
					w.WriteHeader(demands[s.Name].status)
					io.WriteString(w, demands[s.Name].answer)
				}))
				w := openService(t, s, srv.URL)
				if _, err := w.Deliver(t.Context(), group); err != nil {
					t.Fatal(err)
				}
				for i := range group {
					if vm := fmt.Sprintf("vm-no-%d", i); !strings.Contains(body, vm) {
						t.Errorf("it says nothing of %s: %s", vm, body)
					}
				}
				if !strings.HasPrefix(id, "group-") || s.Name == "matrix" && !strings.Contains(path, id) {
					t.Errorf("its id is %q, at %s", id, path)
				}
			})
		}
	}
}
