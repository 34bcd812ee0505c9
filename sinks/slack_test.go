package sinks

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

func slackAccepts(t *testing.T) (string, func() []string) {
	w := newWorkspace(t)
	settings := strings.Replace(w.settings(""), "{{.change}}", "{{.id}}", 1)
	return settings, func() []string {
		var ids []string
		for _, m := range w.messages {
			ids = append(ids, m.text)
		}
		return ids
	}
}

func slackHangs(t *testing.T) map[string]hung {
	all := make(map[string]hung)
	for name, settings := range map[string]string{"api": "token: abc\nchannel: C1\napi_url: ",
		"webhook": "webhook_url: "} {
		for i, says := range []string{"", `{"ok": true, "ts": `} {
			began := make(chan struct{})
			srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if says != "" {
					io.WriteString(w, says)
					http.NewResponseController(w).Flush()
				}
				close(began)
				<-r.Context().Done()
			}))
			all[fmt.Sprint(name, i)] = hung{settings + srv.URL, began}
		}
	}
	return all
}

func slackFails(t *testing.T) map[string]string {
	all := map[string]string{}
	for class, code := range map[string]string{again: "fatal_error", blocked: "invalid_auth", rejected: "msg_too_long"} {
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request) {
			fmt.Fprintf(w, `{"ok":false,"error":%q}`, code)
		}))
		all[class] = "{token: xoxb-1, channel: C1, api_url: '" + srv.URL + "'}"
	}
	return all
}

func slackSecrets(t *testing.T) []secretPlace {
	const secret = `s3cr3t-t0ken`
	env := map[string]string{"SECRET": secret}
	file := writeFile(t, "token", secret+"\n")
	var places []secretPlace
	add := func(place, settings string) {
		places = append(places, secretPlace{place, settings, []string{secret}, env})
	}
	for _, status := range []int{200, 302, 400, 403, 429, 503} {
		echo := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { sayBack(w, r, status) }))
		add(fmt.Sprint("token, echoed ", status), "{token: "+secret+", channel: C1, api_url: '"+echo.URL+"'}")
		add(fmt.Sprint("token_file, echoed ", status), "{token_file: "+file+", channel: C1, api_url: '"+echo.URL+"'}")
		add(fmt.Sprint("token_env, echoed ", status), "{token_env: SECRET, channel: C1, api_url: '"+echo.URL+"'}")
		add(fmt.Sprint("webhook_url, echoed ", status), "webhook_url: '"+echo.URL+"/services/"+secret+"'")
		add(fmt.Sprint("proxy, echoed ", status), "{webhook_url: 'http://destination.example', insecure: true, proxy: '"+
			strings.Replace(echo.URL, "://", "://u:"+secret+"@", 1)+"'}")
	}
	for name, body := range map[string]string{
		"error":    `{"ok":false,"error":"` + secret + `"}`,
		"needed":   `{"ok":false,"error":"missing_scope","needed":"` + secret + `"}`,
		"ts":       `{"ok":true,"channel":"C1","ts":"` + secret + `"}`,
		"channel":  `{"ok":true,"channel":"` + secret + `","ts":"1.2"}`,
		"messages": `{"ok":false,"error":"invalid_arguments","response_metadata":{"messages":["` + secret + `"]}}`,
	} {
		srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, body) }))
		add("token in "+name, "{token: "+secret+", channel: C1, api_url: '"+srv.URL+"'}")
	}
	add("webhook_url, nobody listens", "webhook_url: http://127.0.0.1:1/"+secret)
	add("token, nobody listens", "{token: "+secret+", channel: C1, api_url: 'http://127.0.0.1:1'}")
	add("wrong webhook_url", "webhook_url: 'http://a b.example/"+secret+"'")
	add("wrong webhook_url, user", "webhook_url: 'http://u:"+secret+"@a.example/'")
	add("wrong token", "{token: '"+secret+" x', channel: C1}")
	add("wrong channel", "{token: "+secret+"}")
	add("wrong proxy", "{token: "+secret+", channel: C1, proxy: 'http://u:"+secret+"@:port'}")
	return places
}

// The life of an event is one message that shows the state, with a reply for every change; those by which somebody may
// have to act go to the channel too.
func TestSlackKeepsALifeInOneThread(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings(""))
	for i, d := range deliveries(t) {
		a := l.mustTell(d)
		if a.Status != "ok" || a.ID != w.messages[len(w.messages)-1].ts {
			t.Errorf("delivery %d: the answer is %+v, want the ts of the newest message", i, a)
		}
	}
	want := "vanished\n  + updated again\n  + started again\n  vanished again\nvanished\n  vanished again\n"
	if got := w.story(); got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// With the texts that come with forewarn, Slack gets blocks and a text that stand on their own.
func TestSlackMessagesAreWhole(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, "token: "+slackToken+"\nchannel: '#ops'\napi_url: "+w.url+"/api\nmention: {text: "+
		"<!here>}\nrunbook_url: 'https://wiki.example/{{.azeventtype}}'\n")
	l.sink.now = func() time.Time { return deliveries(t)[0].Event.Time().Add(time.Minute) }
	for _, d := range deliveries(t)[:4] {
		l.mustTell(d)
	}
	root := w.messages[0]
	for _, want := range []string{"<https://wiki.example/Reboot|Runbook>", "vm-0"} {
		if text := unescape(t, root.blocks); !strings.Contains(text, want) || root.text == "" {
			t.Errorf("the root shows %q and %s, want %s in it", root.text, text, want)
		}
	}
	for _, reply := range w.messages[1:] {
		if reply.text == "" || reply.blocks != "" || reply.text == root.text {
			t.Errorf("a reply is %+v, want a text of its own", reply)
		}
	}
	l.mustTell(deliveries(t)[4])
	if text := w.messages[4].text; strings.Contains(text, "<!here>") {
		t.Errorf("a warning reads %q, want nobody mentioned", text)
	}
	l.receipts = make(map[string][]byte)
	l.mustTell(deliveries(t)[0])
	if text := w.messages[5].text; !strings.HasPrefix(text, "<!here> ") {
		t.Errorf("an error reads %q, want <!here> mentioned", text)
	}
	for _, method := range []string{"chat.postMessage", "chat.update"} {
		if got := w.forms[method].Get("parse"); got != "none" { // else Slack makes links and mentions of bare words
			t.Errorf("%s has parse %q, want none", method, got)
		}
	}
	if n, verbatim := strings.Count(root.blocks, `"mrkdwn"`),
		strings.Count(root.blocks, `"verbatim":true`); n != verbatim || n == 0 {
		t.Errorf("%d of %d texts are verbatim:\n%s", verbatim, n, root.blocks)
	}
	f := w.forms["chat.postMessage"]
	if f.Get("unfurl_links") != "false" || f.Get("unfurl_media") != "false" {
		t.Errorf("sent %v, want links not to be unfurled", f)
	}
}

// unescape returns JSON with nothing escaped that need not be.
func unescape(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%q is no JSON: %v", text, err)
	}
	return string(mustCompact(t, v))
}

func mustCompact(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := compact(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A root message that was deleted is posted anew, whatever deleted it, and the thread goes on below the new one.
func TestSlackPostsADeletedRootAnew(t *testing.T) {
	for _, code := range []string{"", "message_not_found", "thread_not_found", "cant_update_message",
		"channel_not_found"} {
		w := newWorkspace(t)
		l := newTeller(t, w.settings(""))
		all := deliveries(t)
		l.mustTell(all[0])
		if code == "" {
			w.delete("scheduled")
		} else {
			w.refuse("chat.update", slackNo{body: `{"ok":false,"error":"` + code + `"}`})
		}
		l.mustTell(all[1])
		l.mustTell(all[2])
		want := "started\n  + started again\n"
		if code != "" {
			want = "scheduled\n" + want
		}
		if got := w.story(); got != want {
			t.Errorf("%q: the channel shows\n%s\nwant\n%s", code, got, want)
		}
	}
}

// What of a change was done is not done again: when the reply fails, the next attempt makes the reply only.
func TestSlackRepeatsNothingThatWasDone(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings(""))
	all := deliveries(t)
	l.mustTell(all[0])
	w.refuse("chat.postMessage", slackNo{status: 503})
	if a, err := l.tell(all[1]); classOf(err) != again || a.Progress == nil {
		t.Fatalf("Deliver = %+v, %v; want it again, and progress", a, err)
	}
	w.refuse("chat.postMessage", slackNo{status: 503})
	if _, err := l.tell(all[1]); classOf(err) != again {
		t.Fatalf("Deliver = %v, want it again", err)
	}
	l.mustTell(all[1])
	want := []string{
		"chat.postMessage true", "chat.update true", "chat.postMessage no", "chat.postMessage no", "chat.postMessage true",
	}
	if got := w.asked(); !slices.Equal(got, want) {
		t.Errorf("Slack was asked %q, want %q", got, want)
	}
	l.mustTell(all[1]) // replayed
	l.mustTell(all[2])
	if n := strings.Count(strings.Join(w.asked(), " "), "chat.update true"); n != 3 {
		t.Errorf("the root was updated %d times, want 3", n)
	}
	if got, want := w.story(), "started\n  + updated again\n  + updated again\n  + started again\n"; got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// Where there can be no thread, a change is a message of its own; where the settings want no reply, there is none.
func TestSlackWithoutReplies(t *testing.T) {
	for _, code := range []string{"cannot_reply_to_message", "restricted_action_non_threadable_channel",
		"restricted_action_thread_locked"} {
		w := newWorkspace(t)
		l := newTeller(t, w.settings(""))
		l.mustTell(deliveries(t)[0])
		w.refuse("chat.postMessage", slackNo{body: `{"ok":false,"error":"` + code + `"}`})
		l.mustTell(deliveries(t)[1])
		if got, want := w.story(), "updated\nupdated\n"; got != want {
			t.Errorf("%s: the channel shows\n%s\nwant\n%s", code, got, want)
		}
	}
	w := newWorkspace(t)
	l := newTeller(t, strings.Replace(w.settings(""), "{{.change}}{{if .reply}} again{{end}}",
		"{{if not .reply}}{{.change}}{{end}}", 1))
	for _, d := range deliveries(t)[:3] {
		l.mustTell(d)
	}
	if got, want := w.story(), "started\n"; got != want {
		t.Errorf("without replies the channel shows\n%s\nwant\n%s", got, want)
	}
}

// Every change is given once more when it is replayed: only an attempt that failed leaves something undone.
func TestSlackReplayIsPostedAgain(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings(""))
	all := deliveries(t)
	l.mustTell(all[0])
	l.mustTell(all[2])
	l.mustTell(all[2])
	if got, want := w.story(), "started\n  + started again\n  + started again\n"; got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// When an event was announced and when it began comes with each CloudEvent, so the sink remembers its message alone.
func TestSlackTellsWhenItWasAnnouncedAndBegan(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings("")[:strings.Index(w.settings(""), "text:")]+
		"text: '{{.change}} {{.announced}} {{.begun}}{{if .reply}} again{{end}}'\nblocks: '[]'\n")
	a := l.mustTell(situations()["over"].batch...)
	if want := `{"to":"#ops","channel":"` + slackChannelID + `","ts":"1700000000.000001"}`; string(a.Receipt) != want {
		t.Errorf("the receipt is %s, want %s", a.Receipt, want)
	}
	if got, want := w.story(), "vanished 2026-11-21T03:55:29Z 2026-11-21T04:10:04Z\n"; got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// A first change that is not the announcement posts a root message too.
func TestSlackFirstChangeIsARoot(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings(""))
	l.mustTell(deliveries(t)[2])
	if got, want := w.story(), "started\n"; got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// What is about the bridge, and a test, is a message of its own, without a receipt.
func TestSlackTellsOfTheBridge(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings(""))
	s, _ := cloudevent.NewSample("reboot", "vm-0", monday)
	test, err := s.Test(imds.Observer{Name: "vm-0"}, monday)
	if err != nil {
		t.Fatal(err)
	}
	about, err := cloudevent.WrapBridge(cloudevent.SinkBlocked, map[string]any{"sink": "ops"}, imds.Observer{Name: "vm-0"},
		monday)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, d := range []delivery.Delivery{{Event: test}, {Event: about}} {
			d.Receipt = []byte(`{"to":"#ops","channel":"` + slackChannelID + `","ts":"1700000000.000001"}`)
			a, err := l.sink.Deliver(t.Context(), []delivery.Delivery{d})
			if err != nil || a.Receipt != nil || a.Status != "ok" {
				t.Errorf("Deliver = %+v, %v; want no receipt", a, err)
			}
		}
	}
	if got, want := w.story(), strings.Repeat("scheduled\nsink.blocked\n", 2); got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// A group is one message; later changes reply in its thread and leave the message as it is.
func TestSlackGroupIsOneMessage(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, strings.Replace(w.settings(""), "{{.change}}", "{{.change}} of {{len .group}}", 1))
	all := deliveries(t)
	l.mustTell(all[0], all[4])
	l.mustTell(all[2])
	l.mustTell(all[3], all[5])
	want := "scheduled of 2\n  + started of 1 again\n  vanished of 2 again\n"
	if got := w.story(); got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
	w.delete("scheduled of 2")
	l.mustTell(all[3])
	l.mustTell(all[3])
	if got, want := w.story(), "vanished of 1\n  vanished of 1 again\n"; !strings.HasPrefix(got, want) {
		t.Errorf("without its root the channel shows\n%s\nwant\n%s", got, want)
	}
}

// Another channel in the settings gets a message of its own, and a receipt that cannot be read is none.
func TestSlackChannelThatChangedGetsARoot(t *testing.T) {
	for _, receipt := range []string{`{"to":"#other","channel":"` + slackChannelID + `","ts":"1700000000.000001"}`, `{`,
		`[]`,
		`{"to":"#ops"}`, `{"to":"#ops","channel":"C 1","ts":"1.0"}`} {
		w := newWorkspace(t)
		l := newTeller(t, w.settings(""))
		l.mustTell(deliveries(t)[0])
		d := deliveries(t)[1]
		l.receipts[d.Event.Subject()] = []byte(receipt)
		l.mustTell(d)
		if got, want := w.story(), "scheduled\nupdated\n"; got != want {
			t.Errorf("with receipt %s the channel shows %q, want %q", receipt, got, want)
		}
	}
}

// The settings choose which replies the channel sees.
func TestSlackBroadcastIsChosen(t *testing.T) {
	all := deliveries(t)
	short := all[2]
	short.Event = short.Event.Clone()
	short.Event.SetExtension("azeventtype", "Freeze")
	for _, tt := range []struct{ settings, want string }{
		{"", "+ updated again|+ started again|vanished again|started again"},
		{"broadcast: []", "updated again|started again|vanished again|started again"},
		{"broadcast: [none]", "updated again|started again|vanished again|started again"},
		{"broadcast: [vanished, started]", "updated again|+ started again|+ vanished again|+ started again"},
		{"broadcast: [canceled]", "updated again|started again|vanished again|started again"},
	} {
		w := newWorkspace(t)
		l := newTeller(t, w.settings(tt.settings))
		for _, d := range []delivery.Delivery{all[0], all[1], all[2], all[3], short} {
			l.mustTell(d)
		}
		want := "started\n  " + strings.ReplaceAll(tt.want, "|", "\n  ") + "\n"
		if got := w.story(); got != want {
			t.Errorf("%s: the channel shows\n%s\nwant\n%s", tt.settings, got, want)
		}
	}
}

// Whether a change rings follows from what changed.
func TestSlackRings(t *testing.T) {
	for _, tt := range []struct {
		name   string
		fields string
		want   bool
	}{
		{"started", `{"change":"started"}`, true},
		{"reminder", `{"change":"reminder"}`, true},
		{"approved", `{"change":"approved"}`, false},
		{"over", `{"change":"vanished","data":{"outcome":"completed"}}`, false},
		{"canceled", `{"change":"vanished","data":{"outcome":"canceled"}}`, true},
		{"new time", `{"change":"updated","data":{"changed":["NotBefore"]}}`, true},
		{"new type", `{"change":"updated","data":{"changed":["Description","EventType"]}}`, true},
		{"other VMs", `{"change":"updated","data":{"changed":["Resources"]}}`, true},
		{"new words", `{"change":"updated","data":{"changed":["Description","DurationInSeconds"]}}`, false},
		{"nothing known", `{}`, false},
	} {
		var f map[string]any
		if err := json.Unmarshal([]byte(tt.fields), &f); err != nil {
			t.Fatal(err)
		}
		f["duration"] = -1
		if got := notifies(f, nil); got != tt.want {
			t.Errorf("%s rings: %v, want %v", tt.name, got, tt.want)
		}
		f["azeventtype"] = "Freeze"
		for length, want := range map[int]bool{-1: tt.want, 0: false, 10: false, 11: tt.want} {
			if f["duration"] = length; notifies(f, nil) != want {
				t.Errorf("%s of a Freeze of %d s rings: %v, want %v", tt.name, length, !want, want)
			}
		}
	}
}

// A message mentions from the severity on that the settings name.
func TestSlackMentionsFromASeverity(t *testing.T) {
	for from, want := range map[string]string{"": "ERROR", "ERROR": "ERROR", "WARN": "ERROR WARN",
		"INFO": "ERROR WARN INFO"} {
		w := newWorkspace(t)
		k := openSlackSink(t, w.settings("mention: {text: <!here>, from: '"+from+"'}"))
		var got []string
		for _, d := range []delivery.Delivery{deliveries(t)[0], deliveries(t)[4], deliveries(t)[5]} {
			if f := k.fields([]delivery.Delivery{d}); f["mention"] == "<!here>" {
				got = append(got, f["severitytext"].(string))
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("from %q: mentioned for %q, want %q", from, got, want)
		}
	}
}

// An incoming webhook gets each change as a message of its own, and check says so.
func TestSlackIncomingWebhook(t *testing.T) {
	w := newWorkspace(t)
	settings := "webhook_url: " + w.url + "/services/T/B/X\ntext: '{{.change}}'\n"
	opened, err := open("slack", settings, testHost(t))
	if err != nil || len(opened.Notes) != 1 || !strings.Contains(opened.Notes[0], "neither update") {
		t.Fatalf("open = %+v, %v; want a note that nothing is updated", opened, err)
	}
	closeSink(opened.Sink)
	l := newTeller(t, settings)
	for _, d := range deliveries(t)[:4] {
		if a := l.mustTell(d); a.Status != "ok" || a.Receipt != nil {
			t.Errorf("the answer is %+v, want ok and no receipt", a)
		}
	}
	var got []string
	for _, m := range w.hook {
		got = append(got, fmt.Sprint(m["text"], " ", len(m["blocks"].([]any)) > 0, " ", m["unfurl_links"]))
	}
	if want := []string{"scheduled true false", "updated true false", "started true false",
		"vanished true false"}; !slices.Equal(got, want) {
		t.Errorf("the webhook got %q, want %q", got, want)
	}
}

// The texts that come with forewarn pass what those of the settings have to pass.
func TestSlackOwnTextsPass(t *testing.T) {
	mustOpen(t, "slack",
		"{token: a, channel: C1, text_file: ../templates/slack-text.txt, blocks_file: ../templates/slack-blocks.json, "+
			"runbook_url: 'https://a.example/{{.azeventtype | urlquery}}'}", testHost(t))
}

// Settings that cannot work are refused when they are read, at their key, with the reason.
func TestSlackSettingsAreChecked(t *testing.T) {
	missing := t.TempDir() + "/missing"
	for _, tt := range []struct{ settings, key, reason string }{
		{"channel: C1", "token", "missing"},
		{"token: a", "channel", "missing"},
		{"{token: a, channel: ' '}", "channel", "in quotes"},
		{"{token: '', channel: C1}", "token", "empty"},
		{`{token: a, channel: C1, blocks: '[{"type":"section","text":"no object"}]'}`, "blocks", "no blocks of Slack"},
		{`{token: a, channel: C1, blocks: '[{"text":{"type":"mrkdwn","text":"x"}}]'}`, "blocks", "has no type"},
		{"{token: 'a b', channel: C1}", "token", "space"},
		{"{token: xapp-1, channel: C1}", "token", "xoxb-"},
		{"{token: 'https://hooks.slack.com/x', channel: C1}", "token", "xoxb-"},
		{"{token: a, token_file: b, channel: C1}", "token_file", "token is given too"},
		{"{token_file: " + missing + ", channel: C1}", "token_file", missing},
		{"{token_env: NOT_SET, channel: C1}", "token_env", "variable that is not set"},
		{"{token: a, channel: C1, webhook_url: 'https://a.example'}", "webhook_url", "only one"},
		{"{webhook_url: 'https://a.example', channel: C1}", "channel", "one channel"},
		{"{webhook_url: 'https://a.example', api_url: 'https://b.example'}", "api_url", "is for a token"},
		{"{webhook_url: 'https://a.example', broadcast: []}", "broadcast", "is for a token"},
		{"{webhook_url: 'a.example'}", "webhook_url", "not the URL of an incoming webhook"},
		{"{webhook_url: 'http://a.example', tls: {server_name: b}}", "webhook_url", "not https"},
		{"{token: a, channel: C1, api_url: 'ftp://a.example'}", "api_url", "not the URL"},
		{"{token: a, channel: C1, api_url: 'https://u:p@a.example'}", "api_url", "not the URL"},
		{"{token: a, channel: C1, api_url: 'http://a.example', tls: {server_name: b}}", "api_url", "not https"},
		{"{token: a, channel: C1, broadcast: [started, stopped]}", "broadcast.1", `"stopped" is unknown`},
		{"{token: a, channel: C1, broadcast: [none, started]}", "broadcast.0", "none alone"},
		{"{token: a, channel: C1, mention: {from: WARN}}", "mention.text", "missing"},
		{"{token: a, channel: C1, mention: {text: '@here'}}", "mention.text", "rings nobody; expected <!here>"},
		{"{token: a, channel: C1, mention: {text: 'on call: channel'}}", "mention.text", "expected <!channel>"},
		{"{token: a, channel: C1, mention: {text: '@alice'}}", "mention.text", "<@U024BE7LH>"},
		{"{token: a, channel: C1, mention: {text: '<here>'}}", "mention.text", "expected <!here>"},
		{"{token: a, channel: C1, text: '{{if}}'}", "text", "text:1"},
		{"{token: a, channel: C1, text: '{{if .reply}}x{{end}}'}", "text", "no text for the notification"},
		{"{token: a, channel: C1, text: x, text_file: y}", "text_file", "text is given too"},
		{"{token: a, channel: C1, text_file: " + missing + "}", "text_file", missing},
		{"{token: a, channel: C1, blocks: '{}'}", "blocks", "not a JSON array"},
		{"{token: a, channel: C1, blocks: '[{\"a\": \"{{.data.event.Description}}\"}]'}", "blocks",
			"put values in with {{json"},
		{"{token: a, channel: C1, runbook_url: 'wiki/{{.azeventtype}}'}", "runbook_url", "is not a URL"},
		{"{token: a, channel: C1, tls: {ca_file: " + missing + "}}", "tls.ca_file", missing},
		{"{token: a, channel: C1, proxy: 'ftp://proxy.example.com'}", "proxy", "not the URL of a proxy"},
	} {
		wrongKey(t, "slack", tt.settings, tt.key, tt.reason)
	}
}

// A token that changed in its file is used from the next attempt on; one that cannot be read blocks until it can.
func TestSlackReadsTheTokenOnEachUse(t *testing.T) {
	w := newWorkspace(t)
	file := writeFile(t, "token", "xoxb-old")
	settings := strings.Replace(w.settings(""), "token: "+slackToken, "token_file: "+file, 1)
	opened, err := open("slack", settings, testHost(t))
	if err != nil || !slices.Equal(opened.Secrets, []string{file}) {
		t.Fatalf("open = %v, %v; want the file among the secrets", opened.Secrets, err)
	}
	closeSink(opened.Sink)
	l := newTeller(t, settings)
	for _, tt := range []struct{ text, want string }{{"xoxb-old\n", blocked}, {"\n", blocked},
		{slackToken + "\n", accepted}} {
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := l.tell(deliveries(t)[0]); classOf(err) != tt.want {
			t.Errorf("with %q: %v, want it %s", tt.text, err, tt.want)
		}
	}
}

// Connect shows the token to Slack and posts nothing; of an incoming webhook it reaches only the host.
func TestSlackConnectSendsNothing(t *testing.T) {
	w := newWorkspace(t)
	k := openSlackSink(t, w.settings(""))
	w.refuse("auth.test", slackNo{body: `{"ok":true}`})
	if got, err := k.Connect(t.Context()); classOf(err) != again {
		t.Errorf("Connect = %q, %v; want it to be tried again", got, err)
	}
	if got, err := k.Connect(t.Context()); err != nil || got != "as @forewarn in Example Ltd" {
		t.Errorf("Connect = %q, %v; want who the token is", got, err)
	}
	w.refuse("auth.test", slackNo{body: `{"ok":false,"error":"invalid_auth"}`})
	if _, err := k.Connect(t.Context()); classOf(err) != blocked ||
		!strings.Contains(err.Error(), "put a new token into the settings file (slack.token)") {
		t.Errorf("Connect = %v, want it blocked", err)
	}
	hook := openSlackSink(t, "webhook_url: "+w.url+"/services/T/B/X")
	if got, err := hook.Connect(t.Context()); err != nil || !strings.Contains(got, "reached "+w.url+";") {
		t.Errorf("Connect of a webhook = %q, %v; want that it was reached", got, err)
	}
	if len(w.messages)+len(w.hook) > 0 {
		t.Errorf("%d messages were posted", len(w.messages)+len(w.hook))
	}
}

// Render shows the calls as they would leave, without the token, and makes none.
func TestSlackRenderShowsTheCalls(t *testing.T) {
	w := newWorkspace(t)
	settings := strings.Replace(w.settings(""), w.url, "https://slack.example", 1)
	var b strings.Builder
	for _, tt := range []struct {
		settings string
		d        delivery.Delivery
	}{
		{settings, deliveries(t)[0]},
		{settings, delivery.Delivery{Event: deliveries(t)[1].Event,
			Receipt: []byte(`{"to":"#ops","channel":"C1","ts":"1.2"}`)}},
		{"webhook_url: https://hooks.slack.example/services/s3cr3t\ntext: '{{.change}} <&>'\nblocks: " +
			"'[{\"type\":\"divider\"}]'", deliveries(t)[0]},
	} {
		k := openSlackSink(t, tt.settings)
		got, err := k.Render(tt.d)
		if err != nil {
			t.Errorf("Render = %v", err)
		}
		b.WriteString(got + "\n")
	}
	if strings.Contains(b.String(), "s3cr3t") {
		t.Errorf("a secret is in\n%s", &b)
	}
	golden(t, "slack-render.golden", b.String())
	if got := w.asked(); len(got) > 0 {
		t.Errorf("Slack was asked %q, want nothing", got)
	}
}

// The app of the manifest may do what the sink does, and nothing else.
func TestSlackManifestIsWhatTheSinkNeeds(t *testing.T) {
	var m struct {
		Display struct {
			Name        string `yaml:"name"`
			Description string `yaml:"description"`
			Color       string `yaml:"background_color"`
		} `yaml:"display_information"`
		Features struct {
			Bot struct {
				Name   string `yaml:"display_name"`
				Online bool   `yaml:"always_online"`
			} `yaml:"bot_user"`
		} `yaml:"features"`
		OAuth struct {
			Scopes struct {
				Bot []string `yaml:"bot"`
			} `yaml:"scopes"`
		} `yaml:"oauth_config"`
		Settings map[string]bool `yaml:"settings"`
	}
	if err := yaml.UnmarshalWithOptions(read(t, "../examples/slack-app-manifest.yaml"), &m, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.OAuth.Scopes.Bot, []string{"chat:write"}) || m.Features.Bot.Name == "" || m.Display.Name == "" ||
		len(m.Display.Name) > 35 || len(m.Display.Description) > 140 {
		t.Errorf("the manifest is %+v, want a bot with the scope chat:write, and texts that Slack takes", m)
	}
}

// A template that mentions people in words that ring nobody is noted. Slack's own form is fine, and so is an address.
func TestMentionsThatRingNobodyAreNoted(t *testing.T) {
	for text, want := range map[string]bool{
		"@here {{.subject}}": true, "{{.subject}} (@channel)": true, "<!here> {{.subject}}": false, "ops@here.test": false,
	} {
		opened, err := open("slack", "{token: a, channel: C1, text: '"+text+"'}", testHost(t))
		if err != nil {
			t.Fatal(err)
		}
		if notes := strings.Join(opened.Notes, "\n"); strings.Contains(notes, "rings nobody in Slack") != want {
			t.Errorf("%s notes %q, want that it rings nobody: %v", text, notes, want)
		}
	}
}
