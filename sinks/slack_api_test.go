package sinks

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"forewarn/bridge/delivery"
	"forewarn/bridge/systemtest"
)

// Every error of Slack has a class, and its text says what to do.
func TestSlackErrorsHaveClasses(t *testing.T) {
	file := writeFile(t, "token", slackToken)
	w := newWorkspace(t)
	l := newTeller(t, strings.Replace(w.settings(""), "token: "+slackToken, "token_file: "+file, 1))
	for code, tt := range map[string]struct{ class, says string }{
		"invalid_auth":                      {blocked, "put a new token into " + file},
		"not_authed":                        {blocked, file},
		"account_inactive":                  {blocked, file},
		"token_revoked":                     {blocked, file},
		"token_expired":                     {blocked, file},
		"missing_scope":                     {blocked, "chat:write"},
		"no_permission":                     {blocked, "chat:write"},
		"not_in_channel":                    {blocked, "invite the app into #ops with /invite"},
		"channel_not_found":                 {blocked, "#ops"},
		"is_archived":                       {blocked, "archived"},
		"org_login_required":                {blocked, "administrator"},
		"ekm_access_denied":                 {blocked, "administrator"},
		"team_access_not_granted":           {blocked, "administrator"},
		"restricted_action":                 {blocked, "administrator"},
		"restricted_action_read_only_x":     {blocked, "administrator"},
		"unknown_method":                    {blocked, "api_url"},
		"msg_too_long":                      {rejected, "msg_too_long"},
		"no_text":                           {rejected, "no_text"},
		"invalid_blocks":                    {rejected, "invalid_blocks"},
		"invalid_blocks_format":             {rejected, "invalid_blocks_format"},
		"invalid_arguments":                 {rejected, "invalid_arguments"},
		"ratelimited":                       {again, "ratelimited"},
		"internal_error":                    {again, "internal_error"},
		"fatal_error":                       {again, "fatal_error"},
		"service_unavailable":               {again, "service_unavailable"},
		"team_added_to_org":                 {again, "team_added_to_org"},
		"something_new":                     {again, "something_new"},
		"":                                  {again, "no answer of Slack"},
		"hello\\u0000 \\u202e <b>\\n world": {again, "hello <b> world"},
	} {
		w.refuse("chat.postMessage", slackNo{body: `{"ok":false,"error":"` + code + `"}`})
		_, err := l.tell(deliveries(t)[0])
		if classOf(err) != tt.class || !strings.Contains(err.Error(), tt.says) || strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("%s: %v, want it %s and …%s…", code, err, tt.class, tt.says)
		}
	}
	for _, tt := range []struct {
		no    slackNo
		class string
		after time.Duration
	}{
		{slackNo{status: 429, header: map[string]string{"Retry-After": "30"}}, again, 30 * time.Second},
		{slackNo{status: 429, body: `{"ok":false,"error":"invalid_auth"}`}, again, 0},
		{slackNo{status: 429, header: map[string]string{"Retry-After": "soon"}}, again, 0},
		{slackNo{body: `{"ok":false,"error":"ratelimited"}`, header: map[string]string{"Retry-After": "7"}}, again,
			7 * time.Second},
		{slackNo{status: 500, body: "<html>"}, again, 0},
		{slackNo{status: 302, header: map[string]string{"Location": "https://login.example/"}}, blocked, 0},
		{slackNo{status: 403, body: "<html>"}, blocked, 0},
		{slackNo{status: 404}, blocked, 0},
		{slackNo{body: ""}, again, 0},
		{slackNo{body: "{}"}, again, 0},
		{slackNo{body: "ok"}, again, 0},
		{slackNo{body: `{"ok":true}`}, again, 0},
		{slackNo{body: `{"ok":true,"channel":"C1"}`}, again, 0},
		{slackNo{body: `{"ok":true,"channel":"C1","ts":"1 2"}`}, again, 0},
		{slackNo{body: `{"ok":"true","channel":"C1","ts":"1.2"}`}, again, 0},
		{slackNo{body: `{"ok":false,"channel":"C1","ts":"1.2"}`}, again, 0},
		{slackNo{body: `{"ok":true,"channel":"C1","ts":"1.2"} <p>`}, again, 0},
		{slackNo{status: 201, body: `{"ok":true,"channel":"C1","ts":"1.2"}`}, again, 0},
		{slackNo{body: "<!DOCTYPE html><title>Sign in to the hotel</title>"}, again, 0},
	} {
		w.refuse("chat.postMessage", tt.no)
		a, err := l.tell(deliveries(t)[0])
		var wish *delivery.RetryAfter
		var after time.Duration
		if errors.As(err, &wish) {
			after = wish.After
		}
		if classOf(err) != tt.class || after != tt.after || a.ID != "" || a.Receipt != nil {
			t.Errorf("%+v: %+v, %v after %v; want %s after %v", tt.no, a, err, after, tt.class, tt.after)
		}
	}
}

// Slack's answer repeats the message, with six bytes for a letter beyond ASCII. It is read whole, or the message would be
// posted again.
func TestSlackMayRepeatALongMessage(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, "token: xoxb-1\nchannel: C1\napi_url: "+w.url+"/api/\ntext: x")
	long := strings.Repeat(`\u7dad`, 2*13_000)
	w.refuse("chat.postMessage", slackNo{body: `{"message":{"text":"` + long + `"},"ok":true,"channel":"C1","ts":"1.2"}`})
	if a, err := l.tell(deliveries(t)[0]); err != nil || a.ID == "" {
		t.Errorf("told with %+v, %.300v", a, err)
	}
}

// The answers of an incoming webhook have classes too. What is a success by its status is a yes unless it says no, or
// is no answer of the service.
func TestSlackWebhookErrorsHaveClasses(t *testing.T) {
	w := newWorkspace(t)
	const path = "/services/T/B/X"
	l := newTeller(t, "webhook_url: "+w.url+path+"\ntext: x")
	for _, tt := range []struct {
		no          slackNo
		class, says string
	}{
		{slackNo{body: "ok\n"}, accepted, ""},
		{slackNo{body: `{"ok":true}`}, accepted, ""}, // as services say that are compatible with Slack
		{slackNo{body: `{"success":true}`}, accepted, ""},
		{slackNo{body: `{"ok":true,"error":null,"id":7}`}, accepted, ""},
		{slackNo{body: ""}, accepted, ""},
		{slackNo{body: "message received"}, accepted, ""},
		{slackNo{status: 202, body: "ok"}, accepted, ""},
		{slackNo{status: 204}, accepted, ""},
		{slackNo{body: "<html>ok</html>"}, again, "no answer of Slack"},
		{slackNo{body: "\n<!DOCTYPE html><title>Sign in</title>"}, again, "no answer of Slack"},
		{slackNo{body: teamsDenial}, again, "HTTP error 429"},
		{slackNo{body: teamsDenial, header: map[string]string{"Retry-After": "3"}}, again, "asks for 3s"},
		{slackNo{body: `{"error":"a word that nobody knows"}`}, again, "a word that nobody knows"},
		{slackNo{body: `{"Success":true,"Error":"deprecated"}`}, accepted, ""},
		{slackNo{body: `{"ok":false}`}, again, "no answer of Slack"},
		{slackNo{body: `{"success":false,"error":"no such room"}`}, again, "no such room"},
		{slackNo{body: `{"ok":false,"error":"invalid_token"}`}, blocked, "make a new incoming webhook"},
		{slackNo{body: "rate_limited"}, again, "rate_limited"},
		{slackNo{body: "no_service"}, blocked, "make a new incoming webhook"},
		{slackNo{body: "invalid_payload"}, rejected, "invalid_payload"},
		{slackNo{status: 400, body: "invalid_payload"}, rejected, "invalid_payload"},
		{slackNo{status: 400, body: "user_not_found"}, blocked, "user_not_found"},
		{slackNo{status: 403, body: "invalid_token"}, blocked, "put its URL into the settings file (slack.webhook_url)"},
		{slackNo{status: 403, body: "action_prohibited"}, blocked, "administrator"},
		{slackNo{status: 404, body: "no_service"}, blocked, "make a new incoming webhook"},
		{slackNo{status: 404, body: "channel_not_found"}, blocked, "channel_not_found"},
		{slackNo{status: 410, body: "channel_is_archived"}, blocked, "archived"},
		{slackNo{status: 403}, blocked, "403"},
		{slackNo{status: 429, header: map[string]string{"Retry-After": "3"}}, again, "asks for 3s"},
		{slackNo{status: 500, body: "rollup_error"}, again, "rollup_error"},
		{slackNo{status: 302}, blocked, "302"},
	} {
		w.refuse(path, tt.no)
		_, err := l.tell(deliveries(t)[0])
		if classOf(err) != tt.class || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%+v: %v, want it %s and …%s…", tt.no, err, tt.class, tt.says)
		}
	}
}

// Blocks that Slack does not take cost the blocks, not the message.
func TestSlackSendsTheTextWhenBlocksFail(t *testing.T) {
	for _, code := range []string{"invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long"} {
		w := newWorkspace(t)
		l := newTeller(t, strings.Replace(w.settings(""), "blocks: '[]'", `blocks: '[{"type":"divider"}]'`, 1))
		no := slackNo{body: `{"ok":false,"error":"` + code + `","response_metadata":{"messages":["[ERROR] why"]}}`}
		w.refuse("chat.postMessage", no)
		w.refuse("chat.update", slackNo{}, no)
		w.refuse("chat.update", no)
		l.mustTell(deliveries(t)[0])
		if got := w.messages[0]; got.text != "scheduled" || got.blocks != "" {
			t.Errorf("%s: posted %+v, want the text alone", code, got)
		}
		w.messages[0].blocks = `[{"type":"divider"}]`
		l.mustTell(deliveries(t)[1])
		if got := w.messages[0]; got.text != "updated" || got.blocks != "[]" {
			t.Errorf("%s: updated to %+v, want the text alone", code, got)
		}
		w.refuse("chat.update", no, no)
		if _, err := l.tell(deliveries(t)[2]); classOf(err) != rejected || !strings.Contains(err.Error(), "[ERROR] why") {
			t.Errorf("%s twice: %v, want it rejected with Slack's reason", code, err)
		}
	}
}

// Where messages cannot be edited the thread goes on all the same.
func TestSlackGoesOnWhereNothingCanBeEdited(t *testing.T) {
	w := newWorkspace(t)
	l := newTeller(t, w.settings(""))
	l.mustTell(deliveries(t)[0])
	w.refuse("chat.update", slackNo{body: `{"ok":false,"error":"edit_window_closed"}`})
	l.mustTell(deliveries(t)[1])
	if got, want := w.story(), "scheduled\n  + updated again\n"; got != want {
		t.Errorf("the channel shows\n%s\nwant\n%s", got, want)
	}
}

// Whatever Azure and users put into texts, Slack gets a message within its limits, and nobody is mentioned by it.
func TestSlackTakesEveryText(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	w := newWorkspace(t)
	l := newTeller(t, "token: "+slackToken+"\nchannel: '#ops'\napi_url: "+w.url+"/api\n")
	for _, bad := range []string{
		`"quotes" and 'more'`, "line\nbreak\r\n\t\x00", "<script>alert(1)</script>",
		"<!channel> <@U1> <https://evil.example|ok>", "&amp; & &lt;",
		"\u202eRTL\u202c \u200f", strings.Repeat("long & <wide> ", 8<<10), "inv\xffalid \xc3", "{{.id}}",
		`\u0000\`, "😀", "",
	} {
		d := deliveries(t)[0]
		d.Event = d.Event.Clone()
		for _, name := range []string{"azeventtype", "observer"} {
			d.Event.SetExtension(name, "x")
		}
		data, err := json.Marshal(map[string]any{
			"change": "scheduled",
			"event": map[string]any{
				"EventId": "A", "EventStatus": bad, "EventType": bad, "Resources": []string{bad, "vm-0"}, "Description": bad,
				"EventSource": bad,
			},
			"observer": map[string]any{"name": bad, "resourceGroup": bad, "resourceId": "/subscriptions/" + bad, "tags": bad},
		})
		if err != nil {
			t.Fatal(err)
		}
		d.Event.DataEncoded = data
		if _, err := l.sink.Deliver(t.Context(), []delivery.Delivery{d}); err != nil {
			t.Errorf("%.40q: %v", bad, err)
			continue
		}
		m := w.messages[len(w.messages)-1]
		if m.blocks == "" {
			t.Errorf("%.40q: the message has no blocks", bad)
		}
		for _, text := range []string{m.text, m.blocks} {
			if !utf8.ValidString(text) || utf8.RuneCountInString(m.text) > 4000 || len(text) > 60000 {
				t.Errorf("%.40q: sent %d bytes, invalid or too long", bad, len(text))
			}
			for _, never := range []string{"<!channel", "<script", "<@U1", "<https://evil"} {
				if strings.Contains(text, never) || strings.Contains(text, strings.ReplaceAll(never, "<", `\u003c`)) {
					t.Errorf("%.40q: %s is in %s", bad, never, text)
				}
			}
		}
	}
}

// Blocks are made to fit: too many, too long and empty ones are cut or left out.
func TestSlackBlocksAreMadeToFit(t *testing.T) {
	section := func(n int) string {
		return `{"type":"section","text":{"type":"mrkdwn","text":"` + strings.Repeat("█", n) + `"}}`
	}
	many := func(n int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	field := `{"type":"mrkdwn","text":"` + strings.Repeat("█", 2500) + `"}`
	button := `{"type":"button","text":{"type":"plain_text","text":"` + strings.Repeat("█", 90) +
		`"},"url":"https://a.example"}`
	for _, tt := range []struct {
		name, blocks string
		number, size int // of blocks, and of █ in them
	}{
		{"51 blocks", "[" + many(51, `{"type":"divider"}`) + "]", 50, 0},
		{"long section", "[" + section(3001) + "]", 1, 2999},
		{"many long sections", "[" + many(6, section(3000)) + "]", 5, 12999},
		{"long header", `[{"type":"header","text":{"type":"plain_text","text":"` + strings.Repeat("█", 200) + `"}}]`,
			1, 149},
		{"fields", `[{"type":"section","fields":[` + many(12, field) + `]}]`, 1, 12993},
		{"empty section", `[` + section(0) + `,{"type":"divider"}]`, 1, 0},
		{"empty context", `[{"type":"context","elements":[{"type":"mrkdwn","text":" "}]}]`, 0, 0},
		{"context", `[{"type":"context","elements":[` + many(11, `{"type":"mrkdwn","text":"█"}`) + `]}]`, 1, 10},
		{"buttons", `[{"type":"actions","elements":[` + many(26, button) + `]}]`, 1, 25 * 74},
		{"button without address",
			`[{"type":"actions","elements":[{"type":"button","url":"","text":{"type":"plain_text","text":"x"}}]}]`, 0, 0},
		{"accessory", `[{"type":"section","text":{"type":"mrkdwn","text":"a"},"accessory":` + button + `}]`, 1, 74},
		{"markdown", `[{"type":"markdown","text":"` + strings.Repeat("█", 20000) + `"}]`, 1, 11999},
		{"unknown", `[{"type":"new","text":"██","n":12345678901234567890}]`, 1, 2},
		{"odd", `[null,{},{"type":"section","text":"x"},{"type":"header"},{"type":"context","elements":7},{"type":8}]`, 0, 0},
	} {
		got, err := parseBlocks(tt.blocks)
		all := string(mustCompact(t, got))
		size := strings.Count(all, "█")
		if err != nil || len(got) != tt.number || size != tt.size {
			t.Errorf("%s: %d blocks of %d, %v; want %d of %d", tt.name, len(got), size, err, tt.number, tt.size)
		}
	}
	for _, blocks := range []string{"", "{}", "x", "[1]", `[{"type":"divider"}] x`, `{"blocks":[]}`} {
		if got, err := parseBlocks(blocks); err == nil {
			t.Errorf("parseBlocks(%q) = %s, want an error", blocks, got)
		}
	}
}

// Slack makes no links of bare words in blocks of the settings either, unless they ask for it.
func TestSlackBlocksAreTakenLiterally(t *testing.T) {
	for field, want := range map[string]string{"": `"verbatim":true`, `,"verbatim":false`: `"verbatim":false`} {
		text := `{"type":"mrkdwn","text":"a.example"` + field + `}`
		got, err := parseBlocks(`[{"type":"section","text":` + text + `},{"type":"context","elements":[` + text + `]}]`)
		if all := string(mustCompact(t, got)); err != nil || strings.Count(all, want) != 2 {
			t.Errorf("%s became %s, %v, want %s in both", text, all, err, want)
		}
	}
}

// Messages to a channel are a second apart, those to another do not wait for them; the wait ends with the context.
func TestSlackKeepsPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, began := new(SlackTurns), time.Now()
		for i := range 3 {
			if err := turns.wait(t.Context(), "#ops"); err != nil || time.Since(began) != time.Duration(i)*time.Second {
				t.Errorf("turn %d came after %v, %v; want %d s", i, time.Since(began), err, i)
			}
		}
		if err := turns.wait(t.Context(), "#dev"); err != nil || time.Since(began) != 2*time.Second {
			t.Errorf("in another channel the turn came after %v, %v; want it at once", time.Since(began), err)
		}
		time.Sleep(time.Minute)
		began = time.Now()
		if err := turns.wait(t.Context(), "#ops"); err != nil || time.Since(began) != 0 {
			t.Errorf("after a minute the turn came after %v, %v; want it at once", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := turns.wait(ctx, "#ops"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("wait = %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// Whoever gives up waiting for a turn, while others wait before and behind it, delays nobody.
func TestAbandonedTurnsDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, began := new(SlackTurns), time.Now()
		if err := turns.wait(t.Context(), "#ops"); err != nil {
			t.Fatal(err)
		}
		ctx, abandon := context.WithCancel(t.Context())
		for range 10 {
			go turns.wait(ctx, "#ops")
		}
		synctest.Wait()
		came := make(chan time.Duration, 2)
		for range 2 {
			go func() {
				if err := turns.wait(t.Context(), "#ops"); err != nil {
					t.Error(err)
				}
				came <- time.Since(began)
			}()
		}
		synctest.Wait()
		abandon()
		if first, second := <-came, <-came; first != time.Second || second != 2*time.Second {
			t.Errorf("the turns came after %v and %v, want 1s and 2s", first, second)
		}
		if err := turns.wait(ctx, "#ops"); !errors.Is(err, context.Canceled) {
			t.Errorf("wait = %v, want %v", err, context.Canceled)
		}
		if err := turns.wait(t.Context(), "#ops"); err != nil || time.Since(began) != 3*time.Second {
			t.Errorf("the turn after one that was given up at once came after %v, %v; want 3s", time.Since(began), err)
		}
	})
}

// Turns come in the order in which they were asked for.
func TestSlackTurnsComeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, order := new(SlackTurns), make(chan int, 5)
		for i := range 5 {
			go func() {
				if err := turns.wait(t.Context(), "#ops"); err != nil {
					t.Error(err)
				}
				order <- i
			}()
			synctest.Wait()
		}
		for want := range 5 {
			if got := <-order; got != want {
				t.Errorf("turn %d was that of %d", want, got)
			}
		}
	})
}

// A message waits for its turn in the channel, also for those of other sinks, and what is only shown does not.
func TestSlackMessagesWaitForTheirTurn(t *testing.T) {
	w := newWorkspace(t)
	for _, settings := range []string{w.settings(""), "webhook_url: " + w.url + "/services/T/B/X"} {
		h := testHost(t)
		h.SlackTurns = new(SlackTurns)
		first, second := mustOpen(t, "slack", settings, h), mustOpen(t, "slack", settings, h)
		if _, err := first.Deliver(t.Context(), deliveries(t)[:1]); err != nil {
			t.Fatal(err)
		}
		before := len(w.asked())
		if _, err := second.(delivery.Renderer).Render(deliveries(t)[0]); err != nil {
			t.Errorf("Render = %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := second.Deliver(ctx, deliveries(t)[:1]); !errors.Is(err, context.DeadlineExceeded) ||
			classOf(err) != again {
			t.Errorf("Deliver = %v, want %v", err, context.DeadlineExceeded)
		}
		if got := w.asked()[before:]; len(got) > 0 {
			t.Errorf("Slack was asked %q before the turn", got)
		}
	}
}

// Whatever is answered, the sink does not panic, takes only Slack's yes for one, and says what it got in one line.
func FuzzSlackAnswer(f *testing.F) {
	f.Add(200, `{"ok":true,"channel":"C1","ts":"1.2"}`, "")
	f.Add(200, `{"ok":false,"error":"invalid_blocks","response_metadata":{"messages":[1]}}`, "1")
	f.Add(429, `ok`, "x")
	f.Add(200, `ok`, "30")
	f.Add(404, `no_service`, "")
	f.Add(200, `{"OK":true,"ts":{},"channel":[],"message":{"thread_ts":7}}`, "")
	log := slog.New(slog.DiscardHandler)
	var all []*slackSink
	for _, settings := range []string{"{token: xoxb-s3cr3t, channel: C1, text: x, blocks: '[{\"type\":\"divider\"}]'}",
		"{webhook_url: 'https://a.example/s3cr3t', text: x, blocks: '[]'}"} {
		opened, err := open("slack", settings, Host{Getenv: os.Getenv, Log: log})
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, opened.Sink.(*slackSink))
	}
	f.Fuzz(func(t *testing.T, status int, body, after string) {
		for _, k := range all {
			k.turns = nil
			a, err := k.open(func(*http.Request, *redactor) (response, error) {
				return response{status, http.Header{"Retry-After": {after}}, body, false}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			answer, err := k.deliver(t.Context(), a, deliveries(t)[:1])
			if err == nil {
				var yes struct {
					OK          bool
					Channel, TS string
				}
				if status/100 != 2 || k.api == "" && strings.HasPrefix(strings.TrimSpace(body), "<") || k.api != "" &&
					status != 200 ||
					k.api != "" && (json.Unmarshal([]byte(body), &yes) != nil || !yes.OK || yes.TS == "" || yes.Channel == "") {
					t.Errorf("%d %q was taken for a yes", status, body)
				}
				continue
			}
			said := answer.Status + answer.ID + err.Error()
			if len(said) > 1500 || strings.ContainsFunc(said, func(r rune) bool { return r < ' ' || r == 0x7F }) ||
				strings.Contains(strings.ToLower(said), "s3cr3t") {
				t.Errorf("%d %q: said %q", status, body, said)
			}
		}
	})
}

// Whatever a template makes, the blocks are within Slack's limits or refused.
func FuzzSlackBlocks(f *testing.F) {
	f.Add(`[{"type":"section","text":{"type":"mrkdwn","text":"a"},"fields":[{}],"accessory":{"type":"button"}}]`)
	f.Add(`[{"type":"context","elements":[1,null,{"type":"mrkdwn"}]},{"type":"actions","elements":{}},null]`)
	f.Fuzz(func(t *testing.T, text string) {
		blocks, err := parseBlocks(text)
		if err != nil {
			return
		}
		if _, err := compact(blocks); err != nil {
			t.Errorf("%q gives %v", text, err)
		}
		if len(blocks) > maxBlocks {
			t.Errorf("%d blocks", len(blocks))
		}
	})
}
