package sinks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // Windows has no zones of its own

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/systemtest"
	"forewarn/templates"
)

// What a message that speaks for all VMs says in front is the same, whichever VM saw the change first.
func TestAMessageForAllVMsIsTheSameWhoeverSawIt(t *testing.T) {
	head := func(s situation) string {
		f := fieldsOf(t, s)
		blocks := render(t, texts.slackBlocks, f)
		section, _, _ := strings.Cut(blocks, `{"type":"context"`)
		mail, _, _ := strings.Cut(render(t, texts.text, f), "seen ")
		return render(t, texts.slackText, f) + "\n" + render(t, texts.subject, f) + "\n" + section + "\n" + mail
	}
	ofFirst, ofLast, ofNone := fleetSituations(webHost(0)), fleetSituations(webHost(24)), fleetSituations(webHost(99))
	for name, s := range ofFirst {
		if strings.HasPrefix(name, "fleet-one") { // the VM that is hit knows more about itself
			continue
		}
		want := head(s)
		for _, other := range []situation{ofLast[name], ofNone[name]} {
			if got := head(other); got != want {
				t.Errorf("%s: another VM says\n%s\nwant\n%s", name, got, want)
			}
		}
	}
}

// Nor does it matter for a digest, on a relay or on a VM with vms: leader or all.
func TestADigestForAllVMsIsTheSameWhoeverSawIt(t *testing.T) {
	digest := func(o imds.Observer) string {
		var batch []delivery.Delivery
		all := fleetSituations(o)
		for _, name := range []string{"two-scheduled", "many-scheduled", "many-started", "two-cancelled"} {
			batch = append(batch, all["fleet-"+name].batch...)
		}
		f := (&Host{ForAll: true}).fields(batch, messageTime.clock())
		mail, _, _ := strings.Cut(render(t, texts.text, f), "Seen ")
		return render(t, texts.slackText, f) + "\n" + render(t, texts.subject, f) + "\n" + mail
	}
	want := digest(webHost(0))
	if !strings.Contains(want, "web_0 and web_1 will") || !strings.Contains(want, "25 VMs (web_0, ") {
		t.Errorf("it says\n%s\nwant the VMs of each event", want)
	}
	for _, n := range []int{1, 24, 99} {
		if got := digest(webHost(n)); got != want {
			t.Errorf("web_%d says\n%s\nwant\n%s", n, got, want)
		}
	}
}

func deliveryOf(ce event.Event, err error) []delivery.Delivery {
	if err != nil {
		panic(err)
	}
	return []delivery.Delivery{{Event: ce, Attempt: 1}}
}

// fieldsOf returns what templates see of a situation.
func fieldsOf(t *testing.T, s situation) map[string]any {
	t.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	f := (&Host{Zone: berlin, KindOf: map[string]string{"ops-chat": "Slack"}}).fields(s.batch, s.now.clock())
	maps.Copy(f, s.more)
	return f
}

// texts are those that come with forewarn.
var texts = struct{ slackText, slackBlocks, subject, text, html *templates.Template }{
	templates.SlackText, templates.SlackBlocks, templates.EmailSubject, templates.EmailText, templates.EmailHTML,
}

// word returns what one of the shared words makes of fields.
func word(t *testing.T, word string, fields map[string]any) string {
	t.Helper()
	var b strings.Builder
	if err := templates.Say(&b, word, fields); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func render(t *testing.T, from *templates.Template, fields map[string]any) string {
	t.Helper()
	var b strings.Builder
	if err := from.Execute(&b, fields); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Every situation reads in Slack, by mail and as one plain text as its file shows, whole. They are read by a person, so
// review them as one who is woken by them.
func TestWhatPeopleRead(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	all := situations()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := fieldsOf(t, all[name])
		var b strings.Builder
		fmt.Fprintf(&b, "-- slack: notification\n%s\n", render(t, texts.slackText, f))
		var blocks bytes.Buffer
		if err := json.Indent(&blocks, []byte(render(t, texts.slackBlocks, f)), "", "  "); err != nil {
			t.Fatalf("%s: the blocks are not JSON: %v", name, err)
		}
		fmt.Fprintf(&b, "-- slack: root message\n%s\n", blocks.String())
		if all[name].reply {
			f["reply"] = true
			fmt.Fprintf(&b, "-- slack: reply\n%s\n", render(t, texts.slackText, f))
			f["reply"] = false
		}
		fmt.Fprintf(&b, "-- mail\nSubject: %s\n\n%s\n-- mail: html\n%s", render(t, texts.subject, f),
			render(t, texts.text, f), render(t, texts.html, f))
		fmt.Fprintf(&b, "-- message\n%s\n", word(t, "message", f))
		golden(t, filepath.Join("messages", name+".golden"), b.String())
	}
}

// Of a time that has passed nothing is said as if it were to come: that the event begins then at the earliest, or at the
// latest, or is held back until then.
func TestAPassedTimeIsNotSaidToCome(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	for name, s := range situations() {
		s.now = moment(messageTime.clock().Add(48 * time.Hour))
		f := fieldsOf(t, s)
		all := render(t, texts.slackText, f) + render(t, texts.slackBlocks, f) + render(t, texts.subject, f) +
			render(t, texts.text, f) + render(t, texts.html, f) + word(t, "message", f)
		for _, phrase := range []string{"at the latest", "at the earliest", "back because scheduled events are on"} {
			if strings.Contains(all, phrase) {
				t.Errorf("two days later, %s says %q:\n%s", name, phrase, all)
			}
		}
	}
}

// Of an event that has begun nothing is said as if it were to begin.
func TestWhatHasBegunIsNotSaidToBegin(t *testing.T) {
	for name, s := range situations() {
		f := fieldsOf(t, s)
		if len(s.batch) > 1 || f["azeventstatus"] != "Started" {
			continue
		}
		all := render(t, texts.slackText, f) + render(t, texts.slackBlocks, f) + render(t, texts.text, f) + render(t, texts.html, f)
		for _, phrase := range []string{"may begin", "starts by itself", "start early", "start it now", "at the earliest", "at the latest"} {
			if strings.Contains(all, phrase) {
				t.Errorf("%s says %q:\n%s", name, phrase, all)
			}
		}
	}
}

// Every text says of a time what helps: seconds where minutes would show the same twice, or where seconds count, and never
// that a time is still the same, because whether it is the earliest or the latest depends on the rules of then.
func TestTheTimeOfAnEventIsSaidAlikeInEveryText(t *testing.T) {
	token := regexp.MustCompile(`<!date[^|]*\|([^>]*)>`) // of Slack, with the text in its place
	for name, tt := range map[string]struct {
		says  []string
		never string
	}{
		"updated-seconds": {[]string{"05:10:21 CET (in 10 min)"}, "05:10 CET"},
		"updated-vms":     {nil, "still"},
		"preempt-due":     {[]string{"due since", "20:01:45 CET"}, "20:01 CET"},
	} {
		f := fieldsOf(t, situations()[name])
		for where, text := range map[string]string{"the notification": render(t, texts.slackText, f), "Slack": render(t, texts.slackBlocks, f),
			"the subject": render(t, texts.subject, f), "mail": render(t, texts.text, f), "mail in HTML": render(t, texts.html, f)} {
			text = token.ReplaceAllString(text, "$1")
			if strings.Contains(text, tt.never) {
				t.Errorf("%s: %s says %q:\n%s", name, where, tt.never, text)
			}
			for _, want := range tt.says {
				if !strings.Contains(text, want) {
					t.Errorf("%s: %s doesn't say %q:\n%s", name, where, want, text)
				}
			}
		}
	}
}

// Who approved is told with the VM where that isn't clear: on one that isn't hit, and where one message speaks for all.
func TestOnAFleetWhoApprovedIsToldWithTheVM(t *testing.T) {
	for _, tt := range []struct {
		situation string
		forAll    bool
		want      string
	}{
		{"approved-elsewhere", false, "Approved by root (alice) on db_0, 64 s after"},
		{"reminder-asked-elsewhere", false, "root (alice) on db_0 asked Azure at 04:55 CET to start it"},
		{"updated-asked", true, "root (alice) on vm-db-1 asked Azure at 04:55 CET to start it"},
		{"approved-refused", true, "as root (alice) on vm-db-1 asked: "},
		{"approved-unanswered", true, "root (alice) on vm-db-1 asked Azure to start the reboot"},
		{"approved-moot", true, "by rule 1 on vm-db-1 had no effect"},
		{"updated-asked", false, "root (alice) asked Azure at 04:55 CET to start it"},
	} {
		s := situations()[tt.situation]
		s.more = map[string]any{"forAll": tt.forAll}
		if text := word(t, "message", fieldsOf(t, s)); !strings.Contains(text, tt.want) {
			t.Errorf("%s: no %q in\n%s", tt.situation, tt.want, text)
		}
	}
}

// Nobody knows whether forewarn runs on the VM to which a rule leaves an event. So what that VM's rule does is told with
// that condition, whatever the rule waits for.
func TestARuleOfAnotherVMIsNoFact(t *testing.T) {
	for want, rule := range map[string]cloudevent.Rule{
		`It starts by itself once drain has finished (rule "set" on vm-db-2, if forewarn runs there), 05:10 CET at the latest.`:      {After: []string{"drain"}},
		`It starts by itself at 05:00 CET at the earliest (rule "set" on vm-db-2, if forewarn runs there), 05:10 CET at the latest.`: {Wait: 60, From: at("04:00:00").clock()},
		`It starts by itself at once (rule "set" on vm-db-2, if forewarn runs there), 05:10 CET at the latest.`:                      {},
	} {
		rule.Name, rule.VM = `rule "set"`, "vm-db-2"
		ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: azure("Scheduled", "Reboot", "04:10:00", nil)},
			cloudevent.Circumstances{Observer: dbHost, Time: messageTime.clock(), Rules: []cloudevent.Rule{rule}})
		text := word(t, "message", fieldsOf(t, situation{batch: deliveryOf(ce, err), now: messageTime}))
		if !strings.Contains(text, want) {
			t.Errorf("the message is\n%s\nwant that %s", text, want)
		}
	}
}

// A rule that waits starts an event at a time at the earliest: a restart begins its wait anew. Once that time has passed,
// the event may start at any time.
func TestARuleThatWaitsHasNoTimeThatMayNotHold(t *testing.T) {
	for now, want := range map[string]string{
		"03:55:29": "It starts by itself at 05:00 CET at the earliest (rule 1), or once drain has finished (rule 2, not before 05:00 CET), 05:10 CET at the latest.",
		"04:00:00": "It may start by itself at any time (rule 1), or once drain has finished (rule 2), 05:10 CET at the latest.",
	} {
		ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: azure("Scheduled", "Reboot", "04:10:00", nil)},
			cloudevent.Circumstances{Observer: dbHost, Time: messageTime.clock(), Rules: []cloudevent.Rule{
				{Name: "rule 1", Wait: 271, From: at("04:00:00").clock()}, {Name: "rule 2", After: []string{"drain"}, From: at("04:00:00").clock()},
			}})
		text := word(t, "message", fieldsOf(t, situation{batch: deliveryOf(ce, err), now: at(now)}))
		if !strings.Contains(text, want) {
			t.Errorf("at %s the message is\n%s\nwant that %s", now, text, want)
		}
	}
}

// What the rules of one VM don't start, those of another VM that the event names may. So it is said of that VM, and of the
// event only if it names no other.
func TestWhatTheRulesOfOneVMDoIsNoFactOfTheEvent(t *testing.T) {
	failed := cloudevent.Approval{Result: cloudevent.ResultWithheld, By: "rule 1", Sink: "drain", Error: "exit status 1"}
	yet, gone, goneYet := failed, failed, failed
	yet.NotYet = true
	gone.Sink, gone.Error = "", "rule 1 was removed from the settings"
	goneYet.Sink, goneYet.Error, goneYet.NotYet = "", "the disk is full", true
	refused := cloudevent.Approval{Result: cloudevent.ResultRefused, By: "rule 1", Error: "Azure refuses the approval: 400"}
	for _, tt := range []struct {
		came        cloudevent.Approval
		alone, many []string // headline, and what follows
	}{
		{failed, []string{`reboot won't start early, sink "drain" failed`, `Sink "drain" failed (exit status 1), so it isn't started early. It begins at 05:10 CET at the earliest.`},
			[]string{`web_0 and web_1: reboot won't start early by web_0's rules, sink "drain" failed`,
				`Sink "drain" failed (exit status 1), so forewarn on web_0 doesn't start it early. On another VM it may. Otherwise it begins at 05:10 CET at the earliest.`}},
		{gone, []string{`reboot won't start early`, `It isn't started early, because rule 1 was removed from the settings. It begins`},
			[]string{`web_0 and web_1: reboot won't start early by web_0's rules`,
				`forewarn on web_0 doesn't start it early, because rule 1 was removed from the settings. On another VM it may. Otherwise`}},
		{yet, []string{`reboot doesn't start early yet, sink "drain" hasn't succeeded`, `the reboot still starts early. Otherwise it begins at 05:10 CET at the earliest.`},
			[]string{`web_0 and web_1: reboot doesn't start early yet by web_0's rules, sink "drain" hasn't succeeded`,
				`Sink "drain" on web_0 hasn't succeeded yet (exit status 1).`, `Otherwise it begins at 05:10 CET at the earliest, unless forewarn on another VM starts it.`}},
		{goneYet, []string{`reboot doesn't start early yet`, `It isn't started early yet, because the disk is full. If that changes`},
			[]string{`reboot doesn't start early yet by web_0's rules`, `forewarn on web_0 doesn't start it early yet, because the disk is full. If that changes`}},
		{refused, []string{`not approved, Azure refused`, `It will come at its own time, 05:10 CET at the earliest.`},
			[]string{`not approved, Azure refused`, `It will come at its own time, unless forewarn on another VM starts it, 05:10 CET at the earliest.`}},
	} {
		for i, want := range [][]string{tt.alone, tt.many} {
			vms := []string{"web_0", "web_1"}[:i+1]
			ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Approved, Event: azure("Scheduled", "Reboot", "04:10:00", map[string]any{"Resources": vms})},
				cloudevent.Circumstances{Observer: webHost(0), Time: messageTime.clock(), Approval: &tt.came})
			f := fieldsOf(t, situation{batch: deliveryOf(ce, err), now: messageTime, more: map[string]any{"forAll": true}})
			text := word(t, "message", f)
			for _, phrase := range want {
				if !strings.Contains(text, phrase) {
					t.Errorf("of %d VMs no %q in\n%s", len(vms), phrase, text)
				}
			}
		}
	}
	withheld := situations()["approved-withheld"] // of three VMs, told to those of one
	text := word(t, "message", fieldsOf(t, withheld))
	if want := `vm-db-1: reboot won't start early by its rules, sink "drain" failed`; !strings.Contains(text, want) {
		t.Errorf("no %q in\n%s", want, text)
	}
	group := word(t, "message", fieldsOf(t, situations()["group-withheld"]))
	if want := `failed, otherwise 05:10 CET at the earliest (Azure maintenance); exit 75`; !strings.Contains(group, want) {
		t.Errorf("no %q in\n%s", want, group)
	}
}

// A group says of its events together only what holds for each.
func TestAGroupSaysTogetherOnlyWhatHoldsForEach(t *testing.T) {
	type event struct{ kind, source string }
	byUser, byAzure := event{"Reboot", "User"}, event{"Reboot", "Platform"}
	const held, move = "Azure is holding them back", "Move work off them now."
	asked := &cloudevent.Asked{By: "root", Time: messageTime.clock(), Answered: true}
	for _, tt := range []struct {
		claim     string
		events    []event
		asked     *cloudevent.Asked // about the first
		says, not []string
	}{
		{"users asked for all", []event{byUser, byUser}, nil, []string{held, "2 reboots", "The VMs restart."}, []string{move}},
		{"users asked for some", []event{byUser, byAzure}, nil, []string{move, "2 reboots", "The VMs restart."}, []string{held}},
		{"users asked for the others", []event{byAzure, byUser}, nil, []string{move}, []string{held}},
		{"one may begin at any time", []event{byUser, byUser}, asked, []string{move, "root on vm-db-1 asked"}, []string{held}},
		{"they differ in what they are", []event{byUser, {"Freeze", "User"}}, nil,
			[]string{"web_0 will reboot", "and 1 more", "web_1 will pause", "The VM restarts.", "The VM pauses."}, []string{held, move, "2 reboots", "The VMs"}},
	} {
		var batch []delivery.Delivery
		for i, e := range tt.events {
			in := cloudevent.Circumstances{Observer: dbHost, Time: messageTime.clock()}
			if i == 0 {
				in.Asked = tt.asked
			}
			ce, err := cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: azure("Scheduled", e.kind, "04:10:00", map[string]any{
				"EventId": fmt.Sprintf("A1B2C3D%d-D2CD-49C7-8624-8643E7171297", i), "EventSource": e.source, "Resources": []string{fmt.Sprint("web_", i)},
			})}, in)
			batch = append(batch, deliveryOf(ce, err)...)
		}
		text := word(t, "message", fieldsOf(t, situation{batch: batch, now: messageTime}))
		for _, phrase := range tt.says {
			if !strings.Contains(text, phrase) {
				t.Errorf("%s: no %q in\n%s", tt.claim, phrase, text)
			}
		}
		for _, phrase := range tt.not {
			if strings.Contains(text, phrase) {
				t.Errorf("%s: %q in\n%s", tt.claim, phrase, text)
			}
		}
	}
}

// After a mute, each line says what its event does to the VMs if its readers hear of it for the first time; once for all if
// it is the same.
func TestASummarySaysWhatTheEventsDo(t *testing.T) {
	for name, want := range map[string][]string{
		"muted": {}, "muted-first": {
			"• vm-db-1: reboot has begun (05:10 CET) (104 min late: muted). The VM restarts. Anything only in memory is lost.\n",
			"(119 min late: muted). The VM restarts. Anything only in memory is lost. · 602D9444",
		},
		"muted-begun": {":\nThe VMs restart. Anything only in memory is lost.\n• "},
	} {
		text := word(t, "message", fieldsOf(t, situations()[name]))
		for _, line := range want {
			if !strings.Contains(text, line) {
				t.Errorf("%s: no %q in\n%s", name, line, text)
			}
		}
		if n := strings.Count(text, "only in memory is lost"); n != len(want) {
			t.Errorf("%s: the effect is said %d times, want %d:\n%s", name, n, len(want), text)
		}
	}
}

// A template of the settings has facts and links as lists. Those of the fields of Slack are escaped for it.
func TestFactsAndLinksAreLists(t *testing.T) {
	parsed, err := templates.Parse("text", "{{range facts .}}{{.Label}}={{.Text}}|{{.Command}}\n{{end}}"+
		"{{range links .}}{{.Text}}={{.URL}}\n{{end}}{{(last (facts (slack .))).Text}}")
	if err != nil {
		t.Fatal(err)
	}
	f := fieldsOf(t, situations()["scheduled"])
	f["resources"] = []string{"vm-db-1", "<vm>"}
	const want = `Why=Azure maintenance: "Host server is undergoing maintenance."|
Effect=The VM restarts. Anything only in memory is lost.|
How long=Azure does not say.|
Also hit=<vm>|
You can=Move work off it now. It can't be postponed. To let it start sooner (on <vm> too), run on vm-db-1:|sudo forewarn approve 602D9444
VM=https://portal.azure.com/#@/resource/subscriptions/8d10da13-8125-4ba9-a717-bf7490507b3d/resourceGroups/prod-db/` +
		`providers/Microsoft.Compute/virtualMachines/vm-db-1
Runbook=https://wiki.example.com/reboot
Move work off it now. It can't be postponed. To let it start sooner (on &lt;vm&gt; too), run on vm-db-1:`
	if got := render(t, parsed, f); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Why and effect are said only where they are so: trouble of forewarn's has neither, and what is over has no effect any
// more.
func TestWhyAndEffectAreEmptyWhereTheyDontApply(t *testing.T) {
	for name, want := range map[string][2]bool{
		"scheduled": {true, true}, "started": {true, true}, "over": {true, false}, "cancelled": {true, false},
		"gone": {true, false}, "bridge.sink.blocked": {}, "observer.silent": {}, "test": {true, true},
	} {
		f := fieldsOf(t, situations()[name])
		why, effect := word(t, "why", f), word(t, "effect", f)
		if why != "" != want[0] || effect != "" != want[1] {
			t.Errorf("%s: why is %q, effect is %q", name, why, effect)
		}
	}
}

// Nobody reads the command for what it can't do, as when Azure has agreed already: the same word decides in every text.
func TestTheCommandIsOfferedOnlyWhereItHelps(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	services := map[string]*webhook{}
	for _, s := range Services() {
		services[s.Name] = openService(t, s, "https://a.example")
	}
	for name, s := range situations() {
		f := fieldsOf(t, s)
		helps := slices.ContainsFunc(f["group"].([]map[string]any), func(one map[string]any) bool {
			return word(t, "command", one) != ""
		})
		all := map[string]string{"the notification": render(t, texts.slackText, f), "Slack": render(t, texts.slackBlocks, f),
			"mail": render(t, texts.text, f), "mail in HTML": render(t, texts.html, f), "the message": word(t, "message", f)}
		for service, w := range services {
			all[service] = bodyOf(t, w, maps.Clone(f))
		}
		f["reply"] = true
		all["the reply"] = render(t, texts.slackText, f)
		for where, text := range all {
			if !helps && strings.Contains(text, "forewarn approve") {
				t.Errorf("%s: %s offers a command that does nothing:\n%s", name, where, text)
			}
		}
	}
}

// The command that is to be copied has an id that is safe in a shell, whatever Azure sent, and stands on a line of its
// own. What another destination answered is not for those who read this one.
func TestWhatIsCopiedIsSafe(t *testing.T) {
	e := azure("Scheduled", "Reboot", "04:10:00", map[string]any{"EventId": "602d9444;id>/x"})
	f := fieldsOf(t, situation{batch: deliveryOf(cloudevent.Wrap(imds.Change{Kind: imds.Scheduled, Event: e},
		cloudevent.Circumstances{
			Observer: dbHost, Time: messageTime.clock(),
		})), now: messageTime})
	short := f["subject"].(string)[:8]
	if strings.Trim(short, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != "" {
		t.Fatalf("the subject is %v", f["subject"])
	}
	teams := openService(t, serviceNamed(t, "teams"), "https://a.example")
	for name, line := range map[string]string{
		render(t, texts.slackBlocks, f): "\\n`sudo forewarn approve " + short + "`\"",
		render(t, texts.text, f):        "\n               sudo forewarn approve " + short + "\n",
		render(t, texts.html, f):        "<code>sudo forewarn approve " + short + "</code>",
		bodyOf(t, teams, f):             `"text":"sudo forewarn approve ` + short + `"`,
	} {
		if !strings.Contains(name, line) || strings.Contains(name, "602d9444") {
			t.Errorf("no line %q, or another, in\n%s", line, name)
		}
	}
	s := situations()["scheduled-instead"]
	s.batch[0].FallbackFor = &delivery.FallbackFor{Sink: "ops-chat", Error: "rejected: 422 from https://10.1.2.3: s3cr3t-name"}
	if text := render(t, texts.text, fieldsOf(t, s)); strings.Contains(text, "s3cr3t") ||
		!strings.Contains(text, `(sent here because Slack sink "ops-chat" refused it: 422)`) {
		t.Errorf("the fallback says\n%s", text)
	}
}

// No text says vanished or blocked to a person, or shows a field that is not there.
func TestPeopleNeverReadTheWordsOfMachines(t *testing.T) {
	systemtest.Alone(t)
	t.Parallel()
	for name, s := range situations() {
		f := fieldsOf(t, s)
		for _, reply := range []bool{false, true} {
			f["reply"] = reply
			all := render(t, texts.slackText, f) + render(t, texts.slackBlocks, f) + render(t, texts.subject, f) +
				render(t, texts.text, f) + render(t, texts.html, f)
			for _, word := range []string{"vanished", "blocked", "<no value>", "0001", "%!"} {
				if strings.Contains(strings.ToLower(all), word) {
					t.Errorf("%s says %q:\n%s", name, word, all)
				}
			}
		}
	}
}
