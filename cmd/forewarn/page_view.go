package main

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
	"forewarn/templates"
)

// pageFacts are what the page shows, as it is known at one moment.
type pageFacts struct {
	Status    bridge.Status
	Lives     []bridge.Life     // of at least the last 30 days, the oldest first
	MoreLives bool              // there are more, which are older
	Dead      []outbox.Delivery // the newest dead letters, the oldest of them first
	MoreDead  int               // dead letters that are older
	Err       error             // why lives are not known
}

// pageView is the page in words and times, ready for its template.
type pageView struct {
	Live  bool // a script fills in the times that pass
	Build string
	Title string
	Name  string // of the VM
	Place string
	Now   moment
	Ready bool
	Needs string // in a few words, how many troubles there are; "" for none
	Lost  string // how many dead letters; "" for none
	Plans string // in one line, what Azure announces; "" when that is not known

	Troubles  []troubleView
	Dead      []deadView
	MoreDead  int // dead letters that Dead leaves out
	Events    []eventView
	More      int    // events that Events leaves out
	Note      string // why there are none, or how old they are
	Timeline  timelineView
	Sinks     []sinkView
	MoreSinks int // sinks that Sinks leaves out
	Started   moment
	Version   string
	Endpoint  string
	Answering string
	Outbox    string
	Settings  string
	Loaded    moment
}

// A moment is a time for people and machines.
type moment struct {
	Machine string // RFC 3339, "" for no time
	Text    string
}

// A passing is a time from now that the script counts; without one it stands as it was when the page was made.
type passing struct {
	Until, Since int64 // Unix milliseconds; one of them is set, or none
	Text         string
}

// A troubleView is something that somebody should see to.
type troubleView struct {
	What string
	Do   []piece
}

// A piece is a part of a text, a command or not.
type piece struct {
	Text    string
	Command bool
}

// A deadView is a dead letter.
type deadView struct {
	Key, What, Why string
	Since          moment
}

// An eventView is an event that is not over.
type eventView struct {
	ID, ShortID, Class, Headline, State string

	Begun   bool
	Count   passing // to NotBefore, or since it began
	When    moment
	NoTime  string // what is said when there is no NotBefore
	Why     string
	Effect  string
	HowLong string
	VMs     []vmView
	MoreVMs int
	YouCan  string
	Command string // that has it at once; "" for none
	Cannot  string
	// Approval is what came of approving it, or why it is not approved; "" without rules.
	Approval string
	Seen     moment
}

// A vmView is a machine that an event hits.
type vmView struct {
	Name string
	Self bool
}

// A sinkView is one sink.
type sinkView struct {
	Name, Kind, Class, State, Error string

	Pending     int
	Oldest      passing
	Delivered   int
	DeadLetters int
	Accepted    moment
	Next        passing
}

// How much the page shows of lists that may be long.
const (
	shownDead   = 10
	shownEvents = 50
	shownSinks  = 200
)

// A pageWriter turns facts into words: those that all other texts use too.
type pageWriter struct {
	now  time.Time
	zone *time.Location
	live bool
}

// view is the page that shows f.
func (p pageWriter) view(f pageFacts) pageView {
	s := f.Status
	v := pageView{
		Live: p.live, Name: p.name(s.Observer.Name), Now: p.moment(p.now), Version: wording.Printable(s.Version), Started: p.moment(s.StartedAt),
		Endpoint: wording.Printable(s.IMDS.Endpoint) + ", api-version " + wording.Printable(s.IMDS.APIVersion),
		Outbox:   fmt.Sprintf("%d KiB", s.Outbox.Bytes>>10), Settings: wording.Printable(s.Settings.Hash), Loaded: p.moment(s.Settings.LoadedAt),
	}
	var place []string
	for _, part := range []string{s.Observer.ResourceGroup, s.Observer.ScaleSet, s.Observer.Location} {
		if part != "" {
			place = append(place, wording.Printable(part))
		}
	}
	v.Place = strings.Join(place, " · ")
	v.Answering = "Azure answers"
	switch {
	case s.IMDS.LastAnswer.IsZero():
		v.Answering = "Azure has not answered yet"
	case s.IMDS.LastError != "":
		v.Answering = "Azure does not answer; it did last at " + p.moment(s.IMDS.LastAnswer).Text
	}
	v.Troubles = p.troubles(f)
	for _, e := range slices.Backward(f.Dead) { // the newest first
		v.Dead = append(v.Dead, p.dead(e))
	}
	v.Dead = wording.First(v.Dead, shownDead)
	v.MoreDead = f.MoreDead + len(f.Dead) - len(v.Dead)
	for _, e := range wording.First(wording.ByUrgency(s.Events), shownEvents) {
		v.Events = append(v.Events, p.event(e, s.Observer, f.Lives))
	}
	slices.SortStableFunc(v.Events, func(a, b eventView) int { // what has begun first, then the nearest
		return cmp.Or(-cmp.Compare(truth(a.Begun), truth(b.Begun)), cmp.Compare(soon(a), soon(b)))
	})
	v.More = len(s.Events) - len(v.Events)
	v.Note = p.note(s)
	v.Timeline = p.timeline(f)
	for _, k := range wording.First(wording.ByNeed(s.Sinks, p.now), shownSinks) {
		v.Sinks = append(v.Sinks, p.sink(k))
	}
	v.MoreSinks = len(s.Sinks) - len(v.Sinks)
	v.Ready, v.Plans = s.Ready, p.plans(s)
	if n := len(v.Troubles); n > 0 {
		v.Needs = wording.Plural(n, "thing needs you", "things need you")
	}
	if n := len(f.Dead) + f.MoreDead; n > 0 {
		v.Lost = wording.Plural(n, "message was given up", "messages were given up")
	}
	v.Title = v.Name + " · forewarn"
	if n := len(s.Events); n > 0 {
		v.Title = wording.Plural(n, "event", "events") + " · " + v.Title
	}
	if len(v.Troubles)+len(v.Dead) > 0 {
		v.Title = "needs you · " + v.Title
	}
	return v
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// soon is when an event is due; one without a time comes last.
func soon(e eventView) string { return cmp.Or(e.When.Machine, "~") }

func (p pageWriter) name(vm string) string {
	return cmp.Or(wording.Printable(vm), "This VM")
}

// plans says in one line what Azure announces, or did when it last answered, and when the next of it is due.
func (p pageWriter) plans(s bridge.Status) string {
	text := "Azure announces "
	switch {
	case s.IMDS.LastAnswer.IsZero() && len(s.Events) == 0:
		return ""
	case s.IMDS.LastAnswer.IsZero():
		text = "Azure has not answered yet; it had announced "
	case s.IMDS.LastError != "":
		text = "Azure does not answer; it had announced "
	}
	if len(s.Events) == 0 {
		return text + "nothing."
	}
	var next time.Time
	for _, e := range s.Events {
		if e.NotBefore.After(p.now) && (next.IsZero() || e.NotBefore.Before(next)) {
			next = e.NotBefore
		}
	}
	text += wording.Plural(len(s.Events), "event", "events")
	switch {
	case next.IsZero():
	case len(s.Events) == 1:
		text += ", for " + p.moment(next).Text
	default:
		text += ", the next for " + p.moment(next).Text
	}
	return text + "."
}

// note says why no event is shown, or of when those are: that there is none is known only from an answer.
func (p pageWriter) note(s bridge.Status) string {
	switch last := p.moment(s.IMDS.LastAnswer).Text; {
	case s.IMDS.LastAnswer.IsZero() && len(s.Events) > 0:
		return "Azure has not answered yet. This is what it announced before forewarn started."
	case s.IMDS.LastAnswer.IsZero():
		return "Azure has not answered yet, so nothing is known of its plans."
	case s.IMDS.LastError != "" && len(s.Events) > 0:
		return "Azure does not answer. This is what it announced when it last did, at " + last + "."
	case s.IMDS.LastError != "":
		return "Azure does not answer. When it last did, at " + last + ", it announced nothing for this VM."
	case len(s.Events) == 0:
		return "Azure announces nothing for this VM."
	}
	return ""
}

// troubles are what somebody should see to, the worst first. Dead letters are shown apart.
func (p pageWriter) troubles(f pageFacts) []troubleView {
	s := f.Status
	var all []troubleView
	add := func(what, do string) { all = append(all, troubleView{What: what, Do: prose(do)}) }
	for _, reason := range s.Reasons {
		if slices.ContainsFunc(s.Sinks, func(k bridge.SinkStatus) bool { return k.Refusal() == reason }) {
			continue // said below, with what to do
		}
		add("Not ready: "+wording.Printable(reason)+".", "Until this is over, maintenance of this VM may go untold. More in forewarn's log.")
	}
	for _, warning := range s.Warnings {
		add("Warning: "+wording.Printable(warning)+".", "Maintenance of this VM is told all the same. More in forewarn's log.")
	}
	if s.Settings.LastError != "" {
		add("The newest settings were refused; older ones are in force.", wording.Printable(s.Settings.LastError))
	}
	if n := len(s.IMDS.Problems); n > 0 {
		add(wording.Plural(n, "thing in Azure's document was", "things in Azure's document were")+" not understood.",
			wording.Printable(s.IMDS.Problems[0])+". What was understood is told. See it all with `sudo forewarn events`.")
	}
	for _, k := range s.Sinks {
		switch {
		case wording.NeedsSomebody(k, p.now):
			about := map[string]any{
				"type": cloudevent.SinkBlocked, "observer": s.Observer.Name,
				"data": map[string]any{"sink": k.Name, "kind": k.Kind, "pending": k.Pending, "error": k.LastError},
			}
			add(capital(p.say("destination", about))+" needs you.", p.say("advice", about))
		case k.State == bridge.SinkOrphaned && k.Pending > 0:
			add("The sink "+wording.Printable(k.Name)+" is gone from the settings, and "+wording.Plural(k.Pending, "message is", "messages are")+" still owed to it.",
				"They are kept for 24 hours, and sent if it returns under its name; then they are given up.")
		}
	}
	if f.Err != nil {
		add("The history cannot be read: "+wording.Printable(f.Err.Error())+".", "What is announced and who is told of it does not depend on it.")
	}
	return all
}

// say is one of the words of package templates.
func (p pageWriter) say(define string, fields map[string]any) string {
	fields["zone"], fields["now"] = p.zone.String(), p.now.UTC().Format(time.RFC3339)
	var b bytes.Buffer
	if err := templates.Say(&b, define, fields); err != nil {
		return "(" + define + " cannot be said)"
	}
	return b.String()
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// event is an event that is not over.
func (p pageWriter) event(e bridge.EventStatus, o imds.Observer, lives []bridge.Life) eventView {
	azure, err := imds.UnmarshalEvent(e.Event)
	if err != nil { // it was understood when it was stored
		return eventView{Headline: "An event that cannot be read"}
	}
	var seen, begun time.Time // unknown while the history is
	var approval string
	if i := slices.IndexFunc(lives, func(l bridge.Life) bool { return l.Event == azure.ID }); i >= 0 {
		l := story(lives[i])
		seen, begun = l.announced, l.begun
		for _, c := range lives[i].Changes {
			if c.Approval != nil {
				approval = capital(wording.ApprovalWords(*c.Approval)) + ", " + p.moment(c.Time).Text + "."
			}
		}
	}
	change := imds.Change{Kind: imds.Scheduled, Event: azure}
	if azure.Status == wording.Started {
		change.Kind = imds.Started
	}
	ce, _ := cloudevent.Wrap(change, cloudevent.Circumstances{Observer: o, Time: p.now}) // what is not valid in it is shown all the same
	f := sinks.MessageFields(delivery.Delivery{Event: ce, Attempt: 1}, p.zone, p.now)

	v := eventView{
		ID: azure.ID, ShortID: p.say("shortID", f), Class: typeClass(azure.Type), Headline: p.say("fact", f), State: "Announced",
		When: p.moment(e.NotBefore), Why: p.say("why", f), Effect: p.say("effect", f), HowLong: p.say("howLong", f), Approval: approval, Seen: p.moment(seen),
	}
	if approval == "" && e.Approval != "" && azure.Status != wording.Started {
		v.Approval = "Not approved: " + wording.Printable(e.Approval) + "."
	}
	switch {
	case azure.Status == wording.Started:
		v.Begun, v.State = true, "Has begun"
		v.Headline = p.say("who", f) + ": " + p.say("what", f) + " has begun"
		v.When = p.moment(begun)
		v.Count = p.since(begun)
	case e.NotBefore.IsZero():
		v.NoTime = "Azure does not say when."
	default:
		v.Count = p.until(e.NotBefore)
	}
	for _, name := range azure.Resources { // this VM first, so that it is never one of those left out
		vm := vmView{Name: wording.Printable(name), Self: imds.Event{Resources: []string{name}}.Affects(o.Name)}
		if vm.Self {
			v.VMs = slices.Insert(v.VMs, 0, vm)
		} else {
			v.VMs = append(v.VMs, vm)
		}
	}
	v.MoreVMs = max(0, len(v.VMs)-wording.ShownVMs)
	v.VMs = v.VMs[:len(v.VMs)-v.MoreVMs]
	if !v.Begun {
		if v.YouCan = p.say("youCan", f); v.YouCan != "" {
			v.Command, v.Cannot = p.say("approval", f), p.say("cannot", f)
		} else if v.Class == "preempt" {
			v.YouCan = "Nothing can stop it."
		}
	}
	return v
}

// sink is one sink in words.
func (p pageWriter) sink(k bridge.SinkStatus) sinkView {
	state, class := wording.SinkState(k, p.now)
	v := sinkView{
		Name: wording.Printable(k.Name), Kind: wording.Printable(k.Kind), Class: class, State: capital(state), Error: wording.ErrorWords(k.LastError), Pending: k.Pending,
		Delivered: k.Delivered, DeadLetters: k.DeadLetters, Accepted: p.moment(k.LastAccepted),
	}
	v.Oldest = p.since(k.OldestPending)
	if !k.NextAttempt.IsZero() && k.LastError != "" {
		v.Next = p.until(k.NextAttempt)
	}
	return v
}

// dead is one dead letter in words.
func (p pageWriter) dead(e outbox.Delivery) deadView {
	v := deadView{Key: wording.Printable(e.Key), Since: p.moment(e.DeadSince)}
	v.What = wording.Printable(strings.TrimPrefix(e.Type, cloudevent.BridgePrefix)) + ", about forewarn itself"
	if e.Group != "" {
		v.What = fmt.Sprintf("%s %s (event %.8s)", cmp.Or(wording.Printable(e.AzureType), "Event"), changeWord(imds.ChangeKind(e.Change), ""), e.Group)
	}
	v.Why = map[string]string{
		delivery.ReasonRejected: "refused by the destination", delivery.ReasonExpired: "too old", delivery.ReasonLate: "overtaken by a newer change",
		delivery.ReasonOverflow: "too much was waiting", delivery.ReasonRemoved: "the sink is gone from the settings",
		delivery.ReasonLost: "its text can no longer be read",
	}[e.Reason]
	v.Why = cmp.Or(v.Why, wording.Printable(e.Reason))
	if e.Error != "" {
		v.Why += ": " + wording.ErrorWords(e.Error)
	}
	return v
}

// prose is a text with commands between backticks.
func prose(s string) []piece {
	var all []piece
	for i, part := range strings.Split(s, "`") {
		if part != "" {
			all = append(all, piece{part, i%2 == 1})
		}
	}
	return all
}

// changeWord says a change in a word.
func changeWord(c imds.ChangeKind, o cloudevent.Outcome) string {
	switch c {
	case imds.Scheduled:
		return "announced"
	case imds.Updated:
		return "changed"
	case imds.Started:
		return "begun"
	case imds.Vanished:
		switch o {
		case cloudevent.OutcomeCompleted:
			return "over"
		case cloudevent.OutcomeCanceled:
			return "cancelled"
		}
		return "no longer listed"
	}
	return wording.Printable(string(c))
}

// typeClass is the class that a type of event is drawn with.
func typeClass(typ string) string {
	switch typ = strings.ToLower(typ); typ {
	case "reboot", "redeploy", "freeze", "preempt", "terminate":
		return typ
	}
	return "other"
}

// moment is a time in the zone of the settings and in UTC, with its day if that is not today.
func (p pageWriter) moment(t time.Time) moment {
	if t.IsZero() {
		return moment{}
	}
	text, utc := bridge.ClockTime(t, p.now, p.zone), t.UTC()
	if _, offset := t.In(p.zone).Zone(); offset != 0 {
		text += utc.Format(" (15:04:05 UTC)")
	}
	return moment{Machine: utc.Format(time.RFC3339), Text: text}
}

// until counts down to t.
func (p pageWriter) until(t time.Time) passing {
	if t.IsZero() {
		return passing{}
	}
	c := passing{Until: t.UnixMilli()}
	switch left := t.Sub(p.now).Round(time.Second); {
	case p.live:
	case left <= 0:
		c.Text = "due now"
	default:
		c.Text = "in " + wording.Span(left)
	}
	return c
}

// since says how long ago t was.
func (p pageWriter) since(t time.Time) passing {
	if t.IsZero() {
		return passing{}
	}
	c := passing{Since: t.UnixMilli()}
	if !p.live {
		c.Text = wording.Ago(p.now, t) + " ago"
	}
	return c
}

// A lifeStory is when a life's turns came, as far as they are known.
type lifeStory struct {
	announced, begun, over time.Time
	told                   []string // sinks that accepted at least one change
	observer               string
	whileAway              bool // its last change was found late
}

func story(l bridge.Life) lifeStory {
	var s lifeStory
	for i, c := range l.Changes {
		if i == 0 {
			s.announced = c.Time
		}
		s.observer, s.whileAway = cmp.Or(c.Observer, s.observer), c.WhileAway
		switch c.Change {
		case imds.Started:
			s.begun, s.over = c.Time, time.Time{}
		case imds.Vanished:
			s.over = c.Time
		default:
			s.over = time.Time{} // it came back
		}
		for _, d := range c.Deliveries {
			if d.State == "accepted" && !slices.Contains(s.told, d.Sink) {
				s.told = append(s.told, d.Sink)
			}
		}
	}
	return s
}
