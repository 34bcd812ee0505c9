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

// A troubleView is something that somebody should see to.
type troubleView struct {
	What string
	Do   []piece
}

// A piece is a part of a text, a command or not.
type piece struct {
	Text    string
	Command bool
}

// plans says in one line what Azure announces, or did when it last answered, and when the next of it is due.
func (p pageWriter) plans(s bridge.Status) string {
	text := "Azure announces "
	switch {
	case s.IMDS.LastAnswer.IsZero() && len(s.Events) == 0:
		return ""
	case s.IMDS.LastAnswer.IsZero():
		text = "Azure has not answered yet; it had announced "
	case s.IMDS.LastError != "":
		text = "Azure does not answer; it had announced "
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

// note says why no event is shown, or of when those are: that there is none is known only from an answer.
func (p pageWriter) note(s bridge.Status) string {
	switch last := p.moment(s.IMDS.LastAnswer).Text; {
	case s.IMDS.LastAnswer.IsZero() && len(s.Events) > 0:
		return "Azure has not answered yet. This is what it announced before forewarn started."
	case s.IMDS.LastAnswer.IsZero():
		return "Azure has not answered yet, so nothing is known of its plans."
	case s.IMDS.LastError != "" && len(s.Events) > 0:
		return "Azure does not answer. This is what it announced when it last did, at " + last + "."
	case s.IMDS.LastError != "":
		return "Azure does not answer. When it last did, at " + last + ", it announced nothing for this VM."
	case len(s.Events) == 0:
		return "Azure announces nothing for this VM."
	}
	return ""
}

// troubles are what somebody should see to, the worst first. Dead letters are shown apart.
func (p pageWriter) troubles(f pageFacts) []troubleView {
	s := f.Status
	var all []troubleView
	add := func(what, do string) { all = append(all, troubleView{What: what, Do: prose(do)}) }
	for _, reason := range s.Reasons {
		if slices.ContainsFunc(s.Sinks, func(k bridge.SinkStatus) bool { return k.Refusal() == reason }) {
			continue // said below, with what to do
		}
		add("Not ready: "+wording.Printable(reason)+".", "Until this is over, maintenance of this VM may go untold. More in forewarn's log.")
	}
	for _, warning := range s.Warnings {
		add("Warning: "+wording.Printable(warning)+".", "Maintenance of this VM is told all the same. More in forewarn's log.")
	}
	if s.Settings.LastError != "" {
		add("The newest settings were refused; older ones are in force.", wording.Printable(s.Settings.LastError))
	}
	if n := len(s.IMDS.Problems); n > 0 {
		add(wording.Plural(n, "thing in Azure's document was", "things in Azure's document were")+" not understood.",
			wording.Printable(s.IMDS.Problems[0])+". What was understood is told. See it all with `sudo forewarn events`.")
	}
	for _, k := range s.Sinks {
		switch {
		case wording.NeedsSomebody(k, p.now):
			about := map[string]any{
				"type": cloudevent.SinkBlocked, "observer": s.Observer.Name,
				"data": map[string]any{"sink": k.Name, "kind": k.Kind, "pending": k.Pending, "error": k.LastError},
			}
			add(capital(p.say("destination", about))+" needs you.", p.say("advice", about))
		case k.State == bridge.SinkOrphaned && k.Pending > 0:
			add("The sink "+wording.Printable(k.Name)+" is gone from the settings, and "+wording.Plural(k.Pending, "message is", "messages are")+" still owed to it.",
				"They are kept for 24 hours, and sent if it returns under its name; then they are given up.")
		}
	}
	if f.Err != nil {
		add("The history cannot be read: "+wording.Printable(f.Err.Error())+".", "What is announced and who is told of it does not depend on it.")
	}
	return all
}

// say is one of the words of package templates.
func (p pageWriter) say(define string, fields map[string]any) string {
	fields["zone"], fields["now"] = p.zone.String(), p.now.UTC().Format(time.RFC3339)
	var b bytes.Buffer
	if err := templates.Say(&b, define, fields); err != nil {
		return "(" + define + " cannot be said)"
	}
	return b.String()
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// prose is a text with commands between backticks.
func prose(s string) []piece {
	var all []piece
	for i, part := range strings.Split(s, "`") {
		if part != "" {
			all = append(all, piece{part, i%2 == 1})
		}
	}
	return all
}
