package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
)

var errDown = errors.New("connection refused")

// An answer is what a destination does with a batch.
type answer = func(batch []delivery.Delivery) (delivery.Answer, error)

func fails(err error) answer {
	return func([]delivery.Delivery) (delivery.Answer, error) { return delivery.Answer{}, err }
}

// takes is the answer of a destination that accepts after some time.
func takes(d time.Duration) answer {
	return func([]delivery.Delivery) (delivery.Answer, error) {
		time.Sleep(d)
		return delivery.Answer{}, nil
	}
}

// progresses is the answer of a destination that has made progress, and fails.
func progresses(progress string) answer {
	return func([]delivery.Delivery) (delivery.Answer, error) {
		return delivery.Answer{Progress: []byte(progress)}, errDown
	}
}

// failsOf fails with the error if the batch contains the delivery with that id. It accepts all else.
func failsOf(id string, err error) answer {
	return func(batch []delivery.Delivery) (delivery.Answer, error) {
		if slices.ContainsFunc(batch, func(d delivery.Delivery) bool { return d.Event.ID() == id }) {
			return delivery.Answer{}, err
		}
		return delivery.Answer{}, nil
	}
}

// first gives the first answer so often, and then the other one.
func first(n int, before, then answer) answer {
	return func(batch []delivery.Delivery) (delivery.Answer, error) {
		n--
		if n >= 0 {
			return before(batch)
		}
		return then(batch)
	}
}

// A destination records each call and gives the answer that the test sets.
type destination struct {
	mu     sync.Mutex
	calls  [][]delivery.Delivery
	times  []time.Time
	answer answer // nil accepts
	hang   bool   // until the attempt ends
}

func (d *destination) Deliver(ctx context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	d.mu.Lock()
	d.calls, d.times = append(d.calls, slices.Clone(batch)), append(d.times, time.Now())
	answer, hang := d.answer, d.hang
	d.mu.Unlock()
	if hang {
		<-ctx.Done()
		return delivery.Answer{}, ctx.Err()
	}
	if answer == nil {
		return delivery.Answer{}, nil
	}
	return answer(batch)
}

func (d *destination) say(answer answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = answer
}

// made returns the ids of each call so far.
func (d *destination) made() (calls []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, batch := range d.calls {
		var list []string
		for _, one := range batch {
			list = append(list, one.Event.ID())
		}
		calls = append(calls, strings.Join(list, " "))
	}
	return calls
}

// forget forgets the calls so far.
func (d *destination) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls, d.times = nil, nil
}

// last returns the batch of the last call.
func (d *destination) last() []delivery.Delivery {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[len(d.calls)-1]
}

// A route is a worker that runs, over a queue in memory.
type route struct {
	*memory
	*destination
	worker      *delivery.Worker
	stop, leave chan struct{}
	cut         context.CancelFunc
	ended       chan struct{}
}

// play runs a story of a route.
func play(t *testing.T, c delivery.Config, story func(t *testing.T, r *route)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &route{memory: newMemory(), destination: &destination{}}
		r.run(t, c)
		story(t, r)
		r.cut()
		<-r.ended
	})
}

// bubble is play with these terms.
func bubble(t *testing.T, terms delivery.Terms, story func(t *testing.T, r *route)) {
	t.Helper()
	play(t, delivery.Config{Terms: terms}, story)
}

func (r *route) run(t *testing.T, c delivery.Config) {
	c.Route, c.Queue = "a", r.memory
	if c.Sink == nil {
		c.Sink = r.destination
	}
	r.worker = delivery.NewWorker(c)
	r.stop, r.leave, r.ended = make(chan struct{}), make(chan struct{}), make(chan struct{})
	var ctx context.Context
	ctx, r.cut = context.WithCancel(t.Context())
	go func() {
		defer close(r.ended)
		r.worker.Run(ctx, r.stop, r.leave)
	}()
}

// ends stops the worker in order.
func (r *route) ends() {
	close(r.stop)
	<-r.ended
}

// restart stops the worker in order, and starts another one, which finds all that is pending.
func (r *route) restart(t *testing.T, terms delivery.Terms) {
	r.ends()
	r.cut()
	r.reopen()
	r.run(t, delivery.Config{Terms: terms})
}

// trouble returns what the state of the route says is wrong, and its error.
func (r *route) trouble() (words []string) {
	s := r.worker.State()
	if s.Blocked {
		words = append(words, "blocked")
	}
	if s.Refused {
		words = append(words, "refused")
	}
	if s.Retrying {
		words = append(words, "retrying")
	}
	if s.Error != "" {
		words = append(words, s.Error)
	}
	return words
}

// pause lets time pass, and waits until everything due has happened.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func want(t *testing.T, claim string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", claim, got, want)
	}
}

// sorted sorts what may happen in any order.
func sorted(list []string) []string {
	slices.Sort(list)
	return list
}

func longest() float64 { return 1 }

func change(seq uint64, group, change string, notice time.Duration) delivery.Item {
	m := &delivery.Message{Seq: seq, Group: group, Change: change, ID: group + "-" + change, AzureType: "Reboot"}
	return delivery.Item{Message: m, NotBefore: time.Now().Add(notice)}
}

// announced returns the changes of one document with n events: E1, E2, …
func announced(n uint64) (items []delivery.Item) {
	for seq := range n {
		items = append(items, change(seq+1, fmt.Sprint("E", seq+1), "scheduled", 24*time.Hour))
	}
	return items
}

// digest are the terms of a route that combines the deliveries of three events.
var digest = delivery.Terms{Late: delivery.LateLatest, DigestAbove: 2}
