package bridge

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"forewarn/bridge/clock"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
)

// A Status is the content of status.json. Times are UTC; zero times are left out.
type Status struct {
	Version   string    `json:"version"`
	StartedAt time.Time `json:"startedAt"`
	// Ready means that the endpoint answers, that a crash would lose nothing, that no sink is blocked while an event is due
	// soon, and that nothing urgent is overdue. Otherwise Reasons says why not.
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
	// Warnings are problems that do not prevent notifications.
	Warnings []string      `json:"warnings,omitempty"`
	Observer imds.Observer `json:"observer"`
	IMDS     IMDSStatus    `json:"imds"`
	Events   []EventStatus `json:"events"`
	Sinks    []SinkStatus  `json:"sinks"`
	Outbox   OutboxStatus  `json:"outbox"`
	Settings SettingsInfo  `json:"settings"`
	// Mutes are those that have not ended.
	Mutes []*delivery.Mute `json:"mutes,omitempty"`
	Relay *RelayStatus     `json:"relay,omitempty"` // of a relay only
}

// An IMDSStatus is the status of the endpoint.
type IMDSStatus struct {
	Endpoint    string          `json:"endpoint"`
	APIVersion  string          `json:"apiVersion"`
	Incarnation json.RawMessage `json:"incarnation,omitempty"` // usually a number
	LastAnswer  time.Time       `json:"lastAnswer,omitzero"`   // the last valid one since the start
	LastError   string          `json:"lastError"`             // "" while it answers
	Problems    []string        `json:"problems,omitempty"`    // parts of the last document that were not understood
}

// An EventStatus is an open event.
type EventStatus struct {
	Event       json.RawMessage   `json:"event"` // as Azure sent it
	NotBefore   time.Time         `json:"notBefore,omitzero"`
	SecondsLeft float64           `json:"secondsLeft"` // until NotBefore; 0 if that has passed or is unknown
	AffectsSelf bool              `json:"affectsSelf"`
	Approval    string            `json:"approval,omitempty"` // why it isn't approved; "" if no rule is for it and nobody asked
	NotYet      bool              `json:"notYet,omitempty"`   // what Approval says may pass, and a rule then approves it
	Asked       *cloudevent.Asked `json:"asked,omitempty"`    // nil if nobody asked Azure to start it, or Azure refused
	Set         string            `json:"set,omitempty"`      // scale set of the observer; from a relay only
	Group       string            `json:"group,omitempty"`    // resource group, likewise
	Known       imds.Event        `json:"-"`                  // Event, decoded

	Rules []cloudevent.Rule `json:"rules,omitempty"` // that will approve it, by what they say now or, until they are asked, by what was told
}

// A SinkStatus is the status of a route.
type SinkStatus struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// People means that people get what it delivers: a mute of no sink by name is for it.
	People bool `json:"people,omitempty"`
	// State is ok, retrying, blocked or orphaned, or standby when another relay serves the sink. While an event is due
	// soon, the first refusal counts as blocked.
	State                string    `json:"state"`
	Pending              int       `json:"pending"`
	Muted                int       `json:"muted,omitempty"`      // pending deliveries that a mute holds back
	MutedUntil           time.Time `json:"mutedUntil,omitzero"`  // while a mute is for all VMs and types
	OldestPendingSeconds float64   `json:"oldestPendingSeconds"` // without the muted
	Delivered            int       `json:"delivered"`            // since the start
	DeadLetters          int       `json:"deadLetters"`
	LastAccepted         time.Time `json:"lastAccepted,omitzero"` // since the start
	LastError            string    `json:"lastError"`             // of the pending deliveries, or the last dead letter
	NextAttempt          time.Time `json:"nextAttempt,omitzero"`  // with a lead, also of what isn't pending yet
	// WaitsFor is why that isn't now: see delivery.Reason.
	WaitsFor delivery.Reason `json:"waitsFor,omitempty"`
	Relay    string          `json:"relay,omitempty"` // that serves it
	// OverdueSince is when the oldest delivery could first be made of those that are about an event which has begun, or
	// begins within 15 minutes, and have waited for more than a minute and an attempt.
	OverdueSince time.Time `json:"overdueSince,omitzero"`
	// NeededSince is since when the sink needs somebody; zero if it doesn't, or only from now on. See NeedsSomebody.
	NeededSince time.Time `json:"neededSince,omitzero"`

	// OldestPending is the start of OldestPendingSeconds; zero if nothing is pending.
	OldestPending time.Time `json:"-"`
}

// An OutboxStatus is the status of the outbox.
type OutboxStatus struct {
	Durable     bool   `json:"durable"`
	Bytes       int64  `json:"bytes"` // of the file
	Pending     int    `json:"pending"`
	DeadLetters int    `json:"deadLetters"`
	Error       string `json:"error,omitempty"`
}

// SettingsInfo describes the settings in force.
type SettingsInfo struct {
	// Hash identifies the settings. It must not depend on secrets, because it is shown and sent.
	Hash     string    `json:"hash"`
	LoadedAt time.Time `json:"loadedAt"`
	// LastError is the error of the last reload; "" if it succeeded.
	LastError string `json:"lastError"`
	// Timezone is the IANA name of the zone that people are shown; "" for UTC.
	Timezone string `json:"timezone,omitempty"`
	// Zone is the zone of that name. New and Reload set it, so that nobody reads it from the disk under a lock.
	Zone *time.Location `json:"-"`
}

// Location returns the time zone for people: UTC if there is none, or none of that name. It reads the disk unless Zone is
// set.
func (s SettingsInfo) Location() *time.Location {
	if s.Zone != nil {
		return s.Zone
	}
	zone, err := time.LoadLocation(s.Timezone)
	if err != nil {
		return time.UTC
	}
	return zone
}

// A RelayStatus is what a relay shows besides what a bridge does.
type RelayStatus struct {
	Name   string      `json:"name"`
	Stream string      `json:"stream"`
	Relays []RelayPeer `json:"relays"` // of the stream, this one included
	VMs    []FleetVM   `json:"vms"`    // that bridges run on, or open events name: what comes first, first
}

// A FleetVM is one VM of a fleet.
type FleetVM struct {
	Name      string    `json:"name"`
	Set       string    `json:"set,omitempty"`
	Group     string    `json:"group,omitempty"`    // resource group
	LastHeard time.Time `json:"lastHeard,omitzero"` // when its bridge last published something; zero if it has none
	Events    []string  `json:"events,omitempty"`   // ids of the open events that name it
	NotBefore time.Time `json:"notBefore,omitzero"` // of the nearest of them
	Started   bool      `json:"started,omitempty"`  // one of them has begun
	Silent    bool      `json:"silent,omitempty"`   // its heartbeats stopped, and that was reported
	Stopped   bool      `json:"stopped,omitempty"`  // its bridge announced that it was stopping
}

// A RelayPeer is a relay of the same stream.
type RelayPeer struct {
	Name     string    `json:"name"`
	Version  string    `json:"version"`
	Hash     string    `json:"settingsHash"`
	LastSeen time.Time `json:"lastSeen"`
}

// The states of a sink.
const (
	SinkOK        = "ok"
	SinkRetrying  = "retrying"
	SinkIsBlocked = "blocked"
	SinkOrphaned  = "orphaned"
	SinkStandby   = "standby"
)

// The longest time that one turn of a loop takes, whatever the endpoint, the disk or a destination does.
const (
	LongestTurn = firstAnswerTimeout + longestRetry + answerTimeout // of the poll loop; a watchdog timeout must be longer
	longestRest = 5 * time.Minute                                   // of the other loops, which may wait for the disk
)

// Reasons returns why the bridge isn't ready: Status.Reasons.
func (b *Bridge) Reasons() []string { return b.Status().Reasons }

// Alive returns nil while all loops run, and otherwise an error that names the stalled one and its last run.
func (b *Bridge) Alive() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range []struct {
		name   string
		turned time.Time
		limit  time.Duration
	}{
		{"poll loop", b.imds.lastTurn, LongestTurn},
		{"housekeeping", b.lastHousekeeping, longestRest},
		{"approval loop", b.lastApproving, longestRest},
	} {
		if since := later(b.began, l.turned); time.Since(since) > l.limit {
			return fmt.Errorf("the %s hangs since %s", l.name, clock.Time(since, time.Now(), b.settings.Location()))
		}
	}
	return nil
}

// recordTurn records a turn of a loop in at, a field of b.
func (b *Bridge) recordTurn(at *time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*at = time.Now()
}

// Status returns the current status.
func (b *Bridge) Status() Status {
	now := time.Now()
	open := b.events.all()
	sinks := b.sinks(open, now)
	durable := b.outbox.Durable()
	bytes, mutes := b.outbox.Totals().FileBytes, b.Mutes()
	nameless := b.nameWarning(now)

	b.mu.Lock()
	defer b.mu.Unlock()
	s := Status{
		Version: b.options.Version, StartedAt: b.began.UTC(), Observer: b.observer,
		IMDS: IMDSStatus{Endpoint: b.client.Endpoint(), APIVersion: b.client.APIVersion(),
			Incarnation: cloudevent.IncarnationJSON(b.answer.Incarnation),
			LastAnswer:  b.imds.lastAnswer.UTC(), LastError: b.imds.lastErr},
		Events: []EventStatus{}, Sinks: sinks, Warnings: b.options.Warnings(),
		Outbox: OutboxStatus{Durable: durable == nil, Bytes: bytes}, Settings: b.settings, Mutes: mutes,
	}
	s.IMDS.Problems = slices.Clone(b.imds.problems)
	if b.imds.full {
		s.IMDS.Problems = append(s.IMDS.Problems, leftOut)
	}
	s.Reasons = b.imds.reasons(b.settings.Location())
	if nameless != "" {
		s.Warnings = append(s.Warnings, nameless)
	}
	if durable != nil {
		s.Outbox.Error = durable.Error()
		s.Reasons = append(s.Reasons, "the outbox cannot be written: "+durable.Error())
	}
	for _, op := range open {
		e := op.event
		review := b.reviews.get(e.ID)
		why, notYet := op.notApproved(review)
		s.Events = append(s.Events, EventStatus{
			Event: op.Event, Known: e, NotBefore: e.NotBefore, AffectsSelf: e.Affects(b.observer.Name),
			Approval: why, NotYet: notYet, Asked: op.asked(), Rules: review.rules(op),
			SecondsLeft: max(0, e.NotBefore.Sub(now).Round(time.Second).Seconds()),
		})
	}
	leads := firstLeads(b.routes, open)
	for i, k := range s.Sinks {
		if lead := leads[k.Name]; k.Pending == 0 && !lead.IsZero() {
			s.Sinks[i].NextAttempt, s.Sinks[i].WaitsFor = lead.UTC(), delivery.WaitsForLead
		}
		s.Outbox.Pending += k.Pending
		s.Outbox.DeadLetters += k.DeadLetters
		s.Reasons = append(s.Reasons, k.Reasons(isSoon(open, now), b.settings.Location())...)
	}
	s.Ready = len(s.Reasons) == 0
	return s
}

// firstLeads returns when the first lead comes of those that each route waits for.
func firstLeads(routes []Route, open []*openEvent) map[string]time.Time {
	first := map[string]time.Time{}
	for _, op := range open {
		for _, r := range routes {
			at, was := r.LeadTime(imds.Scheduled, op.event.NotBefore), first[r.Name]
			if slices.Contains(op.Waiting, r.Name) && (was.IsZero() || at.Before(was)) {
				first[r.Name] = at
			}
		}
	}
	return first
}

// notApproved returns why an event that is to come isn't approved, as far as is known, and whether that may pass: that
// Azure refused its latest change, else what the review says.
func (op *openEvent) notApproved(r review) (why string, notYet bool) {
	d := op.Approval
	switch {
	case op.event.Status == imds.StatusStarted, op.Asked != nil && op.Asked.Answered:
		return "", false
	case d != nil && d.Seq == op.latest.Seq && d.Result == cloudevent.ResultRefused:
		return refusedBy(d.By), false
	}
	return r.why, r.notYet
}

// reasons returns why the endpoint can't be relied on. zone is that of the people who read it.
func (i imdsState) reasons(zone *time.Location) []string {
	switch {
	case i.lastAnswer.IsZero() && i.lastErr == "":
		return []string{"the endpoint has not answered yet"}
	case i.lastAnswer.IsZero():
		return []string{"the endpoint has not answered yet: " + i.lastErr}
	case i.reported:
		return []string{"the endpoint has given no valid answer since " +
			clock.Time(i.lastAnswer, time.Now(), zone) + ": " + i.lastErr}
	}
	return []string{}
}

// refusal returns the reason why a blocked sink makes the bridge not ready while an event is due soon.
func (k SinkStatus) refusal() string {
	return fmt.Sprintf("the sink %s refuses its deliveries: %s; an event is due within %d minutes",
		k.Name, delivery.WithoutClass(k.LastError), delivery.UrgentNotice/time.Minute)
}

// pendingSince sets since when the oldest delivery waits; zero for none.
func (k *SinkStatus) pendingSince(oldest, now time.Time) {
	if !oldest.IsZero() {
		k.OldestPending = oldest.UTC()
		k.OldestPendingSeconds = max(0, now.Sub(oldest).Round(time.Millisecond).Seconds())
	}
}

// sinkStatus returns the status of one route. With soon, its first refusal counts as blocked. The caller holds mu.
func (b *Bridge) sinkStatus(name string, st outbox.Stats, soon bool, now time.Time) SinkStatus {
	s := SinkStatus{Name: name, State: SinkOK, Pending: st.Pending, Delivered: st.Delivered,
		DeadLetters: st.Dead, LastAccepted: st.Accepted.UTC()}
	if i := slices.IndexFunc(b.routes, func(r Route) bool { return r.Name == name }); i >= 0 {
		s.Kind, s.People = b.routes[i].Kind, b.routes[i].Terms.People
	}
	c := b.workers[name]
	switch {
	case !st.Gone.IsZero():
		s.State = SinkOrphaned
		s.pendingSince(st.Oldest, now)
		return s
	case c == nil:
		return s
	}
	w := c.State()
	s.LastError, s.Muted = w.Error, min(w.Muted, st.Pending)
	s.pendingSince(w.Oldest, now)
	switch {
	case w.Blocked, w.Refused && w.Retrying && soon:
		s.State = SinkIsBlocked
	case w.Retrying:
		s.State = SinkRetrying
	}
	switch {
	case st.Pending > w.Muted && w.Oldest.IsZero() && !b.current: // the worker has not been given it
		s.WaitsFor = delivery.WaitsForAnswer
	case st.Pending > 0:
		s.NextAttempt, s.WaitsFor = w.Next.UTC(), w.Waits
	}
	return s
}

// zone returns the time zone of the people who read this bridge's texts.
func (b *Bridge) zone() *time.Location {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.settings.Location()
}
