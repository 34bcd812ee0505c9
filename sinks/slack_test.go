package sinks

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

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
		{"", "+ updated again|+ started again|vanished again"}, // the root says that a short pause has begun
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

// An event that is announced far ahead mentions nobody until a reminder, or a change, says that it is near.
func TestSlackMentionsWhatIsNear(t *testing.T) {
	seen := messageTime.clock()
	at := func(left time.Duration) imds.Event {
		return azure("Scheduled", "Reboot", "", map[string]any{"NotBefore": seen.Add(left).Format(http.TimeFormat)})
	}
	far, near := at(72*time.Hour), at(20*time.Hour)
	ahead := cloudevent.Circumstances{Observer: dbHost, Time: seen, Announced: seen.Add(-100 * time.Hour)}
	w := newWorkspace(t)
	for _, tt := range []struct {
		claim         string
		within        string
		change        imds.Change
		announced     time.Time
		mentions, new bool
	}{
		{"announced far ahead", "24h", imds.Change{Kind: imds.Scheduled, Event: far}, seen, false, false},
		{"announced near", "24h", imds.Change{Kind: imds.Scheduled, Event: near}, seen, true, false},
		{"announced far ahead, and that is near enough", "96h", imds.Change{Kind: imds.Scheduled, Event: far}, seen, true, false},
		{"a reminder of what was announced far ahead", "24h", imds.Change{Kind: imds.Reminder, Event: near, Lead: 24 * time.Hour}, ahead.Announced, true, true},
		{"a reminder of what was announced near", "24h", imds.Change{Kind: imds.Reminder, Event: near, Lead: 24 * time.Hour}, seen, true, false},
		{"moved near", "24h", imds.Change{Kind: imds.Updated, Event: near, Previous: &far, Fields: []string{"NotBefore"}}, ahead.Announced, true, true},
		{"moved away", "24h", imds.Change{Kind: imds.Updated, Event: far, Previous: &near, Fields: []string{"NotBefore"}}, ahead.Announced, false, false},
	} {
		k := openSlackSink(t, w.settings("mention: {text: <!here>, within: "+tt.within+"}"))
		k.now = func() time.Time { return seen }
		in := ahead
		in.Announced = tt.announced
		f := k.fields(deliveryOf(cloudevent.Wrap(tt.change, in)))
		if mentions := f["mention"] != ""; mentions != tt.mentions || f["newlyNear"] != tt.new {
			t.Errorf("%s: it mentions %v, newly near %v; want %v, %v", tt.claim, mentions, f["newlyNear"], tt.mentions, tt.new)
		}
	}
}

// The text of an incoming webhook is the whole message, without what only Slack shows: other servers that take it have no
// blocks.
func TestTheTextOfAWebhookIsTheWholeMessage(t *testing.T) {
	w := newWorkspace(t)
	k := openSlackSink(t, "webhook_url: "+w.url+"/services/T/B/X")
	k.now = messageTime.clock
	batch := situations()["scheduled"].batch
	if _, err := k.Deliver(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	text, _ := w.hook[0]["text"].(string)
	for _, part := range []string{"vm-db-1 will reboot", "Why: Azure maintenance", "Effect: The VM restarts", "sudo forewarn approve"} {
		if !strings.Contains(text, part) {
			t.Errorf("the text lacks %q:\n%s", part, text)
		}
	}
	if strings.ContainsAny(text, "<>") {
		t.Errorf("the text has what only Slack shows:\n%s", text)
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
