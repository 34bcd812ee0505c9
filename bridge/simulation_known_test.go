package bridge_test

import (
	"testing"
	"time"
)

// Stories in which something was once found, cut down to what it took.
var knownStories = []struct {
	claim string
	story []step
}{
	{"the first answer is too old by the time it is known which VM this is, and a disk that may be slow hides that", []step{
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), diskTrouble{"loses the answer", 10 * time.Minute}},
		{at(3 * time.Minute), instanceTrouble{"503", 4 * time.Minute}},
		{at(3 * time.Minute), restart{crash: true, off: time.Second, clone: true}},
		{at(3*time.Minute + 5*time.Second), list{event: moved}}, // while the program waits to hear which VM this is
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{"an event that is open in a file that comes late ends and comes back before it comes", []step{
		{at(time.Minute), list{event: begun}},
		{at(2 * time.Minute), restart{crash: true, off: 20 * time.Second, late: 6 * time.Minute}},
		{at(4 * time.Minute), unlist{reboot.id}},
		{at(5 * time.Minute), list{event: moved}},
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{"the clock is set back, and what began before is in a file that comes late", []step{
		{at(time.Minute), list{event: begun}},
		{at(2 * time.Minute), restart{crash: true, step: -48 * time.Hour, off: 20 * time.Second}},
		{at(4 * time.Minute), restart{crash: true, off: 20 * time.Second, late: 6 * time.Minute}},
		{at(4*time.Minute + 10*time.Second), list{event: moved}},
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{"the clock is set back, and a file that comes late has history newer than all that is pending", []step{
		{at(time.Minute), fails("second", "is down", 7*time.Minute)},
		{at(2 * time.Minute), list{event: freeze}}, // of the document that has both, this is pending and the other is not
		{at(2 * time.Minute), list{event: reboot}},
		{at(4 * time.Minute), reload{routes: []string{"second"}}},
		{at(6 * time.Minute), restart{crash: true, step: -48 * time.Hour, off: 20 * time.Second, late: time.Minute}},
		{at(9 * time.Minute), unlist{freeze.id}},
	}},
	{"the clock is set back to before an event ended, and somebody drops that it did", []step{
		{at(time.Minute), fails("webhook", "is down", 20*time.Minute)},
		{at(2 * time.Minute), list{event: reboot}},
		{at(8 * time.Minute), unlist{reboot.id}},
		{at(9 * time.Minute), restart{crash: true, step: -3 * time.Minute, off: 20 * time.Second}},
		{at(10 * time.Minute), drop{1}},
		{at(30 * time.Minute), restyle{}},
	}},
	{"an event begins and ends while documents leave it out and hold an entry that cannot be read", []step{
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), endpointTrouble{"lists a broken entry", 8 * time.Minute}},
		{at(3*time.Minute + 300*time.Millisecond), list{event: begun}},
		{at(3*time.Minute + 600*time.Millisecond), unlist{reboot.id}},
		{at(20 * time.Minute), restyle{}},
	}},
	{"a file comes late just before the first document, while nobody says which VM this is", []step{
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), instanceTrouble{"503", 4 * time.Minute}},
		{at(2*time.Minute + 10*time.Second), restart{crash: true, off: 20 * time.Second, late: 2 * time.Second}},
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{"a file comes late when it is known that nobody says which VM this is, and an event is again as the file has it", []step{
		{at(time.Second), instanceTrouble{"404", 10 * time.Minute}},
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), list{event: moved}},
		{at(3 * time.Minute), restart{crash: true, off: time.Second, late: 40 * time.Second}},
		{at(3*time.Minute + 20*time.Second), list{event: reboot}},
		{at(3*time.Minute + 45*time.Second), list{event: moved}},
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{"the machine crashes just when the end of a mute is written", []step{
		{at(time.Minute), mute{mutePlan{sink: "webhook", lasts: 7 * time.Minute}}},
		{at(8*time.Minute) - 100*time.Millisecond, restart{crash: true, writes: 1, off: 20 * time.Second}},
		{at(20 * time.Minute), restyle{}},
	}},
	{"somebody mutes a clone before it knows that it is one", []step{
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), instanceTrouble{"503", 6 * time.Minute}},
		{at(2*time.Minute + 10*time.Second), restart{crash: true, off: time.Second, clone: true}},
		{at(4 * time.Minute), mute{mutePlan{lasts: 20 * time.Minute}}},
		{at(40 * time.Minute), unlist{reboot.id}},
	}},
	{"somebody mutes a clone, which crashes before it knows that it is one", []step{
		{at(time.Minute), list{event: freeze}},
		{at(2 * time.Minute), instanceTrouble{"503", 9*time.Minute + 20*time.Second}},
		{at(2 * time.Minute), restart{off: 20 * time.Second, clone: true}},
		{at(3 * time.Minute), mute{mutePlan{lasts: 40 * time.Minute}}},
		{at(4 * time.Minute), restart{crash: true, off: 5 * time.Minute}},
		{at(10 * time.Minute), list{event: reboot}},
	}},
	{"a copy is told which VM it is in the moment in which its file comes", []step{
		{at(time.Second), webhook("changes: first, vanished", func(r *routePlan) {
			r.changes = []string{"first", "vanished"}
		})},
		{at(time.Minute), list{event: soon}},
		{at(2 * time.Minute), instanceTrouble{"503", 2*time.Minute + 44*time.Second}},
		{at(2 * time.Minute), restart{crash: true, off: time.Second, clone: true, late: 40 * time.Second}},
		{at(2*time.Minute + 30*time.Second), list{event: begun}}, // whose beginning it has told of
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{"a sink returns, and the only attempt of two changes is of the newer one, when both are too old", []step{
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), reload{routes: []string{"well"}}},
		{at(3 * time.Minute), list{event: moved}},
		{at(4 * time.Minute), list{event: soon}},
		{at(8 * time.Minute), fails("webhook", "is down", 9*time.Minute)},
		{at(8 * time.Minute), webhook("max_age: 2m", func(r *routePlan) { r.maxAge = 2 * time.Minute })},
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{"a sink that waits for its lead no longer hears of updates, and the event may begin at any time", []step{
		{at(time.Second), webhookLeads("latest")},
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), list{event: moved}},
		{at(3 * time.Minute), webhook("changes: first", func(r *routePlan) { r.changes = []string{"first"} })},
		{at(34 * time.Minute), list{event: anytime}}, // so that the announcement is told
		{at(50 * time.Minute), unlist{reboot.id}},
	}},
	{"a sink that waits for its lead no longer hears of updates, of which one waits when that comes", []step{
		{at(time.Second), webhookLeads("drop")},
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), list{event: moved}},
		{at(3 * time.Minute), webhook("changes: first", func(r *routePlan) { r.changes = []string{"first"} })},
		{at(50 * time.Minute), unlist{reboot.id}},
	}},
	{"an event comes back and moves away while a sink with a lead is down, which is to be told that it ended", []step{
		{at(time.Second), webhookLeads("drop")},
		{at(time.Minute), list{event: begun}},
		{at(2 * time.Minute), fails("webhook", "is down", 32*time.Minute)},
		{at(3 * time.Minute), unlist{reboot.id}},
		{at(4 * time.Minute), list{event: reboot}},
		{at(5 * time.Minute), list{event: moved}},
		{at(60 * time.Minute), unlist{reboot.id}},
	}},
	{"the machine crashes just when a lead comes, and the clock is set back", []step{
		{at(time.Second), webhookLeads("send")},
		{at(time.Minute), list{event: reboot}},
		{at(20 * time.Minute), fails("webhook", "is down", 31*time.Minute)},
		{at(29 * time.Minute), restart{crash: true, writes: 2, step: -48 * time.Hour, off: 5 * time.Minute}},
		{at(50 * time.Minute), unlist{reboot.id}},
	}},
	{"the clock is set back after a lead has come, and the event ends before it comes once more", []step{
		{at(time.Second), webhookLeads("send")},
		{at(time.Minute), mute{mutePlan{lasts: 3 * time.Hour}}},
		{at(35 * time.Minute), list{event: reboot}}, // which is due at once
		{at(36 * time.Minute), restart{crash: true, step: -30 * time.Minute, off: 20 * time.Second}},
		{at(40 * time.Minute), unlist{reboot.id}},
	}},
	{"a copy takes over what nobody owned and approves it, and a copy of that is another machine's", []step{
		{0, instanceTrouble{"hangs", 20 * time.Minute}},
		{at(time.Second), withRules(rulePlan{types: []string{"Reboot"}, after: []string{"well"}})},
		{at(10 * time.Second), list{event: reboot}},
		{at(5 * time.Minute), restart{off: time.Minute, clone: true}},
		{at(25 * time.Minute), restart{off: time.Minute, clone: true}},
		{at(30 * time.Minute), unlist{reboot.id}},
	}},
	{"a lead of what acts comes while there is no program, and Azure's first answer after that shows a change", []step{
		{at(time.Second), webhookLeads("drop")},
		{at(time.Minute), list{event: reboot}},
		{at(28 * time.Minute), restart{off: 5 * time.Minute}},
		{at(32*time.Minute + 30*time.Second), endpointTrouble{"500", 34 * time.Minute}},
		{at(33*time.Minute + 20*time.Second), list{event: reworded}},
		{at(38 * time.Minute), restyle{}},
	}},
	{"the clock is set back after an approval that is told later, when another rule has approved the event once more", []step{
		{at(time.Second), withRules(approves("Reboot"))},
		{at(2 * time.Second), webhook("late: send", func(r *routePlan) { r.late = "send" })},
		{at(time.Minute), fails("webhook", "is down", 8*time.Minute)},
		{at(2 * time.Minute), list{event: reboot}},
		{at(5 * time.Minute), restart{crash: true, step: -time.Hour, off: 20 * time.Second}},
		{at(6 * time.Minute), withRules(approves("Freeze"), approves("Reboot"))},
		{at(7 * time.Minute), list{event: moved}},
		{at(20 * time.Minute), restyle{}},
	}},
	{"an empty answer while nobody knows the VM's name hides an event that begins soon", []step{
		{0, instanceTrouble{"503", 40 * time.Second}},
		{at(30 * time.Second), endpointTrouble{"has null for Events", 43 * time.Second}},
		{at(32 * time.Second), list{event: soon}},
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{"a sink comes while the disk hangs, which alone has what is open", []step{
		{at(time.Minute), reload{routes: []string{"webhook"}}},
		{at(2 * time.Minute), list{event: reboot}},
		{at(4 * time.Minute), diskTrouble{"hangs", 8 * time.Minute}},
		{at(5 * time.Minute), reload{}},
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{"a lead comes while there is no program, whose file comes late, and the event is over", []step{
		{at(time.Second), webhookLeads("send")},
		{at(time.Minute), list{event: reboot}},
		{at(5 * time.Minute), restart{crash: true, off: 40 * time.Minute, late: 40*time.Second + 600*time.Millisecond}},
		{at(10 * time.Minute), unlist{reboot.id}},
		{at(50 * time.Minute), restyle{}},
	}},
	{"a copy crashes before its disk has room to say whose it is now, and an event of both machines ends", []step{
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), diskTrouble{"full", 10 * time.Minute}},
		{at(2*time.Minute + 30*time.Second), list{event: freeze.due(10 * time.Minute)}},
		{at(3 * time.Minute), instanceTrouble{"503", 3*time.Minute + 30*time.Second}},
		{at(3 * time.Minute), restart{off: time.Second, clone: true, late: 40 * time.Second}},
		{at(6 * time.Minute), restart{crash: true, off: 10 * time.Minute}},
		{at(15 * time.Minute), unlist{reboot.id}},
		{at(20 * time.Minute), restyle{}},
	}},
	{"a sink goes while a start waits for its VM's name, of which it hears soon that it won't come", []step{
		{0, instanceTrouble{"names nobody", 30 * time.Minute}},
		{at(10 * time.Second), restart{off: 20 * time.Second}},
		{at(20 * time.Second), list{event: anytime}},
		{at(31 * time.Second), reload{routes: []string{"well"}}},
		{at(20 * time.Minute), restyle{}},
	}},
	{"a sink with a lead is away while an event moves, and returns when its lead has come", []step{
		{at(time.Second), webhookLeads("latest")},
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), reload{routes: []string{"well"}}},
		{at(3 * time.Minute), list{event: anytime}},
		{at(4 * time.Minute), list{event: soon}},
		{at(5 * time.Minute), reload{}},
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{"what began is listed as scheduled again, and ends before a file comes that knows that it began", []step{
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), list{event: begun}},
		{at(3 * time.Minute), list{event: moved}},
		{at(4 * time.Minute), restart{off: time.Second, late: 6 * time.Minute}},
		{at(7 * time.Minute), unlist{reboot.id}},
		{at(20 * time.Minute), restyle{}},
	}},
	{"somebody replays to a sink what it has taken, while a rule waits after that", []step{
		{at(time.Second), withRules(rulePlan{types: []string{"Reboot"}, after: []string{"webhook"}, wait: 30 * time.Second})},
		{at(50 * time.Second), fails("well", "rejects", 2*time.Minute)},
		{at(time.Minute), list{event: reboot}},
		{at(time.Minute + 15*time.Second), replay{to: "webhook"}},
		{at(20 * time.Minute), restyle{}},
	}},
	{"somebody mutes while the disk hangs", []step{
		{at(time.Minute), diskTrouble{"hangs", 2 * time.Minute}},
		{at(time.Minute + time.Second), mute{mutePlan{lasts: 7 * time.Minute}}},
		{at(2 * time.Minute), list{event: reboot}},
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{"a sink took an event of a machine and is down for its copy, which approves by the next rule", []step{
		{at(time.Second), reload{rules: []rulePlan{
			{types: []string{"Reboot"}, after: []string{"webhook"}, wait: 2 * time.Minute},
			{types: []string{"Reboot"}, wait: 5 * time.Minute},
		}}},
		{at(time.Minute), list{event: reboot}},
		{at(90 * time.Second), fails("webhook", "is down", 15*time.Minute)},
		{at(2 * time.Minute), restart{off: time.Second, clone: true}},
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{"the clock is set back after a reminder, and the event changes before its time comes again", []step{
		{at(time.Second), webhookReminds()},
		{at(time.Minute), list{event: reboot}},
		{at(26 * time.Minute), restart{step: -30 * time.Minute, off: time.Second}},
		{at(30 * time.Minute), list{event: reworded}},
		{at(60 * time.Minute), restyle{}},
	}},
	{"a reminder says no more than the announcement, by a clock that is set back then, and the event changes", []step{
		{at(time.Second), webhookReminds()},
		{at(30 * time.Minute), list{event: reboot}},
		{at(32 * time.Minute), restart{step: -time.Hour, off: time.Second}},
		{at(40 * time.Minute), list{event: reworded}},
		{at(2 * time.Hour), restyle{}},
	}},
	{"the machine crashes just after people were told what waited for a mute", []step{
		{at(time.Second), webhook("above: 5", func(r *routePlan) { r.above = 5 })},
		{at(time.Minute), mute{mutePlan{lasts: 7 * time.Minute}}},
		{at(2 * time.Minute), list{event: reboot}},
		{at(7 * time.Minute), restart{crash: true, taken: 1, burns: 30 * time.Millisecond, off: time.Second}},
		{at(20 * time.Minute), unlist{reboot.id}},
	}},
	{"somebody replays to a fallback what is older than what it took for another sink", []step{
		{at(30 * time.Second), fails("webhook", "rejects", 90*time.Second)},
		{at(time.Minute), list{event: reboot}},
		{at(2 * time.Minute), fails("webhook", "is down", 20*time.Minute)},
		{at(3 * time.Minute), list{event: begun}},
		{at(8 * time.Minute), replay{to: "second"}},
		{at(30 * time.Minute), unlist{reboot.id}},
	}},
	{"a reminder waits when the clock is set back, by which the event begins before that", []step{
		{at(time.Second), webhookReminds()},
		{at(time.Minute), list{event: reboot}},
		{at(24 * time.Minute), fails("webhook", "panics", 45*time.Minute)},
		{at(27 * time.Minute), restart{crash: true, step: -48 * time.Hour, off: time.Second}},
		{at(35 * time.Minute), list{event: begun}},
		{at(60 * time.Minute), unlist{reboot.id}},
	}},
	{"an event takes place while the program is off, is listed again, and the endpoint says that there is nothing", []step{
		{at(time.Minute), restart{off: 30 * time.Minute}},
		{at(2 * time.Minute), list{event: begun}},
		{at(10 * time.Minute), unlist{reboot.id}},
		{at(20 * time.Minute), list{event: reboot.due(90 * time.Minute)}},
		{at(40 * time.Minute), endpointTrouble{"is empty", 45 * time.Minute}},
		{at(50 * time.Minute), restyle{}},
	}},
	{"a start waits for its VM's name, and the first of two urgent events finds a sink that asks to wait", []step{
		{at(time.Minute), instanceTrouble{"503", 30 * time.Minute}},
		{at(2 * time.Minute), restart{crash: true, off: 10 * time.Minute}},
		{at(3 * time.Minute), list{event: freeze.due(15 * time.Minute)}},
		{at(4 * time.Minute), list{event: reboot.due(15 * time.Minute)}},
		{at(5 * time.Minute), fails("webhook", "asks to wait", 12*time.Minute+30*time.Second)},
		{at(40 * time.Minute), unlist{reboot.id}},
	}},
	{"the machine crashes before it is written that a sink came, whose filter refuses what the event is before the file comes", []step{
		{at(time.Second), reload{routes: []string{"well", "webhook"}, changes: []routeChange{
			{"second", "when: notice > 600", func(r *routePlan) { r.types, r.when = nil, conditions[1] }},
		}}},
		{at(time.Minute), list{event: reboot}},
		{at(32 * time.Minute), restart{crash: true, writes: 1, sooner: true, off: time.Second, late: 6 * time.Minute}},
		{at(32*time.Minute + 100*time.Millisecond), reload{}},
		{at(60 * time.Minute), unlist{reboot.id}},
	}},
	{"a sink that was left out returns with a lead, and all ends before that comes", []step{
		{at(time.Second), reload{routes: []string{"webhook"}}},
		{at(time.Minute), list{event: freeze.due(60 * time.Minute)}},
		{at(2 * time.Minute), reload{changes: []routeChange{
			{"second", "lead: 10m", func(r *routePlan) { r.lead = 10 * time.Minute }},
		}}},
		{at(20 * time.Minute), list{event: reboot}},
	}},
	{"an event is gone, comes back, and its lead comes while the program is off", []step{
		{at(time.Second), reload{changes: []routeChange{
			{"webhook", "lead: 10m, late: drop", func(r *routePlan) { r.lead, r.late, r.acts = 10*time.Minute, "drop", true }},
		}}},
		{at(time.Minute), fails("webhook", "asks to wait", 25*time.Minute)},
		{at(2 * time.Minute), list{event: reboot.due(20 * time.Minute)}},
		{at(3 * time.Minute), endpointTrouble{"has null for Events", 3*time.Minute + 12*time.Second}},
		{at(5 * time.Minute), restart{off: 7 * time.Minute}},
		{at(18 * time.Minute), unlist{reboot.id}},
	}},
	{"what acts fails while the disk hangs, so that this is on record only later", []step{
		{at(time.Second), reload{changes: []routeChange{
			{"webhook", "durable, timeout: 30s", func(r *routePlan) { r.sync, r.timeout = true, 30*time.Second }},
		}}},
		{at(10 * time.Minute), fails("webhook", "hangs", 35*time.Minute)},
		{at(12 * time.Minute), list{event: reboot}},
		{at(12*time.Minute + 24*time.Second), diskTrouble{"hangs", 14 * time.Minute}},
		{at(15 * time.Minute), list{event: freeze}},
	}},
}

// Nothing is found in them any more, however often the program polls.
func TestKnownStories(t *testing.T) {
	for _, k := range knownStories {
		for _, interval := range []time.Duration{time.Second, 3 * time.Second} {
			t.Run(k.claim, func(t *testing.T) {
				t.Parallel()
				p := planWith(k.story)
				p.interval, p.routes[0].bridge, p.routes[1].late = interval, "all", "latest"
				if found := play(t, p, variant{}, quiet()); len(found) > 0 {
					t.Errorf("polls every %v, found:%s", interval, describe(found))
				}
			})
		}
	}
}
