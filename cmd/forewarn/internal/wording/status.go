package wording

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/clock"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/templates"
)

// Limits of what people are shown.
const (
	ShownVMs    = 20  // VMs of an event
	ShownRows   = 300 // rows of a list in a terminal
	ShownSeries = 300 // open events in the metrics
)

// Started is the EventStatus of an event that has begun.
const Started = "Started"

// ErrorWords returns the error of a delivery without its class, which texts name beside it.
func ErrorWords(s string) string { return Printable(delivery.WithoutClass(s)) }

// A shownEvent holds the fields of Azure's event that lists show.
type shownEvent struct {
	EventID, EventType, EventStatus string
	Resources                       []string
}

// ReadEvent decodes the event as Azure sent it. A field of an unexpected type stays empty.
func ReadEvent(raw json.RawMessage) (e shownEvent) {
	_ = json.Unmarshal(raw, &e)
	return e
}

// NoTime says why an event, as Azure sent it, has no time: "-" if there is none, else what can't be read.
func NoTime(raw json.RawMessage) string {
	e, _ := imds.UnmarshalEvent(raw) // one that can't be decoded has no time
	if text := e.RawNotBefore(); text != "" {
		return fmt.Sprintf("can't be read: %q", text)
	}
	return "-"
}

// Begins says when an event begins that has not begun: "04:06:00 UTC at the earliest" or, if rules will approve it or
// somebody asked Azure to start it, at the latest. A time that has passed is "due since 04:06:00 UTC".
func Begins(notBefore time.Time, rules []cloudevent.Rule, asked *cloudevent.Asked, now time.Time, zone *time.Location) string {
	when := clock.Due(notBefore, now, zone)
	if !now.Before(notBefore) {
		return "due since " + when
	}
	var limit strings.Builder
	early := map[string]any{"early": len(rules) > 0 || asked != nil}
	if err := templates.Say(&limit, "limit", early); err != nil { // its words are embedded
		return when
	}
	return when + " " + limit.String()
}

// ByUrgency sorts events: those that have begun first, then the nearest.
func ByUrgency(events []bridge.EventStatus) []bridge.EventStatus {
	type ranked struct {
		bridge.EventStatus
		rank int
	}
	all := make([]ranked, len(events))
	for i, e := range events {
		all[i] = ranked{e, 2}
		switch {
		case ReadEvent(e.Event).EventStatus == Started:
			all[i].rank = 0
		case !e.NotBefore.IsZero():
			all[i].rank = 1
		}
	}
	sort.SliceStable(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		return cmp.Or(cmp.Compare(a.rank, b.rank), a.NotBefore.Compare(b.NotBefore)) < 0
	})
	sorted := make([]bridge.EventStatus, len(all))
	for i, e := range all {
		sorted[i] = e.EventStatus
	}
	return sorted
}

// ByNeed sorts sinks: those that need somebody first, then those that may soon.
func ByNeed(sinks []bridge.SinkStatus, now time.Time) []bridge.SinkStatus {
	rank := func(k bridge.SinkStatus) int {
		_, class := SinkState(k, now, time.UTC)
		return slices.Index([]string{bridge.SinkIsBlocked, bridge.SinkRetrying, bridge.SinkOrphaned, bridge.SinkOK}, class)
	}
	sorted := slices.Clone(sinks)
	sort.SliceStable(sorted, func(i, j int) bool { return rank(sorted[i]) < rank(sorted[j]) })
	return sorted
}

// SinkState returns the state of a sink in words, and the state that it should look like. A sink that has accepted
// nothing for long looks blocked, whatever its state.
func SinkState(k bridge.SinkStatus, now time.Time, zone *time.Location) (words, class string) {
	switch {
	case k.NeedsSomebody(now):
		return "needs you", bridge.SinkIsBlocked
	case !k.MutedUntil.IsZero():
		return "muted until " + clock.Due(k.MutedUntil, now, zone), bridge.SinkRetrying
	case k.Muted > 0 && k.Muted == k.Pending:
		return "muted in part", bridge.SinkRetrying
	case k.State == bridge.SinkRetrying:
		return "trying again", k.State
	case k.State == bridge.SinkOrphaned:
		return "not in the settings", k.State
	case k.State == bridge.SinkStandby && k.Relay == "":
		return "served by no relay", bridge.SinkRetrying
	case k.State == bridge.SinkStandby:
		return "served by " + Printable(k.Relay), bridge.SinkOK
	case k.NextAttempt.After(now): // as until a lead
		return "sends at " + clock.Due(k.NextAttempt, now, zone), bridge.SinkOK
	case k.Pending > 0:
		return "sending", bridge.SinkOK
	case SinkError(k) != "":
		return "last failed", bridge.SinkRetrying
	case k.LastAccepted.IsZero():
		return "ready", bridge.SinkOK
	}
	return "works", bridge.SinkOK
}

// SinkError returns the error of what a sink has pending, or of its last dead letter, without its class. Once somebody has
// dropped or replayed all of them, the error is history.
func SinkError(k bridge.SinkStatus) string {
	if k.State == bridge.SinkOK && k.Pending == 0 && k.DeadLetters == 0 {
		return ""
	}
	return ErrorWords(k.LastError)
}

// Muted says what a mute holds back: "ops, VMs vm-db-*, only Reboot". sinks are the names of the sinks that it is for;
// they are left out if it names its sink, or if there are none.
func Muted(m delivery.Mute, sinks []string) string {
	text := cmp.Or(m.Sink, "all sinks")
	if m.People {
		text = "sinks for people"
	}
	if m.Sink == "" && len(sinks) > 0 {
		text += " (" + listed(sinks) + ")"
	}
	if m.VM != "" {
		text += ", VMs " + m.VM
	}
	if len(m.Types) > 0 {
		text += ", only " + strings.Join(m.Types, ", ")
	}
	return Printable(text)
}

// MutedSinks returns the names of the sinks that the mute is for, of those in the settings.
func MutedSinks(m delivery.Mute, sinks []bridge.SinkStatus) (names []string) {
	for _, k := range sinks {
		if k.State != bridge.SinkOrphaned && m.IsFor(k.Name, k.People) {
			names = append(names, k.Name)
		}
	}
	return names
}

// listed joins names, at most ShownVMs of them.
func listed(names []string) string {
	text := strings.Join(First(names, ShownVMs), ", ")
	if more := len(names) - ShownVMs; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// MuteNote says all about a mute, but for the command that ends it.
func MuteNote(m delivery.Mute, sinks []bridge.SinkStatus, now time.Time, zone *time.Location) string {
	return fmt.Sprintf("%s until %s, by %s: %s", Muted(m, MutedSinks(m, sinks)),
		clock.Due(m.Until, now, zone), Printable(m.By), Printable(m.Reason))
}

// StatusLine summarizes a status in one line, for systemctl status.
func StatusLine(s bridge.Status) string {
	var words []string
	if !s.Ready {
		words = append(words, "not ready: "+strings.Join(s.Reasons, "; "))
	}
	words = append(words,
		Plural(len(s.Events), "event open", "events open")+", "+fmt.Sprintf("%d pending", s.Outbox.Pending))
	for _, k := range s.Sinks {
		if k.NeedsSomebody(time.Now()) {
			words = append(words, k.Name+" needs you")
		}
	}
	if n := len(s.Mutes); n > 0 {
		words = append(words, Plural(n, "mute", "mutes"))
	}
	if s.Outbox.DeadLetters > 0 {
		words = append(words, Plural(s.Outbox.DeadLetters, "dead letter", "dead letters"))
	}
	if s.Settings.LastError != "" {
		words = append(words, "the newest settings are wrong")
	}
	return Printable(strings.Join(words, "; "))
}

// withheldWords says why no rule has approved an event, by names the rule.
func withheldWords(a cloudevent.Approval, by string) string {
	sink := fmt.Sprintf("sink %q", Printable(a.Sink))
	by = " by " + by
	if a.Sink == "" && strings.HasPrefix(a.Error, a.By) { // the reason names the rule, or several
		by = ""
	}
	switch why := ErrorWords(a.Error); {
	case a.NotYet && a.Sink != "":
		return "not approved yet" + by + ", because " + sink + " hasn't succeeded: " + why
	case a.NotYet:
		return "not approved yet" + by + ": " + why
	case a.Sink != "":
		return "not approved" + by + ", because " + sink + " failed: " + why
	default:
		return "not approved" + by + " after all: " + why
	}
}

// ApprovalWords describes the result of an approval.
func ApprovalWords(a cloudevent.Approval) string {
	by := Printable(a.By)
	switch a.Result {
	case cloudevent.ResultApproved:
		return "approved by " + by + ", Azure answered " + Printable(a.Status)
	case cloudevent.ResultRefused:
		return "approval by " + by + " refused: " + Printable(strings.TrimPrefix(a.Error, "Azure refuses the approval: "))
	case cloudevent.ResultWithheld:
		return withheldWords(a, by)
	case cloudevent.ResultPromised:
		return "to be approved by " + by + " after all"
	case cloudevent.ResultUnanswered:
		return "approval by " + by + " sent, Azure may have accepted it: " + Printable(a.Error)
	}
	return "approval by " + by + " moot: " + Printable(a.Error)
}
