package templates

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"
	"unicode/utf8"
)

// Every function does what users of Alertmanager and sprig expect of it, also with missing values.
func TestFunctions(t *testing.T) {
	fields := map[string]any{
		"text": "Réboot <vm> & \"more\"", "list": []any{"a", 1.5}, "names": []string{"vm-0", "vm-1"}, "none": []string{},
		"map": map[string]any{"b": 2, "a": "<x>"}, "n": 42, "no": false,
		"at": map[string]any{"zone": "Europe/Berlin", "now": "2026-11-21T03:55:29Z"},
	}
	for _, tt := range []struct{ template, want string }{
		{`{{json .text}}`, `"Réboot <vm> & \"more\""`},
		{`{{json .map}}`, `{"a":"<x>","b":2}`},
		{`{{json .missing}}`, `null`},
		{`{{.text | upper}}`, `RÉBOOT <VM> & "MORE"`},
		{`{{.text | lower}}`, `réboot <vm> & "more"`},
		{`{{upper .missing}}`, ``},
		{`{{upper .n}}`, `42`},
		{`{{line .map}} {{line .list}} {{line (list .map)}} {{line (dict)}}`, `{"a":"<x>","b":2} ["a",1.5] [{"a":"<x>","b":2}] {}`},
		{`{{join ", " .names}}`, `vm-0, vm-1`},
		{`{{.list | join "/"}}`, `a/1.5`},
		{`{{join "," .none}}`, ``},
		{`{{join "," .missing}}`, ``},
		{`{{join "," .n}}`, `42`},
		{`{{default "none" .missing}}`, `none`},
		{`{{.none | default "none"}}`, `none`},
		{`{{.no | default "none"}}`, `none`},
		{`{{.text | default "none" | trunc 6}}`, `Réboo…`},
		{`{{trunc 6 "sechse"}}`, `sechse`},
		{`{{trunc 1 "sechse"}}`, `…`},
		{`{{trunc 0 "sechse"}}`, ``},
		{`{{trunc -1 ""}}`, ``},
		{`{{trunc 3 .missing}}`, ``},
		{`{{replace "vm-" "node " (join ", " .names)}}`, `node 0, node 1`},
		{`{{replace "a" "b" .missing}}`, ``},
		{`{{.missing}}`, `<no value>`},
		{`{{title "réboot of vm-0"}}`, `Réboot Of Vm-0`},
		{`{{trim " a b\n"}}`, `a b`},
		{`{{"vm-0" | trimPrefix "vm-"}}{{trimSuffix "-0" "vm-0"}}`, `0vm`},
		{`{{trimPrefix .missing .missing}}`, ``},
		{`{{contains "vm" .text}} {{contains "xx" .text}} {{contains "" .missing}}`, `true false true`},
		{`{{hasPrefix "R" .text}} {{hasSuffix "more\"" .text}} {{hasPrefix "a" .n}}`, `true true false`},
		{`{{quote .text}}`, `"Réboot <vm> & \"more\""`},
		{`{{indent 2 "a\nb"}}`, "  a\n  b"},
		{`{{indent -1 "a"}}`, "a"},
		{`{{line "a\r\n b\u202e\tc"}}`, "a b c"},
		{`{{split "," "a,b" | last}}{{split "," .missing | first}}`, "b"},
		{`{{first .names}} {{last .names}} {{first .n}}`, "vm-0 vm-1 42"},
		{`{{first .none}}{{last .missing}}`, "<no value><no value>"},
		{`{{list 1 "a" .missing | json}}`, `[1,"a",null]`},
		{`{{dict "a" 1 "b" | json}}`, `{"a":1,"b":""}`},
		{`{{dig "a" "-" .map}} {{dig "c" "-" .map}} {{dig "a" "b" "-" .map}} {{dig "a" "-" .missing}}`, `<x> - - -`},
		{`{{without .names "VM-0" | json}} {{without .missing "x"}}`, `["vm-1"] []`},
		{`{{names 1 .names}}; {{names 5 .names}}; {{names 0 .names}}; {{names 3 .missing}}`, `vm-0 and 1 more; vm-0, vm-1;  and 2 more; `},
		{`{{coalesce .missing "" .none 0 "x" "y"}}`, `x`},
		{`{{ternary "yes" "no" .names}} {{.no | ternary "yes" "no"}}`, `yes no`},
		{`{{required "it" .n}}`, `42`},
		{`{{humanizeDuration 14.9}}, {{humanizeDuration 119}}, {{humanizeDuration 871}}, {{humanizeDuration 7200}}, {{humanizeDuration 200000}}`, `14 s, 119 s, 14 min, 2 h 0 min, 2 days 7 h`},
		{`{{humanizeDuration -90}} {{humanizeDuration "x"}} {{humanizeDuration .missing}}`, `-90 s 0 s 0 s`},
		{`{{date "15:04" "2026-11-21T04:10:00Z"}} {{"Sat, 21 Nov 2026 04:10:00 GMT" | tz "Europe/Berlin" | date "Mon 15:04 MST"}} {{date "15:04" 1795234200}}`, `04:10 Sat 05:10 CET 04:10`},
		{`{{date "15:04" .missing}}{{date "15:04" "soon"}}`, ``},
		{`{{date "15:04" "Tue, 1 Dec 2026 04:10:00 GMT"}} {{date "15:04" "Tue, 01 Dec 2026 04:10:00 UTC"}} {{date "15:04" "Tue, 01 Dec 2026 04:10:00 PST"}}`, `04:10 04:10 `},
		{`{{"2026-11-21T04:10:00Z" | tz "No/Where" | date "15:04 MST"}}`, `04:10 UTC`},
		{`{{unixEpoch "2026-11-21T04:10:00Z"}}`, `1795234200`},
		{`{{secondsBetween "2026-11-21T04:10:00Z" "2026-11-20T04:10:00Z"}} {{secondsBetween .missing .missing}}`, `-86400 0`},
		{`{{clock .at "2026-11-21T04:10:04Z"}}; {{clockSeconds .at "2026-11-21T04:10:04Z"}}; {{clock .at "2026-11-22T04:10:04Z"}}; {{clock .at ""}}`, `05:10 CET; 05:10:04 CET; 05:10 CET on Sun 22 Nov; `},
		{`{{clock (slack .at) "2026-11-22T04:10:04Z"}}`, `<!date^1795320604^{time} on {date_short}|05:10 CET on Sun 22 Nov>`},
		{`{{fullTime .at "2026-11-21T04:10:04Z"}}; {{fullTime .missing "2026-11-21T04:10:04Z"}}`, `Sat 21 Nov 2026 at 05:10 CET (04:10 UTC); Sat 21 Nov 2026 at 04:10 UTC`},
		{`{{fullTime .at "2026-11-20T23:10:04Z"}}; {{fullTime (dict "zone" "America/New_York") "2026-11-21T04:10:04Z"}}`, `Sat 21 Nov 2026 at 00:10 CET (Fri 23:10 UTC); Fri 20 Nov 2026 at 23:10 EST (Sat 04:10 UTC)`},
		{`{{slackEscape .text}}`, `Réboot &lt;vm&gt; &amp; "more"`},
		{`{{(slack .).list}} {{(slack .).map.a}} {{slack "<"}}`, `[a 1.5] &lt;x&gt; &lt;`},
		{"{{(slack (dict \"a\" \"*x* ~y~ `z` vm_0\")).a}}", "∗x∗ ∼y∼ ˋzˋ vm_0"},
		{`{{slackEscape "a<b" | trunc 5}} {{trunc 7 "a &c; def"}}`, `a… a &c; …`},
		{`{{slackTime "{time}" "a|b>" "2026-11-21T04:10:00Z"}}`, `<!date^1795234200^{time}|ab>`},
		{`{{portalURL "/subscriptions/1/resourceGroups/a b|c"}} {{portalURL .missing}}`, `https://portal.azure.com/#@/resource/subscriptions/1/resourceGroups/a%20b%7Cc `},
		{`{{activityLogURL "/subscriptions/1"}}{{activityLogURL ""}}`, `https://portal.azure.com/#@/resource/subscriptions/1/eventlogs`},
		{`{{define "x"}}<{{.}}>{{end}}{{include "x" .n | json}}`, `"<42>"`},
	} {
		parsed, err := Parse("body", tt.template)
		if err != nil {
			t.Errorf("Parse(%s): %v", tt.template, err)
			continue
		}
		var got strings.Builder
		if err := parsed.Execute(&got, fields); err != nil || got.String() != tt.want {
			t.Errorf("%s = %q, %v; want %q", tt.template, got.String(), err, tt.want)
		}
	}
}

// A value that JSON cannot represent makes the template fail.
func TestJSONRefusesWhatItCannotHold(t *testing.T) {
	parsed, err := Parse("body", `{{json .f}}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := parsed.Execute(new(strings.Builder), map[string]any{"f": func() {}}); err == nil {
		t.Error("json of a function gave no error")
	}
}

// An error says where it is: the name and line when parsing, the column too when executing.
func TestErrorsSayWhere(t *testing.T) {
	_, err := Parse("body_text", "one\n{{if}}")
	if err == nil || !strings.Contains(err.Error(), "body_text:2:") {
		t.Errorf("Parse = %v, want body_text:2: in it", err)
	}
	parsed, err := Parse("body_text", "one\n{{index .list 7}}")
	if err != nil {
		t.Fatal(err)
	}
	err = parsed.Execute(new(strings.Builder), map[string]any{"list": []string{"a"}})
	if err == nil || !strings.Contains(err.Error(), "body_text:2:2") {
		t.Errorf("Execute = %v, want body_text:2:2 in it", err)
	}
}

// A define that includes itself makes the template fail, and does not end the program.
func TestIncludeOfItselfIsStopped(t *testing.T) {
	parsed, err := Parse("body", `{{define "x"}}{{include "x" .}}{{end}}{{include "x" .}}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := parsed.Execute(new(strings.Builder), nil); err == nil || !strings.Contains(err.Error(), "too deep") {
		t.Errorf("Execute = %v, want it too deep", err)
	}
}

// No function panics, whatever its arguments are: a template in the settings may pass anything.
func TestFunctionsAcceptAnyValue(t *testing.T) {
	values := []any{
		nil, "", "text", -1, 1 << 40, 1.5, math.NaN(), math.Inf(-1), true, []any{nil, 1, "a"}, []string{"a"}, [2]int{}, map[string]any{"a": nil}, map[int]int{1: 1},
		time.Time{}, time.Unix(1<<40, 0), []map[string]any{{"a": 1}, nil}, (*int)(nil), []map[string]any{},
	}
	for name, function := range functions(func(string, any) (string, error) { return "", nil }) {
		f := reflect.ValueOf(function)
		n := f.Type().NumIn()
		if f.Type().IsVariadic() {
			n += 2
		}
		for i := range len(values) * len(values) * n {
			args := make([]reflect.Value, n)
			for j := range args {
				v := values[(i/(j+1)+j*i)%len(values)]
				if args[j] = reflect.ValueOf(v); v == nil {
					args[j] = reflect.Zero(reflect.TypeFor[any]())
				}
			}
			func() {
				defer func() {
					if r := recover(); r != nil {
						t.Errorf("%s(%v) panics: %v", name, args, r)
					}
				}()
				f.Call(args)
			}()
		}
	}
}

// HTML templates escape the values that they insert, those in shared words too.
func TestHTMLEscapesTheWords(t *testing.T) {
	parsed, err := ParseHTML("mail", `<p>{{template "cause" .}}</p>{{include "cause" .}}`)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	want := "<p>&lt;b&gt;</p>&lt;b&gt;"
	if err := parsed.Execute(&got, map[string]any{"azeventsource": "<b>"}); err != nil || got.String() != want {
		t.Errorf("Execute = %q, %v; want %q", got.String(), err, want)
	}
}

// A text can define a shared word anew. Its define is then used everywhere, in HTML too.
func TestSharedWordCanBeRedefined(t *testing.T) {
	const text = `{{define "cause"}}<our word>{{end}}{{template "why" .}}|{{include "why" .}}|{{include "cause" .}}`
	fields := map[string]any{"azeventsource": "Platform", "azeventtype": "Reboot"}
	for want, parse := range map[string]func(name, text string) (*Template, error){
		"<our word>.|<our word>.|<our word>":             Parse,
		"<our word>.|&lt;our word&gt;.|&lt;our word&gt;": ParseHTML,
	} {
		parsed, err := parse("text", text)
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		if err := parsed.Execute(&got, fields); err != nil || got.String() != want {
			t.Errorf("Execute = %q, %v; want %q", got.String(), err, want)
		}
	}
}

// A shared word that a text defines as nothing is nothing.
func TestSharedWordCanBeBlanked(t *testing.T) {
	for kind, parse := range map[string]func(name, text string) (*Template, error){"text": Parse, "HTML": ParseHTML} {
		parsed, err := parse("text", `{{define "cause"}}{{end}}<{{template "cause" .}}|{{include "cause" .}}>`)
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		if err := parsed.Execute(&got, map[string]any{"azeventsource": "Platform"}); err != nil || strings.Contains(got.String(), "Azure") {
			t.Errorf("%s: Execute = %q, %v; want nothing of the cause", kind, got.String(), err)
		}
	}
}

// Nobody can read the environment, files or the network from a template: the functions are these and no others.
func TestFunctionsAreAClosedSet(t *testing.T) {
	want := strings.Fields(`activityLogURL clock clockSeconds coalesce contains date default dict dig facts families first fullTime fullTimeSeconds hasPrefix
		hasSuffix humanizeDuration include indent join json last line links list lower names portalURL quote replace required secondsBetween slack slackEscape
		slackTime split ternary title toTime trim trimPrefix trimSuffix trunc tz unixEpoch upper without`)
	if got := FuncNames(); !slices.Equal(got, want) {
		t.Errorf("FuncNames() = %v, want %v", got, want)
	}
}

// A text is cut at a character, and never inside an entity or a token.
func TestTextsAreCut(t *testing.T) {
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"äöüß", 3, "äö…"}, {"abc", 1, "…"}, {"abc", 0, ""}, {"", 0, ""},
		{"a &amp; b", 5, "a …"}, {"a &amp; b", 8, "a &amp;…"}, {"a & b & c", 5, "a & …"},
		{"a <!date^1^{time}|x> b", 8, "a …"}, {"a <b c d e f", 8, "a <b c …"}, {"<a> <b> c", 8, "<a> <b>…"},
		{"at <!date^1795234200^{time}|05:10 CET>, in 14 min", 20, "at …"}, {"at <!date^1^{time}|05:10 CET>, x", 31, "at <!date^1^{time}|05:10 CET>,…"},
		{"x\xffy", 3, "x\ufffdy"}, {"x\xff\xfeyz", 2, "x…"},
	} {
		if got := Cut(tt.text, tt.n); got != tt.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", tt.text, tt.n, got, tt.want)
		}
	}
}

// What is cut is never longer than asked, and what is left is a beginning of the text.
func FuzzCut(f *testing.F) {
	f.Add("a &amp; <b|c> d", 7)
	f.Add("\xff<", 1)
	f.Fuzz(func(t *testing.T, text string, n int) {
		got := Cut(text, n)
		valid := strings.ToValidUTF8(text, "\ufffd")
		if utf8.RuneCountInString(got) > max(n, 0) || !strings.HasPrefix(valid, strings.TrimSuffix(got, "…")) && got != valid {
			t.Errorf("Cut(%q, %d) = %q", text, n, got)
		}
	})
}
