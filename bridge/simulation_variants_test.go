package bridge_test

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/outbox"
)

var brokenVariants = []variant{
	// Promise 1.
	{number: 1, claim: "an error of the endpoint counts as a document without events",
		promise: "the same change has the same id", seed: 10,
		transportOf: altered(documents, func(resp *http.Response, _ string) {
			if resp.StatusCode >= 400 {
				setBody(resp, `{"DocumentIncarnation":0,"Events":[]}`)
			}
		})},
	{number: 1, claim: "an empty answer counts at once", promise: "the same change has the same id", seed: 87,
		transportOf: altered(documents, func(resp *http.Response, _ string) {
			if resp.StatusCode == 200 && resp.ContentLength == 0 {
				setBody(resp, `{"DocumentIncarnation":0,"Events":[]}`)
			}
		})},
	{number: 1, claim: "a document that did not change hides what did", promise: "isolation", seed: 1,
		transportOf: altered(documents, func(resp *http.Response, _ string) {
			if resp.Request.Header.Get("If-None-Match") != "" {
				resp.StatusCode = http.StatusNotModified
			}
		})},

	// Promises 2 and 3.
	{number: 2, claim: "what is said to be on the disk is not", promise: "told once", seed: 1,
		write: func(d *disk, write func() error) error {
			d.lies = !d.lies
			if d.lies {
				return nil
			}
			return write()
		}},
	{number: 2, claim: "a crash takes the last transaction with it", promise: "told once", story: []step{
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), restart{crash: true, off: 20 * time.Second}},
		{at(20 * time.Minute), unlist{reboot.id}},
	},
		write: func(d *disk, write func() error) error {
			d.before = d.file.content()
			return write()
		}},
	{number: 3, claim: "a restart forgets everything", promise: "told once", seed: 13, forgets: true},
	{number: 3, claim: "a retry has an id of its own", promise: "the same change has the same id", seed: 11,
		deliver: rewrite(func(h *handed) {
			if h.attempt > 1 {
				h.id += "-r2"
			}
		})},
	{number: 3, claim: "an error counts as an acceptance", promise: "nothing is lost", seed: 29,
		deliver: answered(func(v *verdict) { *v = verdict{} })},
	{number: 3, claim: "an acceptance does not count", promise: "told once", seed: 1,
		deliver: func(d destination, ctx context.Context, batch []handed) verdict {
			v := d.take(ctx, batch)
			if batch[0].attempt == 1 {
				v.class = "again"
			}
			return v
		}},
	{number: 3, claim: "everything is told twice", promise: "told once", seed: 1,
		deliver: func(d destination, ctx context.Context, batch []handed) verdict {
			d.take(ctx, batch)
			return d.take(ctx, batch)
		}},

	{number: 2, claim: "a crash leaves half a batch", promise: "nothing is lost", splits: true, story: []step{
		{59 * time.Second, restart{crash: true, writes: 1, sooner: true, large: true, off: time.Second}},
		{at(time.Minute), list{event: reboot}},
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{number: 3, claim: "a file that comes late is taken for empty", promise: "nothing is lost", seed: 24, blank: true},
	{number: 6, claim: "a new file begins without what memory has", promise: "nothing is lost", empty: true, story: []step{
		{at(time.Minute), fails("webhook", "is down", 20*time.Minute)},
		{at(2 * time.Minute), list{event: reboot}},
		{at(4 * time.Minute), unlist{reboot.id}},
		{at(6 * time.Minute), damage{fileCut}},
		{at(10 * time.Minute), restart{off: time.Second}},
		{at(30 * time.Minute), restyle{}},
	}},
	{number: 6, claim: "a lost CloudEvent is given up though its event is open", promise: "dead letters", story: []step{
		{at(time.Minute), fails("webhook", "is down", 10*time.Minute)},
		{at(2 * time.Minute), list{event: reboot}},
		{at(4 * time.Minute), list{event: moved}},
		{at(6 * time.Minute), damage{fileCut}},
		{at(20 * time.Minute), restyle{}},
	},
		route: func(r *bridge.Route, _ routePlan) { r.Terms.Late = delivery.LateDrop }},
	{number: 3, claim: "a machine with a copy of the disk does not notice", promise: "clones", story: []step{
		{at(time.Minute), fails("webhook", "is down", time.Hour)},
		{at(2 * time.Minute), list{event: reboot}},
		{at(3 * time.Minute), instanceTrouble{"503", 4*time.Minute + 40*time.Second}},
		{at(3 * time.Minute), restart{crash: true, off: time.Minute, clone: true}},
		{at(20 * time.Minute), unlist{reboot.id}},
	},
		transportOf: altered(identity, func(resp *http.Response, body string) {
			if i := strings.Index(body, `"vmId":"`); i >= 0 {
				setBody(resp, body[:i]+`"vmId":"5d6c7b8a-0000-4000-8000-000000000001"}}`)
			}
		})},

	// Promise 4.
	{number: 4, claim: "a batch is told from its end", promise: "in order", seed: 135,
		deliver: func(d destination, ctx context.Context, batch []handed) verdict {
			if batch[0].attempt < 6 {
				return verdict{class: "again"} // until more of one event waits
			}
			batch = slices.Clone(batch)
			slices.Reverse(batch)
			return d.take(ctx, batch)
		}},
	{number: 4, claim: "a reminder overtakes what it reminds of", promise: "in order", story: remindedStory,
		deliver: func(d destination, ctx context.Context, batch []handed) verdict {
			switch batch[0].change {
			case "scheduled", "updated":
				return verdict{class: "again"}
			case "reminder":
				batch = slices.Clone(batch)
				batch[0].missed = nil
			}
			return d.take(ctx, batch)
		}},

	// Promise 5, and the schedule.
	{number: 5, claim: "destinations wait for each other", promise: "isolation", seed: 49,
		deliver: func(d destination, ctx context.Context, batch []handed) verdict {
			d.w.turn <- struct{}{}
			defer func() { <-d.w.turn }()
			return d.take(ctx, batch)
		}},
	{number: 5, claim: "polls are rare", promise: "polling", seed: 1, slower: 10},
	{number: 5, claim: "a hung destination is waited for without end", promise: "nothing is left behind", seed: 49,
		route: func(r *bridge.Route, _ routePlan) { r.Terms.Timeout = 0 }},
	{number: 5, claim: "a destination that asks to wait is not heard", promise: "retry", seed: 94,
		deliver: answered(func(v *verdict) { v.after = 0 })},
	{number: 5, claim: "what failed is tried again after ten minutes", promise: "retry", story: []step{
		{at(time.Minute), fails("webhook", "is down", 3*time.Minute)},
		{at(2 * time.Minute), list{event: later(1)}},
		{at(40 * time.Minute), unlist{later(1).id}},
	},
		deliver: answered(func(v *verdict) {
			if v.class == "again" && v.after == 0 {
				v.after = 10 * time.Minute
			}
		})},
	{number: 5, claim: "what failed gets no second chance when others are taken", promise: "retry", seed: 29,
		deliver: unasked(verdict{class: "again"}, func(_ destination, first handed) bool {
			return first.attempt > 1 && first.attempt < 6
		})},
	{number: 5, claim: "a destination that was down once counts as down for ever", promise: "retry",
		deliver: downForEver(),
		story: slices.Concat([]step{
			{at(time.Minute), fails("webhook", "is down", 10*time.Minute)},
		}, lists(at(2*time.Minute), 10), []step{
			{at(30 * time.Minute), fails("webhook", "is down", 50*time.Minute)},
			{at(31 * time.Minute), list{event: later(1)}},
			{at(40 * time.Minute), list{event: later(2)}},
			{at(41 * time.Minute), list{event: later(3)}},
			{at(42 * time.Minute), list{event: later(4)}},
			{at(time.Hour), unlist{later(1).id}},
		})},
	{number: 5, claim: "a blocked destination is tried like any other", promise: "retry", story: slices.Concat([]step{
		{at(time.Minute), fails("webhook", "is blocked", 40*time.Minute)},
	}, lists(at(2*time.Minute), 7), []step{{at(time.Hour), unlist{later(100).id}}}),
		deliver: misread("blocked", "again")},
	{number: 5, claim: "a sink that is refused asks again and again by itself", promise: "retry", story: []step{
		{at(time.Minute), fails("webhook", "is blocked", 30*time.Minute)},
		{at(2 * time.Minute), list{event: later(1)}},
		{at(40 * time.Minute), unlist{later(1).id}},
	},
		deliver: func(d destination, ctx context.Context, batch []handed) (v verdict) {
			for range 20 {
				v = d.take(ctx, batch)
				if v.class == "" {
					break
				}
			}
			return v
		}},
	{number: 5, claim: "every refusal asks to wait for an hour", promise: "urgency", seed: 29,
		deliver: answered(func(v *verdict) {
			if v.class != "" {
				v.after = time.Hour
			}
		})},

	// Promise 6.
	{number: 6, claim: "what a destination refuses for good is forgotten", promise: "nothing is lost", seed: 34,
		deliver: misread("rejected", "")},
	{number: 6, claim: "any refusal is for good", promise: "dead letters", seed: 11,
		deliver: misread("again", "rejected")},
	{number: 6, claim: "deliveries expire after a minute", promise: "dead letters", seed: 49,
		route: func(r *bridge.Route, _ routePlan) { r.Terms.MaxAge = time.Minute }},
	{number: 6, claim: "half of what may be pending is given up", promise: "bounds", seed: 184,
		boundsOf: func(b bounds) bounds { b.pending /= 2; return b }},
	{number: 6, claim: "there are no bounds", promise: "bounds", seed: 92,
		boundsOf: func(bounds) bounds { return bounds{} }},
	{number: 6, claim: "what a destination wants to remember is forgotten", promise: "receipts", seed: 1,
		deliver: answered(func(v *verdict) { v.receipt = "" })},
	{number: 6, claim: "what is done of a batch is forgotten", promise: "progress", seed: 68,
		deliver: answered(func(v *verdict) { v.progress = "" })},
	{number: 6, claim: "a destination's acceptance is made up", promise: "the record is true", seed: 11,
		deliver: unasked(verdict{}, func(_ destination, first handed) bool { return first.attempt > 2 })},

	{number: 6, claim: "everybody is told all about the bridge", promise: "trouble", seed: 1,
		route: func(r *bridge.Route, _ routePlan) { r.Terms.Bridge = bridge.LevelAll }},
	{number: 6, claim: "what is replayed to another sink goes to its own", promise: "nothing is lost",
		strays: true, story: []step{
			{at(time.Minute), fails("webhook", "rejects", time.Hour)},
			{at(2 * time.Minute), list{event: reboot}},
			{at(10 * time.Minute), replay{to: "second"}},
			{at(20 * time.Minute), unlist{reboot.id}},
		}},
	{number: 6, claim: "nobody is told of dead letters", promise: "trouble", seed: 34,
		route: func(r *bridge.Route, _ routePlan) { r.Terms.Bridge = bridge.LevelNone }},

	// Filters and terms.
	{claim: "self is all", promise: "filters", seed: 5,
		route: func(r *bridge.Route, _ routePlan) { r.Filter.Only.VMs = "all" }},
	{claim: "leader is self", promise: "filters", seed: 79,
		route: func(r *bridge.Route, _ routePlan) {
			if r.Filter.Only.VMs == "leader" {
				r.Filter.Only.VMs = "self"
			}
		}},
	{claim: "types are not looked at", promise: "filters", seed: 9,
		route: func(r *bridge.Route, _ routePlan) { r.Filter.Only.Types = nil }},
	{claim: "sources are not looked at", promise: "filters", seed: 11,
		route: func(r *bridge.Route, _ routePlan) { r.Filter.Only.Sources = nil }},
	{claim: "changes are not looked at", promise: "filters", seed: 11,
		route: func(r *bridge.Route, _ routePlan) { r.Filter.Only.Changes = nil }},
	{claim: "when is not looked at", promise: "filters", seed: 6,
		route: func(r *bridge.Route, _ routePlan) { r.Filter.When = nil }},
	{claim: "except is not looked at", promise: "filters", seed: 10,
		route: func(r *bridge.Route, _ routePlan) { r.Filter.Except = bridge.Except{} }},
	{claim: "nobody waits for the name of the VM", promise: "filters", seed: 1,
		transportOf: altered(identity, func(resp *http.Response, _ string) { resp.StatusCode = http.StatusForbidden })},
	{claim: "nobody waits for a name that may come", promise: "filters", story: namelessStory,
		transportOf: altered(identity, func(resp *http.Response, _ string) {
			if resp.StatusCode == http.StatusServiceUnavailable {
				resp.StatusCode = http.StatusForbidden
			}
		})},
	{claim: "what is urgent waits for the name too", promise: "urgency", story: namelessStory,
		transportOf: untilNamed},
	{claim: "without a name, the events of other VMs are refused", promise: "nothing is lost", story: namelessStory,
		transportOf: altered(identity, func(resp *http.Response, _ string) {
			if resp.StatusCode == http.StatusServiceUnavailable {
				setBody(resp, `{"compute":{"name":"vm-9"}}`)
			}
		})},
	{claim: "a reload leaves filters as they were", promise: "filters", seed: 42,
		route: func(r *bridge.Route, first routePlan) { r.Filter = first.filter() }},
	{claim: "a reload leaves reminders as they were", promise: "reminders", seed: 186,
		route: func(r *bridge.Route, first routePlan) { r.Terms.Remind = first.remind }},
	{claim: "a reload leaves late as it was", promise: "late", story: []step{
		{at(time.Minute), webhook("late: latest", func(r *routePlan) { r.late = "latest" })},
		{at(2 * time.Minute), fails("webhook", "is down", 20*time.Minute)},
		{at(3 * time.Minute), list{event: reboot}},
		{at(5 * time.Minute), list{event: moved}},
		{at(30 * time.Minute), unlist{reboot.id}},
	},
		route: func(r *bridge.Route, first routePlan) { r.Terms.Late = delivery.Late(first.late) }},
	{claim: "a wave is told one by one", promise: "digest", seed: 248,
		route: func(r *bridge.Route, _ routePlan) { r.Terms.DigestAbove = 0 }},
	{claim: "latest and drop are send", promise: "late", seed: 24,
		route: func(r *bridge.Route, _ routePlan) { r.Terms.Late = delivery.LateSend }},
	{claim: "what waits is told when its event is over", promise: "nothing is begun when it is over", story: []step{
		{at(time.Minute), webhook("late: drop, without the end", func(r *routePlan) {
			r.late, r.changes = "drop", []string{"scheduled", "updated"}
		})},
		{at(2 * time.Minute), fails("webhook", "is down", 20*time.Minute)},
		{at(3 * time.Minute), list{event: reboot}},
		{at(5 * time.Minute), unlist{reboot.id}},
		{at(30 * time.Minute), list{event: later(1)}},
	},
		route: func(r *bridge.Route, _ routePlan) { r.Terms.Late = delivery.LateSend }},
	{claim: "what waited for a mute is told when its event is over", promise: "nothing is begun when it is over",
		story: []step{
			{at(time.Minute), webhook("late: latest, without the end", func(r *routePlan) {
				r.late, r.changes = "latest", []string{"scheduled"}
			})},
			{at(2 * time.Minute), mute{mutePlan{sink: "webhook", lasts: 7 * time.Minute}}},
			{at(3 * time.Minute), list{event: reboot}},
			{at(5 * time.Minute), unlist{reboot.id}},
			{at(30 * time.Minute), list{event: later(1)}},
		},
		route: func(r *bridge.Route, _ routePlan) { r.Terms.Late = delivery.LateSend }},
	{claim: "there is no lead", promise: "lead", seed: 7,
		route: func(r *bridge.Route, _ routePlan) { r.Terms.Lead = 0 }},
	{claim: "a lead is half as long", promise: "lead", seed: 38,
		route: func(r *bridge.Route, _ routePlan) { r.Terms.Lead /= 2 }},
	{claim: "a restart forgets which routes wait for their lead", promise: "nothing is lost", story: []step{
		{at(time.Minute), webhookLeads("send")},
		{at(2 * time.Minute), list{event: reboot}},
		{at(5 * time.Minute), restart{off: 20 * time.Second}},
		{at(50 * time.Minute), unlist{reboot.id}},
	},
		writesOf: func(all []outbox.Write) []outbox.Write {
			kept := slices.Clone(all)
			for i, w := range kept {
				if w.Bucket == "groups" {
					kept[i].Value = bytes.ReplaceAll(w.Value, []byte(`"waiting"`), []byte(`"forgotten"`))
				}
			}
			return kept
		}},
	{claim: "nobody falls back", promise: "fallback", story: []step{
		{at(time.Minute), fails("webhook", "is down", 30*time.Minute)},
		{at(2 * time.Minute), list{event: reboot}},
		{at(35 * time.Minute), unlist{reboot.id}},
	},
		route: func(r *bridge.Route, _ routePlan) { r.Terms.Fallback = delivery.Fallback{} }},
	{claim: "two reminders come five minutes apart", promise: "reminders", seed: 32,
		route: func(r *bridge.Route, _ routePlan) {
			for _, d := range r.Terms.Remind {
				r.Terms.Remind = append(r.Terms.Remind, d-5*time.Minute)
			}
		}},
	{claim: "nobody is reminded", promise: "reminders", story: remindedStory,
		route: func(r *bridge.Route, _ routePlan) { r.Terms.Remind = nil }},
	{claim: "reminders do not name the VM", promise: "reminders", seed: 32,
		deliver: rewrite(func(h *handed) {
			if h.change == "reminder" {
				h.observer = ""
			}
		})},
	{claim: "a route that acts does so again at a reminder", promise: "reminders", seed: 78,
		route: func(r *bridge.Route, _ routePlan) { r.Terms.Acts = false }},

	// Promise 7.
	{number: 7, claim: "a sink that comes hears nothing of what is open", promise: "nothing is lost",
		deliver: announcesNothing, story: []step{
			{at(time.Second), reload{routes: []string{"well", "second"}}},
			{at(time.Minute), list{event: reboot}},
			{at(3 * time.Minute), reload{}},
			{at(20 * time.Minute), unlist{reboot.id}},
		}},
	{number: 7, claim: "a sink that comes before the file hears nothing of what is open in it", promise: "nothing is lost",
		deliver: announcesNothing, story: []step{
			{at(time.Second), reload{routes: []string{"well", "second"}}},
			{at(time.Minute), list{event: reboot}},
			{at(2 * time.Minute), restart{crash: true, off: 20 * time.Second, late: 4 * time.Minute}},
			{at(4 * time.Minute), reload{}},
			{at(20 * time.Minute), unlist{reboot.id}},
		}},
	{number: 7, claim: "what was never seen to begin was canceled", promise: "the outcome is honest", seed: 16,
		deliver: rewrite(func(h *handed) {
			if h.outcome == "unknown" {
				h.outcome = "canceled"
			}
		})},
	{number: 7, claim: "what is over took place", promise: "the outcome is honest", seed: 5,
		deliver: rewrite(func(h *handed) {
			if h.outcome == "canceled" {
				h.outcome = "completed"
			}
		})},

	{number: 7, claim: "what changed while nobody watched is told as if it had just happened",
		promise: "while away", seed: 11,
		deliver: rewrite(func(h *handed) { h.whileAway = false })},
	{number: 7, claim: "everything is told as if nobody had watched", promise: "while away", seed: 1,
		deliver: rewrite(func(h *handed) { h.whileAway = true })},

	// Mutes.
	{claim: "a mute holds nothing back", promise: "mutes hold", seed: 2,
		muteOf: func(m *bridge.Mute, _ *time.Duration) { m.Sink = "nobody" }},
	{claim: "a mute ends after half its time", promise: "mutes hold", seed: 3,
		muteOf: func(_ *bridge.Mute, lasts *time.Duration) { *lasts /= 2 }},
	{claim: "a mute lasts twice its time", promise: "what is not muted is told", seed: 3,
		muteOf: func(_ *bridge.Mute, lasts *time.Duration) { *lasts *= 2 }},
	{claim: "the mute of one sink mutes all", promise: "what is not muted is told", seed: 13,
		muteOf: func(m *bridge.Mute, _ *time.Duration) { m.Sink = "" }},
	{claim: "a mute of the sinks for people mutes all", promise: "what is not muted is told", story: []step{
		{at(time.Minute), mute{mutePlan{people: true, lasts: 7 * time.Minute}}},
		{at(2 * time.Minute), list{event: reboot}},
	}, muteOf: func(m *bridge.Mute, _ *time.Duration) { m.People = false }},
	{claim: "a mute of the sinks for people mutes none", promise: "mutes hold", seed: 38,
		route: func(r *bridge.Route, _ routePlan) { r.Terms.People = false }},
	{claim: "the VMs of a mute are not looked at", promise: "what is not muted is told", seed: 42,
		muteOf: func(m *bridge.Mute, _ *time.Duration) { m.VM = "" }},
	{claim: "the types of a mute are not looked at", promise: "what is not muted is told", seed: 17,
		muteOf: func(m *bridge.Mute, _ *time.Duration) { m.Types = nil }},
	{claim: "a mute holds a Preempt back that it does not name", promise: "what is not muted is told", seed: 13,
		muteOf: func(m *bridge.Mute, _ *time.Duration) {
			if m.Types == nil {
				m.Types = bridge.TypesValues
			}
		}},
	{claim: "a restart forgets mutes", promise: "mutes hold", seed: 13,
		writesOf: withoutMutes(func(*bridge.Mute) bool { return false })},
	{claim: "a mute that somebody ended comes back at a restart", promise: "what is not muted is told", seed: 204,
		writesOf: withoutMutes(func(m *bridge.Mute) bool { return m.EndedBy == "" })},
	{claim: "a mute that is over comes back when the clock was set back", promise: "what is not muted is told",
		story: []step{
			{at(time.Minute), mute{mutePlan{lasts: 7 * time.Minute}}},
			{at(10 * time.Minute), restart{step: -5 * time.Minute, off: 20 * time.Second}},
			{at(11 * time.Minute), list{event: reboot}},
			{at(30 * time.Minute), unlist{reboot.id}},
		},
		writesOf: withoutMutes(func(m *bridge.Mute) bool { return m.Active() || m.EndedBy != "" })},
	{claim: "what waited for a mute is dropped at its end", promise: "nothing is lost", seed: 3,
		deliver: unasked(verdict{}, func(_ destination, first handed) bool { return first.mute != "" })},
	{claim: "what waited for a mute is told in pieces", promise: "one summary", seed: 92,
		route: func(r *bridge.Route, _ routePlan) { r.Terms.DigestAbove = 0 }},
	{claim: "nobody is told who muted what", promise: "mutes are on record", seed: 3,
		deliver: unasked(verdict{}, func(_ destination, first handed) bool {
			return strings.HasSuffix(first.change, "sink.muted")
		})},
	{claim: "somebody else is said to have muted", promise: "mutes are on record", seed: 3,
		muteOf: func(m *bridge.Mute, _ *time.Duration) { m.By = "nobody" }},

	// Promise 8.
	{number: 8, claim: "a full disk silences it", promise: "a broken disk silences nobody", story: []step{
		{at(time.Minute), diskTrouble{"full", 20 * time.Minute}},
		{at(2 * time.Minute), list{event: reboot}},
		{at(30 * time.Minute), unlist{reboot.id}},
	},
		deliver: unasked(verdict{class: "again"}, func(d destination, _ handed) bool {
			d.w.mu.Lock()
			defer d.w.mu.Unlock()
			return d.w.diskTrouble.end > d.w.now()
		})},

	// Promise 9.
	{number: 9, claim: "a rule that names one type approves every type", promise: "approval", seed: 56,
		rulesOf: rule(func(r *bridge.Rule) { r.Only.Types = append(slices.Clone(azureTypes), "Levitate") })},
	{number: 9, claim: "by hand, whatever is listed is approved", promise: "approval", blind: true, story: []step{
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), show{reboot.id}},
		{at(3 * time.Minute), list{event: moved}},
		{at(4 * time.Minute), approve{}},
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{number: 9, claim: "a rule's sources are not looked at", promise: "approval", seed: 88,
		rulesOf: rule(func(r *bridge.Rule) { r.Only.Sources = nil })},
	{number: 9, claim: "who asked is taken from an older document", promise: "approval", story: inDoubt(asksNobody),
		transportOf: rewritten(func(body string) string {
			if strings.Contains(body, `"EventSource"`) {
				return body
			}
			return strings.ReplaceAll(body, `"EventStatus"`, `"EventSource":"User","EventStatus"`)
		})},
	{number: 9, claim: "characters count as the letters that they look like", promise: "approval", story: inDoubt(oddRunes),
		transportOf: rewritten(func(body string) string {
			return strings.ReplaceAll(body, oddly("User"), "User")
		})},
	{number: 9, claim: "a field counts as none that looks like another", promise: "approval", story: inDoubt(oddFields),
		transportOf: rewritten(func(body string) string {
			return strings.ReplaceAll(body, `"`+alikeField+`":"Platform",`, "")
		})},
	{number: 9, claim: "of what is listed twice only the last is looked at", promise: "approval", story: inDoubt(twice),
		transportOf: rewritten(func(body string) string {
			return firstEntry.ReplaceAllString(body, `"Events":[`)
		})},
	{number: 9, claim: "a rule waits for nobody", promise: "approval", seed: 6,
		rulesOf: rule(func(r *bridge.Rule) { r.After = nil })},
	{number: 9, claim: "a rule does not wait", promise: "approval", seed: 6,
		rulesOf: rule(func(r *bridge.Rule) { r.Wait = 0 })},
	{number: 9, claim: "a rule approves for others", promise: "approval", seed: 7,
		rulesOf: rule(func(r *bridge.Rule) { r.Others = true })},
	{number: 9, claim: "a reload leaves the rules as they were", promise: "approval", seed: 159,
		rulesOf: func(w *world, _ []bridge.Rule) []bridge.Rule { return rules(w.plan.rules) }},
	{number: 9, claim: "of two rules that approve the second does", promise: "approval", story: []step{
		{at(time.Second), withRules(approves("Reboot"), approves("Freeze", "Reboot"))},
		{at(time.Minute), list{event: reboot}},
		{at(20 * time.Minute), unlist{reboot.id}},
	},
		deliver: rewrite(saysRule(1, 2))},
	{number: 9, claim: "a rule that does not approve is on record for it", promise: "approval", story: []step{
		{at(time.Second), withRules(approves("Freeze"), approves("Reboot"))},
		{at(time.Minute), list{event: reboot}},
		{at(20 * time.Minute), unlist{reboot.id}},
	},
		deliver: rewrite(saysRule(2, 1))},
	{number: 9, claim: "an approval without an answer had no effect", promise: "approval", story: []step{
		{at(time.Second), withRules(approves("Reboot"))},
		{at(time.Second), endpointTrouble{how: losesAnswers, end: time.Hour}},
		{at(time.Minute), list{event: reboot}},
		{at(20 * time.Minute), unlist{reboot.id}},
	},
		deliver: rewrite(func(h *handed) { h.body = strings.ReplaceAll(h.body, `"unanswered"`, `"moot"`) })},
	{number: 9, claim: "what was not delivered counts as accepted for a rule", promise: "approval", seed: 15,
		deliver: unasked(verdict{}, func(destination, handed) bool { return true })},
}
