package delivery_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/delivery"
)

// open is what a route was told of and is open.
type open struct {
	mu     sync.Mutex
	groups []string
}

func (o *open) set(groups ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.groups = groups
}

func (o *open) told() (told []delivery.Told) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, group := range o.groups {
		ce := event.New()
		ce.SetID(group + "-again")
		d := delivery.Delivery{Event: ce, NotBefore: time.Now().Add(time.Hour)}
		told = append(told, delivery.Told{Group: group, Read: func() (delivery.Delivery, bool) { return d, true }})
	}
	return told
}

func repeating(t *testing.T, story func(t *testing.T, r *route, o *open)) {
	t.Helper()
	o := &open{}
	terms := delivery.Terms{Repeat: time.Minute, Timeout: 10 * time.Second}
	play(t, delivery.Config{Terms: terms, Told: o.told}, func(t *testing.T, r *route) { story(t, r, o) })
}

// What is open is said once more each minute, and no more once it is over. Nothing of it is reported to the queue.
func TestWhatIsOpenIsRepeated(t *testing.T) {
	repeating(t, func(t *testing.T, r *route, o *open) {
		r.add(change(1, "A", "scheduled", 2*time.Hour))
		pause(time.Second)
		o.set("A", "B")
		pause(2 * time.Minute)
		want(t, "told", r.made(), "A-scheduled", "A-again", "B-again", "A-again", "B-again")
		o.set()
		r.add(change(2, "A", "vanished", 0))
		pause(5 * time.Minute)
		want(t, "told", r.made()[5:], "A-vanished")
		if got := len(r.reports); got != 2 {
			t.Errorf("%d reports, want one of each delivery", got)
		}
	})
}

// A repeat that fails isn't tried again before the next minute, and the state of the route stays as it is.
func TestAFailedRepeatIsNotTriedAgain(t *testing.T) {
	repeating(t, func(t *testing.T, r *route, o *open) {
		o.set("A")
		r.say(fails(delivery.ErrBlocked))
		pause(3*time.Minute + time.Second)
		want(t, "told", r.made(), "A-again", "A-again", "A-again")
		want(t, "trouble", r.trouble())
	})
}

// The end of an event never comes before a repeat of its beginning: it waits for one under way, and none begins behind
// it.
func TestTheEndComesAfterEveryRepeat(t *testing.T) {
	repeating(t, func(t *testing.T, r *route, o *open) {
		o.set("A", "B", "C")
		r.say(takes(5 * time.Second))
		pause(time.Minute + time.Second)
		o.set()
		r.add(change(1, "C", "vanished", 0), change(2, "A", "vanished", 0))
		pause(5 * time.Minute)
		want(t, "told", r.made(), "A-again", "C-vanished", "A-vanished", "B-again")
	})
}

// While the destination is down nothing is repeated, and a worker that stops ends with what is under way.
func TestNothingIsRepeatedWhileTheDestinationIsDown(t *testing.T) {
	repeating(t, func(t *testing.T, r *route, o *open) {
		o.set("A")
		r.say(fails(delivery.ErrBlocked))
		r.add(change(1, "B", "scheduled", 48*time.Hour))
		pause(30 * time.Minute)
		if got := r.made(); slices.Contains(got, "A-again") {
			t.Errorf("a destination that fails was told %q", got)
		}
		r.say(nil)
		pause(3 * time.Minute)
		if got := r.made(); got[len(got)-1] != "A-again" {
			t.Errorf("told %q, want a repeat at the end", got)
		}
		r.say(takes(3 * time.Second))
		pause(time.Minute)
		began := time.Now()
		r.ends()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the worker ended after %s", took)
		}
	})
}
