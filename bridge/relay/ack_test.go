package relay_test

import (
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/relay"
)

// What was read before a consumer was made again is acknowledged as it was read since. A server of version 2.10 goes on
// behind whatever is acknowledged, so the word of the consumer before would have it skip what it hasn't sent again.
func TestAConsumerThatIsMadeAgainGetsNoWordOfTheOneBefore(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		hook, acks := newRecorder(), &ackWatch{given: map[string]bool{}}
		r, stop := s.start(relay.Options{Routes: []bridge.Route{route("hook", hook)},
			Connect: s.over(&cable{says: acks.says, hears: acks.hears})})
		pause(2 * time.Second)
		if _, err := r.Mute(delivery.Mute{Sink: "hook", Reason: "repairs", By: "alice"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		var all []event.Event
		for n := range 20 {
			all = append(all, eventNo(n).in(24*time.Hour).say(t, imds.Scheduled, "vm-1"))
		}
		s.publish(all...)
		pause(5 * time.Second)
		acks.forget()
		if err := s.js.DeleteConsumer(t.Context(), "FOREWARN", "forewarn-hook"); err != nil {
			t.Fatal(err)
		}
		pause(30 * time.Second)
		if _, err := r.Unmute(nil, true, "alice"); err != nil {
			t.Fatal(err)
		}
		pause(30 * time.Second)
		wantIDs(t, "told", hook.all(), all...)
		if acks.mu.Lock(); acks.own < len(all) || acks.others > 0 {
			t.Errorf("%d are acknowledged, and %d by the word of another consumer; want %d and none", acks.own, acks.others, len(all))
		}
		acks.mu.Unlock()
		stop()
	})
}

// An ackWatch counts the acknowledgements of messages that were sent since forget, and the others.
type ackWatch struct {
	mu          sync.Mutex
	given       map[string]bool
	tail        []byte // of what the server said, as a subject may come in two parts
	own, others int
}

var ackSubject = regexp.MustCompile(`\$JS\.ACK\.FOREWARN\.forewarn-hook\.[0-9.]+`)

func (w *ackWatch) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given, w.own, w.others = map[string]bool{}, 0, 0
}

func (w *ackWatch) says(text []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	said := append(w.tail, text...)
	for _, reply := range ackSubject.FindAll(said, -1) {
		w.given[string(reply)] = true
	}
	w.tail = slices.Clone(said[max(0, len(said)-200):])
}

func (w *ackWatch) hears(text []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, reply := range ackSubject.FindAll(text, -1) {
		if w.given[string(reply)] {
			w.own++
		} else {
			w.others++
		}
	}
}
