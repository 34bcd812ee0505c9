package main

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/clock"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/wording"
)

// statusText formats a status that was received at heard; countdowns of events run until now. Times are in the zone of
// the forewarn that it is of. Details are indented
// below their subject. Sinks that need somebody, and the nearest events, come first.
func statusText(s bridge.Status, heard, now time.Time) string {
	var b strings.Builder
	zone := s.Settings.Location()
	detail := func(format string, args ...any) { fmt.Fprintf(&b, "          "+format+"\n", args...) }
	ready := "ready"
	if !s.Ready {
		ready = "NOT READY"
	}
	needYou := 0
	for _, k := range s.Sinks {
		if k.NeedsSomebody(heard) {
			needYou++
		}
	}
	if needYou > 0 {
		ready += ", " + wording.Plural(needYou, "SINK NEEDS YOU", "SINKS NEED YOU")
	}
	name := "(VM name not known yet)"
	switch {
	case s.Relay != nil:
		name = "relay " + wording.Printable(s.Relay.Name)
	case s.Observer.Name != "":
		name = wording.Printable(s.Observer.Name)
	}
	fmt.Fprintf(&b, "%s  %s, forewarn %s, up %s\n", name, ready, wording.Printable(s.Version),
		wording.Ago(heard, s.StartedAt))
	for _, reason := range s.Reasons {
		detail("%s", wording.Printable(reason))
	}
	for _, warning := range s.Warnings {
		detail("%s", wording.Printable(warning))
	}
	if s.Relay != nil {
		b.WriteString(relayText(s, heard, zone))
	} else {
		b.WriteString(endpointText(s, heard))
	}
	for _, m := range wording.First(s.Mutes, wording.ShownVMs) {
		b.WriteString("muted     " + wording.MuteNote(*m, s.Sinks, heard, zone) + "\n")
		detail("forewarn unmute %s", m.ID)
	}
	if s.Settings.LastError != "" {
		b.WriteString("settings  the newest are wrong; older ones are in force\n")
		for _, problem := range strings.Split(s.Settings.LastError, "\n") {
			detail("%s", wording.Printable(problem))
		}
	}
	b.WriteByte('\n')
	b.WriteString(eventsText(s, now, zone))
	b.WriteByte('\n')
	b.WriteString(sinksText(s, heard, zone))
	return b.String()
}

// endpointText formats how the endpoint and the outbox are doing.
func endpointText(s bridge.Status, heard time.Time) string {
	var b strings.Builder
	detail := func(format string, args ...any) { fmt.Fprintf(&b, "          "+format+"\n", args...) }
	answered := "has not answered yet"
	if !s.IMDS.LastAnswer.IsZero() {
		answered = "answered " + wording.Ago(heard, s.IMDS.LastAnswer) + " ago"
	}
	fmt.Fprintf(&b, "endpoint  %s, %s, api-version %s\n",
		answered, wording.Printable(s.IMDS.Endpoint), wording.Printable(s.IMDS.APIVersion))
	if s.IMDS.LastError != "" {
		detail("now: %s", wording.Printable(s.IMDS.LastError))
	}
	if n := len(s.IMDS.Problems); n > 0 {
		detail("%s in Azure's document: %s",
			wording.Plural(n, "problem", "problems"), wording.Printable(s.IMDS.Problems[0]))
	}
	fmt.Fprintf(&b, "outbox    %d pending, %s, %d KiB\n", s.Outbox.Pending,
		wording.Plural(s.Outbox.DeadLetters, "dead letter", "dead letters"), s.Outbox.Bytes>>10)
	if !s.Outbox.Durable {
		detail("NOT ON DISK: %s", wording.Printable(s.Outbox.Error))
	}
	return b.String()
}

// relayText formats what a relay knows beside its sinks: the other relays, and the VMs, those with an event first.
func relayText(s bridge.Status, heard time.Time, zone *time.Location) string {
	var b strings.Builder
	var others []string
	for _, p := range s.Relay.Relays {
		others = append(others, wording.Printable(p.Name))
	}
	fmt.Fprintf(&b, "relays    %s, on stream %s\n", cmp.Or(strings.Join(others, ", "), "none known"),
		wording.Printable(s.Relay.Stream))
	fmt.Fprintf(&b, "pending   %d for the sinks that this relay serves, %s\n", s.Outbox.Pending,
		wording.Plural(s.Outbox.DeadLetters, "dead letter", "dead letters"))
	fmt.Fprintf(&b, "fleet     %s\n", wording.Plural(len(s.Relay.VMs), "VM", "VMs"))
	if len(s.Relay.VMs) == 0 {
		return b.String()
	}
	b.WriteByte('\n')
	rows := []string{"VM\tSET\tGROUP\tLAST HEARD\tEVENT\tNOT BEFORE"}
	shown := wording.First(s.Relay.VMs, wording.ShownRows)
	for _, v := range shown {
		last, event, when := "never", "-", "-"
		if !v.LastHeard.IsZero() {
			last = wording.Ago(heard, v.LastHeard) + " ago"
		}
		switch {
		case v.Silent:
			last += ", SILENT"
		case v.Stopped:
			last += ", stopped"
		}
		if len(v.Events) > 0 {
			event = fmt.Sprintf("%.8s", v.Events[0])
			if more := len(v.Events) - 1; more > 0 {
				event += fmt.Sprintf(" and %d more", more)
			}
		}
		switch {
		case v.Started:
			when = "started"
		case !v.NotBefore.IsZero():
			when = clock.Due(v.NotBefore, heard, zone)
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", wording.Printable(v.Name), orDash(v.Set),
			orDash(v.Group), last,
			wording.Printable(event), when))
	}
	b.WriteString(table(rows, make([]string, len(shown))))
	b.WriteString(wording.More(len(s.Relay.VMs)-len(shown), "forewarn status -o json"))
	return b.String()
}

func orDash(s string) string { return cmp.Or(wording.Printable(s), "-") }

// eventsText formats the open events: those that have started first, then the nearest.
func eventsText(s bridge.Status, now time.Time, zone *time.Location) string {
	if len(s.Events) == 0 {
		switch {
		case s.Relay != nil && s.Outbox.Error != "":
			return "The stream can't be read, so Azure's plans are unknown.\n"
		case s.Relay != nil:
		case s.IMDS.LastAnswer.IsZero():
			return "Azure has not answered yet.\n"
		case s.IMDS.LastError != "":
			return "Azure does not answer; its last answer had no events.\n"
		}
		return "No events.\n"
	}
	rows := []string{"EVENT\tTYPE\tSTATE\tDUE\tNOT BEFORE\tVMS"}
	var details []string
	for _, e := range wording.First(wording.ByUrgency(s.Events), wording.ShownRows) {
		a := wording.ReadEvent(e.Event)
		state, due, when := wording.Printable(a.EventStatus), "-", wording.NoTime(e.Event)
		if !e.NotBefore.IsZero() {
			due, when = "due now", clock.Due(e.NotBefore, now, zone)
			if left := e.NotBefore.Sub(now); left >= time.Second {
				due = "in " + wording.Span(left)
			}
		}
		if e.Asked != nil && a.EventStatus != wording.Started {
			when := wording.Ago(now, e.Asked.Time) + " ago by " + wording.Printable(e.Asked.By)
			state, due = "asked "+when+", no answer", "any moment"
			if e.Asked.Answered {
				state = "approved " + when
			}
		}
		rows = append(rows, fmt.Sprintf("%.8s\t%s\t%s\t%s\t%s\t%s", wording.Printable(a.EventID),
			wording.Printable(a.EventType), state, due, when, wording.Printable(vmWords(a.Resources, s.Observer.Name))))
		detail := ""
		switch {
		case e.Approval != "" && (e.NotYet || len(e.Rules) > 0):
			detail = "not approved yet: " + wording.Printable(e.Approval)
		case e.Approval != "":
			detail = "not approved: " + wording.Printable(e.Approval)
		}
		details = append(details, detail)
	}
	return table(rows, details) + wording.More(len(s.Events)-len(details), "forewarn status -o json")
}

// vmWords lists the VMs that an event names, this VM first.
func vmWords(all []string, self string) string {
	var names []string
	for _, name := range all {
		if (imds.Event{Resources: []string{name}}).Affects(self) {
			names = append([]string{"this VM"}, names...)
		} else {
			names = append(names, name)
		}
	}
	if more := len(names) - wording.ShownVMs; more > 0 {
		names = append(names[:wording.ShownVMs], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// sinksText formats the sinks: those that need somebody first.
func sinksText(s bridge.Status, heard time.Time, zone *time.Location) string {
	if len(s.Sinks) == 0 {
		return "There are no sinks, so nobody is notified.\n"
	}
	rows := []string{"SINK\tSTATE\tPENDING\tLAST DELIVERY\tDELIVERED\tDEAD LETTERS\tKIND"}
	var details []string
	for _, k := range wording.First(wording.ByNeed(s.Sinks, heard), wording.ShownRows) {
		state, class := wording.SinkState(k, heard, zone)
		if class == bridge.SinkIsBlocked {
			state = strings.ToUpper(state)
		}
		last := "-"
		if !k.LastAccepted.IsZero() {
			last = wording.Ago(heard, k.LastAccepted) + " ago"
		}
		pending := fmt.Sprint(k.Pending)
		if k.Muted > 0 {
			pending += fmt.Sprintf(", %d muted", k.Muted)
		}
		if k.Pending > k.Muted {
			pending += ", for " + wording.Span(time.Duration(k.OldestPendingSeconds*float64(time.Second)))
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%d\t%s", wording.Printable(k.Name), state, pending, last,
			k.Delivered, k.DeadLetters, wording.Printable(k.Kind)))
		detail := wording.SinkError(k)
		switch {
		case detail == "" || k.Pending == 0:
		case k.Muted == k.Pending:
			detail = "muted; last error: " + detail
		case k.NextAttempt.IsZero():
			detail = "trying now; last error: " + detail
		case k.WaitsFor == delivery.WaitsForRetryAfter:
			detail = "it asks to wait; next try in " + wording.Span(k.NextAttempt.Sub(heard)) + "; last error: " + detail
		default:
			detail = "next try in " + wording.Span(k.NextAttempt.Sub(heard)) + "; last error: " + detail
		}
		details = append(details, detail)
	}
	return table(rows, details) + wording.More(len(s.Sinks)-len(details), "forewarn status -o json")
}

// table aligns rows, the first of which is the heading, and puts the details of each other row below it.
func table(rows, details []string) string {
	var aligned strings.Builder
	t := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, strings.Join(rows, "\n"))
	t.Flush()
	var b strings.Builder
	for i, line := range strings.Split(aligned.String(), "\n") {
		b.WriteString(strings.TrimRight(line, " ") + "\n")
		if i > 0 && details[i-1] != "" {
			b.WriteString("  " + details[i-1] + "\n")
		}
	}
	return b.String()
}
