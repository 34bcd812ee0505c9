package bridge_test

import (
	"fmt"
	"time"
)

// The words in which stories are told: what Azure lists, and what happens to the sinks and settings of planWith.

// What stories are about.
var (
	reboot = azureEvent{
		id: "A0000000-0000-4000-8000-000000000001", status: "Scheduled", kind: "Reboot", source: "Platform",
		text: "maintenance", machines: "vm-0", notBefore: 40 * time.Minute, seconds: -1,
	}
	moved    = reboot.due(50 * time.Minute)
	soon     = reboot.due(10 * time.Minute)
	anytime  = reboot.due(-1)
	begun    = anytime.but(func(e *azureEvent) { e.status = "Started" })
	reworded = reboot.but(func(e *azureEvent) { e.text = "moved" })
	asked    = reboot.but(func(e *azureEvent) { e.source = "User" })
	others   = reboot.but(func(e *azureEvent) { e.machines = "vm-1" })
	freeze   = reboot.but(func(e *azureEvent) { e.id, e.kind = "A0000000-0000-4000-8000-000000000002", "Freeze" })
)

func (e azureEvent) but(change func(e *azureEvent)) azureEvent {
	change(&e)
	return e
}

func (e azureEvent) due(at time.Duration) azureEvent {
	e.notBefore = at
	return e
}

// later returns one of many events that leave much time.
func later(n int) azureEvent {
	e := reboot.due(3 * time.Hour)
	e.id = fmt.Sprintf("A0000000-0000-4000-8000-1%011d", n)
	return e
}

// lists has Azure list so many of them.
func lists(at time.Duration, n int) (steps []step) {
	for i := range n {
		steps = append(steps, step{at, list{event: later(i + 100)}})
	}
	return steps
}

// at returns a time at which no poll is made.
func at(d time.Duration) time.Duration { return d + 137*time.Millisecond }

// planWith returns a plan of which all but its steps is plain.
func planWith(story []step) plan {
	route := func(name string) routePlan {
		return routePlan{name: name, vms: "all", late: "send", timeout: 10 * time.Second, bridge: "none"}
	}
	webhook, second := route("webhook"), route("second")
	webhook.fallback, webhook.after = "second", 2*time.Minute
	second.types = []string{"Freeze"} // so that it hears nothing else by itself
	return plan{
		seed: 1, interval: time.Second, routes: []routePlan{route("well"), webhook, second}, steps: story,
		length: story[len(story)-1].at,
	}
}

// fails has all that a sink is told fail.
func fails(sink, how string, until time.Duration) sinkTrouble {
	return sinkTrouble{sink: sink, how: how, end: until, share: 100}
}

// webhook has an operator set that sink up in another way.
func webhook(what string, apply func(r *routePlan)) reload {
	return reload{changes: []routeChange{{"webhook", what, apply}}}
}

func webhookLeads(late string) reload {
	return webhook("lead: 10m, late: "+late, func(r *routePlan) { r.lead, r.late = 10*time.Minute, late })
}

func webhookReminds() reload {
	return webhook("remind: 15m", func(r *routePlan) { r.remind = []time.Duration{15 * time.Minute} })
}

// withRules has an operator set up these rules of approval.
func withRules(rules ...rulePlan) reload { return reload{rules: rules} }

func approves(types ...string) rulePlan { return rulePlan{types: types} }

// An event is listed of which a route wants to be reminded.
var remindedStory = []step{
	{at(time.Minute), webhook("late: latest", func(r *routePlan) { r.late = "latest" })},
	{at(time.Minute), webhookReminds()},
	{at(2 * time.Minute), list{event: reboot}},
	{at(50 * time.Minute), unlist{reboot.id}},
}

// Instance metadata has no answer at the first start. An event of another VM is far ahead when it is listed, and begins
// within the minute in which the program waits for its VM's name.
var namelessStory = []step{
	{0, instanceTrouble{"503", 20 * time.Minute}},
	{at(time.Second), webhook("vms: self", func(r *routePlan) { r.vms = "self" })},
	{at(10 * time.Second), list{event: others}},
	{at(30 * time.Second), list{event: others.due(5 * time.Minute)}},
	{at(10 * time.Minute), unlist{reboot.id}},
	{at(30 * time.Minute), restyle{}},
}

// inDoubt is a story in which a rule would approve an event, had documents not left a doubt.
func inDoubt(how string) []step {
	rule := rulePlan{types: []string{"Reboot"}, sources: []string{"User"}, wait: 30 * time.Second}
	return []step{
		{at(time.Second), withRules(rule)},
		{at(time.Minute), list{event: asked}},
		{at(time.Minute + 10*time.Second), doubt{how, 10 * time.Minute}},
		{at(9 * time.Minute), unlist{reboot.id}},
		{at(20 * time.Minute), restyle{}},
	}
}
