package templates

import (
	"slices"
	"strings"
)

// A Fact is one thing that people should know about an event.
type Fact struct {
	Label   string `json:"label"`   // what it is about, such as Why
	Text    string `json:"text"`    // a sentence or more; if there is a Command, it leads up to it
	Command string `json:"command"` // what to run, "" for nothing
}

// A Link leads to where one can read on.
type Link struct {
	Text string `json:"text"`
	URL  string `json:"url"`
}

// Links returns where to read on about the message with these fields.
func Links(fields any) ([]Link, error) {
	set, err := wordSet()
	if err != nil {
		return nil, err
	}
	return (&speaker{include: including(set), fields: fields}).links()
}

// A speaker says the shared words about the fields of a message. err is the first failure.
type speaker struct {
	include includeFunc
	fields  any
	err     error
}

// say returns what a shared word makes of the fields.
func (s *speaker) say(word string) string {
	text, err := s.include(word, s.fields)
	if s.err == nil {
		s.err = err
	}
	return text
}

// facts returns what is to be known about the event: of one that is announced everything, later which VMs are hit. A
// group of events has none, nor has forewarn itself.
func (s *speaker) facts() ([]Fact, error) {
	state := s.say("state")
	if state == "bridge" || s.isGroup() {
		return nil, s.err
	}
	others := Fact{Label: "VMs", Text: s.say("others")}
	if s.say("self") != "" {
		others.Label = "Also hit"
	}
	all := []Fact{others}
	if state == "scheduled" || state == "reminder" {
		all = []Fact{
			{Label: "Why", Text: s.say("why")},
			{Label: "Effect", Text: s.say("effect")},
			{Label: "How long", Text: s.say("howLong") + s.say("onceOnly")},
			others,
			s.youCan(),
			{Label: "Note", Text: s.say("missed")},
		}
	}
	return slices.DeleteFunc(all, func(f Fact) bool { return f.Text == "" }), s.err
}

// youCan returns what may be done about the event.
func (s *speaker) youCan() Fact {
	text := s.say("youCan")
	if text == "" {
		return Fact{Label: "You can", Text: s.say("cannot")}
	}
	return Fact{Label: "You can", Text: text, Command: s.say("command")}
}

// links returns the pages about the VM, if the message is about this one, and the runbook. A group of events has none.
func (s *speaker) links() ([]Link, error) {
	fields, _ := s.fields.(map[string]any)
	if s.isGroup() {
		return nil, nil
	}
	var all []Link
	if s.say("self") != "" {
		id := dig("observer", "resourceId", "", fields["data"])
		all = append(all, Link{"VM", portalURL(id)})
		if strings.EqualFold(text(fields["azeventsource"]), "user") {
			all = append(all, Link{"Who asked", activityLogURL(id)})
		}
	}
	all = append(all, Link{"Runbook", Line(text(fields["runbook"]))})
	return slices.DeleteFunc(all, func(l Link) bool { return l.URL == "" }), s.err
}

// isGroup reports whether the message stands for several events.
func (s *speaker) isGroup() bool {
	fields, _ := s.fields.(map[string]any)
	return len(items(fields["group"])) > 1
}
