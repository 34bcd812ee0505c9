package sinks

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
)

type mentionOption struct {
	Text string `yaml:"text" required:"" doc:"who, as Slack writes it: <!here>, <@U024BE7LH> or <!subteam^S024BE7LH>"`
	From string `yaml:"from" default:"ERROR" oneof:"INFO WARN ERROR" doc:"lowest severity that mentions"`
	// Within is how near the event must be: one further away is mentioned by a reminder.
	Within time.Duration `yaml:"within" default:"24h" min:"1m" doc:"mention only what begins within this time"`
}

// UnmarshalYAML reads a section, or the text alone.
func (m *mentionOption) UnmarshalYAML(unmarshal func(any) error) error {
	if unmarshal(&m.Text) == nil {
		return nil
	}
	type section mentionOption
	m.Text = ""
	return unmarshal((*section)(m))
}

// broadcastable are the values that broadcast may list.
var broadcastable = []string{"scheduled", "updated", "started", "vanished", "canceled", "reminder", "approved"}

// openChoices stores who is mentioned and which changes are broadcast.
func (k *slackSink) openChoices(s slackSettings) error {
	var wrong KeyErrors
	for i, change := range s.Broadcast {
		if change == "none" && len(s.Broadcast) == 1 {
			k.broadcast = []string{}
			continue
		}
		wrong.when(!slices.Contains(broadcastable, change), fmt.Sprintf("broadcast.%d", i),
			"%q is unknown; expected %s, or none alone", change, strings.Join(broadcastable, ", "))
	}
	wrong.when(strings.HasPrefix(strings.TrimSpace(s.Channel), "xox"), "channel",
		`is a token, so it isn't shown; expected the token in token_file, and here a name such as "#ops", in quotes`)
	if s.Mention == nil {
		return wrong.err()
	}
	wrong.when(strings.TrimSpace(s.Mention.Text) == "", "mention.text",
		"missing; expected whom to mention, such as <!here>")
	wrong.when(strings.TrimSpace(s.Mention.Text) != "" && !slackMention.MatchString(s.Mention.Text), "mention.text",
		"%q rings nobody; expected %s", s.Mention.Text, mentionMeant(s.Mention.Text))
	k.within = cmp.Or(s.Mention.Within, 24*time.Hour)
	k.mention, k.from = s.Mention.Text, map[string]int{"INFO": 9, "WARN": 13, "": 17, "ERROR": 17}[s.Mention.From]
	return wrong.err()
}

// newlyNear reports whether a message is the first that may mention an event: a reminder of one that was announced further
// ahead than mention.within, or a change that brings it nearer than that. f are the fields of the message.
func (k *slackSink) newlyNear(ce event.Event, f map[string]any) bool {
	change := cloudevent.ChangeOf(ce)
	switch {
	case change.Kind == imds.Reminder:
		announced, _ := f["announced"].(string)
		seen, err := time.Parse(time.RFC3339, announced)
		return err == nil && change.Event.NotBefore.Sub(seen) > k.within
	case change.Previous != nil:
		return change.Previous.NotBefore.Sub(ce.Time()) > k.within
	}
	return false
}

// slackMention matches what Slack takes for a mention, and plainMention what people take for one and Slack for text.
var (
	slackMention = regexp.MustCompile(`<[@!][^<>\s]+>`)
	plainMention = regexp.MustCompile(`(?:^|[^\w<!@])@(here|channel|everyone)\b`)
)

// mentionMeant returns how Slack writes the mention that was probably meant.
func mentionMeant(text string) string {
	for _, group := range []string{"here", "channel", "everyone"} {
		if strings.Contains(text, group) {
			return "<!" + group + ">"
		}
	}
	return "whom to mention as Slack writes it: <!here>, <@U024BE7LH> or <!subteam^S024BE7LH>"
}

// noteMentions returns the note about a template that mentions people in a way that rings nobody, or "".
func noteMentions(key, text string, file Path) string {
	text, key, err := settingsText(key, text, file)
	found := plainMention.FindStringSubmatch(text)
	if err != nil || found == nil {
		return ""
	}
	return fmt.Sprintf("%s: @%s rings nobody in Slack; write <!%[2]s>", key, found[1])
}
