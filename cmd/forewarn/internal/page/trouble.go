package page

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/templates"
)

// A troubleView is something that needs somebody.
type troubleView struct {
	What string
	Do   []textPart
}

// A textPart is a part of a text: a command, or plain words.
type textPart struct {
	Text    string
	Command bool
}

// plans says in one line how many events Azure announces, or did in its last answer, and when the next one is due.
func (p pageWriter) plans(s bridge.Status) string {
	text := "Azure announces "
	switch {
	case s.Relay != nil && s.Outbox.Error != "" && len(s.Events) == 0:
		return ""
	case s.Relay != nil && s.Outbox.Error != "":
		text = "The stream can't be read; before that, Azure announced "
	case s.Relay != nil:
	case s.IMDS.LastAnswer.IsZero() && len(s.Events) == 0:
		return ""
	case s.IMDS.LastAnswer.IsZero():
		text = "Azure has not answered yet; its last answer before the start announced "
	case s.IMDS.LastError != "":
		text = "Azure does not answer; its last answer announced "
	}
	if len(s.Events) == 0 {
		return text + "nothing."
	}
	var next time.Time
	for _, e := range s.Events {
		if e.NotBefore.After(p.now) && (next.IsZero() || e.NotBefore.Before(next)) {
			next = e.NotBefore
		}
	}
	text += wording.Plural(len(s.Events), "event", "events")
	switch {
	case next.IsZero():
	case len(s.Events) == 1:
		text += ", for " + p.moment(next).Text
	default:
		text += ", the next for " + p.moment(next).Text
	}
	return text + "."
}

// note says why there are no events, or how old the shown ones are. Only a valid answer means that there are none.
func (p pageWriter) note(s bridge.Status) string {
	switch last := p.moment(s.IMDS.LastAnswer).Text; {
	case s.Relay != nil && s.Outbox.Error != "" && len(s.Events) == 0:
		return "The stream can't be read, so Azure's plans are unknown."
	case s.Relay != nil && s.Outbox.Error != "":
		return "The stream can't be read. These events are from before that."
	case s.Relay != nil && len(s.Events) == 0:
		return "Azure announces nothing for these VMs."
	case s.Relay != nil:
		return ""
	case s.IMDS.LastAnswer.IsZero() && len(s.Events) > 0:
		return "Azure has not answered yet. These events are from before forewarn started."
	case s.IMDS.LastAnswer.IsZero():
		return "Azure has not answered yet, so its plans are unknown."
	case s.IMDS.LastError != "" && len(s.Events) > 0:
		return "Azure does not answer. These events are from its last answer, at " + last + "."
	case s.IMDS.LastError != "":
		return "Azure does not answer. Its last answer, at " + last + ", had no events for this VM."
	case len(s.Events) == 0:
		return "Azure announces nothing for this VM."
	}
	return ""
}

// troubles lists what needs somebody, the worst first. Dead letters are shown separately.
func (p pageWriter) troubles(f pageFacts) []troubleView {
	s := f.Status
	machines := "this VM"
	if s.Relay != nil {
		machines = "all VMs"
	}
	var all []troubleView
	add := func(what, do string) { all = append(all, troubleView{What: what, Do: splitCommands(do)}) }
	for _, reason := range s.Reasons {
		if slices.ContainsFunc(s.Sinks, func(k bridge.SinkStatus) bool { return slices.Contains(k.Reasons(true, s.Settings.Location()), reason) }) {
			continue // the sink is listed below, with advice
		}
		add("Not ready: "+wording.Printable(reason)+".",
			"Until this is fixed, you may miss maintenance of "+machines+". See forewarn's log.")
	}
	for _, warning := range s.Warnings {
		add("Warning: "+wording.Printable(warning)+".", "Notifications still work. See forewarn's log.")
	}
	if s.Settings.LastError != "" {
		add("The newest settings are wrong; older ones are in force.", wording.Printable(s.Settings.LastError))
	}
	if n := len(s.IMDS.Problems); n > 0 {
		add(wording.Plural(n, "part", "parts")+" of Azure's document could not be read.",
			wording.Printable(s.IMDS.Problems[0])+". The rest is delivered. To see the document: `forewarn events`")
	}
	for _, k := range s.Sinks {
		switch {
		case k.NeedsSomebody(p.now):
			about := map[string]any{
				"type": cloudevent.SinkBlocked, "observer": s.Observer.Name,
				"data": map[string]any{"sink": k.Name, "kind": k.Kind, "pending": k.Pending, "error": k.LastError},
			}
			add(capitalize(p.renderText("destination", about))+" needs you.", p.renderText("advice", about))
		case k.State == bridge.SinkOrphaned && k.Pending > 0:
			add("The sink "+wording.Printable(k.Name)+" is gone from the settings, and "+
				wording.Plural(k.Pending, "message is", "messages are")+" still pending for it.",
				"If a sink with this name returns within 24 hours, it gets them; then they become dead letters.")
		}
	}
	if f.Err != nil {
		add("The history cannot be read: "+wording.Printable(f.Err.Error())+".", "Watching and delivery don't depend on it.")
	}
	return all
}

// renderText renders one of the shared texts of package templates.
func (p pageWriter) renderText(define string, fields map[string]any) string {
	fields["zone"], fields["now"] = p.zone.String(), p.now.UTC().Format(time.RFC3339)
	var b bytes.Buffer
	if err := templates.Say(&b, define, fields); err != nil {
		return "(text " + define + " cannot be rendered)"
	}
	return b.String()
}

func capitalize(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// splitCommands splits a text with commands between backticks.
func splitCommands(s string) []textPart {
	var all []textPart
	for i, part := range strings.Split(s, "`") {
		if part != "" {
			all = append(all, textPart{part, i%2 == 1})
		}
	}
	return all
}
