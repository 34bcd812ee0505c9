package sinks

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
	"forewarn/templates"
)

// Whatever stands in a text of Azure, it stays a text: in Slack it mentions nobody and links to nothing, in HTML it is
// no markup, in a subject it is one line, and nothing grows without bound.
func TestTextOfAzureStaysText(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	for name, evil := range map[string]string{
		"mentions":   `<!channel> <@U123> <!date^1^{time}|x> <https://evil.example|here> & &lt;`,
		"script":     `<script>alert("1")</script><img src=x onerror=alert(1)>`,
		"quotes":     `"' ` + "`" + `\ \n {{.id}} "},{"type":"section"`,
		"newlines":   "one\r\nSubject: two\n\n\x00\x1b[31mthree\u2028four",
		"directions": "abc\u202Edefg\u2066h\u200fi",
		"long":       strings.Repeat("&<long> ", 100<<10/8),
		"no UTF-8":   "a\xff\xfeb\xc3",
		"one letter": strings.Repeat("x", 20<<10),
	} {
		e := azure("Scheduled", "Reboot", "04:10:00", map[string]any{
			"Description": evil, "Resources": []string{evil, "vm-db-1"}, "EventSource": evil,
		})
		unknown := azure("Scheduled", evil, "04:10:00", map[string]any{
			"Description": evil, "Resources": []string{evil},
		})
		fields := []string{"Description", "EventType", "Resources"}
		host := dbHost
		host.ResourceGroup, host.Location, host.ResourceID = evil, evil, "/subscriptions/"+evil
		stranger := host
		stranger.Name = evil
		in := func(o imds.Observer) cloudevent.Circumstances {
			return cloudevent.Circumstances{Observer: o, Time: messageTime.clock(), Incarnation: "1"}
		}
		batches := [][]delivery.Delivery{
			deliveryOf(cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: e}, in(host))),
			deliveryOf(cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: unknown}, in(stranger))),
			deliveryOf(cloudevent.Wrap(imds.Change{Kind: imds.Started, Event: unknown}, in(host))),
			deliveryOf(cloudevent.Wrap(imds.Change{Kind: imds.Updated, Event: e, Previous: &unknown, Fields: fields}, in(host))),
			deliveryOf(cloudevent.Wrap(imds.Change{Kind: imds.Vanished, Event: e}, in(stranger))),
			about(cloudevent.SinkBlocked, host, map[string]any{
				"sink": evil, "kind": evil, "pending": evil, "since": evil, "error": evil,
			}),
			about(cloudevent.DeliveryDeadLettered, stranger, map[string]any{
				"sink": evil, "count": evil, "deliveries": []any{map[string]any{"error": evil}},
			}),
			about(cloudevent.DeliveryDropped, host, map[string]any{"sink": evil, "by": evil}),
			about(cloudevent.BridgeStarted, host, map[string]any{"gap": map[string]any{"from": evil, "to": evil}}),
		}
		nothing := deliveryOf(cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: e}, in(host)))
		if err := nothing[0].Event.SetData("application/json", []byte("null")); err != nil {
			t.Fatal(err)
		}
		batches = append(batches, nothing)
		batches = append(batches, slices.Concat(batches...))
		for i, batch := range batches {
			f := fieldsOf(t, situation{batch: batch, now: messageTime})
			text := render(t, texts.slackText, f)
			mrkdwn(t, name, i, text)
			f["reply"] = true
			mrkdwn(t, name, i, render(t, texts.slackText, f))
			var blocks []struct {
				Type     string
				Text     struct{ Text string }
				Elements []struct {
					Text json.RawMessage
					URL  string
				}
			}
			if err := json.Unmarshal([]byte(render(t, texts.slackBlocks, f)), &blocks); err != nil {
				t.Fatalf("%s %d: %v", name, i, err)
			}
			if len(blocks) < 2 || len(blocks) > 4 {
				t.Errorf("%s %d: %d blocks", name, i, len(blocks))
			}
			for _, b := range blocks {
				mrkdwn(t, name, i, b.Text.Text)
				for _, e := range b.Elements {
					var text string
					if b.Type == "actions" { // a button, whose label is ours
						if !strings.HasPrefix(e.URL, "https://portal.azure.com/#@/resource/") {
							t.Errorf("%s %d: a button goes to %s", name, i, e.URL)
						}
					} else if err := json.Unmarshal(e.Text, &text); err != nil {
						t.Errorf("%s %d: %v", name, i, err)
					}
					mrkdwn(t, name, i, text)
				}
			}
			subject := render(t, texts.subject, f)
			unfit := func(r rune) bool { return r < ' ' || r == 0x202e }
			if len([]rune(subject)) > 200 || strings.ContainsFunc(subject, unfit) {
				t.Errorf("%s %d: the subject is %q", name, i, subject)
			}
			mail := render(t, texts.text, f)
			if !utf8.ValidString(mail) || len(mail) > 40<<10 || strings.Contains(mail, "\u202e") {
				t.Errorf("%s %d: the mail is %.3000q", name, i, mail)
			}
			html := render(t, texts.html, f)
			if left := markup.ReplaceAllString(html, ""); strings.ContainsAny(left, "<>") || !utf8.ValidString(html) {
				t.Errorf("%s %d: markup is left in\n%.3000s", name, i, left)
			}
			for _, href := range links.FindAllStringSubmatch(html, -1) {
				if !strings.HasPrefix(href[1], "https://portal.azure.com/#@/resource/") {
					t.Errorf("%s %d: links to %s", name, i, href[1])
				}
			}
		}
	}
}

// about returns the delivery of what the bridge says about itself.
func about(typ string, o imds.Observer, data map[string]any) []delivery.Delivery {
	return deliveryOf(cloudevent.WrapBridge(typ, data, o, messageTime.clock()))
}

// markup and links are the elements of our HTML; times, pages and entities are what mrkdwn may hold.
var (
	markup   = regexp.MustCompile(`</?(html|head|meta|body|p|b|br|a|code|table|tr|td|!DOCTYPE)( [^<>]*)?>`)
	links    = regexp.MustCompile(`href="([^"]*)"`)
	times    = regexp.MustCompile(`<!date\^\d+\^\{(time|time_secs)\}( on \{date_short\})?\|[^<>|]*>`)
	pages    = regexp.MustCompile(`<https://portal\.azure\.com/#@/resource/[^<>| ]*\|(VM|Who asked)>`)
	entities = regexp.MustCompile(`&(amp|lt|gt);`)
)

// mrkdwn fails for a text of Slack that is too long, or in which anything but our times and links is markup.
func mrkdwn(t *testing.T, name string, i int, text string) {
	t.Helper()
	if n := len([]rune(text)); n > 3000 {
		t.Errorf("%s %d: %d characters", name, i, n)
	}
	left := pages.ReplaceAllString(times.ReplaceAllString(text, ""), "")
	if strings.ContainsAny(entities.ReplaceAllString(left, ""), "<>&") || !utf8.ValidString(text) {
		t.Errorf("%s %d: markup is left in %.3000q", name, i, left)
	}
}

// A group of many says as many as can be read, and how many more there are.
func TestLargeGroupsAreBounded(t *testing.T) {
	t.Parallel()
	batch := slices.Repeat(situations()["scheduled-many"].batch, 200)
	f := fieldsOf(t, situation{batch: batch, now: messageTime})
	for _, text := range []string{render(t, texts.text, f), render(t, texts.slackBlocks, f)} {
		if !strings.Contains(text, "and 180 more") || len(text) > 8<<10 {
			t.Errorf("%d bytes: %s", len(text), text)
		}
	}
}

// The texts need none of the fields of data: a CloudEvent that has lost them all still makes a message.
func TestTextsNeedNothingOfData(t *testing.T) {
	systemtest.LeftToGate(t)
	t.Parallel()
	for name, s := range situations() {
		f := fieldsOf(t, s)
		odd := map[string]any{
			"event": 1.0, "observer": "x", "outcome": []any{}, "changed": true, "gap": 1.0, "deliveries": "x",
		}
		for _, data := range []map[string]any{{}, odd} {
			g := maps.Clone(f)
			g["data"] = data
			for _, from := range []*templates.Template{texts.subject, texts.text, texts.html, texts.slackText,
				texts.slackBlocks} {
				text := render(t, from, g)
				if text == "" || strings.Contains(text, "<no value>") || strings.Contains(text, "%!") {
					t.Errorf("%s without its data: %q", name, text)
				}
			}
		}
	}
}

// The address of the runbook is all that its link goes to: nothing in it ends the link, or mentions anybody.
func TestRunbookLinkHoldsItsAddress(t *testing.T) {
	f := fieldsOf(t, situations()["scheduled"])
	f["runbook"] = "https://wiki.example.com/<!channel>|x\n\"&y"
	blocks := render(t, texts.slackBlocks, f)
	if want := ` · <https://wiki.example.com/&lt;!channel&gt;%7Cx \"&amp;y|Runbook>"`; !strings.Contains(blocks, want) {
		t.Errorf("the blocks are\n%s\nwant %s in them", blocks, want)
	}
}

// Types of CloudEvents that a relay or an approval adds have their words too.
func TestWordsForEveryType(t *testing.T) {
	for _, tt := range []struct{ situation, typ, change, want string }{
		{"scheduled", "dev.forewarn.scheduledevent.reminder", "reminder",
			"Reminder: vm-db-1 will reboot at 05:10 CET (in 14 min)"},
		{"scheduled", "dev.forewarn.scheduledevent.approved", "approved", "vm-db-1: reboot approved, it may begin now"},
		{"scheduled", "dev.forewarn.scheduledevent.new", "new", "vm-db-1: reboot, new"},
		{"bridge.started", "dev.forewarn.observer.silent", "silent", "forewarn on vm-db-1 has gone silent"},
		{"bridge.started", "dev.forewarn.observer.back", "back", "forewarn on vm-db-1 is heard again"},
		{"bridge.started", "dev.forewarn.bridge.new", "new", "forewarn on vm-db-1: new"},
	} {
		f := fieldsOf(t, situations()[tt.situation])
		f["type"], f["change"] = tt.typ, tt.change
		if got := render(t, texts.subject, f); got != tt.want {
			t.Errorf("%s: the subject is %q, want %q", tt.typ, got, tt.want)
		}
		for _, from := range []*templates.Template{texts.text, texts.html, texts.slackText, texts.slackBlocks} {
			if render(t, from, f) == "" {
				t.Errorf("%s has no message", tt.typ)
			}
		}
	}
}
