package sinks

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/templates"
)

var (
	anyTag    = regexp.MustCompile(`<[^ >]*`)
	mailTags  = strings.Fields("<!DOCTYPE <html </html <head </head <meta <body </body <p </p <b </b <table </table <tr </tr <td </td <code </code <a </a")
	slackDate = regexp.MustCompile(`<!date\^[0-9]+\^[{}a-z_ ]+\|[^<>]*>`)
)

// Whatever Azure writes into an event, people get the same message around it: no tag of HTML, no mention or link of Slack,
// no line of a mail's header, no direction of writing and no control character comes from it.
func FuzzTextsOfData(f *testing.F) {
	f.Add("Reboot", "Platform", "vm-0", `<script>alert("1")</script> & <!channel> <https://x|y>`, "Scheduled")
	f.Add("Neu\r\nSubject: x", "User\u202e", "vm-0|<@U1>", "\x00\x1b[31m *a* _b_ ~c~ `d`", "Started")
	f.Add("\"'\\", "{{.id}}", "&lt;b&gt;", "\xff\xfe", "")
	f.Fuzz(func(t *testing.T, kind, source, vm, description, status string) {
		event := imds.Event{ID: "A", Type: kind, Source: source, Resources: []string{vm}, Description: description,
			Status: status, ResourceType: "VirtualMachine", NotBefore: messageTime.clock().Add(time.Hour), Duration: 9}
		event.Raw, _ = json.Marshal(map[string]any{"EventId": "A", "EventType": kind, "EventSource": source,
			"Resources": []string{vm}, "Description": description, "EventStatus": status})
		ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: event}, cloudevent.Circumstances{
			Observer: imds.Observer{Name: vm}, Time: messageTime.clock(), Announced: messageTime.clock(), Incarnation: "1"})
		if err != nil {
			return // it is bounded before it gets here
		}
		fields := MessageFields(delivery.Delivery{Event: ce, Attempt: 1}, time.UTC, messageTime.clock())
		addFields(fields, slackFields)
		got := map[string]string{}
		for name, text := range map[string]*templates.Template{
			"slack text": templates.SlackText, "slack whole": templates.SlackWhole, "slack blocks": templates.SlackBlocks,
			"subject": templates.EmailSubject, "mail": templates.EmailText, "html": templates.EmailHTML,
		} {
			var b bytes.Buffer
			if err := text.Execute(&b, fields); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got[name] = b.String()
		}
		for _, tag := range anyTag.FindAllString(got["html"], -1) {
			if !slices.Contains(mailTags, tag) {
				t.Errorf("the HTML has %q:\n%s", tag, got["html"])
			}
		}
		var blocks []any
		if err := json.Unmarshal([]byte(got["slack blocks"]), &blocks); err != nil {
			t.Errorf("the blocks are no JSON: %v\n%s", err, got["slack blocks"])
		}
		for _, bad := range []string{"<!", "<@", "<#"} {
			if strings.Contains(slackDate.ReplaceAllString(got["slack text"]+got["slack blocks"], ""), bad) {
				t.Errorf("Slack is told %q:\n%s\n%s", bad, got["slack text"], got["slack blocks"])
			}
		}
		if strings.ContainsAny(strings.TrimRight(got["subject"], "\n"), "\r\n") {
			t.Errorf("the subject is %q", got["subject"])
		}
		for name, text := range got {
			if strings.ContainsFunc(text, func(r rune) bool {
				return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
			}) {
				t.Errorf("%s has a character that steers:\n%q", name, text)
			}
		}
	})
}
