package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/expr-lang/expr/file"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/sinks"
)

// settings are the settings file, checked, with its destinations built.
type settings struct {
	Path  string // "" when there is no file and the defaults count
	Wrong error  // why they hold only placeKeys and defaults; nil when they are right
	Hash  string // of all but secrets; see document.hash

	IMDS struct {
		Endpoint   string        `yaml:"endpoint" default:"http://169.254.169.254" doc:"metadata service, or discover"`
		APIVersion string        `yaml:"api_version" default:"2020-07-01" doc:"API version to ask for first"`
		Interval   time.Duration `yaml:"interval" default:"1s" doc:"time between polls"`
		VMName     string        `yaml:"vm_name" doc:"name of this VM in Azure's events (default: asked from the endpoint)"`
		Discover   bool          // the file has endpoint: discover; Endpoint is the default, which is tried first
	} `yaml:"imds" doc:"the endpoint that is polled"`
	State    string         `yaml:"state" doc:"directory of the outbox (default: /var/lib/forewarn)"`
	Control  string         `yaml:"control" doc:"control socket (default: control.sock in state)"`
	Listen   string         `yaml:"listen" default:"127.0.0.1:8169" doc:"address of the page and metrics; \"\" is off"`
	Metrics  string         `yaml:"metrics" doc:"second address, with metrics and health only (default: none)"`
	Zone     string         `yaml:"timezone" default:"UTC" doc:"time zone in texts for people, beside UTC"`
	Source   string         `yaml:"cloudevents_source" doc:"source of CloudEvents about Azure (default: the VM's)"`
	Timezone *time.Location // shown beside UTC
	Rules    []bridge.Rule  // of approval
	Names    []string       // of the sinks as they are written, also where the sinks themselves are not asked for
	Routes   []bridge.Route // the sinks, in the file's order
	Notes    []string       // what an operator may not expect of them
	Written  []string       // secrets that stand in the file itself, such as hook.bearer
}

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

// builtin is what counts where there is no settings file: every default, and the CloudEvents on standard output.
const builtin = `sinks: [{name: stdout, file: {path: "-"}}]`

// A loader turns a settings file into settings. Its fields are all that it takes from the world around it.
type loader struct {
	Kinds    map[string]sinks.Kind // nil leaves the sinks unread
	Host     sinks.Host
	Defaults defaults
}

// defaults are where things are when nothing says otherwise.
type defaults struct {
	settings string // the settings file; it need not be there
	state    string // the directory of the outbox
}

// systemDefaults are those of an operating system for a user of it.
func systemDefaults(goos string, euid int, getenv func(string) string) defaults {
	return defaults{settings: defaultSettingsPath(goos, getenv), state: defaultState(goos, euid, getenv)}
}

// load reads the settings from the file at path. Without a path it looks in the default place, and takes the built-in
// settings if nothing is there; a file that was named must exist.
func (l loader) load(path string) (*settings, error) {
	named := path != ""
	path, data, err := l.read(path)
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case missing && !named:
		return l.parse("", []byte(builtin))
	case missing:
		return nil, fmt.Errorf("%w; create it, or leave out --config to run with the defaults", err)
	case err != nil:
		return nil, err
	}
	return l.parse(path, data)
}

// reload is load for a program that runs: the built-in settings do not take the place of a file that is gone.
func (l loader) reload(path string) (*settings, error) {
	path, data, err := l.read(path)
	if err != nil {
		return nil, err
	}
	return l.parse(path, data)
}

// read returns the file at path, without one that in the default place, and its path.
func (l loader) read(path string) (string, []byte, error) {
	path = cmp.Or(path, l.Defaults.settings)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w; let the user that forewarn runs as read it, or %s", err, tryElevated)
	}
	if err != nil {
		return path, nil, fmt.Errorf("settings: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if info, _ := f.Stat(); err != nil && info != nil && info.IsDir() {
		return path, nil, fmt.Errorf("settings: %s is a directory; expected the file in it, such as %s", path, filepath.Join(path, "forewarn.yaml"))
	} else if err != nil {
		return path, nil, fmt.Errorf("settings: %w", err)
	}
	return path, data, nil
}

// parse checks the settings and builds the sinks. The path only names the file in errors. Nothing is read but what the
// kinds read when they open, the files of secrets.
func (l loader) parse(path string, data []byte) (*settings, error) {
	doc, err := parseDocument(path, data)
	if err != nil {
		return nil, err
	}
	s := &settings{Path: path}
	s.IMDS.Endpoint = "http://169.254.169.254"
	s.IMDS.APIVersion = "2020-07-01"
	s.IMDS.Interval = time.Second
	s.State = l.Defaults.state
	s.Listen = "127.0.0.1:8169"
	s.Zone = "UTC"
	if err := doc.decode(doc.root, s, "", "sinks", "approve"); err != nil {
		return nil, err
	}
	if s.IMDS.Endpoint == "discover" {
		s.IMDS.Discover, s.IMDS.Endpoint = true, imds.DefaultEndpoint
		s.Notes = append(s.Notes, "imds.endpoint: discover: run looks for the endpoint, at "+imds.DefaultEndpoint+" first; forewarn discover does so now")
	}
	s.IMDS.Endpoint = strings.TrimRight(s.IMDS.Endpoint, "/")
	s.Timezone, err = time.LoadLocation(s.Zone)
	for _, check := range []struct {
		key  string
		ok   bool
		want string
	}{
		{"imds.endpoint", isEndpoint(s.IMDS.Endpoint), "http or https, a host and perhaps a path, such as http://169.254.169.254, or discover"},
		{"imds.api_version", apiVersion.MatchString(s.IMDS.APIVersion), "a date such as 2020-07-01"},
		{"imds.interval", s.IMDS.Interval >= 100*time.Millisecond, "100ms or more"},
		{"state", s.State != "", "a directory such as /var/lib/forewarn"},
		{"listen", s.Listen == "" || isListen(s.Listen), `host:port such as 127.0.0.1:8169, or "" to serve no page`},
		{"metrics", s.Metrics == "" || isListen(s.Metrics), `host:port such as 0.0.0.0:9169, or "" to serve them with the page only`},
		{"timezone", err == nil && s.Zone != "" && s.Zone != "Local", "an IANA name such as UTC or Europe/Berlin"},
		{"cloudevents_source", s.Source == "" || isURI(s.Source), "an absolute URI without spaces, such as " +
			"https://management.azure.com/subscriptions/... or urn:example:web"},
	} {
		if !check.ok {
			e, _ := doc.root.find(check.key)
			return nil, doc.refuse(e.value, check.key, check.want)
		}
	}
	s.Names = sinkNames(doc)
	if l.Kinds == nil {
		return s, nil // only the rest was asked for
	}
	if s.Routes, err = l.routes(doc, s); err != nil {
		return s, err
	}
	s.Rules, err = l.rules(doc, s)
	s.Hash = doc.hash()
	return s, err
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

// routes builds the sinks in their order.
func (l loader) routes(doc *document, s *settings) ([]bridge.Route, error) {
	list, ok := doc.root.find("sinks")
	if !ok || list.value.kind == nothing {
		return nil, doc.errorAt(list.pos, "no sinks, so nobody would be told; expected at least one below the key sinks, "+
			"or sinks: [] if the status page and the metrics are enough")
	}
	if list.value.kind != aList {
		return nil, doc.wrongKind(list.value, "sinks", aList)
	}
	var routes []bridge.Route
	lines := make(map[string]int) // in which a name stands
	for _, n := range list.value.items {
		r, err := l.route(doc, n, s)
		if err != nil {
			return nil, err
		}
		name, _ := n.find("name")
		if line := lines[r.Name]; line > 0 {
			return nil, doc.errorAt(name.value.pos, "name: taken by the sink in line %d; expected a name of its own", line)
		}
		lines[r.Name] = name.line
		routes = append(routes, r)
	}
	return routes, l.checkFallbacks(doc, list.value, routes)
}

// route builds one sink.
func (l loader) route(doc *document, n *node, s *settings) (r bridge.Route, err error) {
	known := slices.Sorted(maps.Keys(l.Kinds))
	found := slices.DeleteFunc(slices.Clone(n.entries), func(e entry) bool { return !slices.Contains(known, e.key) })
	if len(found) == 0 { // nothing to build, but something else may be wrong before that
		found = []entry{{}}
	}
	section, kind := found[0], l.Kinds[found[0].key]
	terms := kind.Terms
	in := sinkSettings{Timeout: terms.Timeout, MaxAge: terms.MaxAge, Bridge: string(terms.Bridge), Late: string(terms.Late),
		Group: groupSettings(terms.Digest), Remind: terms.Remind, Fallback: fallbackSettings{After: time.Minute}}
	if n.kind != aTable {
		return r, doc.wrongKind(n, "a sink", aTable)
	}
	if err := checkValues(doc, n); err != nil {
		return r, err
	}
	if err := doc.decode(n, &in, "", known...); err != nil {
		return r, err
	}
	name, _ := n.find("name")
	switch {
	case in.Name == "":
		return r, doc.errorAt(name.pos, "a sink without a name; expected one such as name: ops-chat")
	case !sinkName.MatchString(in.Name):
		return r, doc.refuse(name.value, "name", "only letters, digits, dots, dashes and underscores")
	case kind.Open == nil:
		return r, doc.errorAt(n.pos, "a sink without a destination; expected one of the keys %s", strings.Join(known, ", "))
	case len(found) > 1:
		return r, doc.errorAt(found[1].pos, "%s is a second destination in one sink, after %s in line %d; expected a sink for each",
			found[1].key, section.key, section.line)
	}
	if e, ok := n.find("timeout"); ok && in.Timeout == 0 {
		return r, doc.refuse(e.value, "timeout", "more than 0")
	}
	if err := checkGroup(doc, n, in, section.key, terms); err != nil {
		return r, err
	}
	r.Name, r.Kind, r.Terms = in.Name, section.key, terms
	r.Terms.Timeout, r.Terms.MaxAge = in.Timeout, in.MaxAge
	r.Terms.Bridge, r.Terms.Late = bridge.Level(strings.ToLower(in.Bridge)), in.lateness()
	if err := checkTimes(doc, n, in); err != nil {
		return r, err
	}
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
		if r.Filter.When, err = parseWhen(doc, when.value); err != nil {
			return r, err
		}
	}
	open := func(to any) error { return doc.decode(section.value, to, section.key) }
	host := l.Host
	host.Name, host.Zone, host.Endpoint = r.Name, s.Timezone, s.IMDS.Endpoint
	opened, err := kind.Open(open, host)
	if err != nil {
		return r, doc.wrongKey(section, err)
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
	for _, note := range opened.Notes {
		s.Notes = append(s.Notes, r.Name+": "+note)
	}
	return r, nil
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
	const longest = 30 * 24 * time.Hour
	for i, d := range in.Remind {
		if d < time.Minute || d > longest {
			if e, ok := n.find("remind"); ok && i < len(e.value.items) {
				return doc.refuse(e.value.items[i], "remind", "times from 1m to 30d, such as [24h, 1h]")
			}
		}
	}
	if _, given := n.find("lead"); given && (in.Lead < time.Second || in.Lead > longest) {
		return doc.refuse(at("lead"), "lead", "a time from 1s to 30d, such as 10m")
	}
	if _, given := n.find("heartbeat"); given && in.Heartbeat != 0 && in.Heartbeat < 10*time.Second {
		return doc.refuse(at("heartbeat"), "heartbeat", "at least 10s, or 0 for none")
	}
	if e, given := n.find("fallback"); given && in.Fallback.Sink == "" {
		return doc.errorAt(e.pos, "fallback: without a sink; expected {sink: NAME, after: 1m}")
	}
	return nil
}

// checkFallbacks refuses fallbacks to nowhere.
func (l loader) checkFallbacks(doc *document, list *node, routes []bridge.Route) error {
	for i, r := range routes {
		to := r.Terms.Fallback.Sink
		e, given := list.items[i].find("fallback.sink")
		switch known := slices.ContainsFunc(routes, func(other bridge.Route) bool { return other.Name == to }); {
		case !given:
		case to == r.Name:
			return doc.refuse(e.value, "fallback.sink", "the name of another sink")
		case !known:
			return doc.refuse(e.value, "fallback.sink", "the name of a sink")
		}
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
	case in.Group.Above > 0 && (in.Group.Within <= 0 || in.Group.Within > time.Minute):
		return doc.refuse(at("group.within"), "group.within", "more than 0 and at most 1m, such as 20s")
	case in.Group.Above > 0 && in.lateness() != delivery.LateLatest:
		return doc.errorAt(e.pos, "group: tells only the newest of each event; expected late: latest beside it")
	}
	return nil
}

var (
	sinkName   = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	apiVersion = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}(-preview)?$`)
)

// checkValues refuses words that the common keys of the sink n do not know.
func checkValues(doc *document, n *node) error {
	levels := []string{string(bridge.LevelNone), string(bridge.LevelTrouble), string(bridge.LevelAll)}
	lates := []string{string(delivery.LateSend), string(delivery.LateLatest), string(delivery.LateDrop)}
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
				return doc.refuse(v, list.key, want)
			}
		}
	}
	return nil
}

// exprWords has our words for what the compiler of conditions says, and those of its language for Go's types.
var exprWords = strings.NewReplacer("unexpected token EOF", "the condition ends too early",
	`unexpected token Operator("=")`, `unexpected "="; expected "==" to compare`, "unexpected token ", "unexpected ",
	"map[string]interface {}", "map", "[]interface {}", "array", "[]string", "array", "interface {}", "any", "float64", "float")

// parseWhen compiles a sink's condition; an error stands at its place inside the expression.
func parseWhen(doc *document, n *node) (*bridge.When, error) {
	if strings.TrimSpace(n.text) == "" {
		return nil, doc.refuse(n, "when", "a condition such as duration > 10, or no when at all")
	}
	when, err := bridge.ParseWhen(n.text)
	if err == nil {
		return when, nil
	}
	e, ok := errors.AsType[*file.Error](err)
	if !ok {
		return nil, doc.refuse(n, "when", "a condition that is true or false, such as duration > 10")
	}
	what, at := exprWords.Replace(e.Message), doc.inside(n, e.Line, e.Column)
	fields := slices.Sorted(maps.Keys(cloudevent.Fields(event.New())))
	if name, ok := strings.CutPrefix(what, "unknown name "); ok {
		what = unknown("name", name, fields, doc.showable(n))
	} else if !doc.showable(n) && quotesOf(what, n.text, fields) {
		what = "not a condition; expected one that is true or false, such as duration > 10"
	}
	return nil, doc.errorAt(at, "when: %s", what)
}

// quotesOf tells whether a message repeats a word of text that is not among those that are known.
func quotesOf(message, text string, known []string) bool {
	words := strings.FieldsFunc(message, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	return slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(known, w) && strings.Contains(text, w) })
}

func isEndpoint(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" &&
		u.User == nil && u.RawQuery == "" && !u.ForceQuery && u.Fragment == ""
}

func isListen(s string) bool {
	host, port, err := net.SplitHostPort(s)
	_, portErr := strconv.ParseUint(port, 10, 16)
	return err == nil && portErr == nil && !strings.ContainsAny(host, "/@ ")
}

func isURI(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.IsAbs() && len(s) > len(u.Scheme+"://") &&
		!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// defaultSettingsPath is where the settings file is looked for when none is named.
func defaultSettingsPath(goos string, getenv func(string) string) string {
	if goos == "windows" {
		return programData(getenv) + `\forewarn\forewarn.yaml`
	}
	return "/etc/forewarn/forewarn.yaml"
}

// programData is where Windows keeps what programs store for all users.
func programData(getenv func(string) string) string {
	return cmp.Or(getenv("ProgramData"), `C:\ProgramData`)
}

// defaultState is the directory of the outbox: the system's for root, the user's own for anybody else who has one.
func defaultState(goos string, euid int, getenv func(string) string) string {
	dir, home := getenv("XDG_STATE_HOME"), getenv("HOME")
	switch {
	case goos == "windows":
		return programData(getenv) + `\forewarn`
	case euid != 0 && filepath.IsAbs(dir):
		return filepath.Join(dir, "forewarn")
	case euid != 0 && filepath.IsAbs(home):
		return filepath.Join(home, ".local", "state", "forewarn")
	}
	return "/var/lib/forewarn"
}
