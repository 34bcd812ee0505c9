package sinks

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/templates"
)

// What the default subjects begin with.
const (
	natsEvents     = "forewarn.events."
	natsBridge     = "forewarn.bridge."
	natsHeartbeats = "forewarn.heartbeat."
)

// maxSubject is the longest subject: the server takes it and what stands around it up to 4 KiB.
const maxSubject = 1000

type natsSubjects struct {
	custom   string              // the template in the settings, "" for the default subjects
	template *templates.Template // the same, parsed
}

// patterns returns the subjects for a stream. Of a template they are the tokens before the first that varies.
func (s natsSubjects) patterns() []string {
	if s.custom == "" {
		return natsDefaultSubjects
	}
	fixed, all := templates.Beginning(s.custom)
	fixed = strings.TrimSpace(fixed)
	if all {
		return []string{fixed}
	}
	return []string{fixed[:strings.LastIndex(fixed, ".")+1] + ">"}
}

// openSubjects takes the template of the settings, which it tries on samples, or the default subjects, which a test
// tries. once says that no two CloudEvents may have the same subject.
func openSubjects(text string, file Path, once bool) (natsSubjects, error) {
	text, key, err := settingsText("subject", text, file)
	if err != nil || key == "" {
		return natsSubjects{}, err
	}
	s := natsSubjects{custom: strings.TrimSpace(text)}
	shape := shapeOf(cloudevent.FieldDocs)
	addNames(shape, natsFields)
	err = templates.CheckNames(text, shape)
	if s.custom == "" {
		err = errors.New("is empty")
	}
	if err == nil {
		s.template, err = templates.Parse("subject", text)
	}
	if err == nil {
		err = s.try(once)
	}
	if err != nil {
		return s, &KeyError{key, err}
	}
	return s, nil
}

// try makes the subjects of samples.
func (s natsSubjects) try(once bool) error {
	all, err := cloudevent.Samples(false)
	if err != nil {
		return err
	}
	for _, ce := range all {
		raw, err := s.execute(ce)
		if err != nil {
			return fmt.Errorf("with a sample CloudEvent of type %s: %w", ce.Type(), err)
		}
		subject := sanitised(raw)
		switch {
		case subject != raw:
			return fmt.Errorf("%q for a sample CloudEvent of type %s is not a subject; "+
				"expected tokens of A-Z, a-z, 0-9, _ and -, at most %d each, with dots between them", raw, ce.Type(), cloudevent.MaxToken)
		case !isOwn(subject, cloudevent.PlaceOf(ce)):
			return fmt.Errorf("%q for a sample CloudEvent of type %s begins like a default subject and doesn't name its set, so a "+
				"relay would refuse it; expected another beginning than forewarn.events and forewarn.bridge, or the default's",
				raw, ce.Type())
		case once && !strings.HasSuffix(subject, "."+cloudevent.Token(ce.ID())):
			return errors.New("does not end in the CloudEvent's id, so two CloudEvents could have one " +
				"subject and once would take the second for a copy; expected .{{.id}} at its end, or once: false")
		}
	}
	return nil
}

// isOwn reports whether a subject that begins like a default one goes on like it, with the place of the CloudEvent, as a
// relay demands. Any other subject is the user's own.
func isOwn(subject string, at cloudevent.Place) bool {
	for begin, place := range map[string]string{
		natsEvents: at.String() + ".", natsBridge: at.String() + "." + at.VM + ".",
	} {
		rest, as := strings.CutPrefix(subject, begin)
		if as && !strings.HasPrefix(rest, place) {
			return false
		}
	}
	return true
}

// defaultSubject returns the subject of a CloudEvent unless the settings have others. All parts of that of a change are of
// the Azure event or its set, so that all VMs that see the change give it the same one. All heartbeats of a VM have one
// subject, because only the last one counts. A VM in no set is its own.
func defaultSubject(ce event.Event) string {
	at := cloudevent.PlaceOf(ce)
	what := cloudevent.Token(cloudevent.KindOf(ce.Type())) + "." + cloudevent.Token(ce.ID())
	switch {
	case ce.Type() == cloudevent.BridgeHeartbeat:
		return natsHeartbeats + at.String() + "." + at.VM
	case strings.HasPrefix(ce.Type(), cloudevent.EventPrefix):
		azure, _ := ce.Extensions()["azeventtype"].(string)
		return natsEvents + at.String() + "." + cloudevent.Token(azure) + "." + what
	}
	return natsBridge + at.String() + "." + at.VM + "." + what
}

// of returns the subject of a CloudEvent. That of a heartbeat is the same whatever the settings say, because a stream of
// its own takes them.
func (s natsSubjects) of(ce event.Event) (string, error) {
	if s.custom == "" || ce.Type() == cloudevent.BridgeHeartbeat {
		return defaultSubject(ce), nil
	}
	raw, err := s.execute(ce)
	if err != nil {
		return "", err
	}
	subject := sanitised(raw)
	if len(subject) > maxSubject {
		return "", fmt.Errorf("the subject has %d bytes; at most %d can be sent", len(subject), maxSubject)
	}
	return subject, nil
}

func (s natsSubjects) execute(ce event.Event) (string, error) {
	text, err := execute(s.template, subjectFields(ce))
	return strings.TrimSpace(text), err
}

// natsFields are fields that only the template of a subject has.
var natsFields = map[string]Field{
	"subscription":  {"id of the subscription, one token in lower case", ""},
	"resourcegroup": {"name of the resource group, one token in lower case", ""},
	"set": {"name of the scale set, or of the set that cloudevents_source names, or else of the first VM in resources; " +
		"about forewarn itself the VM's scale set, or else the VM; one token in lower case", ""},
	"vm": {"about forewarn itself the name of its VM, else _; one token in lower case", ""},
}

// subjectFields returns the fields for the template of a subject: cloudevent.Fields and natsFields. Every text is one
// token already, so that none can add a token, a wildcard or a line to a subject. Nothing depends on when the
// CloudEvent is sent.
func subjectFields(ce event.Event) map[string]any {
	f := cloudevent.Fields(ce)
	at := cloudevent.PlaceOf(ce)
	f["subscription"], f["resourcegroup"], f["set"], f["vm"] = at.Subscription, at.Group, at.Set, at.VM
	return mapTexts(f, cloudevent.Token).(map[string]any)
}

// sanitised returns a subject with valid tokens.
func sanitised(subject string) string {
	parts := strings.Split(subject, ".")
	for i, p := range parts {
		parts[i] = cloudevent.Token(p)
	}
	return strings.Join(parts, ".")
}

// inToken reports whether a token may hold a rune.
func inToken(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-'
}

// subjectMatches reports whether a stream's subject, which may have wildcards, takes a subject.
func subjectMatches(pattern, subject string) bool {
	of, parts := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, token := range of {
		switch {
		case token == ">" && i == len(of)-1:
			return len(parts) > i
		case i >= len(parts) || token != "*" && token != parts[i]:
			return false
		}
	}
	return len(of) == len(parts)
}
