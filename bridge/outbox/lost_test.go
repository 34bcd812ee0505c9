package outbox_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

// A pending CloudEvent that the file has lost is replaced by the latest change of its group, under the id of that change.
// Only what is over is lost, what somebody gave up, and what a route that acts was not given.
func TestALostCloudEventIsReplacedByTheLatestChange(t *testing.T) {
	const scheduled, started, reminder = "A-scheduled", "A-started", "A-reminder"
	for _, tt := range []struct {
		claim string
		late  delivery.Late
		lost  string // what the file has lost
		to    string // the route of the latest change; the other deliveries are all for a
		then  func(o *outbox.Outbox, latest outbox.Addition)
		want  []string // pending in the end
		dead  []string
	}{
		{"the latest change is pending too", delivery.LateSend, scheduled, "a", nil, []string{started}, nil},
		{"also for a route that acts", delivery.LateDrop, scheduled, "a", nil, []string{started}, nil},
		{"the route didn't want the latest change", delivery.LateSend, scheduled, "b", nil, []string{started}, nil},
		{"a route that acts didn't want it", delivery.LateDrop, scheduled, "b", nil, nil, []string{scheduled}},
		{"a reminder of a change that was accepted", delivery.LateLatest, reminder, "a", accept, []string{started}, nil},
		{"the same of a route that acts", delivery.LateDrop, reminder, "a", accept, nil, []string{reminder}},
		{"the latest change was dropped", delivery.LateSend, reminder, "a", dropLatest, nil, []string{reminder}},
		{"the latest change is a dead letter", delivery.LateSend, reminder, "a", reject, nil, []string{started, reminder}},
		{"the event is over", delivery.LateSend, scheduled, "a", over, []string{started}, []string{scheduled}},
		{"the latest change itself is never lost", delivery.LateSend, started, "a", nil, []string{scheduled, started}, nil},
	} {
		log := &lines{}
		inBubble(t, outbox.Options{Log: log.logger()}, func(t *testing.T, o *outbox.Outbox, d *disk) {
			if _, _, err := setRoutes(o, time.Now(), outbox.Route{Name: "a", Late: tt.late}, outbox.Route{Name: "b"}); err != nil {
				t.Fatal(err)
			}
			if tt.lost != reminder {
				mustAdd(t, o, "A", "scheduled", "a")
			}
			latest := mustAdd(t, o, "A", "started", tt.to)
			if tt.lost == reminder {
				batch := outbox.Batch{Add: []outbox.Addition{addition(o, "A", "reminder", "a")}}
				if err := apply(o, time.Now(), batch); err != nil {
					t.Fatal(err)
				}
			}
			if tt.then != nil {
				tt.then(o, latest)
			}
			q := o.Queue("a")
			items := q.Changes().Pending
			d.set(func() {
				for key, body := range d.data["events"] {
					if strings.Contains(string(body), tt.lost) {
						delete(d.data["events"], key)
					}
				}
			})
			for _, i := range items {
				if _, err := q.Read(i); errors.Is(err, delivery.ErrLost) {
					q.Report(delivery.Report{Now: time.Now(), Dead: []*delivery.Item{i}, Reason: delivery.ReasonLost})
				}
			}
			want(t, tt.claim+": pending", pending(o, "a"), tt.want...)
			want(t, tt.claim+": dead", deadLetters(o, "a"), tt.dead...)
			replaced := len(tt.dead) == 0 && tt.lost != started
			if said := strings.Contains(log.String(), "a pending CloudEvent is lost"); said != replaced {
				t.Errorf("%s: the log says that one is replaced: %t\n%s", tt.claim, said, log)
			}
		})
	}
}

func accept(o *outbox.Outbox, latest outbox.Addition) {
	q := o.Queue("a")
	q.Report(delivery.Report{Now: time.Now(), Accepted: only(q, latest), Durable: true})
}

func reject(o *outbox.Outbox, latest outbox.Addition) {
	q := o.Queue("a")
	q.Report(delivery.Report{Now: time.Now(), Dead: only(q, latest), Reason: delivery.ReasonRejected, Durable: true})
}

func dropLatest(o *outbox.Outbox, latest outbox.Addition) {
	for _, d := range o.List(outbox.Selection{Route: "a"}) {
		if d.Seq == latest.Seq {
			_, _ = drop(o, []string{d.Key}, "root")
		}
	}
}

func over(o *outbox.Outbox, _ outbox.Addition) {
	_ = apply(o, time.Now(), outbox.Batch{Groups: map[string]*outbox.Group{"A": nil}})
}

// only returns the queue's pending item of a message.
func only(q delivery.Queue, a outbox.Addition) (items []*delivery.Item) {
	for _, i := range q.Changes().Pending {
		if i.Seq == a.Seq {
			items = append(items, i)
		}
	}
	return items
}

// What takes the place of a lost CloudEvent is for whom that was: a fallback is told whose it is, and what somebody
// replayed stays that.
func TestWhatReplacesALostCloudEventIsForTheSame(t *testing.T) {
	inBubble(t, outbox.Options{}, func(t *testing.T, o *outbox.Outbox, d *disk) {
		routes := []outbox.Route{{Name: "a", Fallback: "b"}, {Name: "b"}}
		if _, _, err := setRoutes(o, time.Now(), routes...); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "scheduled", "a")
		q := o.Queue("a")
		q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonRejected, Error: "no"})
		if _, err := replay(o, []string{o.List(outbox.Selection{State: outbox.StateDead})[0].Key}, "", "root"); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, o, "A", "started")
		d.set(func() { d.data["events"] = nil })
		for _, name := range []string{"a", "b"} {
			q := o.Queue(name)
			q.Report(delivery.Report{Now: time.Now(), Dead: q.Changes().Pending, Reason: delivery.ReasonLost})
			want(t, name, pending(o, name), "A-started")
		}
		byUser, fellBack := o.List(outbox.Selection{Route: "a"})[0], o.List(outbox.Selection{Route: "b"})[0]
		if byUser.ReplayedBy != "root" || !byUser.Replayed || byUser.FallbackFor != nil {
			t.Errorf("what was replayed is now %+v", byUser)
		}
		if fellBack.Replayed || fellBack.FallbackFor == nil || fellBack.FallbackFor.Sink != "a" {
			t.Errorf("what the fallback had is now %+v", fellBack)
		}
	})
}

// What is about no event has nothing that could take its place, such as the report of a dead letter that waits for the end
// of a mute. So it outlives a damaged file, whenever it was pending first.
func TestWhatIsAboutNoEventOutlivesADamagedFile(t *testing.T) {
	restart := func(t *testing.T, o *outbox.Outbox, s outbox.Storage, _ *disk) *outbox.Outbox {
		o.Close()
		return open(t, t.TempDir(), outbox.Options{Storage: s})
	}
	for claim, before := range map[string]func(*testing.T, *outbox.Outbox, outbox.Storage, *disk) *outbox.Outbox{
		"it was added by this run": func(_ *testing.T, o *outbox.Outbox, _ outbox.Storage, _ *disk) *outbox.Outbox { return o },
		"an earlier run left it":   restart,
		"its file was read late": func(t *testing.T, o *outbox.Outbox, s outbox.Storage, d *disk) *outbox.Outbox {
			release := d.hangReads()
			o = restart(t, o, s, d)
			release()
			<-o.Returned()
			joins(o)
			return o
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := diskOf(nil)
			s := &breaking{Storage: d}
			o := open(t, t.TempDir(), outbox.Options{Storage: s})
			report := mustAdd(t, o, "", "report", "a")
			o = before(t, o, s, d)
			s.breaks.Store(true)
			mustAdd(t, o, "A", "scheduled", "a")
			want(t, claim+": set aside", d.aside, "damaged")
			for _, when := range []string{"at once", "after a restart"} {
				body, err := bodyOf(o, "a", report.Seq)
				if string(body) != string(report.Body) {
					t.Errorf("%s: %s it is %q: %v", claim, when, body, err)
				}
				o = restart(t, o, s, d)
			}
			o.Close()
		})
	}
}
