package page

import (
	"encoding/json"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/goccy/go-yaml"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/statustest"
	"forewarn/sinks"
)

// The picture of a Slack message in README is drawn from the blocks that the sink sends; see FOREWARN_SHOTS in
// CONTRIBUTING.md. It loses no text, and no Slack markup is left in it.
func TestSlackPictureShowsTheWholeMessage(t *testing.T) {
	t.Parallel()
	b := browse(t)
	page := slackMessage(t)
	url, _ := served(t, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, page)
	}))
	b.do(chromedp.Navigate(url))
	shown := ask[string](b, "document.body.innerText")
	for _, want := range []string{"vm-db-1 will reboot", "Host server is undergoing maintenance.", "sudo forewarn approve",
		"prod-db", "Runbook"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the picture does not show %q:\n%s", want, shown)
		}
	}
	if left := regexp.MustCompile(`<!|\*\w|\|`).FindString(shown); left != "" {
		t.Errorf("a mark of Slack's is left, %q:\n%s", left, shown)
	}
	b.shot("slack", 760, "light")
}

// slackMessage is a page that shows a message as Slack does, and what came of it in its thread.
func slackMessage(t *testing.T) string {
	t.Helper()
	settings := `{token: t, channel: "#ops", mention: {text: "<!here>"}, runbook_url: "https://wiki.example.com/azure"}`
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	opened, err := sinks.Kinds()["slack"].Open(func(to any) error { return yaml.Unmarshal([]byte(settings), to) },
		sinks.Host{Name: "ops-chat", Zone: berlin, Log: slog.New(slog.DiscardHandler),
			Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	observer := statustest.Observer
	observer.ResourceID = "/subscriptions/s/resourceGroups/prod-db/providers/Microsoft.Compute/virtualMachines/vm-db-1"
	raw := statustest.Event("602D9444-D2CD-49C7-8624-8643E7171297", "Reboot", "Platform",
		"Host server is undergoing maintenance.",
		time.Now().Add(14*time.Minute+40*time.Second), -1, "vm-db-1", "vm-db-2")
	doc, err := imds.DecodeDocument(fmt.Appendf(nil, `{"DocumentIncarnation": 1, "Events": [%s]}`, raw))
	if err != nil {
		t.Fatal(err)
	}
	sample := cloudevent.Sample{Change: imds.Diff(nil, doc)[0]}
	ce, err := sample.CloudEvent(observer, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	text, err := opened.Sink.(delivery.Renderer).Render(delivery.Delivery{Event: ce, Attempt: 1})
	if err != nil {
		t.Fatal(err)
	}
	var message struct {
		Blocks []struct {
			Type     string
			Text     struct{ Text string }
			Elements []struct{ Text any }
		}
	}
	if err := json.Unmarshal([]byte(text[strings.IndexByte(text, '{'):]), &message); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	var body strings.Builder
	for _, block := range message.Blocks {
		switch block.Type {
		case "section":
			fmt.Fprintf(&body, "<p>%s</p>", mrkdwn(block.Text.Text))
		case "context":
			for _, e := range block.Elements {
				fmt.Fprintf(&body, "<p class=small>%s</p>", mrkdwn(fmt.Sprint(e.Text)))
			}
		case "actions":
			for _, e := range block.Elements {
				fmt.Fprintf(&body, "<a class=button href=#>%s</a> ", html.EscapeString(fmt.Sprint(e.Text.(map[string]any)["text"])))
			}
		default:
			t.Fatalf("the picture cannot show a block of type %s", block.Type)
		}
	}
	return `<!doctype html><meta charset=utf-8><style>
body { margin: 0; padding: 16px 20px 14px; background: #fff; color: #1d1c1d; font: 15px/1.46 Lato, system-ui, sans-serif; display: flex; gap: 10px }
i { flex: none; width: 36px; height: 36px; border-radius: 8px; background: #1f6f9f; color: #fff; font: bold 20px/36px system-ui; text-align: center }
p { margin: 2px 0 6px } .small { color: #616061; font-size: 13px }
b span { background: #e8e8e8; color: #616061; font-size: 10px; padding: 1px 4px; border-radius: 3px; margin: 0 6px }
code { background: #f6f6f6; border: 1px solid #ddd; border-radius: 3px; color: #c01343; font-size: 12px; padding: 1px 3px }
a { color: #1264a3; text-decoration: none } .button { border: 1px solid #bbb; border-radius: 4px; color: #1d1c1d; padding: 3px 12px; font-weight: bold; font-size: 13px } .mention { background: #fdf2d0; color: #1264a3; border-radius: 3px; padding: 0 2px }
</style><i>f</i><div><b>forewarn<span>APP</span></b> <span class=small>` + time.Now().In(berlin).Format("15:04") + `</span>` + body.String() + `</div>`
}

// mrkdwn is text of Slack as HTML.
func mrkdwn(text string) string {
	for _, r := range []struct{ from, to string }{
		{`<!date\^\d+\^[^|>]*\|([^>]*)>`, "$1"},
		{`<!here>`, "\x01span class=mention\x02@here\x01/span\x02"},
		{`<(https?://[^|>]+)\|([^>]*)>`, "\x01a href=#\x02$2\x01/a\x02"},
		{"```\n?([^`]+?)\n?```", "\x01br\x02\x01code\x02$1\x01/code\x02\x01br\x02"},
		{"`([^`]+)`", "\x01code\x02$1\x01/code\x02"},
		{`\*([^*\n]+)\*`, "\x01b\x02$1\x01/b\x02"},
		{"\n", "\x01br\x02"},
	} {
		text = regexp.MustCompile(r.from).ReplaceAllString(text, r.to)
	}
	return strings.NewReplacer("\x01", "<", "\x02", ">").Replace(html.EscapeString(html.UnescapeString(text)))
}
