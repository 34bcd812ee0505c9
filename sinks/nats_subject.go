package sinks

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/templates"
)

// The default subjects. All their parts are of the Azure event or its set, so that all VMs that see a change give it
// the same subject.
const (
	natsEventSubject = "forewarn.events.{{.subscription}}.{{.resourcegroup}}.{{.set}}.{{.azeventtype}}." +
		"{{.change}}.{{.id}}"
	natsBridgeSubject = "forewarn.bridge.{{.subscription}}.{{.resourcegroup}}.{{.set}}.{{.change}}.{{.id}}"
)

// natsHeartbeats begins the subjects of heartbeats. Of a VM, only the last one counts.
const natsHeartbeats = "forewarn.heartbeat."

const (
	maxToken   = 90   // of a subject; no name that Azure permits is longer
	maxSubject = 1000 // the server takes subjects and what stands around them up to 4 KiB
)

type natsSubjects struct {
	event, bridge *templates.Template
	custom        string // of the settings, "" for those by default
}

// patterns returns the subjects for a stream. Of a template they are the tokens before the first that varies.
func (s natsSubjects) patterns() []string {
	if s.custom == "" {
		return natsDefaultSubjects
	}
	fixed, _, varies := strings.Cut(s.custom, "{{")
	if !varies {
		return []string{s.custom}
	}
	return []string{fixed[:strings.LastIndex(fixed, ".")+1] + ">"}
}

// openSubjects takes the template of the settings, which it tries on samples, or the default subjects, which a test
// tries. once says that no two CloudEvents may have the same subject.
func openSubjects(text string, file Path, once bool) (natsSubjects, error) {
	text, key, err := settingsText("subject", text, file)
	if err != nil {
		return natsSubjects{}, err
	}
	s := natsSubjects{custom: strings.TrimSpace(text)}
	ofEvent, ofBridge := natsEventSubject, natsBridgeSubject
	if key != "" {
		ofEvent, ofBridge = text, text
		shape := shapeOf(cloudevent.FieldDocs)
		addNames(shape, natsFields)
		err = templates.CheckNames(text, shape)
	}
	if key != "" && s.custom == "" {
		err = errors.New("is empty")
	}
	if err == nil {
		s.event, err = templates.Parse("subject", ofEvent)
	}
	if err == nil {
		s.bridge, err = templates.Parse("subject", ofBridge)
	}
	if err == nil && key != "" {
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
				"expected tokens of A-Z, a-z, 0-9, _ and -, at most %d each, with dots between them", raw, ce.Type(), maxToken)
		case once && !strings.HasSuffix(subject, "."+natsToken(ce.ID())):
			return errors.New("does not end in the CloudEvent's id, so two CloudEvents could have one " +
				"subject and once would take the second for a copy; expected .{{.id}} at its end, or once: false")
		}
	}
	return nil
}

// heartbeat is the subject of all heartbeats of a VM: by its subscription, group, set, and name. A VM in no set is its
// own. It is the same whatever the settings say, because a stream of its own takes them.
func (s natsSubjects) heartbeat(ce event.Event) string {
	of := observed(cloudevent.Fields(ce))
	name := of("name")
	return natsHeartbeats + natsToken(of("subscriptionId")) + "." + natsToken(of("resourceGroup")) + "." +
		natsToken(cmp.Or(of("scaleSet"), name)) + "." + natsToken(name)
}

// observed returns the texts about the observer in the fields of a CloudEvent, in lower case.
func observed(fields map[string]any) func(name string) string {
	data, _ := fields["data"].(map[string]any)
	observer, _ := data["observer"].(map[string]any)
	return func(name string) string { text, _ := observer[name].(string); return strings.ToLower(text) }
}

func (s natsSubjects) of(ce event.Event) (string, error) {
	if ce.Type() == cloudevent.BridgeHeartbeat {
		return s.heartbeat(ce), nil
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
	t := s.event
	if !strings.HasPrefix(ce.Type(), cloudevent.EventPrefix) {
		t = s.bridge
	}
	text, err := execute(t, subjectFields(ce))
	return strings.TrimSpace(text), err
}

// natsFields are fields that only the template of a subject has.
var natsFields = map[string]Field{
	"subscription":  {"id of the subscription, one token in lower case", ""},
	"resourcegroup": {"name of the resource group, one token in lower case", ""},
	"set": {"name of the scale set, or of the set that cloudevents_source names, or else of the first VM in resources; " +
		"about the bridge the VM's; one token in lower case", ""},
}

// subjectFields returns the fields for the template of a subject: cloudevent.Fields and natsFields. Every text is one
// token already, so that none can add a token, a wildcard or a line to a subject. Nothing depends on when the
// CloudEvent is sent.
func subjectFields(ce event.Event) map[string]any {
	f := cloudevent.Fields(ce)
	if c, ok := f["change"].(string); ok {
		f["change"] = strings.TrimPrefix(c, "dev.forewarn.")
	}
	where := natsPlaceOf(ce, f)
	f["subscription"], f["resourcegroup"], f["set"] = where.subscription, where.group, where.set
	return mapTexts(f, natsToken).(map[string]any)
}

// A natsPlace is the place that a subject names, in lower case: Azure ignores the case of names, and writes a group's
// name differently on different machines.
type natsPlace struct{ subscription, group, set string }

// natsPlaceOf returns a place on which all VMs that see an Azure event agree: the set that the CloudEvent's source
// names, the observer's scale set, or else the first of the event's Resources; the observer only if the event names no
// VM. About the bridge it is the observer.
func natsPlaceOf(ce event.Event, fields map[string]any) natsPlace {
	of := observed(fields)
	p := natsPlace{of("subscriptionId"), of("resourceGroup"), of("scaleSet")}
	source, kind := resourceID(ce.Source())
	if p.subscription == "" || p.group == "" {
		p.subscription, p.group = source.subscription, source.group
	}
	resources, _ := fields["resources"].([]string)
	switch {
	case !strings.HasPrefix(ce.Type(), cloudevent.EventPrefix):
		p.set = of("name")
	case kind != "" && !strings.EqualFold(kind, "virtualMachines"):
		p = source
	case p.set == "" && len(resources) > 0:
		p.set = resources[0]
	case p.set == "":
		p.set = of("name")
	}
	return natsPlace{strings.ToLower(p.subscription), strings.ToLower(p.group),
		strings.ToLower(cmp.Or(p.set, source.set))}
}

// resourceID reads the Azure resource id in a CloudEvent's source: place, name and kind, which is "" if there is none.
func resourceID(source string) (p natsPlace, kind string) {
	_, path, found := strings.Cut(source, "/subscriptions/")
	if !found {
		return p, ""
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if plain, err := url.PathUnescape(part); err == nil {
			parts[i] = plain
		}
	}
	// <subscription> resourceGroups <group> providers <namespace> <kind> <name> [<kind> <name>]…
	if len(parts) < 7 || len(parts)%2 == 0 || !strings.EqualFold(parts[1], "resourceGroups") {
		return p, ""
	}
	return natsPlace{parts[0], parts[2], parts[len(parts)-1]}, parts[len(parts)-2]
}

// sanitised returns a subject with valid tokens.
func sanitised(subject string) string {
	parts := strings.Split(subject, ".")
	for i, p := range parts {
		parts[i] = natsToken(p)
	}
	return strings.Join(parts, ".")
}

// natsToken makes a text one token of a subject: letters, digits, _ and - stay, every other rune becomes _, and so does
// an empty text. A long text is cut and ends in a hash of the whole, so that two long ids stay different.
func natsToken(s string) string {
	var b strings.Builder
	for _, r := range s {
		if b.Len() > maxToken {
			break
		}
		if !inToken(r) {
			r = '_'
		}
		b.WriteRune(r)
	}
	switch {
	case b.Len() == 0:
		return "_"
	case b.Len() <= maxToken:
		return b.String()
	}
	sum := sha256.Sum256([]byte(s))
	return b.String()[:maxToken-9] + "-" + hex.EncodeToString(sum[:4])
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
