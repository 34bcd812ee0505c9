package sinks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emersion/go-smtp"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
	"forewarn/bridge/systemtest"
)

// pipes is a listener without a network, so that a story takes no time.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return fixedAddr("mail.test:25") }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	p <- theirs
	return ours, nil
}

// A mailRoute is a route by mail to a, b and c, and its outbox.
type mailRoute struct {
	box    *outbox.Outbox
	worker *delivery.Worker
}

// realTime ticks in real time also where a test's clock doesn't.
var realTime = time.NewTicker(10 * time.Millisecond)

func openMailRoute(t *testing.T, dir string, dial Dialer, log *slog.Logger) mailRoute {
	t.Helper()
	box, err := outbox.Open(dir, outbox.Options{Log: log})
	for tries := 1; errors.Is(err, outbox.ErrLocked) && tries < 100; tries++ { // by the one before: its second of patience is no time here
		<-realTime.C
		box, err = outbox.Open(dir, outbox.Options{Log: log})
	}
	if err != nil {
		t.Fatal(err)
	}
	h := testHost(t)
	h.Dial, h.Log = dial, log
	sink := mustOpen(t, "email", "{host: mail.test, tls: {mode: none}, helo: vm-0, from: azure@example.com, "+
		"to: [a@example.com, b@example.com, c@example.com]}", h)
	return mailRoute{box, delivery.NewWorker(delivery.Config{
		Route: "mail", Sink: sink, Terms: emailTerms, Queue: box.Queue("mail"), Log: log,
	})}
}

// add makes deliveries pending.
func (r mailRoute) add(t *testing.T, all []delivery.Delivery) {
	t.Helper()
	batch := outbox.Batch{Routes: []outbox.Route{{Name: "mail"}}}
	for _, d := range all {
		body, err := d.Event.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		a := outbox.Addition{Body: body, NotBefore: d.NotBefore}
		a.ID, a.Type = d.Event.ID(), d.Event.Type()
		if isAzure([]delivery.Delivery{d}) {
			a.Group, a.Change, a.AzureType = d.Event.Subject(), "started", "Reboot"
		}
		a.To = []string{"mail"}
		batch.Add = append(batch.Add, a)
	}
	if err := r.box.Update(time.Now(), func(tx *outbox.Tx) { tx.Apply(batch) })(); err != nil {
		t.Fatal(err)
	}
}

// run delivers for a while, and then ends as the program does.
func (r mailRoute) run(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	r.worker.Run(ctx, nil, nil)
	if err := r.box.Close(); err != nil {
		t.Error(err)
	}
}

// ends returns how each delivery of the outbox stands, and what the server answered.
func (r mailRoute) ends(t *testing.T) (ends []string) {
	t.Helper()
	err := r.box.Walk(0, func(rec outbox.Record) error {
		for _, d := range rec.Deliveries {
			ends = append(ends, d.State+": "+d.Answer+d.Error)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ends
}

// A server that takes its time to say that it has taken a mail gets it once.
func TestASlowMailServerGetsAMailOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &mailbox{slow: 119 * time.Second}
		p := make(pipes)
		stop := b.serve(p)
		defer stop()
		r := openMailRoute(t, t.TempDir(), p.dial, slog.New(slog.DiscardHandler))
		r.add(t, deliveries(t)[:1])
		r.run(t, 30*time.Minute)
		if got, want := who(b.all()), "a@example.com b@example.com c@example.com"; got != want {
			t.Errorf("mails for %s, want %s", got, want)
		}
	})
}

// A server that does not even greet is not waited for as long as one that has the mail.
func TestASilentMailServerIsSoonLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t)
		h.Dial = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			t.Cleanup(func() { theirs.Close() })
			return ours, nil
		}
		began := time.Now()
		s := mustOpen(t, "email",
			"{host: mail.test, tls: {mode: none}, helo: vm-0, from: a@example.com, to: [b@example.com]}", h)
		_, err := s.Deliver(t.Context(), deliveries(t)[:1])
		if took := time.Since(began); classOf(err) != again || took != loginTimeout ||
			!strings.Contains(err.Error(), "no answer from mail.test:25") {
			t.Errorf("Deliver = %v after %v, want it again after %v", err, took, loginTimeout)
		}
	})
}

// serve serves the mailbox until it is stopped.
func (b *mailbox) serve(p pipes) (stop func()) {
	srv := smtp.NewServer(b)
	srv.ErrorLog = log.New(io.Discard, "", 0)
	served := make(chan struct{})
	go func() { defer close(served); srv.Serve(p) }()
	return func() { close(p); <-served }
}

// A mailStory is what came of deliveries by mail.
type mailStory struct {
	mails []received
	ends  []string // of the deliveries
	log   string
}

// tellMailStory delivers, is stopped and started again after five minutes, and goes on for ten. In the first two of
// these the server still says later.
func tellMailStory(t *testing.T, all []delivery.Delivery, later, never map[string]error) (story mailStory) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &mailbox{refuse: map[string]error{}}
		maps.Copy(b.refuse, later)
		maps.Copy(b.refuse, never)
		p := make(pipes)
		stop := b.serve(p)
		defer stop()
		var said bytes.Buffer
		log := slog.New(slog.NewTextHandler(&said, nil))
		dir := t.TempDir()
		r := openMailRoute(t, dir, p.dial, log)
		r.add(t, all)
		r.run(t, 5*time.Minute)
		r = openMailRoute(t, dir, p.dial, log)
		time.AfterFunc(2*time.Minute, func() { b.allow(later) })
		r.run(t, 10*time.Minute)
		r = openMailRoute(t, dir, p.dial, log)
		story = mailStory{b.all(), r.ends(t), said.String()}
		r.run(t, 0)
	})
	return story
}

// wave returns one change of each of many Azure events.
func wave(t *testing.T, n int) []delivery.Delivery {
	t.Helper()
	all := make([]delivery.Delivery, n)
	for i := range all {
		ce := deliveries(t)[2].Event.Clone()
		ce.SetSubject(fmt.Sprintf("AAAAAAAA-0000-4000-8000-%012d", i))
		ce.SetID(ce.Subject() + "-started")
		all[i] = delivery.Delivery{Event: ce}
	}
	return all
}

// lastFirst gives each of the events an earlier NotBefore than the one before it has.
func lastFirst(all []delivery.Delivery) []delivery.Delivery {
	for i := range all {
		all[i].NotBefore = monday.Add(-time.Duration(i) * time.Minute)
	}
	return all
}

// who returns how many mails each recipient has.
func who(mails []received) string {
	var all []string
	for _, m := range mails {
		all = append(all, m.to...)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

var (
	busy    = &smtp.SMTPError{Code: 450, EnhancedCode: smtp.EnhancedCode{4, 2, 0}, Message: "busy"}
	unknown = &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "no such user"}
	shut    = &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 7, 1}, Message: "not from outside"}
)

// aboutTheBridge returns a CloudEvent of trouble, which belongs to no Azure event.
func aboutTheBridge(t *testing.T) []delivery.Delivery {
	ce := deliveries(t)[0].Event.Clone()
	ce.SetType("dev.forewarn.bridge.imds.unavailable")
	ce.SetID("vm-0-imds-unavailable-20261122T120000000000000Z")
	ce.SetSubject("")
	return []delivery.Delivery{{Event: ce}}
}

// While one recipient's server says later, the others, who have the mail, do not get it again: of one event, of a wave,
// of trouble of the bridge, and across a restart. It is one mail, by its Message-ID.
func TestNobodyGetsAMailTwice(t *testing.T) {
	t.Parallel()
	for claim, all := range map[string][]delivery.Delivery{
		"one event": wave(t, 1), "a wave": wave(t, 31), "a wave whose last event begins first": lastFirst(wave(t, 31)),
		"about the bridge": aboutTheBridge(t),
	} {
		t.Run(claim, func(t *testing.T) {
			if claim != "a wave" {
				systemtest.Alone(t)
			}
			story := tellMailStory(t, all, map[string]error{"b@example.com": busy}, nil)
			if got := who(story.mails); got != "a@example.com b@example.com c@example.com" {
				t.Errorf("the mails went to %s; want one to each of the three", got)
			}
			ids := map[string]bool{}
			for _, m := range story.mails {
				ids[readMail(t, m.raw).Get("Message-ID")] = true
			}
			if len(ids) != 1 {
				t.Errorf("they have %d Message-IDs, want 1", len(ids))
			}
			open := func(end string) bool { return !strings.HasPrefix(end, "accepted") }
			if len(story.ends) != len(all) || slices.ContainsFunc(story.ends, open) {
				t.Errorf("%d deliveries ended as %q, want all accepted", len(all), story.ends)
			}
		})
	}
}

// An address that is refused for good takes the mail from nobody else: there is one mail and no dead letter, its name
// stands in the record of each delivery, and one warning says it. So also when another is busy meanwhile, and when
// policy is the reason.
func TestADeadAddressCostsNobodyElseTheMail(t *testing.T) {
	t.Parallel()
	dead, closed := map[string]error{"b@example.com": unknown}, map[string]error{"b@example.com": shut}
	for _, tt := range []struct {
		claim        string
		all          []delivery.Delivery
		later, never map[string]error
		mails        int
	}{
		{"a wave", wave(t, 31), nil, dead, 1},
		{"one event", wave(t, 1), nil, closed, 1},
		{"about the bridge", aboutTheBridge(t), nil, closed, 1},
		{"while another is busy", wave(t, 31), map[string]error{"c@example.com": busy}, dead, 2},
	} {
		t.Run(tt.claim, func(t *testing.T) {
			if tt.claim != "while another is busy" {
				systemtest.Alone(t)
			}
			story := tellMailStory(t, tt.all, tt.later, tt.never)
			if got := who(story.mails); got != "a@example.com c@example.com" || len(story.mails) != tt.mails {
				t.Errorf("%d mails went to %s; want %d, to a and c once each", len(story.mails), got, tt.mails)
			}
			named := func(end string) bool {
				return strings.HasPrefix(end, "accepted: 250") && strings.Contains(end, "refused: b@example.com: 550")
			}
			if len(story.ends) != len(tt.all) || slices.ContainsFunc(story.ends, func(end string) bool { return !named(end) }) {
				t.Errorf("%d deliveries ended as %q; want all accepted, with the name of b", len(tt.all), story.ends)
			}
			if n := strings.Count(story.log, `level=WARN msg="recipients refused`); n != 1 {
				t.Errorf("%d warnings of a refused recipient, want 1:\n%s", n, story.log)
			}
		})
	}
}

// A recipient whose mailbox is full for a day keeps no newer change from the others.
func TestABusyRecipientHoldsNoNewerChangeFromTheOthers(t *testing.T) {
	systemtest.Alone(t)
	synctest.Test(t, func(t *testing.T) {
		b := &mailbox{refuse: map[string]error{"b@example.com": busy}}
		p := make(pipes)
		stop := b.serve(p)
		defer stop()
		r := openMailRoute(t, t.TempDir(), p.dial, slog.New(slog.DiscardHandler))
		one, two := wave(t, 1), wave(t, 1) // of one event
		two[0].Event.SetID(two[0].Event.Subject() + "-vanished")
		r.add(t, one)
		time.AfterFunc(time.Minute, func() { r.add(t, two) })
		r.run(t, 24*time.Hour)
		if got, want := who(b.all()), "a@example.com a@example.com c@example.com c@example.com"; got != want {
			t.Errorf("the mails went to %s, want %s", got, want)
		}
	})
}

// While one recipient's server says later, events may leave the wave. That recipient then gets a mail about those that
// are left, and the others nothing again. When one of these changes, everybody hears of that afterwards.
func TestAMailIsAboutTheEventsThatAreLeft(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		left    int
		subject string // how it ends
		event   string // in the header
	}{
		{30, "30 reboots have begun: vm-0", ""},
		{1, "reboot has begun (22:12 UTC on Mon 11 Apr)", "AAAAAAAA-0000-4000-8000-000000000000"},
	} {
		synctest.Test(t, func(t *testing.T) {
			later := map[string]error{"b@example.com": busy}
			b := &mailbox{refuse: maps.Clone(later)}
			p := make(pipes)
			defer b.serve(p)()
			r := openMailRoute(t, t.TempDir(), p.dial, slog.New(slog.DiscardHandler))
			all := lastFirst(wave(t, 31))
			r.add(t, all)
			time.AfterFunc(time.Minute, func() {
				var keys []string
				for _, d := range all[tt.left:] {
					keys = append(keys, r.box.Pending(d.Event.Subject())[0].Key)
				}
				var err error
				r.box.Update(time.Now(), func(tx *outbox.Tx) { _, err = tx.Drop(keys, "root") })
				if err != nil {
					t.Error(err)
				}
			})
			time.AfterFunc(2*time.Minute, func() { b.allow(later) })
			r.run(t, 10*time.Minute)
			var to []string
			for _, m := range b.all() {
				to = append(to, strings.Join(m.to, " "))
			}
			if want := []string{"a@example.com c@example.com", "b@example.com"}; !slices.Equal(to, want) {
				t.Fatalf("with %d left, the mails went to %q, want %q", tt.left, to, want)
			}
			l := readMail(t, b.all()[1].raw)
			if got := l.Get("X-Forewarn-Event"); !strings.HasSuffix(l.subject, tt.subject) || got != tt.event {
				t.Errorf("with %d left, the mail is about %q and has the subject %q; want %q and …%q", tt.left, got, l.subject,
					tt.event, tt.subject)
			}
		})
	}
}
