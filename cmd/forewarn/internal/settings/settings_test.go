package settings

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/sinks"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew")

// Each mistake in testdata/settings gives the message beside it.
func TestMistakesInSettingsAreExplained(t *testing.T) {
	files, err := filepath.Glob("testdata/bad-*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("Glob = %v, %v, want the bad files", files, err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = testLoader().Parse("forewarn.yaml", data)
		if err == nil {
			t.Errorf("%s is taken, want an error", name)
			continue
		}
		var placed *Problem
		if !errors.As(err, &placed) {
			t.Errorf("%s: the error is a %T, want one with its place: %v", name, err, err)
		}
		golden := strings.TrimSuffix(name, ".yaml") + ".txt"
		got := err.Error() + "\n"
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: got\n%swant\n%s", name, got, want)
		}
	}
}

// A file with one sink has the defaults for everything else.
func TestMissingKeysHaveTheirDefaults(t *testing.T) {
	s := parseGood(t, "good-shortest.yaml")
	got := []any{s.Path, s.Hash, s.IMDS.Endpoint, s.IMDS.APIVersion, s.IMDS.Interval, s.IMDS.VMName, string(s.State), string(s.Control),
		s.Listen, s.Timezone, s.Source, len(s.Routes)}
	want := []any{"good-shortest.yaml", "8a7a5c74aa8b", "http://169.254.169.254", "2020-07-01", time.Second, "",
		"/var/lib/forewarn", "", "127.0.0.1:8169", time.UTC, "", 1}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("settings are\n%v, want\n%v", got, want)
	}
	r := s.Routes[0]
	if got, want := r.Terms, termsOf(testKinds["file"]); !reflect.DeepEqual(got, want) {
		t.Errorf("terms are %+v, want the kind's %+v", got, want)
	}
	if got := r.Filter; !reflect.DeepEqual(got, bridge.Filter{}) {
		t.Errorf("filter is %+v, want the empty one", got)
	}
}

// Every key of the file sets its field.
func TestEveryKeySetsItsField(t *testing.T) {
	s := parseGood(t, "good-full.yaml")
	got := []any{s.IMDS.Endpoint, s.IMDS.APIVersion, s.IMDS.Interval, s.IMDS.VMName, string(s.State), string(s.Control), s.Listen,
		s.Timezone.String(), s.Source}
	want := []any{"http://127.0.0.1:8254/vm/vm_0", "2019-08-01", 1500 * time.Millisecond, "007", "/tmp/state",
		"/run/forewarn.sock", "", "Europe/Berlin", "urn:example:web"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("settings are\n%v, want\n%v", got, want)
	}
	if len(s.Routes) != 3 {
		t.Fatalf("%d routes, want 3", len(s.Routes))
	}
	chat, audit, hook := s.Routes[0], s.Routes[1], s.Routes[2]
	wantFilter := bridge.Filter{
		Only:   bridge.Only{VMs: "leader", Types: []string{"Reboot", "Redeploy"}, Sources: []string{"Platform"}},
		Except: bridge.Except{Changes: []string{"updated"}},
		When:   chat.Filter.When,
	}
	if !reflect.DeepEqual(chat.Filter, wantFilter) || chat.Filter.When == nil {
		t.Errorf("ops-chat has the filter %+v, want %+v with a condition", chat.Filter, wantFilter)
	}
	wantTerms := bridge.Terms{
		Terms:  delivery.Terms{Timeout: 3 * time.Second, MaxAge: 36 * time.Hour, Late: "drop", Batch: 1},
		Bridge: "all", People: true, Remind: []time.Duration{24 * time.Hour, time.Hour},
	}
	if !reflect.DeepEqual(chat.Terms, wantTerms) {
		t.Errorf("ops-chat has the terms %+v, want %+v", chat.Terms, wantTerms)
	}
	if got, want := *chat.Sink.(*testSink), (testSink{Token: written("xoxb"), Channel: "#ops"}); !reflect.DeepEqual(got,
		want) {
		t.Errorf("ops-chat is %+v, want %+v", got, want)
	}
	if audit.Kind != "file" || audit.Filter.Only.VMs != "all" || audit.Terms.Bridge != "all" || audit.Terms.MaxAge != 0 {
		t.Errorf("audit is %+v, want a file sink for all VMs and everything about the bridge, for ever", audit)
	}
	wantHook := testSink{
		URL: written("https://example.com/hook"), Mode: "binary", Keep: 3, Tags: []string{"a", "b"}, Wait: 7 * 24 * time.Hour,
		Headers: map[string]sinks.Value{"X-Team": written("blue"), "Authorization": {File: "/etc/token"}},
		Signing: []sinks.Value{written("whsec_1"), {Env: "SECRET"}}, TLS: &testTLS{CAFile: "/etc/ca.pem"},
	}
	if got := *hook.Sink.(*testSink); !reflect.DeepEqual(got, wantHook) {
		t.Errorf("hook is\n%+v, want\n%+v", got, wantHook)
	}
	if got, want := hook.Secrets, []string{"/etc/token"}; !slices.Equal(got, want) {
		t.Errorf("hook has the secret files %v, want %v", got, want)
	}
}

// Anchors, aliases and merge keys work as in YAML. A section's own key wins over a merged one.
func TestAnchorsAndMergesAreResolved(t *testing.T) {
	s := parseGood(t, "good-anchors.yaml")
	var got []string
	for _, r := range s.Routes {
		got = append(got, fmt.Sprintf("%s %v %v %s", r.Name, r.Filter.Only.Types, r.Terms.Timeout,
			r.Sink.(*testSink).Channel))
	}
	want := []string{"a [Reboot Freeze] 5s #ops", "b [Reboot Freeze] 9s #ops", "c [Freeze] 5s #dev"}
	if !slices.Equal(got, want) {
		t.Errorf("routes are %v, want %v", got, want)
	}
}

// A file with a byte order mark and CRLF is accepted.
func TestSettingsFromWindowsAreRead(t *testing.T) {
	s, err := testLoader().Parse("x",
		[]byte("\ufefftimezone: Europe/Berlin\r\nsinks:\r\n  - name: a\r\n    file: {path: x}\r\n"))
	if err != nil || s.Zone != "Europe/Berlin" {
		t.Errorf("parse = %+v, %v, want the time zone", s, err)
	}
}

// A file that is not a settings file at all is refused in one line.
func TestFilesThatAreNotSettingsAreRefused(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"empty":         {"", "f: the file is empty; expected at least the key sinks"},
		"only comments": {"# a\n---\n# b\n", "f: the file is empty; expected at least the key sinks"},
		"10 MB":         {strings.Repeat("# aaaaaaa\n", 1<<20), "f: larger than 1 MiB; expected a settings file"},
		"many words":    {strings.Repeat("- a\n", 15_000), "f: more than 20000 YAML tokens; expected a settings file"},
		"Latin-1":       {"# caf\xe9\n", "f:1:6: not text in UTF-8; expected a file saved as UTF-8"},
		"UTF-16":        {"\xff\xfes\x00i\x00", "f:1:1: not text in UTF-8; expected a file saved as UTF-8"},
		"binary":        {"a: b\n\x00\x01\x02", "f:2:1: not text in UTF-8; expected a file saved as UTF-8"},
		"text":          {"hello", "f:1:1: settings: expected a section of keys, got text"},
		"a list":        {"- a", "f:1:1: settings: expected a section of keys, got a list"},
	} {
		_, err := testLoader().Parse("f", []byte(tt.text))
		if got, _, _ := strings.Cut(fmt.Sprint(err), "\n"); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// Deep nesting causes neither endless recursion nor a long wait.
func TestDeepNestingIsHandledQuickly(t *testing.T) {
	for _, text := range []string{"[", "{a: ", "- ", "? ", "&a ", "!a ", "a: &a [*a, "} {
		for _, n := range []int{100, 4_000} {
			if _, err := testLoader().Parse("f", []byte(strings.Repeat(text, n))); err == nil {
				t.Errorf("%d times %q is taken, want an error", n, text)
			}
		}
	}
	laughs := "a: &a [x, x]\n"
	for c := 'b'; c < 'z'; c++ {
		laughs += fmt.Sprintf("%c: &%[1]c [*%[2]c, *%[2]c, *%[2]c, *%[2]c, *%[2]c]\n", c, c-1)
	}
	if _, err := testLoader().Parse("f", []byte(laughs)); err == nil {
		t.Error("a file of aliases of aliases is taken, want an error")
	}
}

// Durations are Go's, with optional days in front. A number without a unit is refused, except 0.
func TestDurationsMayHaveDays(t *testing.T) {
	for _, tt := range []struct {
		text string
		want time.Duration
		ok   bool
	}{
		{"0", 0, true}, {"90s", 90 * time.Second, true}, {"7d", 168 * time.Hour, true},
		{"1d12h30m", 36*time.Hour + 30*time.Minute, true},
		{"1.5h", 90 * time.Minute, true}, {"0d", 0, true}, {"99999d", 99999 * 24 * time.Hour, true},
		{"", 0, false}, {"5", 0, false}, {"-1s", 0, false}, {"1d-1h", 0, false}, {"d", 0, false}, {"1dd", 0, false},
		{"5 minutes", 0, false},
		{"99999d2000000h", 0, false}, {"9999999d", 0, false}, {"12h1d", 0, false},
	} {
		if d, ok := ParseDuration(tt.text); ok != tt.ok || ok && d != tt.want {
			t.Errorf("parseDuration(%q) = %v, %v, want %v, %v", tt.text, d, ok, tt.want, tt.ok)
		}
	}
	for text, want := range map[string]bool{
		"9999999d": true, "99999d2000000h": true, "9999999h": true, "99999d": false, "5": false, "12h1d": false, "-1s": false,
	} {
		if isTooLong(text) != want {
			t.Errorf("isTooLong(%q) is %v", text, !want)
		}
	}
}

// Without a file the bridge uses its defaults, and writes events of its own VM to standard output.
func TestNoFileMeansDefaultsAndStandardOutput(t *testing.T) {
	s, err := testLoader().Parse("", []byte(Builtin))
	if err != nil {
		t.Fatal(err)
	}
	r := s.Routes[0]
	if s.Path != "" || len(s.Routes) != 1 || r.Name != "stdout" || r.Kind != "file" ||
		r.Terms.Bridge != bridge.LevelNone ||
		r.Filter.Only.VMs != "" || r.Sink.(*testSink).Path != "-" {
		t.Errorf("settings are %+v, want one file sink named stdout on -", s)
	}
	real := testLoader()
	real.Kinds = sinks.Kinds()
	if _, err := real.Parse("", []byte(Builtin)); err != nil {
		t.Errorf("the real kinds refuse the built-in settings: %v", err)
	}
}

// A settings file named by the user must exist. The default one need not.
func TestNamedFileMustExist(t *testing.T) {
	l := testLoader()
	dir := t.TempDir()
	place := filepath.Join(dir, "forewarn.yaml")
	l.Defaults.Settings = place
	if s, err := l.Load(""); err != nil || s.Path != "" {
		t.Errorf("load with no file = %+v, %v, want the built-in settings", s, err)
	}
	if err := os.WriteFile(place, []byte(Builtin), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := l.Load(""); err != nil || s.Path != place {
		t.Errorf("load = %+v, %v, want the file %s", s, err, place)
	}
	missing := filepath.Join(dir, "forewarn.yml")
	_, err := l.Load(missing)
	remedy := "create it, or leave out --config to run with the defaults"
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing) || !strings.HasSuffix(err.Error(),
		remedy) {
		t.Errorf("load of a missing file = %v, want an error that names it and ends in %s", err, remedy)
	}
	if _, err := l.Load(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("load of a directory = %v, want an error that names it", err)
	}
}

// A reload fails without the default file, because the built-in settings would remove every sink.
func TestReloadNeedsAFile(t *testing.T) {
	l := testLoader()
	place := filepath.Join(t.TempDir(), "forewarn.yaml")
	l.Defaults.Settings = place
	if s, err := l.Reload(""); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), place) {
		t.Errorf("reload with no file = %+v, %v, want an error that names %s", s, err, place)
	}
	if err := os.WriteFile(place, []byte(Builtin), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := l.Reload(""); err != nil || s.Path != place {
		t.Errorf("reload = %+v, %v, want the file %s", s, err, place)
	}
}

// A command that needs only the location of the bridge need not open its sinks.
func TestWithoutKindsNoSinkIsOpened(t *testing.T) {
	l := testLoader()
	l.Kinds = nil
	s, err := l.Parse("f", []byte("state: /s\nsinks: [{name: a, webhook: {url_file: /no/such/file}}]"))
	if err != nil || s.State != "/s" || s.Routes != nil {
		t.Errorf("parse = %+v, %v, want the state and no routes", s, err)
	}
}

// The default state directory is the system's for root and the user's own for others.
func TestStateHasADefaultForEveryUser(t *testing.T) {
	for _, tt := range []struct {
		goos string
		euid int
		env  map[string]string
		want string
	}{
		{"linux", 0, map[string]string{"HOME": "/root", "XDG_STATE_HOME": "/root/s"}, "/var/lib/forewarn"},
		{"linux", 1000, map[string]string{"HOME": "/home/a", "XDG_STATE_HOME": "/home/a/s"}, "/home/a/s/forewarn"},
		{"linux", 1000, map[string]string{"HOME": "/home/a", "XDG_STATE_HOME": "s"}, "/home/a/.local/state/forewarn"},
		{"linux", 1000, map[string]string{"HOME": "/home/a"}, "/home/a/.local/state/forewarn"},
		{"linux", 1000, nil, "/var/lib/forewarn"},
		{"windows", -1, map[string]string{"ProgramData": `C:\ProgramData`}, `C:\ProgramData\forewarn`},
		{"windows", -1, nil, `C:\ProgramData\forewarn`},
	} {
		if got := DefaultState(tt.goos, tt.euid, func(k string) string { return tt.env[k] }); got != tt.want {
			t.Errorf("defaultState(%s, %d, %v) = %s, want %s", tt.goos, tt.euid, tt.env, got, tt.want)
		}
	}
}

// No text makes the parser panic, and no error contains the name of a Go type.
func FuzzSettings(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	typos, err := filepath.Glob("../../testdata/typos/*")
	if err != nil || len(typos) == 0 {
		f.Fatalf("Glob = %v, %v, want files", typos, err)
	}
	for _, name := range append(files, typos...) {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	for _, text := range []string{"|{", "a:\n\t\n: b", "\x00\xff", "x: {y: z}h6\n?\x9a",
		"imds:\n endpoint: ://0\n  -     !",
		"sinks:\n  - name: a\n    file: {}\n    when: |\n      severity > '=h {pat@ @"} {
		f.Add(text)
	}
	l := testLoader()
	f.Fuzz(func(t *testing.T, text string) {
		s, err := l.Parse("f", []byte(text))
		if err == nil {
			if s.Timezone == nil || s.State == "" {
				t.Errorf("%q gives %+v, want complete settings", text, s)
			}
			return
		}
		for _, name := range []string{"bridge.", "settings.", "ast.", "reflect", "interface {}"} {
			if strings.Contains(err.Error(), name) && !strings.Contains(text, name) {
				t.Errorf("%q gives an error that shows %s:\n%v", text, name, err)
			}
		}
	})
}

// A relay that runs takes over neither other servers nor other credentials, and everything else.
func TestRelayServersNeedARestart(t *testing.T) {
	load := func(keys, sinks string) *RelaySettings {
		s, err := testLoader().Parse("f", []byte("nats: {url: 'nats://127.0.0.1', name: r, username: u, "+keys+"}\nsinks: ["+sinks+"]"))
		if err != nil {
			t.Fatal(err)
		}
		return s.Relay
	}
	was := load("password: one", "")
	for keys, same := range map[string]bool{
		"password: one":                                      true,
		"password: two":                                      false,
		"password: one, stream: OTHER":                       false,
		"password: one, inbox_prefix: _INBOX_r":              false,
		"password: one, provision: {subjects: [forewarn.>]}": true,
	} {
		if got := was.IsSame(load(keys, "{name: a, file: {path: '-'}}")); got != same {
			t.Errorf("%s: the same is %v, want %v", keys, got, same)
		}
	}
}

// Words count in any case, also where a relay takes only one of them.
func TestSinkOfARelayIsForAllVMsInAnyCase(t *testing.T) {
	text := "nats: {url: 'nats://127.0.0.1'}\nsinks: [{name: a, only: {vms: All}, file: {path: '-'}}]"
	if _, err := testLoader().Parse("f", []byte(text)); err != nil {
		t.Error(err)
	}
}

// Where a list is expected, one value will do.
func TestOneValueIsAList(t *testing.T) {
	parse := func(text string) *Settings {
		t.Helper()
		s, err := testLoader().Parse("forewarn.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	one := parse(`
sinks:
  - {name: ops, file: {path: "-"}, remind: 2h, only: {types: Reboot, changes: scheduled, names: vm-*, severity: warn}}
approve:
  only: {types: Reboot}
  after: ops
`)
	list := parse(`
sinks:
  - {name: ops, file: {path: "-"}, remind: [2h], only: {types: [Reboot], changes: [scheduled], names: [vm-*], severity: WARN}}
approve:
  - only: {types: [Reboot]}
    after: [ops]
`)
	if !reflect.DeepEqual(one.Routes[0].Terms, list.Routes[0].Terms) ||
		!reflect.DeepEqual(one.Routes[0].Filter.Only.Types, list.Routes[0].Filter.Only.Types) ||
		!reflect.DeepEqual(one.Routes[0].Filter.Only.Names, list.Routes[0].Filter.Only.Names) ||
		!reflect.DeepEqual(one.Rules, list.Rules) {
		t.Errorf("one value gives %+v, %+v; want as the list %+v, %+v", one.Routes[0], one.Rules, list.Routes[0], list.Rules)
	}
}

// A list in brackets may have items with colons in them, also inside braces.
func TestAnItemOfAListMayHaveColons(t *testing.T) {
	s, err := testLoader().Parse("", []byte("sinks: [{name: a, file: {path: /x, tags: [nats://h:4222, 'q:r', http://x:80/a:b, 12:30]}}]"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"nats://h:4222", "q:r", "http://x:80/a:b", "12:30"}
	if got := s.Routes[0].Sink.(*testSink).Tags; !slices.Equal(got, want) {
		t.Errorf("the items are %q, want %q", got, want)
	}
	_, err = testLoader().Parse("", []byte("sinks: [{name: a, file: {path: /x, tags: [b: c]}}]"))
	if err == nil {
		t.Error("a section is taken for an item of a list of texts")
	}
}

// What a kind is called elsewhere is answered with what it is called here.
func TestAKindUnderAnotherNameIsExplained(t *testing.T) {
	_, err := testLoader().Parse("", []byte("sinks: [{name: a, http: {url: https://h}}]"))
	if err == nil || !strings.Contains(err.Error(), `unknown key "http"; expected webhook`) {
		t.Errorf("the error is %v", err)
	}
}
