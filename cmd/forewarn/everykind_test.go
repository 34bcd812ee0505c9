package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"forewarn/bridge/imdstest"
)

// In one run a destination of every kind receives all changes of an event.
func TestEveryKindHearsTheWholeLife(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	all := everyKind(t)
	all.run(azure.URL)
	id := eventID("whole life")

	azure.Schedule(imdstest.Event{ID: id, Type: "Reboot", Description: "Host server is undergoing maintenance."})
	all.hear(id+"-scheduled", 1)
	azure.Update(id, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(5 * time.Minute) })
	all.hear(id+"-updated-", 2)
	azure.Start(id)
	all.hear(id+"-started", 3)
	azure.End(id)
	all.hear(id+"-vanished", 4)

	for name, heard := range all.heard() {
		if got := about(heard, id); len(got) != 4 {
			t.Errorf("%s heard %v, want each of the four changes once", name, got)
		}
	}
	posts := all.chat.all()
	if len(posts) != 4 {
		t.Fatalf("Slack has %d messages, want one and three replies: %+v", len(posts), posts)
	}
	if root := posts[0]; root.thread != "" || root.updates != 3 || !strings.Contains(root.text, "is over") {
		t.Errorf("the message is %+v, want it to say in its third update that the reboot is over", root)
	}
	for _, reply := range posts[1:] {
		if reply.thread != posts[0].ts {
			t.Errorf("a reply is in the thread %q, want %q", reply.thread, posts[0].ts)
		}
	}
	mails := all.post.all(t)
	for i, says := range []string{"will reboot", "moved to", "has begun", "is over"} {
		if !strings.Contains(mails[i].subject, says) {
			t.Errorf("mail %d has the subject %q, want it to say %q", i, mails[i].subject, says)
		}
		if i > 0 && mails[i].Get("References") != mails[0].Get("References") {
			t.Errorf("mail %d has the References %q, want those of the first", i, mails[i].Get("References"))
		}
	}
	all.quiet()
}

// While Slack hangs in its first attempt and the mail server is down, every other destination receives each change,
// and polling continues. When both are back, each gets one message with the current state.
func TestNeitherSlackNorMailDelaysTheOthers(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	all := everyKind(t)
	all.run(azure.URL)
	id := eventID("slow")
	all.chat.hang()
	all.post.stop()

	azure.Schedule(imdstest.Event{ID: id, Type: "Reboot"})
	all.until("an attempt at Slack", func() bool { return all.chat.waiting() > 0 })
	for _, step := range []struct {
		change string
		happen func()
	}{
		{"-scheduled", func() {}},
		{"-updated-", func() {
			azure.Update(id, func(e *imdstest.Event) { e.NotBefore = e.NotBefore.Add(5 * time.Minute) })
		}},
		{"-started", func() { azure.Start(id) }},
	} {
		step.happen()
		for _, name := range []string{"nats", "webhook", "file", "exec", "syslog"} {
			all.until(name+" to hear "+step.change, func() bool { return begins(all.heard()[name], id+step.change) })
		}
	}
	before := documents(azure.Requests())
	all.until("two more polls", func() bool { return documents(azure.Requests()) >= before+2 })
	if n := all.chat.waiting(); n != 1 {
		t.Errorf("Slack has %d attempts under way, want still the first", n)
	}
	if posts, mails := all.chat.all(), all.post.all(t); len(posts) > 0 || len(mails) > 0 {
		t.Errorf("Slack has %v and the mailbox %v, want nothing", posts, mails)
	}

	all.chat.release()
	all.post.listen(t)
	if runtime.GOOS != "windows" { // which has no SIGHUP: there the next attempts come by themselves
		if err := signalProcess(all.process, "HUP"); err != nil { // the times of attempts begin anew
			t.Fatal(err)
		}
	}
	all.until("Slack and mail to be told", func() bool { return len(all.chat.all()) > 0 && len(all.post.all(t)) > 0 })
	all.quiet()
	if posts := all.chat.all(); len(posts) != 1 || !strings.Contains(posts[0].text, "has begun") {
		t.Errorf("Slack has %+v, want one message that says that the reboot has begun", posts)
	}
	if mails := all.post.all(t); len(mails) != 1 || !strings.Contains(mails[0].subject, "has begun") ||
		!strings.HasPrefix(mails[0].Get("Message-ID"), "<"+id+"-started.") {
		t.Errorf("the mailbox has %+v, want one mail that says that the reboot has begun", mails)
	}
}

// check --connect reaches each destination without sending anything, and says which are unreachable.
func TestCheckConnectSendsNothing(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	all := everyKind(t)
	all.configure(azure.URL)
	check := func(code int, want map[string]string) {
		t.Helper()
		var got struct {
			Destinations []connectResult `json:"connect"`
		}
		out := all.command(code, "check", "--connect", "-o", "json")
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		for _, r := range got.Destinations {
			if r.Result != want[r.Sink] {
				t.Errorf("%s is %s, want %s: %s", r.Sink, r.Result, want[r.Sink], r.Answer)
			}
		}
		if len(got.Destinations) != len(all.sections())+1 {
			t.Errorf("check --connect tells of %+v, want all kinds and the state", got.Destinations)
		}
	}
	up := map[string]string{"webhook": "reached", "nats": "reached", "slack": "reached", "email": "reached",
		"file": "reached", "exec": "reached", "syslog": "reached", "(state)": "reached"}
	check(exitOK, up)
	all.post.stop()
	if err := all.hook.answer("refuse"); err != nil {
		t.Fatal(err)
	}
	all.chat.refuse("invalid_auth")
	down := map[string]string{"webhook": "unreachable", "slack": "unreachable", "email": "unreachable", "nats": "reached",
		"file": "reached", "exec": "reached", "syslog": "reached", "(state)": "reached"}
	check(exitUnavailable, down)
	for name, heard := range all.heard() {
		if len(heard) > 0 {
			t.Errorf("%s heard %v, want nothing", name, heard)
		}
	}
	if posts := all.chat.all(); len(posts) > 0 {
		t.Errorf("Slack has %+v, want nothing", posts)
	}
}

// send delivers a message marked TEST through the real sinks. A sink that acts is used only if it is named. The exit
// code is that of the worst answer.
func TestSendThroughEveryKind(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	all := everyKind(t)
	all.configure(azure.URL)
	send := func(code int, result string, args ...string) {
		t.Helper()
		var got []sendResult
		out := all.command(code, append([]string{"send", "-o", "json"}, args...)...)
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%v: %v:\n%s", args, err, out)
		}
		for _, s := range got {
			if s.Result != result || s.Answer == "" || !s.WouldPass {
				t.Errorf("send %v: %+v, want it %s, an answer, and that a real one would pass", args, s, result)
			}
		}
		if want := max(1, strings.Count(strings.Join(args, " "), "--sink")); len(args) > 0 && len(got) != want {
			t.Errorf("send %v: %+v, want %d", args, got, want)
		}
	}
	send(exitOK, "accepted")
	heard := all.heard()
	for name := range all.sections() {
		switch n := len(heard[name]); {
		case name == "slack": // a message has no id
		case name == "exec" && n != 0, name != "exec" && n != 1:
			t.Errorf("%s heard %v of send", name, heard[name])
		}
	}
	if posts := all.chat.all(); len(posts) != 1 || !strings.Contains(posts[0].text, "TEST") {
		t.Errorf("Slack has %+v, want a message marked TEST", posts)
	}
	if mails := all.post.all(t); !strings.Contains(mails[0].subject, "TEST") || !strings.Contains(mails[0].text, "TEST") ||
		!strings.Contains(mails[0].html, "TEST") {
		t.Errorf("the mail is %+v, want it marked TEST in subject, text and HTML", mails[0])
	}
	send(exitOK, "accepted", "--sink", "exec")
	if heard := all.heard()["exec"]; len(heard) != 1 {
		t.Errorf("the command heard %v, want the test", heard)
	}

	all.post.stop()
	send(exitTryAgain, "again", "--sink", "email")
	all.chat.refuse("invalid_auth")
	send(exitUnavailable, "blocked", "--sink", "slack")
	all.chat.refuse("msg_too_long")
	send(exitFailed, "rejected", "--sink", "slack")
	if err := all.hook.answer("422"); err != nil {
		t.Fatal(err)
	}
	send(exitFailed, "rejected", "--sink", "webhook")
	all.stream.stop()
	send(exitTryAgain, "again", "--sink", "nats")
	out := all.command(exitFailed, "send", "--sink", "webhook", "--sink", "email", "--sink", "file")
	if n := bytes.Count(out, []byte("\n")); n != 4 {
		t.Errorf("send printed %d lines, want a header and three sinks:\n%s", n, out)
	}
}

// render prints what each kind would send, and has the same text in JSON.
func TestRenderEveryKind(t *testing.T) {
	t.Parallel()
	azure := imdstest.Serve(t, imdstest.Options{VMs: []string{"vm-0"}})
	all := everyKind(t)
	all.configure(azure.URL)
	for name, says := range map[string]string{
		"webhook": `"azeventtype":"Preempt"`, "nats": "Nats-Msg-Id: ", "slack": "will be evicted",
		"email": "will be evicted",
		"file":  `"azeventtype":"Preempt"`, "exec": "CE_AZEVENTTYPE=Preempt",
		"syslog": `azeventtype="Preempt"`,
	} {
		args := []string{"render", "--sink", name, "--sample", "preempt"}
		if out := all.command(exitOK, args...); !bytes.Contains(out, []byte(says)) || bytes.Contains(out, []byte(chatToken)) {
			t.Errorf("render prints for %s, want it to hold %q and no secret:\n%s", name, says, out)
		}
		var got []rendering
		out := all.command(exitOK, append(args, "-o", "json")...)
		if err := json.Unmarshal(out,
			&got); err != nil || len(got) != 1 || got[0].Sink != name || !strings.Contains(got[0].Text, says) {
			t.Errorf("render prints for %s, %v, want one text that holds %q:\n%s", name, err, says, out)
		}
	}
	if posts := all.chat.all(); len(posts) > 0 || len(all.heard()["nats"]) > 0 {
		t.Errorf("render sent something: %+v", all.heard())
	}
}

// Hostile, overlong or invalid text is escaped or shortened at every destination, and blocks no delivery.
func TestHostileTextReachesEveryKind(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"quotes":     `"' ` + "`" + `\ {{.id}} $HOME $(id)`,
		"newlines":   "one\r\nSubject: two\r\n.\r\nthree\u2028four\x00\x1b[31m",
		"script":     `<script>alert("1")</script> & <!channel>`,
		"directions": "abc\u202edefg\u2066h\u200fi",
		"long":       strings.Repeat("<&é\" ", 100<<10/6),
		"word":       strings.Repeat("x", 100<<10),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // Slack takes one message a second
			quoted, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			all := hearsText(t, string(quoted))
			// What is JSON holds the text itself, up to its bound.
			for kind, ces := range map[string][][]byte{
				"webhook": all.hook.all(), "file": lines(all.audit), "exec": lines(all.ran),
			} {
				got := description(t, ces)
				if got != text && !(len(got) > 15<<10 && strings.HasPrefix(text, got)) {
					t.Errorf("%s got the description %.200q, want %.200q", kind, got, text)
				}
			}
		})
	}
	t.Run("no UTF-8", func(t *testing.T) {
		t.Parallel()
		hearsText(t, "\"a\xff\xfeb\xc3(\"")
	})
}

// hearsText has a destination of every kind hear of an event that is full of a text, given as JSON. People get it
// without what could mislead them.
func hearsText(t *testing.T, text string) *destinations {
	t.Helper()
	azure := imdstest.Serve(t, imdstest.Options{
		VMs: []string{"vm-0"}, Instance: imdstest.Instance{ResourceGroup: `prod "&<db>` + "\u202e\u200f"},
	})
	all := everyKind(t)
	all.run(azure.URL)
	id := eventID("hostile")
	for i, status := range []string{"Scheduled", "Started"} {
		azure.SetDocument(fmt.Appendf(nil, `{"DocumentIncarnation":%d,"Events":[{"EventId":%q,"EventStatus":%q,"EventType":"Reboot",`+
			`"ResourceType":"VirtualMachine","Resources":["vm-0",%s],"NotBefore":"","Description":%s,"EventSource":"Platform",`+
			`"DurationInSeconds":-1,"Tags":{%[5]s:%[5]s}}]}`, i+2, id, status, text, text))
		all.hear(id+"-"+strings.ToLower(status), 0)
	}
	all.quiet()
	for _, m := range all.chat.all() {
		for _, bad := range []string{"<!channel>", "<script>", "\u202e", "\x1b"} {
			if strings.Contains(m.text+m.blocks, bad) {
				t.Errorf("Slack got %q in %.300q", bad, m.text+m.blocks)
			}
		}
	}
	for _, m := range all.post.all(t) {
		for _, bad := range []string{"<script>", "\u202e", "\x1b"} {
			if strings.Contains(m.html, bad) || strings.ContainsAny(m.subject, "\r\n\u202e") {
				t.Errorf("a mail holds %q: %q %.300q", bad, m.subject, m.html)
			}
		}
		if !utf8.ValidString(m.text) || len(m.text) > 40<<10 {
			t.Errorf("the text of a mail is %d bytes, want valid UTF-8 of bounded length: %.300q", len(m.text), m.text)
		}
	}
	return all
}

// description is the one that the CloudEvent of a scheduled event has.
func description(t *testing.T, ces [][]byte) string {
	t.Helper()
	for _, raw := range ces {
		var ce struct {
			ID   string
			Data struct{ Event struct{ Description string } }
		}
		if err := json.Unmarshal(raw, &ce); err != nil {
			t.Fatalf("%.200q: %v", raw, err)
		}
		if strings.HasSuffix(ce.ID, "-scheduled") {
			return ce.Data.Event.Description
		}
	}
	return ""
}
