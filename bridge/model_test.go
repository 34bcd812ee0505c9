package bridge

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/imdstest"
)

// listed is what stands in the document of an event: all that the model knows of one.
type listed struct {
	started bool
	moved   int // which NotBefore
}

// world is the model: what Azure lists, what the bridge has seen of it, and every change it must have told for that.
type world struct {
	now, seen map[string]listed
	want      map[string][]string // by event, the changes in order
}

// look is a poll that comes through.
func (w *world) look() {
	for _, id := range slices.Sorted(maps.Keys(w.now)) {
		now := w.now[id]
		was, known := w.seen[id]
		switch {
		case now.started && (!known || !was.started):
			w.want[id] = append(w.want[id], "started")
		case !known:
			w.want[id] = append(w.want[id], "scheduled")
		case now != was:
			w.want[id] = append(w.want[id], "updated")
		}
	}
	for id := range w.seen {
		if _, ok := w.now[id]; !ok {
			w.want[id] = append(w.want[id], "vanished")
		}
	}
	w.seen = maps.Clone(w.now)
}

// Whatever happens to events, to the bridge and to its destinations: no change is lost, the order within an event is
// kept, each change has an id of its own, and one that is told twice, because of a crash, is told in the same words.
//
// FOREWARN_SEEDS=100-200 tries others.
func TestNoChangeIsLost(t *testing.T) {
	from, to := uint64(0), uint64(8)
	if s := os.Getenv("FOREWARN_SEEDS"); s != "" {
		if _, err := fmt.Sscanf(s, "%d-%d", &from, &to); err != nil {
			t.Fatal(err)
		}
	}
	for seed := from; seed < to; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			script := make([]byte, 40)
			random := rand.New(rand.NewPCG(seed, 1))
			for i := range script {
				script[i] = byte(random.Uint32())
			}
			synctest.Test(t, func(t *testing.T) { follow(t, script) })
		})
	}
}

// follow does what the script says, each byte of which is one thing that happens.
func follow(t *testing.T, script []byte) {
	s := newStage(t)
	flaky, well := &ear{}, &ear{}
	routes := []Route{flaky.all("flaky"), well.all("well").with(func(x *Terms) { x.Batch = 3 })}
	b := s.start(routes...)
	pause(1500 * time.Millisecond)
	w := &world{now: map[string]listed{}, seen: map[string]listed{}, want: map[string][]string{}}
	times := []time.Time{time.Now().Add(10 * time.Minute), time.Now().Add(time.Hour), {}}
	answers := []func(Delivery) error{nil, always(errDown), always(errRefused), always(errHang), nil, func(d Delivery) error {
		if strings.Contains(d.Event.ID(), "EVENT-1") {
			return ErrRejected
		}
		return nil
	}}
	crashes, polled := 0, true
	settle := func(ms time.Duration) { // long enough for a poll, and short enough that not everything is on disk
		pause(1001*time.Millisecond + ms*time.Millisecond)
		if polled {
			w.look()
		}
	}
	restart := func(crash bool) {
		if crash {
			crashes++
			b.crash()
		} else {
			b.end()
		}
		b = s.start(routes...)
		settle(0)
	}
	for _, op := range script {
		id := fmt.Sprintf("EVENT-%d", op>>4&3)
		e, ok := w.now[id]
		switch wait := time.Duration(op>>6) * 20; op & 15 {
		case 0, 1, 2: // an event comes, or is moved
			if ok && e.started {
				continue
			}
			e.moved = (e.moved + 1 + int(op>>6&1)) % len(times)
			w.now[id] = e
			if ok {
				s.azure.Update(id, func(x *imdstest.Event) { x.NotBefore = times[e.moved] })
			} else {
				s.azure.Schedule(imdstest.Event{ID: id, NotBefore: times[e.moved]})
				s.azure.Update(id, func(x *imdstest.Event) { x.NotBefore = times[e.moved] })
			}
			settle(wait)
		case 3, 4:
			if !ok || e.started {
				continue
			}
			s.azure.Start(id)
			w.now[id] = listed{started: true}
			settle(wait)
		case 5, 6:
			if !ok {
				continue
			}
			s.azure.End(id)
			delete(w.now, id)
			settle(wait)
		case 7, 8:
			restart(true)
		case 9:
			restart(false)
		case 10, 11:
			flaky.say(answers[int(op>>4)%len(answers)])
		case 12: // the endpoint is away, until the next step of this kind
			polled = !polled
			if polled {
				s.azure.ClearFaults()
				pause(20 * time.Second)
				settle(0)
			} else {
				s.azure.SetFault(imdstest.Fault{Status: 503})
			}
		case 13:
			b.Reload(b.mortal(routes), nil, SettingsInfo{})
			settle(wait)
		case 14:
			pause(time.Duration(op>>4) * 5 * time.Second)
		case 15:
			s.azure.ResetIncarnation()
			settle(wait)
		}
	}
	s.azure.ClearFaults()
	polled = true
	pause(20 * time.Second)
	settle(0)
	flaky.say(nil)
	pause(6 * time.Minute)
	dead := deadIDs(b.Outbox)
	if list := b.Outbox.List(Selection{State: StatePending}); len(list) != 0 {
		t.Errorf("still owed: %v", list)
	}
	b.end()

	told := w.check(t, "well", well.accepted(), crashes)
	for id, kinds := range w.want {
		if !slices.Equal(told[id], kinds) {
			t.Errorf("of %s was told %v, want %v", id, told[id], kinds)
		}
	}
	told = w.check(t, "flaky", flaky.accepted(), crashes)
	for id, kinds := range w.want {
		lost := 0
		for _, d := range dead {
			if strings.HasPrefix(d, id+"-") {
				lost++
			}
		}
		if lost == 0 && !slices.Equal(told[id], kinds) || len(told[id])+lost != len(kinds) || !inOrder(told[id], kinds) {
			t.Errorf("the sink that comes and goes was told %v of %s, and rejected %d; want %v", told[id], id, lost, kinds)
		}
	}
}

// check looks at what one sink accepted, and gives the changes of each event as they were first told.
func (w *world) check(t *testing.T, sink string, accepted []heard, crashes int) map[string][]string {
	t.Helper()
	told := map[string][]string{}
	first := map[string][]byte{} // by id
	for _, h := range accepted {
		text := marshalEvent(h.Event)
		if was, again := first[h.Event.ID()]; again {
			if crashes == 0 || !bytes.Equal(was, text) {
				t.Errorf("%s was told twice after %d crashes:\n%s\n%s", h.Event.ID(), crashes, was, text)
			}
			continue
		}
		first[h.Event.ID()] = text
		told[h.Event.Subject()] = append(told[h.Event.Subject()], strings.TrimPrefix(h.Event.Type(), EventPrefix))
	}
	return told
}

// inOrder says whether part is whole with some left out.
func inOrder(part, whole []string) bool {
	for _, s := range whole {
		if len(part) > 0 && part[0] == s {
			part = part[1:]
		}
	}
	return len(part) == 0
}
