package settings

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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
	Name   string        `yaml:"name" required:"" form:"name" doc:"unique name; pending deliveries belong to it"`
	Only   bridge.Only   `yaml:"only" doc:"what the sink gets"`
	Except bridge.Except `yaml:"except" doc:"what the sink doesn't get"`
	When   string        `yaml:"when" doc:"an expression that must be true, such as severity >= WARN and notice < 600"`
	Group  groupSettings `yaml:"group" doc:"many events of one type become one message"`
	bridge.Terms
}

// groupSettings is Terms.DigestAbove in the settings file.
type groupSettings struct {
	Above int `yaml:"above" min:"0" doc:"more events of one type than this make a group; 0 makes none"`
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
				if r.Terms.Starts() && len(r.Filter.Only.Changes) == 0 {
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
		s.Notes = append(s.Notes, strings.Join(often, ", ")+": without only.changes a command or job runs for every "+
			"change of an event; for a drain only: {changes: [scheduled, updated]} is enough")
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
	own := keysOf(fieldsOf(reflect.ValueOf(new(sinkSettings)).Elem()))
	section, name := l.destination(n, own, known)
	kind := l.Kinds[name]
	terms := termsOf(kind)
	in := sinkSettings{Terms: terms, Group: groupSettings{terms.DigestAbove}}
	setDefaults(reflect.ValueOf(&in).Elem())
	doc.report(doc.decode(n, &in, "", known...))
	doc.report(checkName(doc, n, in.Name), checkDestination(doc, n, section, own, known))
	doc.report(checkGroup(doc, n, in, name, terms), checkFallbackGiven(doc, n, in))
	r.Name, r.Kind, r.Terms = in.Name, name, in.Terms
	if r.Terms.Fallback.Sink == "" {
		r.Terms.Fallback = delivery.Fallback{}
	}
	r.Terms.DigestAbove = in.Group.Above
	if r.Terms.Late != delivery.LateLatest {
		r.Terms.DigestAbove = 0
	}
	r.Filter.Only, r.Filter.Except = in.Only, in.Except
	if s.Relay != nil {
		doc.report(relaySink(doc, n), doc.refuseOnRelay(n, &in))
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
	s.keep(opened.Keep)
	for _, key := range inlineSecrets(section.value) {
		doc.inline = append(doc.inline, r.Name+"."+key)
	}
	r.Terms.People = kind.For == sinks.People ||
		kind.For == sinks.Either && r.Terms.Bridge == bridge.LevelTrouble
	r.Terms.Repeat = opened.Repeat
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
		if usual := sinks.UsualNames()[e.key]; slices.Contains(known, usual) {
			return e, usual
		}
		near, ok := wording.Nearest(e.key, slices.Concat(own, known))
		if ok && slices.Contains(known, near) && e.value.kind == aTable {
			return e, near
		}
	}
	return entry{pos: n.pos, value: new(node)}, ""
}

// checkName refuses a sink without a name.
func checkName(doc *document, n *node, name string) error {
	e, given := n.find("name")
	if name == "" && (!given || doc.isClean(e)) {
		return doc.missingAt(e.pos, "sink without a name; expected one such as name: ops-chat")
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
// find more problems. What is then missing follows from that, and so does what is missing for a kind that is only guessed.
func (l Loader) open(doc *document, section entry, kind sinks.Kind, s *Settings) (opened sinks.Opened) {
	if kind.Open == nil {
		return opened
	}
	host := l.Host
	host.Zone, host.Endpoint, host.ClientID = s.Timezone, s.IMDS.Endpoint, s.Identity.ClientID
	_, decoded := l.Kinds[section.key]
	opened, err := kind.Open(func(to any) error {
		err := doc.decode(section.value, to, section.key)
		decoded = decoded && !slices.ContainsFunc(Problems(nil).with(err), func(p *Problem) bool { return !p.refused })
		doc.report(err)
		return nil
	}, host)
	doc.report(doc.openErrors(section, err, decoded))
	return opened
}

// openErrors returns the problems of err, with which a section of the settings was not opened. If the section was not
// decoded whole, or its kind is guessed, they are those about keys that are right by themselves: the others follow from
// what is wrong already.
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

// checkFallbackGiven refuses a fallback that names no sink.
func checkFallbackGiven(doc *document, n *node, in sinkSettings) error {
	e, given := n.find("fallback")
	if given && in.Fallback.Sink == "" && doc.isClean(e) {
		return doc.missingAt(e.pos, "fallback: without a sink; expected {sink: NAME, after: 1m}")
	}
	return nil
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
	if in.Group.Above > 0 && kind != "" && in.Late != delivery.LateLatest {
		return doc.errorAt(e.pos, "group: sends only the latest change of each event; expected late: latest beside it")
	}
	return nil
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
