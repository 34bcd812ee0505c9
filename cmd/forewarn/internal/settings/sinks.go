package settings

import (
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/sinks"
)

// sinkSettings are the keys that a sink may have beside the one of its kind.
type sinkSettings struct {
	Name    string        `yaml:"name" doc:"a name of its own; pending deliveries belong to it"`
	Only    bridge.Match  `yaml:"only" doc:"what the sink gets"`
	Except  bridge.Match  `yaml:"except" doc:"what the sink does not get"`
	When    string        `yaml:"when" doc:"an expression that must be true, such as severity >= 17 and notice < 600"`
	Bridge  string        `yaml:"bridge" doc:"which CloudEvents about forewarn itself it gets"`
	Timeout time.Duration `yaml:"timeout" doc:"time limit of one attempt"`
	MaxAge  time.Duration `yaml:"max_age" doc:"age at which a pending delivery becomes a dead letter; 0 is never"`
	Late    string        `yaml:"late" doc:"what happens to a change that a newer one has overtaken"`
	Group   groupSettings `yaml:"group" doc:"many events of one type become one message"`

	Remind    []time.Duration  `yaml:"remind" doc:"reminders, so long before an event begins"`
	Lead      time.Duration    `yaml:"lead" doc:"hold scheduled and updated back until so long before the event (default: don't)"`
	Fallback  fallbackSettings `yaml:"fallback" doc:"another sink that gets what this one can't deliver"`
	Heartbeat time.Duration    `yaml:"heartbeat" doc:"send a heartbeat this often while all is well (default: never)"`
}

// fallbackSettings name another sink; see delivery.Fallback.
type fallbackSettings struct {
	Sink  string        `yaml:"sink" doc:"name of the other sink"`
	After time.Duration `yaml:"after" default:"1m" doc:"how long this sink may try first"`
}

func (s sinkSettings) lateness() delivery.Late { return delivery.Late(strings.ToLower(s.Late)) }

// groupSettings say when messages about many events become one; see delivery.Digest.
type groupSettings struct {
	Above  int           `yaml:"above" doc:"more events of one type than this make a group; 0 makes none"`
	Within time.Duration `yaml:"within" doc:"time in which they come, at most 1m"`
}

// sinkNames are the names of the sinks, as far as they have one.
func sinkNames(doc *document) (names []string) {
	list, ok := doc.root.find("sinks")
	if !ok {
		return nil
	}
	for _, n := range list.value.items {
		if name, ok := n.find("name"); ok && name.value.text != "" {
			names = append(names, name.value.text)
		}
	}
	return names
}

// routes builds the sinks in their order, without those that are wrong.
func (l Loader) routes(doc *document, s *Settings) (routes []bridge.Route) {
	list, ok := doc.root.find("sinks")
	if !ok || list.value.kind == nothing {
		doc.report(doc.errorAt(list.pos, "no sinks, so nobody would be told; expected at least one below the key sinks, "+
			"or sinks: [] if the status page and the metrics are enough"))
		return nil
	}
	if list.value.kind != aList {
		doc.report(doc.wrongKind(list.value, "sinks", aList))
		return nil
	}
	lines := make(map[string]int) // in which a name stands
	for _, n := range list.value.items {
		if r, ok := l.route(doc, n, s); ok {
			routes = append(routes, r)
		}
		name, given := n.find("name")
		if line := lines[name.value.text]; given && line > 0 {
			doc.report(doc.errorAt(name.value.pos, "name: taken by the sink in line %d; expected a name of its own", line))
		} else if given && name.value.text != "" {
			lines[name.value.text] = name.line
		}
		doc.report(checkFallback(doc, n, s.Names))
	}
	return routes
}

// route builds one sink; ok says whether it could. What is wrong with it is reported.
func (l Loader) route(doc *document, n *node, s *Settings) (r bridge.Route, ok bool) {
	if n.kind != aTable {
		doc.report(doc.wrongKind(n, "a sink", aTable))
		return r, false
	}
	before := len(doc.problems)
	known := slices.Sorted(maps.Keys(l.Kinds))
	found := slices.DeleteFunc(slices.Clone(n.entries), func(e entry) bool { return !slices.Contains(known, e.key) })
	if len(found) == 0 { // nothing to build, but something else may be wrong
		found = []entry{{}}
	}
	section, kind := found[0], l.Kinds[found[0].key]
	terms := termsOf(kind)
	in := sinkSettings{Timeout: terms.Timeout, MaxAge: terms.MaxAge, Bridge: string(terms.Bridge), Late: string(terms.Late),
		Group: groupSettings(terms.Digest), Remind: terms.Remind, Fallback: fallbackSettings{After: time.Minute}}
	doc.report(checkValues(doc, n))
	misspelt := len(doc.problems)
	doc.report(doc.decode(n, &in, "", known...))
	name, _ := n.find("name")
	switch {
	case in.Name == "":
		if doc.sound(name) || name.value == n {
			doc.report(doc.errorAt(name.pos, "a sink without a name; expected one such as name: ops-chat"))
		}
	case !sinkName.MatchString(in.Name):
		doc.report(doc.refuse(name.value, "name", "only letters, digits, dots, dashes and underscores"))
	}
	switch {
	case kind.Open == nil:
		if len(doc.problems) == misspelt { // else the key of its kind may be what is misspelt
			doc.report(doc.errorAt(n.pos, "a sink without a destination; expected one of the keys %s", strings.Join(known, ", ")))
		}
		return r, false
	case len(found) > 1:
		doc.report(doc.errorAt(found[1].pos, "%s is a second destination in one sink, after %s in line %d; expected a sink for each",
			found[1].key, section.key, section.line))
	}
	if e, ok := n.find("timeout"); ok && in.Timeout == 0 {
		doc.report(doc.refuse(e.value, "timeout", "more than 0"))
	}
	doc.report(checkGroup(doc, n, in, section.key, terms), checkTimes(doc, n, in))
	r.Name, r.Kind, r.Terms = in.Name, section.key, terms
	r.Terms.Timeout, r.Terms.MaxAge = in.Timeout, in.MaxAge
	r.Terms.Bridge, r.Terms.Late = bridge.Level(strings.ToLower(in.Bridge)), in.lateness()
	r.Terms.Remind, r.Terms.Lead, r.Terms.Heartbeat = in.Remind, in.Lead, in.Heartbeat
	if in.Fallback.Sink != "" {
		r.Terms.Fallback = delivery.Fallback(in.Fallback)
	}
	r.Terms.Digest = delivery.Digest(in.Group)
	if r.Terms.Late != delivery.LateLatest {
		r.Terms.Digest = delivery.Digest{}
	}
	r.Filter.Only, r.Filter.Except = in.Only, in.Except
	if when, ok := n.find("when"); ok {
		var err error
		r.Filter.When, err = parseWhen(doc, when.value)
		doc.report(err)
	}
	opened := l.open(doc, section, kind, s, in.Name)
	if len(doc.problems) > before {
		return r, false
	}
	r.Sink, r.Secrets = opened.Sink, opened.Secrets
	for _, key := range writtenSecrets(section.value) {
		s.Written = append(s.Written, r.Name+"."+key)
	}
	if opened.Parallel > 0 {
		r.Terms.Parallel = opened.Parallel
	}
	if terms.Acts && len(in.Only.Changes) == 0 {
		s.Notes = append(s.Notes, r.Name+": without only.changes it runs for every change of an event; only: {changes: [first]} is once")
	}
	if opened.Incident {
		s.Incidents = append(s.Incidents, r.Name)
	}
	for _, note := range opened.Notes {
		s.Notes = append(s.Notes, r.Name+": "+note)
	}
	return r, true
}

// open opens a sink with its section of the settings. Keys that are wrong are reported and the others go on to the kind,
// whose own checks may find more. What it then misses may be what is wrong already.
func (l Loader) open(doc *document, section entry, kind sinks.Kind, s *Settings, name string) sinks.Opened {
	host := l.Host
	host.Name, host.Zone, host.Endpoint = name, s.Timezone, s.IMDS.Endpoint
	decoded := true
	opened, err := kind.Open(func(to any) error {
		err := doc.decode(section.value, to, section.key)
		decoded = err == nil
		doc.report(err)
		return nil
	}, host)
	if !decoded {
		wrong, ok := errors.AsType[*sinks.KeyError](err)
		if !ok {
			return opened
		}
		if e, given := section.value.find(wrong.Key); !given || !doc.sound(e) {
			return opened
		}
	}
	doc.report(doc.wrongKey(section, err))
	return opened
}

// writtenSecrets are the keys below a section that was decoded whose secrets are written out there, and not read from a
// file or the environment.
func writtenSecrets(n *node) (keys []string) {
	written := func(n *node) bool { return n.secret && n.text != "" && !isBare(n.text) }
	for _, e := range n.entries {
		v := e.value
		if written(v) || slices.ContainsFunc(v.items, written) ||
			slices.ContainsFunc(v.entries, func(e entry) bool { return v.free && written(e.value) }) {
			keys = append(keys, e.key)
			continue
		}
		for _, key := range writtenSecrets(v) {
			keys = append(keys, e.key+"."+key)
		}
	}
	return keys
}

// isBare tells whether a value that may be secret is none: an address of nothing but a host, or no address at all.
func isBare(text string) bool {
	u, err := url.Parse(text)
	return text == "none" || err == nil && u.Host != "" && u.User == nil && strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == ""
}

// checkTimes refuses times that would never come, or come without end.
func checkTimes(doc *document, n *node, in sinkSettings) error {
	at := func(key string) *node {
		e, _ := n.find(key)
		return e.value
	}
	var wrong Problems
	const longest = 30 * 24 * time.Hour
	for i, d := range in.Remind {
		if d < time.Minute || d > longest {
			if e, ok := n.find("remind"); ok && i < len(e.value.items) {
				wrong = wrong.and(doc.refuse(e.value.items[i], "remind", "times from 1m to 30d, such as [24h, 1h]"))
			}
		}
	}
	if _, given := n.find("lead"); given && (in.Lead < time.Second || in.Lead > longest) {
		wrong = wrong.and(doc.refuse(at("lead"), "lead", "a time from 1s to 30d, such as 10m"))
	}
	if _, given := n.find("heartbeat"); given && in.Heartbeat != 0 && in.Heartbeat < 10*time.Second {
		wrong = wrong.and(doc.refuse(at("heartbeat"), "heartbeat", "at least 10s, or 0 for none"))
	}
	if e, given := n.find("fallback"); given && in.Fallback.Sink == "" && doc.sound(e) {
		wrong = wrong.and(doc.errorAt(e.pos, "fallback: without a sink; expected {sink: NAME, after: 1m}"))
	}
	return wrong.err()
}

// checkFallback refuses a fallback to nowhere. names are those of all sinks.
func checkFallback(doc *document, n *node, names []string) error {
	e, given := n.find("fallback.sink")
	own, _ := n.find("name")
	switch {
	case !given || e.value.text == "":
	case e.value.text == own.value.text:
		return doc.refuse(e.value, "fallback.sink", "the name of another sink")
	case !slices.Contains(names, e.value.text):
		return doc.refuse(e.value, "fallback.sink", "the name of a sink")
	}
	return nil
}

// checkGroup refuses a group where none can be made.
func checkGroup(doc *document, n *node, in sinkSettings, kind string, terms bridge.Terms) error {
	e, given := n.find("group")
	if !given {
		return nil
	}
	at := func(key string) *node {
		if e, ok := n.find(key); ok {
			return e.value
		}
		return e.value
	}
	switch {
	case terms.Digest == delivery.Digest{}:
		return doc.errorAt(e.pos, "group: a %s takes each event on its own; expected no such key here", kind)
	case in.Group.Above < 0:
		return doc.refuse(at("group.above"), "group.above", "a number of events, or 0 to make no groups")
	case !doc.sound(e):
	case in.Group.Above > 0 && (in.Group.Within <= 0 || in.Group.Within > time.Minute):
		return doc.refuse(at("group.within"), "group.within", "more than 0 and at most 1m, such as 20s")
	case in.Group.Above > 0 && in.lateness() != delivery.LateLatest:
		return doc.errorAt(e.pos, "group: tells only the newest of each event; expected late: latest beside it")
	}
	return nil
}

// checkValues refuses words that the common keys of the sink n do not know.
func checkValues(doc *document, n *node) error {
	levels := []string{string(bridge.LevelNone), string(bridge.LevelTrouble), string(bridge.LevelAll)}
	lates := []string{string(delivery.LateSend), string(delivery.LateLatest), string(delivery.LateDrop)}
	var wrong Problems
	for _, list := range []struct {
		key     string
		allowed []string
	}{
		{"only.vms", bridge.VMsValues}, {"except.vms", []string{"self", "leader"}}, // except all would leave nothing
		{"only.types", bridge.TypesValues}, {"except.types", bridge.TypesValues},
		{"only.sources", bridge.SourcesValues}, {"except.sources", bridge.SourcesValues},
		{"only.changes", bridge.ChangesValues}, {"except.changes", bridge.ChangesValues},
		{"bridge", levels}, {"late", lates},
	} {
		e, ok := n.find(list.key)
		if !ok {
			continue
		}
		want := "one of " + strings.Join(list.allowed, ", ")
		if list.key == "except.vms" {
			want += ", as all would leave nothing to tell"
		}
		for _, v := range append([]*node{e.value}, e.value.items...) {
			v.open = true
			known := slices.ContainsFunc(list.allowed, func(a string) bool { return strings.EqualFold(a, v.text) })
			if !known && (v.kind == aText || v.kind == aNumber || v.kind == aBoolean) {
				wrong = wrong.and(doc.refuse(v, list.key, want))
			}
		}
	}
	return wrong.err()
}

// termsOf are the terms of a sink of the kind when its settings say nothing of them.
func termsOf(k sinks.Kind) bridge.Terms {
	t := bridge.Terms{Terms: k.Terms, Bridge: bridge.LevelNone}
	switch k.For {
	case sinks.People:
		t.Bridge, t.Remind = bridge.LevelTrouble, []time.Duration{24 * time.Hour, time.Hour}
	case sinks.Actors:
		t.Acts = true
	}
	return t
}
