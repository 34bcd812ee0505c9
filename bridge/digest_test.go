package bridge_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imdstest"
)

// Forty events that come while the destination is down are one message once it is back, and what it gave back for them
// comes with each of them later.
func TestAWaveDoesNotFillAChannel(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		e := &recorder{answer: always(errSinkDown), reply: delivery.Answer{Receipt: []byte("thread 1"), Status: "ok"}}
		s.start(e.all("a").With(func(terms *bridge.Terms) {
			terms.Late, terms.DigestAbove = delivery.LateLatest, 5
		}))
		pause(1500 * time.Millisecond)
		for i := range 40 {
			id := fmt.Sprintf("%08d-0000-4000-8000-000000000000", i)
			s.azure.Schedule(imdstest.Event{ID: id, Type: "Reboot", Resources: []string{"vm_0"}, NotBefore: time.Now().Add(48 * time.Hour)})
		}
		pause(time.Minute)
		e.say(nil)
		pause(6 * time.Minute) // longer than any wait between two attempts
		sizes := []int{}
		for _, call := range e.calls {
			sizes = append(sizes, len(call))
		}
		if got := e.accepted(); len(got) != 40 || slices.Max(sizes) != 40 {
			t.Errorf("%d of 40 events were told, in batches of %v; want all, in one", len(got), sizes)
		}
		s.azure.Start("00000007-0000-4000-8000-000000000000")
		pause(2 * time.Second)
		last := e.accepted()[len(e.accepted())-1]
		if !bytes.Equal(last.Receipt, []byte("thread 1")) {
			t.Errorf("with the start came the receipt %q, want that of the group", last.Receipt)
		}
	})
}
