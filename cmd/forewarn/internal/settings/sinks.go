package settings

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
)

// sinkSettings holds the keys that every sink can have besides the one of its kind.
type sinkSettings struct {
	Name    string        `yaml:"name" doc:"unique name; pending deliveries belong to it"`
	Only    bridge.Only   `yaml:"only" doc:"what the sink gets"`
	Except  bridge.Except `yaml:"except" doc:"what the sink doesn't get"`
	When    string        `yaml:"when" doc:"an expression that must be true, such as severity >= WARN and notice < 600"`
	Bridge  string        `yaml:"bridge" doc:"which CloudEvents about forewarn itself the sink gets"`
	Timeout time.Duration `yaml:"timeout" doc:"time limit of one attempt"`
	MaxAge  time.Duration `yaml:"max_age" doc:"age at which a pending delivery becomes a dead letter; 0 is never"`
	Late    string        `yaml:"late" doc:"what happens to a change when a newer one is pending"`
	Group   groupSettings `yaml:"group" doc:"many events of one type become one message"`

	Remind    []time.Duration  `yaml:"remind" doc:"reminders, this long before an event starts, but not before lead"`
	Lead      time.Duration    `yaml:"lead" doc:"hold back scheduled and updated until this long before (default: at once)"`
	Fallback  fallbackSettings `yaml:"fallback" doc:"another sink that gets what this one can't deliver"`
	Heartbeat time.Duration    `yaml:"heartbeat" doc:"send a heartbeat this often while all is well (default: never)"`
}

// fallbackSettings is delivery.Fallback in the settings file.
type fallbackSettings struct {
	Sink  string        `yaml:"sink" doc:"name of the other sink"`
	After time.Duration `yaml:"after" default:"1m" doc:"how long this sink may try first"`
}

func (s sinkSettings) lateness() delivery.Late { return delivery.Late(strings.ToLower(s.Late)) }

// groupSettings is Terms.DigestAbove in the settings file.
type groupSettings struct {
	Above int `yaml:"above" doc:"more events of one type than this make a group; 0 makes none"`
}

// sinkNodes returns the sinks of a file. What is no list of them is reported.
func (doc *document) sinkNodes() []*node {
	list, given := doc.root.find("sinks")
	switch {
	case !given:
		return nil
	case list.value.kind != aList && list.value.kind != nothing:
		doc.report(doc.kindError(list.value, "sinks", aList))
	}
	return list.value.items
}

// sinkNames returns the names of the sinks that have one.
func sinkNames(docs []*document) (names []string) {
	for _, doc := range docs {
		for _, n := range doc.sinkNodes() {
			if name, ok := n.find("name"); ok && name.value.text != "" {
				names = append(names, name.value.text)
			}
		}
	}
	return names
}

// kindsOf returns the kinds of the sinks, for people, by their names.
func (l Loader) kindsOf(docs []*document) map[string]string {
	kinds := make(map[string]string)
	for _, doc := range docs {
		for _, n := range doc.sinkNodes() {
			name, _ := n.find("name")
			for _, e := range n.entries {
				if kind, known := l.Kinds[e.key]; known && name.value != nil {
					kinds[name.value.text] = cmp.Or(kind.Title, e.key)
				}
			}
		}
	}
	return kinds
}

// routes opens the sinks in their order, without those that have problems.
func (l Loader) routes(docs []*document, s *Settings) (routes []bridge.Route) {
	main := docs[0]
	list, given := main.root.find("sinks")
	if (!given || list.value.kind == nothing) && len(docs) == 1 {
		main.report(main.errorAt(list.pos, "no sinks, so nobody would be notified; expected at least one below the key "+
			"sinks, or sinks: [] if the page and the metrics are enough"))
		return nil
	}
	l.Host.KindOf = l.kindsOf(docs)
	taken := make(map[string]place) // by name of the sink
	var often []string
	for _, doc := range docs {
		for _, n := range doc.sinkNodes() {
			if r, ok := l.route(doc, n, s); ok {
				routes = append(routes, r)
				if r.Terms.Acts && len(r.Filter.Only.Changes) == 0 {
					often = append(often, r.Name)
				}
			}
			name, given := n.find("name")
			if first := taken[name.value.text]; given && first.doc != nil {
				doc.report(doc.errorAt(name.value.pos, "name: taken by the sink in %s; expected a unique name", first.seenFrom(doc)))
			} else if given && name.value.text != "" {
				taken[name.value.text] = place{doc, name.pos}
			}
			doc.report(checkFallback(doc, n, s.Names))
		}
	}
	if len(often) > 0 {
		s.Notes = append(s.Notes, strings.Join(often, ", ")+": without only.changes a command runs for every change of an "+
			"event; for a drain only: {changes: [scheduled, updated]} is enough")
	}
	return routes
}

// route opens one sink and reports its problems; ok is false if there are any.
func (l Loader) route(doc *document, n *node, s *Settings) (r bridge.Route, ok bool) {
	if n.kind != aTable {
		doc.report(doc.kindError(n, "a sink", aTable))
		return r, false
	}
	before := len(doc.problems)
	known := slices.Sorted(maps.Keys(l.Kinds))
	own := collect(reflect.ValueOf(new(sinkSettings)).Elem(), map[string]reflect.Value{})
	section, name := l.destination(n, own, known)
	kind := l.Kinds[name]
	terms := termsOf(kind)
	in := sinkSettings{Timeout: terms.Timeout, MaxAge: terms.MaxAge, Bridge: string(terms.Bridge),
		Late:  string(terms.Late),
		Group: groupSettings{terms.DigestAbove}, Remind: terms.Remind, Fallback: fallbackSettings{After: time.Minute}}
	doc.report(checkValues(doc, n), doc.decode(n, &in, "", known...))
	doc.report(checkName(doc, n, in.Name), checkDestination(doc, n, section, own, known))
	if e, ok := n.find("timeout"); ok && in.Timeout == 0 {
		doc.report(doc.valueError(e.value, "timeout", "more than 0"))
	}
	doc.report(checkGroup(doc, n, in, name, terms), checkTimes(doc, n, in))
	r.Name, r.Kind, r.Terms = in.Name, name, terms
	r.Terms.Timeout, r.Terms.MaxAge = in.Timeout, in.MaxAge
	r.Terms.Bridge, r.Terms.Late = bridge.Level(strings.ToLower(in.Bridge)), in.lateness()
	r.Terms.Remind, r.Terms.Lead, r.Terms.Heartbeat = in.Remind, in.Lead, in.Heartbeat
	if in.Fallback.Sink != "" {
		r.Terms.Fallback = delivery.Fallback(in.Fallback)
	}
	r.Terms.DigestAbove = in.Group.Above
	if r.Terms.Late != delivery.LateLatest {
		r.Terms.DigestAbove = 0
	}
	r.Filter.Only, r.Filter.Except = in.Only, in.Except
	if s.Relay != nil {
		doc.report(relaySink(doc, n))
		r.Filter.Only.VMs = "all"
	}
	if when, ok := n.find("when"); ok {
		var err error
		r.Filter.When, err = parseWhen(doc, when.value)
		doc.report(err)
	}
	for _, e := range section.value.entries {
		if slices.Contains(own, e.key) {
			doc.report(doc.errorAt(e.pos, "%s.%s: is a key of the sink; expected it beside %[1]s", section.key, e.key))
		}
	}
	ends, _ := r.Filter.MatchChange(imds.Change{Kind: imds.Vanished}, "")
	announces, _ := r.Filter.MatchChange(imds.Change{Kind: imds.Scheduled}, "")
	l.Host.Name, l.Host.NoEnd, l.Host.NoStart = in.Name, !ends, !announces || r.Terms.Lead > 0
	l.Host.ForAll = slices.Contains([]string{"leader", "all"}, strings.ToLower(r.Filter.Only.VMs))
	l.Host.Lead = r.Terms.Lead
	opened := l.open(doc, section, kind, s)
	if kind.Open == nil || len(doc.problems) > before {
		return r, false
	}
	r.Sink, r.Secrets = opened.Sink, opened.Secrets
	for _, key := range inlineSecrets(section.value) {
		doc.inline = append(doc.inline, r.Name+"."+key)
	}
	r.Terms.People = kind.For == sinks.People ||
		kind.For == sinks.Either && (opened.People || r.Terms.Bridge == bridge.LevelTrouble)
	if opened.Parallel > 0 {
		r.Terms.Parallel = opened.Parallel
	}
	if opened.Incident {
		s.Incidents = append(s.Incidents, r.Name)
	}
	for _, note := range append(placeholderNotes(section), opened.Notes...) {
		s.Notes = append(s.Notes, r.Name+": "+note)
	}
	return r, true
}

// destination returns the section of a sink that names its kind, one of known; own are the keys of every sink. A misspelt
// key stands for the kind that it resembles, so that what is wrong with the sink besides is found in the same run.
// Without any, the section is empty, and the kind is "".
func (l Loader) destination(n *node, own, known []string) (section entry, kind string) {
	for _, e := range n.entries {
		if slices.Contains(known, e.key) {
			return e, e.key
		}
	}
	for _, e := range n.entries {
		near, ok := wording.Nearest(e.key, slices.Concat(own, known))
		if ok && slices.Contains(known, near) && e.value.kind == aTable {
			return e, near
		}
	}
	return entry{pos: n.pos, value: new(node)}, ""
}

// checkName refuses a sink without a name, or with one that can't be written in a command or a metric.
func checkName(doc *document, n *node, name string) error {
	e, given := n.find("name")
	switch {
	case name == "" && (!given || doc.isClean(e)):
		return doc.missingAt(e.pos, "sink without a name; expected one such as name: ops-chat")
	case name != "" && !sinkName.MatchString(name):
		return doc.valueError(e.value, "name", "only letters, digits, dots, dashes and underscores")
	}
	return nil
}

// checkDestination refuses a sink with no destination, or with a second one beside section. own are the keys of every
// sink; any other key may be a misspelt kind.
func checkDestination(doc *document, n *node, section entry, own, known []string) error {
	found := false
	for _, e := range n.entries {
		switch {
		case slices.Contains(own, e.key):
		case slices.Contains(known, e.key) && e.pos != section.pos:
			return doc.errorAt(e.pos, "%s: second destination of one sink, after %s in line %d; expected a sink for each",
				e.key, section.key, section.line)
		default:
			found = true
		}
	}
	if found {
		return nil
	}
	return doc.missingAt(n.pos, "sink without a destination; expected one of the keys %s", strings.Join(known, ", "))
}

// open opens a sink with its section of the settings. If keys are wrong, it still opens the sink with the others, to
// find more problems; a key that is then missing is reported only if it is not one of the wrong ones.
func (l Loader) open(doc *document, section entry, kind sinks.Kind, s *Settings) (opened sinks.Opened) {
	if kind.Open == nil {
		return opened
	}
	host := l.Host
	host.Zone, host.Endpoint = s.Timezone, s.IMDS.Endpoint
	decoded := true
	opened, err := kind.Open(func(to any) error {
		err := doc.decode(section.value, to, section.key)
		decoded = err == nil
		doc.report(err)
		return nil
	}, host)
	doc.report(doc.openErrors(section, err, decoded))
	return opened
}

// openErrors returns the problems of err, with which a section of the settings was not opened. If the section was not
// decoded whole, they are those about keys that are right by themselves: the others follow from what is wrong already.
func (doc *document) openErrors(section entry, err error, decoded bool) error {
	all, ok := errors.AsType[sinks.KeyErrors](err)
	if !ok {
		all = sinks.KeyErrors{err}
	}
	var problems Problems
	for _, err := range all {
		if decoded || doc.isAboutCleanKey(section.value, err) {
			problems = problems.with(doc.keyError(section, err))
		}
	}
	return problems.err()
}

// isAboutCleanKey reports whether err is about a key below n that is given and has no problem of its own.
func (doc *document) isAboutCleanKey(n *node, err error) bool {
	keyErr, ok := errors.AsType[*sinks.KeyError](err)
	if !ok {
		return false
	}
	e, given := n.find(keyErr.Key)
	return given && doc.isClean(e)
}

// inlineSecrets returns the keys below a decoded section whose secrets are written into the file itself.
func inlineSecrets(n *node) (keys []string) {
	for _, e := range n.entries {
		v := e.value
		written := func(name string, n *node) bool {
			return n.secret && n.text != "" && sinks.MayBeSecret(e.key, name, n.text)
		}
		if written("", v) || slices.ContainsFunc(v.items, func(n *node) bool { return written("", n) }) ||
			slices.ContainsFunc(v.entries, func(e entry) bool { return v.anyKeys && written(e.key, e.value) }) {
			keys = append(keys, e.key)
		} else if !v.anyKeys {
			for _, key := range inlineSecrets(v) {
				keys = append(keys, e.key+"."+key)
			}
		}
	}
	return keys
}

// checkTimes refuses values of remind, lead, heartbeat and fallback that cannot work.
func checkTimes(doc *document, n *node, in sinkSettings) error {
	at := func(key string) *node {
		e, _ := n.find(key)
		return e.value
	}
	var problems Problems
	const longest = 30 * 24 * time.Hour
	for i, d := range in.Remind {
		if d < time.Minute || d > longest {
			if e, ok := n.find(fmt.Sprintf("remind.%d", i)); ok {
				problems = problems.with(doc.valueError(e.value, "remind", "times from 1m to 30d, such as [24h, 1h]"))
			}
		}
	}
	if _, given := n.find("lead"); given && (in.Lead < time.Second || in.Lead > longest) {
		problems = problems.with(doc.valueError(at("lead"), "lead", "a time from 1s to 30d, such as 10m"))
	}
	if _, given := n.find("heartbeat"); given && in.Heartbeat != 0 && in.Heartbeat < 10*time.Second {
		problems = problems.with(doc.valueError(at("heartbeat"), "heartbeat", "at least 10s, or 0 for none"))
	}
	if e, given := n.find("fallback"); given && in.Fallback.Sink == "" && doc.isClean(e) {
		problems = problems.with(doc.missingAt(e.pos, "fallback: without a sink; expected {sink: NAME, after: 1m}"))
	}
	return problems.err()
}

// checkFallback refuses a fallback to an unknown sink or to the sink itself. names are the names of all sinks.
func checkFallback(doc *document, n *node, names []string) error {
	e, given := n.find("fallback.sink")
	own, _ := n.find("name")
	switch {
	case !given || e.value.text == "":
	case e.value.text == own.value.text:
		return doc.valueError(e.value, "fallback.sink", "the name of another sink")
	case !slices.Contains(names, e.value.text):
		return doc.valueError(e.value, "fallback.sink", aSink(e.value.text, names))
	}
	return nil
}

// aSink says that the name of a sink was expected, with the one that was probably meant.
func aSink(name string, names []string) string {
	want := "the name of a sink"
	if near, ok := wording.Nearest(name, names); ok {
		want += fmt.Sprintf("; did you mean %q?", near)
	}
	return want
}

// checkGroup refuses a group that could never be made.
func checkGroup(doc *document, n *node, in sinkSettings, kind string, terms bridge.Terms) error {
	e, given := n.find("group")
	if !given {
		return nil
	}
	if kind != "" && terms.DigestAbove == 0 {
		return doc.errorAt(e.pos, "group: %s handles each event on its own; expected no such key here", kind)
	}
	var problems Problems
	if above, _ := n.find("group.above"); in.Group.Above < 0 {
		problems = problems.with(
			doc.valueError(above.value, "group.above", "a number of events, or 0 to make no groups"))
	}
	if in.Group.Above > 0 && kind != "" && in.lateness() != delivery.LateLatest {
		problems = problems.with(
			doc.errorAt(e.pos, "group: sends only the latest change of each event; expected late: latest beside it"))
	}
	return problems.err()
}

// checkValues refuses unknown words as values of the common keys of the sink n.
func checkValues(doc *document, n *node) error {
	levels := []string{string(bridge.LevelNone), string(bridge.LevelTrouble), string(bridge.LevelAll)}
	lates := []string{string(delivery.LateSend), string(delivery.LateLatest), string(delivery.LateDrop)}
	var problems Problems
	for _, list := range []struct {
		key     string
		allowed []string
	}{
		{"only.vms", bridge.VMsValues}, {"except.vms", bridge.OwnVMsValues},
		{"only.types", bridge.TypesValues}, {"except.types", bridge.TypesValues},
		{"only.sources", bridge.SourcesValues}, {"except.sources", bridge.SourcesValues},
		{"only.changes", bridge.ChangesValues}, {"except.changes", bridge.ChangesValues},
		{"only.severity", bridge.SeverityValues},
		{"bridge", levels}, {"late", lates},
	} {
		e, ok := n.find(list.key)
		if !ok {
			continue
		}
		want := "one of " + strings.Join(list.allowed, ", ")
		if list.key == "except.vms" {
			want += "; all would leave nothing to send"
		}
		for _, v := range e.value.list() {
			v.open = true
			known := slices.ContainsFunc(list.allowed, func(a string) bool { return imds.SameWord(a, v.text) })
			if !known && (v.kind == aText || v.kind == aNumber || v.kind == aBoolean) {
				problems = problems.with(doc.valueError(v, list.key, want))
			}
		}
	}
	for _, key := range []string{"only.names", "only.groups"} {
		e, ok := n.find(key)
		if !ok {
			continue
		}
		for _, v := range e.value.list() {
			v.open = true
			if _, err := path.Match(v.text, ""); err != nil || v.text == "" {
				problems = problems.with(doc.valueError(v, key, "a pattern such as vm-db-*"))
			}
		}
	}
	return problems.err()
}

// termsOf returns the default terms of a kind.
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
