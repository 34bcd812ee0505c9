package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/imdstest"
)

// A stage is an emulated Azure, an outbox on disk, and bridges that run one after the other, all in a synctest bubble.
type stage struct {
	t     *testing.T
	azure *imdstest.Server
	dir   string
	opts  Options // Client, Outbox and Routes are filled in by start
	log   *lines
}

func newStage(t *testing.T) *stage {
	t.Helper()
	return &stage{
		t: t, dir: t.TempDir(), log: &lines{},
		azure: imdstest.New(imdstest.Options{VMs: []string{"vm-0", "vm-1"}}),
	}
}

// running is a bridge that runs. end stops it as SIGTERM does; crash as kill -9 does, as far as one process can: what
// is not on disk is lost.
type running struct {
	*Bridge
	s      *stage
	cancel context.CancelFunc
	done   chan error
}

func (s *stage) start(routes ...Route) *running {
	s.t.Helper()
	log := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	o := s.opts
	outbox, err := OpenOutbox(s.dir, log)
	if err != nil {
		s.t.Fatal(err)
	}
	o.Client = NewClient("http://azure.test", DefaultAPIVersion, log, s.azure.RoundTripper())
	o.Outbox, o.Routes, o.Log, o.Host, o.Version = outbox, routes, log, "host-0", "test"
	r := &running{Bridge: New(o), s: s, done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(s.t.Context())
	r.cancel = cancel
	go func() { r.done <- r.Run(ctx) }()
	return r
}

func (r *running) end() {
	r.s.t.Helper()
	r.cancel()
	if err := <-r.done; err != nil {
		r.s.t.Errorf("Run = %v", err)
	}
}

// lines is a log that can be searched.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// An ear is a sink that remembers what it was told and answers as it is told to.
type ear struct {
	mu     sync.Mutex
	heard  []heard // accepted
	tries  []heard
	answer func(Delivery) error // nil accepts
	reply  Answer
}

type heard struct {
	Delivery
	at time.Time
}

func (e *ear) Deliver(ctx context.Context, batch []Delivery) (Answer, error) {
	e.mu.Lock()
	answer := e.answer
	for _, d := range batch {
		e.tries = append(e.tries, heard{d, time.Now()})
	}
	reply := e.reply
	e.mu.Unlock()
	for _, d := range batch {
		if answer == nil {
			break
		}
		if err := answer(d); err != nil {
			if errors.Is(err, errHang) {
				<-ctx.Done()
				return reply, ctx.Err()
			}
			return reply, err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range batch {
		e.heard = append(e.heard, heard{d, time.Now()})
	}
	return reply, nil
}

// errHang makes an ear hang until its attempt ends.
var errHang = errors.New("hang")

func (e *ear) say(answer func(Delivery) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

func always(err error) func(Delivery) error { return func(Delivery) error { return err } }

// ids are those of what was accepted, in order.
func (e *ear) ids() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := []string{}
	for _, h := range e.heard {
		list = append(list, h.Event.ID())
	}
	return list
}

// all routes everything about all VMs to the ear.
func (e *ear) all(name string) Route {
	return Route{Name: name, Kind: "ear", Sink: e, Filter: Filter{Only: Match{VMs: "all"}}, Terms: Terms{Timeout: 10 * time.Second, Late: LateSend}}
}

func wantIDs(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

const idA, idB = "AAAAAAAA-0000-4000-8000-000000000001", "BBBBBBBB-0000-4000-8000-000000000002"

// settle lets everything that can happen now happen, and a poll with it.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestAReboot(t *testing.T) {
	t.Run("is told as scheduled, started and vanished, once each and in order", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(t)
			e := &ear{}
			b := s.start(e.all("a"))
			pause(2 * time.Second)
			s.azure.Schedule(imdstest.Event{ID: idA, Type: "Reboot"})
			pause(2 * time.Second)
			s.azure.Start(idA)
			pause(2 * time.Second)
			s.azure.End(idA)
			pause(2 * time.Second)
			wantIDs(t, e.ids(), idA+"-scheduled", idA+"-started", idA+"-vanished")
			b.end()
			if t.Failed() {
				fmt.Println(s.log)
			}
		})
	})
}
