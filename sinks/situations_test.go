package sinks

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
)

// moment is a time of the night of which the situations tell.
type moment time.Time

// messageTime is when most messages of the situations are made.
var messageTime = at("03:55:29")

func (m moment) clock() time.Time { return time.Time(m) }

// at returns a time of 21 November 2026 in UTC.
func at(clock string) moment {
	t, err := time.Parse(time.DateTime, "2026-11-21 "+clock)
	if err != nil {
		panic(err)
	}
	return moment(t)
}

// dbHost is the VM that reports most situations, spotHost one that can be evicted.
var (
	dbHost = imds.Observer{
		Name: "vm-db-1", VMID: "13f56399-bd52-4150-9748-7190aae1ff21", ResourceGroup: "prod-db", Location: "westeurope",
		SubscriptionID: "8d10da13-8125-4ba9-a717-bf7490507b3d",
		ResourceID: "/subscriptions/8d10da13-8125-4ba9-a717-bf7490507b3d/resourceGroups/prod-db/providers/" +
			"Microsoft.Compute/virtualMachines/vm-db-1",
	}
	spotHost = imds.Observer{Name: "vm-spot-7", ResourceGroup: "prod-batch", Location: "westeurope",
		EvictionPolicy: "Delete"}
)

// azure returns what Azure says of an event, the rest as in most situations.
func azure(status, typ, notBefore string, more map[string]any) imds.Event {
	f := map[string]any{
		"EventId": "602D9444-D2CD-49C7-8624-8643E7171297", "EventStatus": status, "EventType": typ,
		"ResourceType": "VirtualMachine", "Resources": []string{"vm-db-1", "vm-db-2", "vm-db-3"}, "NotBefore": "",
		"Description": "Host server is undergoing maintenance.", "EventSource": "Platform", "DurationInSeconds": -1,
	}
	if notBefore != "" {
		f["NotBefore"] = at(notBefore).clock().Format("Mon, 02 Jan 2006 15:04:05 GMT")
	}
	maps.Copy(f, more)
	raw, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	e, err := imds.UnmarshalEvent(raw)
	if err != nil {
		panic(err)
	}
	return e
}

// A situation is what a message can be about.
type situation struct {
	batch []delivery.Delivery
	now   moment
	reply bool // in Slack it is one
	more  map[string]any
}

// situations returns what messages to people are about, by name.
func situations() map[string]situation {
	type circumstances = cloudevent.Circumstances
	all := make(map[string]situation)
	// tell adds a situation of which people hear at once.
	tell := func(name, seen string, c imds.Change, in circumstances, reply bool, more map[string]any) {
		in.Time, in.Incarnation = at(seen).clock(), "7"
		if in.Observer.Name == "" {
			in.Observer = dbHost
		}
		if in.Announced = messageTime.clock(); c.Kind == imds.Scheduled || c.Kind == imds.Started && c.Previous == nil {
			in.Announced = in.Time
		}
		if c.Kind == imds.Started {
			in.Begun = in.Time
		} else if c.Event.Status == "Started" {
			in.Begun = at("04:10:04").clock()
		}
		all[name] = situation{deliveryOf(cloudevent.Wrap(c, in)), at(seen), reply, more}
	}
	scheduled := func(e imds.Event) imds.Change { return imds.Change{Kind: imds.Scheduled, Event: e} }
	vanished := func(e imds.Event) imds.Change { return imds.Change{Kind: imds.Vanished, Event: e} }
	changed := func(was, is imds.Event, fields ...string) imds.Change {
		return imds.Change{Kind: imds.Updated, Event: is, Previous: &was, Fields: fields}
	}

	reboot := azure("Scheduled", "Reboot", "04:10:00", nil)
	begun := azure("Started", "Reboot", "", nil)
	alone := map[string]any{"Resources": []string{"vm-db-1"}}
	away := circumstances{WhileAway: true, NotEarlierThan: at("04:05:00").clock()}

	tell("scheduled", "03:55:29", scheduled(reboot), circumstances{}, false, map[string]any{
		"runbook": "https://wiki.example.com/reboot",
	})
	byUser := map[string]any{
		"Resources": []string{"vm-db-1"}, "EventSource": "User",
		"Description": "Virtual machine is going to be restarted as requested by authorized user.",
	}
	tell("scheduled-user", "03:55:29", scheduled(azure("Scheduled", "Reboot", "04:10:00", byUser)), circumstances{}, false,
		nil)
	first := cloudevent.Rule{Name: `rule "drain first"`, After: []string{"audit", "drain"}}
	waits := cloudevent.Rule{Name: "rule 2", After: []string{"drain"}, Wait: 30}
	anyway := cloudevent.Rule{Name: "rule 3", Wait: 600}
	for name, rules := range map[string][]cloudevent.Rule{
		"scheduled-by-rule": {first}, "scheduled-by-rules": {waits, anyway}, "scheduled-at-once": {{Name: "rule 1"}},
	} {
		tell(name, "03:55:29", scheduled(azure("Scheduled", "Reboot", "04:10:00", byUser)), circumstances{Rules: rules}, false,
			nil)
	}
	tell("scheduled-platform-by-rule", "03:55:29", scheduled(reboot), circumstances{Rules: []cloudevent.Rule{first}}, false,
		nil)
	tell("updated-by-rule", "04:00:00", changed(reboot, azure("Scheduled", "Reboot", "04:25:00", nil), "NotBefore"),
		circumstances{Rules: []cloudevent.Rule{first}}, true, nil)
	onWindows := dbHost
	onWindows.OSType = "Windows"
	tell("scheduled-on-windows", "03:55:29", scheduled(reboot), circumstances{Observer: onWindows}, false, nil)
	tell("scheduled-redeploy", "03:55:29", scheduled(azure("Scheduled", "Redeploy", "04:05:00", alone)), circumstances{},
		false, nil)
	tell("scheduled-freeze", "03:55:29", scheduled(azure("Scheduled", "Freeze", "04:10:00", map[string]any{
		"Resources": []string{"vm-db-1"}, "DurationInSeconds": 5,
	})), circumstances{}, false, nil)
	tell("scheduled-terminate", "03:55:29", scheduled(azure("Scheduled", "Terminate", "04:00:29", map[string]any{
		"Resources": []string{"vm-db-1"}, "EventSource": "User", "Description": "",
	})), circumstances{}, false, nil)
	tell("scheduled-unknown-type", "03:55:29", scheduled(azure("Scheduled", "Defragment", "04:10:00", alone)),
		circumstances{}, false, nil)
	tell("scheduled-bare", "03:55:29", scheduled(azure("Scheduled", "Reboot", "", map[string]any{
		"Resources": []string{}, "Description": "", "EventSource": "",
	})), circumstances{}, false, nil)
	unread := azure("Scheduled", "Reboot", "", map[string]any{"NotBefore": "Sat, 21 Nov 2026 25:10 <@GMT>"})
	tell("scheduled-unreadable-time", "03:55:29", scheduled(unread), circumstances{}, false, nil)
	tell("updated-unreadable-time", "04:00:00", changed(reboot, unread, "NotBefore"), circumstances{}, true, nil)
	tell("scheduled-others", "03:55:29", scheduled(azure("Scheduled", "Reboot", "04:10:00", map[string]any{
		"Resources": []string{"vm-db-2", "vm-db-3"},
	})), circumstances{}, false, nil)
	var many []string
	for i := range 400 {
		many = append(many, fmt.Sprintf("web_%d", i))
	}
	tell("scheduled-many", "03:55:29", scheduled(azure("Scheduled", "Reboot", "04:10:00", map[string]any{
		"Resources": many,
	})), circumstances{}, false, nil)
	tell("scheduled-preview", "03:55:29", scheduled(azure("Scheduled", "Reboot", "04:10:00", map[string]any{
		"Resources": []string{"_vm-db-1", "_vm-db-2"},
	})), circumstances{}, false, nil)
	tell("scheduled-first-start", "03:55:29", scheduled(reboot), circumstances{WhileAway: true}, false, nil)
	tell("scheduled-while-away", "04:08:00", scheduled(reboot), away, false, nil)
	tell("scheduled-tomorrow", "03:55:29", scheduled(azure("Scheduled", "Reboot", "", map[string]any{
		"NotBefore": "Sun, 22 Nov 2026 05:10:00 GMT",
	})), circumstances{}, false, nil)
	tell("scheduled-late", "03:55:29", scheduled(reboot), circumstances{}, false, nil)
	late := all["scheduled-late"]
	late.now, late.batch[0].Attempt = at("04:53:30"), 40
	all["scheduled-late"] = late
	for policy, spot := range map[string]string{"": "-delete", "Deallocate": "-deallocate", "?": "-unknown"} {
		host := spotHost
		if policy != "" {
			host.EvictionPolicy = strings.Trim(policy, "?")
		}
		tell("preempt"+spot, "19:01:30", scheduled(azure("Scheduled", "Preempt", "19:01:45", map[string]any{
			"EventId": "218E4ED7-D2CD-49C7-8624-8643E7171297", "Resources": []string{"vm-spot-7"}, "Description": "",
		})), circumstances{Observer: host}, false, map[string]any{"mention": "<!here>"})
	}
	tell("preempt-started", "19:01:44",
		imds.Change{Kind: imds.Started, Event: azure("Started", "Preempt", "", map[string]any{
			"EventId": "218E4ED7-D2CD-49C7-8624-8643E7171297", "Resources": []string{"vm-spot-7"}, "Description": "",
		})}, circumstances{Observer: spotHost}, true, nil)

	tell("updated-time", "04:00:00", changed(reboot, azure("Scheduled", "Reboot", "04:25:00", nil), "NotBefore"),
		circumstances{}, true, nil)
	tell("updated-seconds", "04:00:00", changed(reboot, azure("Scheduled", "Reboot", "04:10:21", nil), "NotBefore"),
		circumstances{}, true, nil)
	tell("updated-vms", "04:00:00", changed(reboot, azure("Scheduled", "Reboot", "04:10:00", alone), "Resources"),
		circumstances{}, true, nil)
	tell("updated-type", "04:00:00",
		changed(reboot, azure("Scheduled", "Redeploy", "04:25:00", nil), "EventType", "NotBefore"), circumstances{}, true,
		map[string]any{"mention": "<!here>"})
	tell("updated-rest", "04:00:00", changed(reboot, azure("Scheduled", "Reboot", "04:10:00", map[string]any{
		"Description": "Something else.", "DurationInSeconds": 9,
	}), "Description", "DurationInSeconds"), circumstances{}, true, nil)

	tell("updated-begun", "04:10:08", changed(azure("Started", "Reboot", "04:10:00", nil), begun, "NotBefore"),
		circumstances{}, true, nil)

	tell("started", "04:10:04", imds.Change{Kind: imds.Started, Event: begun, Previous: &reboot}, circumstances{}, true,
		nil)
	tell("started-unannounced", "04:10:04", imds.Change{Kind: imds.Started, Event: begun}, circumstances{}, false, nil)
	tell("started-freeze", "04:10:04", imds.Change{Kind: imds.Started, Event: azure("Started", "Freeze", "", alone)},
		circumstances{}, true, nil)
	tell("started-while-away", "04:20:00", imds.Change{Kind: imds.Started, Event: begun, Previous: &reboot}, away, true,
		nil)
	tell("started-late", "04:10:04", imds.Change{Kind: imds.Started, Event: begun, Previous: &reboot}, circumstances{},
		false, nil)
	late = all["started-late"]
	late.now, late.batch[0].Attempt = at("04:53:30"), 40
	late.batch[0].Missed = []delivery.Missed{{Change: "scheduled", Time: at("03:55:29").clock()},
		{Change: "updated", Time: at("04:00:00").clock()}, {Change: "approved", Time: at("04:01:00").clock()},
		{Change: "reminder", Time: at("04:05:00").clock()}} // nobody says that it was approved: that may have failed
	all["started-late"] = late

	over := circumstances{End: cloudevent.End{Outcome: cloudevent.OutcomeCompleted, Back: at("04:12:40").clock(),
		LongestPause: 156 * time.Second}}
	tell("over", "04:20:11", vanished(begun), over, true, nil)
	tell("over-others", "04:20:11", vanished(azure("Started", "Reboot", "", map[string]any{
		"Resources": []string{"vm-db-2"},
	})), over, true, nil)
	tell("over-freeze", "04:20:11", vanished(azure("Started", "Freeze", "", alone)),
		circumstances{End: cloudevent.End{Outcome: cloudevent.OutcomeCompleted, LongestPause: 7200 * time.Millisecond}}, true,
		nil)
	tell("cancelled", "04:02:13", vanished(reboot),
		circumstances{End: cloudevent.End{Outcome: cloudevent.OutcomeCanceled}}, true, nil)
	tell("cancelled-while-away", "04:02:13", vanished(reboot), circumstances{WhileAway: true, NotEarlierThan: at("04:02:05").clock(),
		End: cloudevent.End{Outcome: cloudevent.OutcomeCanceled}}, true, nil)
	away.End.Outcome = cloudevent.OutcomeUnknown
	tell("gone-while-away", "04:20:00", vanished(reboot), away, true, nil)
	tell("gone", "04:20:00", vanished(reboot), circumstances{End: cloudevent.End{Outcome: cloudevent.OutcomeUnknown}},
		true, nil)

	var group, ended []delivery.Delivery
	for i, vm := range []string{"web_0", "vm-db-1", "vm-db-2", "vm-db-3", "vm-db-4", "vm-build"} {
		id := fmt.Sprintf("A1B2C3D%d-D2CD-49C7-8624-8643E7171297", i)
		e := azure("Scheduled", "Reboot", "04:10:00", map[string]any{"EventId": id, "Resources": []string{vm}})
		in := circumstances{Observer: dbHost, Time: messageTime.clock(), Incarnation: "7"}
		group = append(group, deliveryOf(cloudevent.Wrap(scheduled(e), in))...)
		in.Announced, in.End.Outcome = in.Time.Add(-time.Hour), cloudevent.OutcomeCanceled
		ended = append(ended, deliveryOf(cloudevent.Wrap(vanished(e), in))...)
	}
	all["group"] = situation{batch: group, now: messageTime}
	group = nil
	for i, source := range []string{"User", "Platform", "User"} {
		e := azure("Scheduled", "Reboot", "04:10:00", map[string]any{"EventId": fmt.Sprintf("A1B2C3D%d-D2CD-49C7-8624-8643E7171297", i),
			"EventSource": source, "Resources": []string{fmt.Sprint("web_", i)}})
		group = append(group, deliveryOf(cloudevent.Wrap(scheduled(e), circumstances{Observer: dbHost, Time: messageTime.clock()}))...)
	}
	all["group-mixed"] = situation{batch: group, now: messageTime}
	all["group-cancelled"] = situation{batch: ended, now: messageTime}
	asked := cloudevent.Approval{Result: cloudevent.ResultApproved, By: "rule 1", Decided: messageTime.clock(),
		After: 64.5, Attempts: 1, Status: "200 OK"}
	refused, unanswered, moot := asked, asked, asked
	refused.Result, refused.By, refused.Status, refused.Error = cloudevent.ResultRefused, "root (alice)",
		"400 Bad Request",
		"Azure refuses the approval: 400 Bad Request: EventId is unknown"
	unanswered.Result, unanswered.By, unanswered.Status, unanswered.Error = cloudevent.ResultUnanswered, "root (alice)",
		"", "no answer within 8s"
	failed, gone := asked, asked
	failed.Result, failed.By, failed.Attempts, failed.Status = cloudevent.ResultWithheld, first.Name, 0, ""
	gone = failed
	failed.Sink, failed.Error = "drain", "rejected: exit 75: 3 sessions left"
	gone.Error = `rule "drain first" was removed from the settings`
	oddName := failed
	oddName.Sink = "ops-chat"
	notYet, muted := failed, gone
	notYet.NotYet, notYet.Error, muted.NotYet = true, "exit status 75: 3 sessions left", true
	muted.Error = `sink "drain" is muted until 05:55:00 CET`
	unheard, meanwhile := notYet, failed
	unheard.Sink, unheard.Error = "", "Azure hasn't answered the approval (attempts: 5): no answer within 10s; it is tried again"
	moot.Result, moot.Attempts, moot.Status, moot.Error = cloudevent.ResultMoot, 0, "", "the event changed"
	for name, a := range map[string]cloudevent.Approval{
		"approved": asked, "approved-refused": refused, "approved-unanswered": unanswered, "approved-moot": moot,
		"approved-withheld": failed, "approved-withheld-rule": gone,
		"approved-withheld-unheard": unheard, "approved-withheld-meanwhile": meanwhile,
		"approved-withheld-sink": oddName, "approved-withheld-yet": notYet, "approved-withheld-muted": muted,
	} {
		asked := map[string]*cloudevent.Asked{
			"approved-withheld-unheard":   {By: unheard.By, Time: at("03:55:40").clock()},
			"approved-withheld-meanwhile": {By: "root (alice)", Time: at("03:55:50").clock()},
		}[name]
		tell(name, "03:56:33", imds.Change{Kind: imds.Approved, Event: reboot}, circumstances{Approval: &a, Asked: asked}, true, nil)
		if a.Result != cloudevent.ResultWithheld { // that is told before the event begins
			tell(name+"-begun", "03:56:33", imds.Change{Kind: imds.Approved, Event: begun},
				circumstances{Approval: &a, Begun: at("03:56:30").clock()}, true, nil)
		}
	}
	tell("approved-withheld-others", "03:56:33", imds.Change{Kind: imds.Approved, Event: reboot},
		circumstances{Approval: &gone, Rules: []cloudevent.Rule{{Name: `rule "anyway"`, Wait: 600}}}, true, nil)
	promised := cloudevent.Approval{Result: cloudevent.ResultPromised, By: first.Name, Decided: messageTime.clock(), After: 64.5}
	tell("approved-promised", "03:56:33", imds.Change{Kind: imds.Approved, Event: reboot},
		circumstances{Approval: &promised, Rules: []cloudevent.Rule{first}}, true, nil)
	agreed := &cloudevent.Asked{By: "root (alice)", Time: at("03:55:50").clock(), Answered: true}
	unsure := &cloudevent.Asked{By: "root (alice)", Time: at("03:55:50").clock()}
	tell("updated-asked", "03:58:00", changed(reboot, azure("Scheduled", "Reboot", "04:25:00", nil), "NotBefore"),
		circumstances{Asked: agreed}, true, nil)
	tell("updated-begun-asked", "04:10:08", changed(azure("Started", "Reboot", "04:10:00", nil), begun, "NotBefore"),
		circumstances{Asked: agreed}, true, nil)
	tell("started-asked", "04:10:08", imds.Change{Kind: imds.Started, Event: azure("Started", "Reboot", "04:10:00", nil)},
		circumstances{Asked: agreed}, true, nil)
	tell("approved-withheld-terminate", "03:58:00", imds.Change{Kind: imds.Approved, Event: azure("Scheduled", "Terminate", "04:10:00", nil)},
		circumstances{Approval: &failed}, true, nil)
	tell("reminder-asked", "03:58:00", imds.Change{Kind: imds.Reminder, Event: reboot, Lead: time.Hour},
		circumstances{Asked: agreed}, true, nil)
	tell("reminder-unanswered", "03:58:00", imds.Change{Kind: imds.Reminder, Event: reboot, Lead: time.Hour},
		circumstances{Asked: unsure}, true, nil)
	tell("scheduled-by-leader", "03:56:00", scheduled(reboot), circumstances{Rules: []cloudevent.Rule{
		{Name: `rule "leader first"`, After: []string{"audit"}, Wait: 10, VM: "vm-db-2"}}}, true, nil)
	tell("reminder-by-leader", "04:00:00", imds.Change{Kind: imds.Reminder, Event: reboot, Lead: time.Hour}, circumstances{Rules: []cloudevent.Rule{
		{Name: `rule "set"`, After: []string{"drain"}, VM: "vm-db-2"}}}, true, nil)
	tell("scheduled-by-rule-with-lead", "03:56:00", scheduled(reboot), circumstances{Rules: []cloudevent.Rule{
		{Name: `rule "drain first"`, After: []string{"drain"}, From: at("04:05:00").clock()}}}, true, nil)
	tell("reminder-again", "03:58:00", imds.Change{Kind: imds.Reminder, Event: reboot, Lead: time.Hour},
		circumstances{Rules: []cloudevent.Rule{{Name: first.Name, After: []string{"drain"}, Again: "drain"},
			{Name: `rule "anyway"`, Wait: 600, From: at("04:08:00").clock()}}}, true, nil)
	tell("approved-withheld-due", "04:10:01", imds.Change{Kind: imds.Approved, Event: reboot},
		circumstances{Approval: &failed}, true, nil)
	tell("approved-refused-others", "03:56:33", imds.Change{Kind: imds.Approved, Event: reboot},
		circumstances{Approval: &refused, Rules: []cloudevent.Rule{{Name: `rule "drain first"`, After: []string{"drain"}}}}, true, nil)
	for _, name := range []string{"scheduled-by-rule", "scheduled-user"} { // they come when the event should have begun
		due := all[name]
		due.batch = slices.Clone(due.batch)
		due.now, due.batch[0].Attempt = at("04:12:00"), 9
		all[name+"-due"] = due
	}
	tell("approved-withheld-asked", "03:56:33", imds.Change{Kind: imds.Approved, Event: reboot},
		circumstances{Approval: &gone, Asked: agreed, Rules: []cloudevent.Rule{{Name: `rule "anyway"`, Wait: 600}}}, true, nil)
	var begin []delivery.Delivery // at any time, as Azure agreed to it
	for i := range 3 {
		e := azure("Scheduled", "Reboot", "04:10:00", map[string]any{"EventId": fmt.Sprintf("A1B2C3D%d-D2CD-49C7-8624-8643E7171297", i),
			"EventSource": "User", "Resources": []string{fmt.Sprint("web_", i)}})
		begin = append(begin, deliveryOf(cloudevent.Wrap(imds.Change{Kind: imds.Approved, Event: e},
			circumstances{Observer: dbHost, Time: messageTime.clock(), Approval: &asked, Asked: agreed}))...)
	}
	all["group-approved"] = situation{batch: begin, now: messageTime}
	byHand, elsewhere := asked, circumstances{Observer: imds.Observer{Name: "db_0", ResourceGroup: "prod-web", Location: "westeurope"}}
	byHand.By, elsewhere.Approval, elsewhere.Asked = agreed.By, &byHand, agreed
	ofWeb := azure("Scheduled", "Reboot", "04:10:00", map[string]any{"Resources": []string{"web_0", "web_1"}})
	tell("approved-elsewhere", "03:56:33", imds.Change{Kind: imds.Approved, Event: ofWeb}, elsewhere, true, nil)
	tell("reminder-asked-elsewhere", "03:58:00", imds.Change{Kind: imds.Reminder, Event: ofWeb, Lead: time.Hour}, elsewhere, true, nil)
	overdue := all["preempt-unknown"]
	overdue.now = at("19:02:10")
	all["preempt-due"] = overdue
	withheld := slices.Concat(all["approved-withheld"].batch, all["approved-withheld-sink"].batch)
	all["group-withheld"] = situation{batch: withheld, now: messageTime}
	undecided := slices.Concat(all["approved-withheld-yet"].batch, all["approved-withheld-asked"].batch)
	all["group-withheld-yet"] = situation{batch: undecided, now: messageTime}
	byRule := slices.Concat(all["scheduled-by-rule"].batch, all["updated-by-rule"].batch)
	all["group-by-rule"] = situation{batch: byRule, now: messageTime}
	for _, name := range []string{"approved", "approved-withheld", "updated-time", "started-asked"} { // the first that its readers hear
		first := all[name]
		first.batch = slices.Clone(first.batch)
		first.batch[0].Missed = []delivery.Missed{{Change: "scheduled", Time: at("03:55:29").clock()}}
		all[name+"-first"] = first
	}
	tell("reminder", "03:10:00", imds.Change{Kind: imds.Reminder, Event: reboot, Lead: time.Hour}, circumstances{}, true,
		nil)
	instead := all["scheduled"]
	instead.batch = slices.Clone(instead.batch)
	instead.batch[0].FallbackFor = &delivery.FallbackFor{Sink: "ops-chat", Error: "blocked: Slack answered invalid_auth: put a new token into /etc/forewarn/slack-token"}
	all["scheduled-instead"] = instead
	for name, sample := range map[string]string{"test": "reboot", "test-cancelled": "canceled"} {
		s, _ := cloudevent.NewSample(sample, "vm-db-1", messageTime.clock())
		all[name] = situation{batch: deliveryOf(s.Test(dbHost, messageTime.clock())), now: messageTime}
	}
	for name, data := range map[string]map[string]any{
		cloudevent.SinkBlocked: {"sink": "ops", "kind": "slack", "pending": 14, "since": at("02:12:00").clock(),
			"error": "blocked: Slack answered invalid_auth: put a new token into /etc/forewarn/slack-token"},
		cloudevent.SinkRecovered: {"sink": "ops", "kind": "slack", "pending": 3},
		cloudevent.IMDSUnavailable: {"endpoint": "http://169.254.169.254", "since": at("02:12:00").clock(),
			"error": "503 Service Unavailable"},
		cloudevent.IMDSRecovered: {"endpoint": "http://169.254.169.254", "gap": map[string]any{
			"from": at("02:12:00").clock(), "to": at("03:55:00").clock(),
		}},
		cloudevent.OutboxUnwritable: {"file": "/var/lib/forewarn/outbox.db", "pending": 3, "since": at("02:12:00").clock(),
			"error": "write /var/lib/forewarn/outbox.db: no space left on device"},
		cloudevent.OutboxWritable: {"file": "/var/lib/forewarn/outbox.db", "gap": map[string]any{
			"from": at("02:12:00").clock(), "to": at("03:55:00").clock(),
		}},
		cloudevent.DeliveryDeadLettered: {"sink": "hook", "count": 2, "deliveries": []any{map[string]any{
			"reason": "rejected", "error": "rejected: 422 Unprocessable Entity",
		}}},
		cloudevent.DeliveryDropped: {"sink": "hook", "count": 29, "by": "root (alice)"},
		cloudevent.SinkMuted: {"mute": "tk3x9q", "sink": "ops", "since": messageTime.clock(), "until": at("05:55:00").clock(),
			"reason": "replacing disks", "by": "root (alice)"},
		cloudevent.SinkUnmuted: {"mute": "tk3x9q", "since": messageTime.clock(), "until": at("05:55:00").clock(),
			"reason": "replacing disks", "by": "root (alice)"},
		cloudevent.BridgeStarted: {"version": "1.2.0", "settingsHash": "5f0b1c2d", "gap": map[string]any{
			"from": at("02:12:00").clock(), "to": at("03:55:00").clock(),
		}},
		cloudevent.BridgeStopping:  {"pending": 3},
		cloudevent.SettingsLoaded:  {"settingsHash": "5f0b1c2d"},
		cloudevent.ChainHead:       {"sink": "audit", "head": strings.Repeat("0123456789abcdef", 4)},
		cloudevent.BridgeHeartbeat: {},
		cloudevent.ObserverSilent: {"count": 1, "vms": []any{"vm-web-7"}, "sets": []any{"web"},
			"since": at("03:40:00").clock()},
		cloudevent.ObserverBack: {"count": 14, "sets": []any{"web"}, "vms": []any{"vm-web-7", "vm-web-8", "vm-web-9",
			"vm-web-10"}},
	} {
		batch := deliveryOf(cloudevent.WrapBridge(name, data, dbHost, messageTime.clock()))
		all[strings.TrimPrefix(name, "dev.forewarn.")] = situation{batch: batch, now: messageTime}
	}
	refusedMail := map[string]any{
		"sink": "ops-mail", "kind": "email", "pending": 1, "since": at("02:12:00").clock(),
		"error": "nothing listens at smtp.example.com:587 (connection refused)",
		"urgent": map[string]any{
			"event": "602D9444-D2CD-49C7-8624-8643E7171297", "type": "Redeploy", "vms": []string{"vm-db-1"},
			"notBefore": at("04:10:00").clock(),
		},
	}
	all["bridge.sink.blocked-refused"] = situation{now: messageTime,
		batch: deliveryOf(cloudevent.WrapBridge(cloudevent.SinkBlocked, refusedMail, dbHost, messageTime.clock()))}
	tooLate := map[string]any{"sink": "drain", "count": 1, "deliveries": []any{map[string]any{
		"reason": "late", "error": "exit status 75: 3 sessions left",
	}}}
	all["bridge.delivery.deadlettered-late"] = situation{now: messageTime,
		batch: deliveryOf(cloudevent.WrapBridge(cloudevent.DeliveryDeadLettered, tooLate, dbHost, messageTime.clock()))}
	for name, s := range fleetSituations(webHost(1)) {
		all[name] = s
	}
	waited := slices.Concat(all["started"].batch, all["bridge.sink.recovered"].batch) // both told at the end of a mute
	for i := range waited {
		waited[i].Mute = &delivery.Mute{By: "root (alice)", Reason: "replacing disks", Until: at("05:54:00").clock()}
	}
	waited[1].Attempt = 4 // its server was down, too
	all["muted"] = situation{batch: waited, now: at("05:55:00")}
	firsts := slices.Concat(all["started-unannounced"].batch, all["scheduled-tomorrow"].batch, all["started-freeze"].batch, all["over"].batch)
	for i := range firsts {
		firsts[i].Mute = waited[0].Mute
		if i != 2 { // the freeze was announced before the mute
			firsts[i].Missed = []delivery.Missed{{Change: "scheduled", Time: at("03:55:29").clock()}}
		}
	}
	all["muted-first"] = situation{batch: firsts, now: at("05:55:00")}
	begunFirst := slices.Clone(firsts[:1])
	begunFirst = append(begunFirst, all["started-late"].batch...)
	begunFirst[1].Mute, begunFirst[1].Attempt = waited[0].Mute, 1
	all["muted-begun"] = situation{batch: begunFirst, now: at("05:55:00")}
	return all
}

// webHost returns a VM of a scale set.
func webHost(n int) imds.Observer {
	return imds.Observer{Name: fmt.Sprint("web_", n), ResourceGroup: "prod-web", ScaleSet: "web", Location: "westeurope"}
}

// fleetSituations are those of a sink that speaks for all VMs of an event, which o saw.
func fleetSituations(o imds.Observer) map[string]situation {
	all := map[string]situation{}
	for name, n := range map[string]int{"one": 1, "two": 2, "many": 25} {
		var vms []string
		for i := range n {
			vms = append(vms, fmt.Sprint("web_", i))
		}
		of := map[string]any{"Resources": vms}
		scheduled, begun := azure("Scheduled", "Reboot", "04:10:00", of), azure("Started", "Reboot", "", of)
		for state, c := range map[string]imds.Change{
			"scheduled": {Kind: imds.Scheduled, Event: scheduled},
			"updated": {Kind: imds.Updated, Event: azure("Scheduled", "Reboot", "04:20:00", of), Previous: &scheduled,
				Fields: []string{"NotBefore"}},
			"started": {Kind: imds.Started, Event: begun, Previous: &scheduled},
			"over":    {Kind: imds.Vanished, Event: begun}, "cancelled": {Kind: imds.Vanished, Event: scheduled},
			"evicted": {Kind: imds.Scheduled, Event: azure("Scheduled", "Preempt", "03:55:59", of)},
		} {
			in := cloudevent.Circumstances{Observer: o, Time: messageTime.clock(), Announced: messageTime.clock(), Incarnation: "7"}
			switch state {
			case "started":
				in.Begun = in.Time
			case "over":
				in.Begun, in.End = in.Time, cloudevent.End{Outcome: cloudevent.OutcomeCompleted, Back: in.Time.Add(2 * time.Minute)}
			case "cancelled":
				in.End.Outcome = cloudevent.OutcomeCanceled
			}
			all["fleet-"+name+"-"+state] = situation{deliveryOf(cloudevent.Wrap(c, in)), messageTime, state != "scheduled",
				map[string]any{"forAll": true}}
		}
	}
	return all
}
