package templates

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"time"
	"unicode"
	"unicode/utf8"
)

// Funcs are the functions of templates, most under the names and with the order of arguments that Alertmanager and
// sprig have, so that the value comes last and can be piped. They take any value: what is missing is empty, what is no
// text is printed. include, which needs a template, is added by Parse.
func Funcs() template.FuncMap {
	z := &zones{known: make(map[string]*time.Location)}
	return template.FuncMap{
		// Texts.
		"upper":      func(v any) string { return strings.ToUpper(text(v)) },
		"lower":      func(v any) string { return strings.ToLower(text(v)) },
		"title":      title,
		"trim":       func(v any) string { return strings.TrimSpace(text(v)) },
		"trimPrefix": func(prefix, v any) string { return strings.TrimPrefix(text(v), text(prefix)) },
		"trimSuffix": func(suffix, v any) string { return strings.TrimSuffix(text(v), text(suffix)) },
		"replace": func(old, with, v any) string {
			return strings.ReplaceAll(text(v), text(old), text(with))
		},
		"trunc":     func(n, v any) string { return Cut(text(v), int(number(n))) },
		"contains":  func(part, v any) bool { return strings.Contains(text(v), text(part)) },
		"hasPrefix": func(prefix, v any) bool { return strings.HasPrefix(text(v), text(prefix)) },
		"hasSuffix": func(suffix, v any) bool { return strings.HasSuffix(text(v), text(suffix)) },
		"quote":     func(v any) string { return strconv.Quote(text(v)) },
		"indent":    indent,
		"line":      func(v any) string { return Line(text(v)) },
		"json":      toJSON,

		// Lists and maps.
		"list":    func(items ...any) []any { return items },
		"dict":    dict,
		"dig":     dig,
		"join":    join,
		"split":   func(sep, v any) []string { return strings.Split(text(v), text(sep)) },
		"first":   func(list any) any { return nth(list, 0) },
		"last":    func(list any) any { return nth(list, -1) },
		"without": without,
		"names":   names,

		// Choices.
		"default":  func(instead, v any) any { return coalesce(v, instead) },
		"coalesce": coalesce,
		"ternary": func(yes, no, v any) any {
			if truth(v) {
				return yes
			}
			return no
		},

		"required": required,

		// Times.
		"toTime":           toTime,
		"date":             func(layout, t any) string { return format(toTime(t), text(layout)) },
		"tz":               func(zone, t any) time.Time { return z.in(toTime(t), text(zone)) },
		"unixEpoch":        func(t any) int64 { return toTime(t).Unix() },
		"humanizeDuration": humanizeDuration,
		"clock":            func(fields, t any) string { return z.clock(fields, t, false) },
		"clockSeconds":     func(fields, t any) string { return z.clock(fields, t, true) },
		"fullTime":         z.full,

		// Slack and Azure's portal.
		"slack":          slack,
		"slackEscape":    slackEscape,
		"slackTime":      func(layout, instead, t any) string { return slackTime(toTime(t), text(layout), text(instead)) },
		"portalURL":      portalURL,
		"activityLogURL": activityLogURL,
	}
}

// FuncNames are the names of all functions, sorted.
func FuncNames() []string { return slices.Sorted(maps.Keys(functions(nil))) }

// functions are Funcs and include.
func functions(include func(define string, data any) (string, error)) template.FuncMap {
	all := Funcs()
	all["include"] = func(define, data any) (string, error) { return include(text(define), data) }
	return all
}

// toJSON is v as compact JSON, with nothing escaped for HTML.
func toJSON(v any) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// items are those of a list; nothing is none, what is no list is its only item.
func items(list any) []any {
	switch v := reflect.ValueOf(list); {
	case list == nil:
		return nil
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
		all := make([]any, v.Len())
		for i := range all {
			all[i] = v.Index(i).Interface()
		}
		return all
	}
	return []any{list}
}

// join puts sep between the items of a list.
func join(sep, list any) string {
	var all []string
	for _, v := range items(list) {
		all = append(all, text(v))
	}
	return strings.Join(all, text(sep))
}

// nth is an item of a list, from the end when n is negative; nil when there is none.
func nth(list any, n int) any {
	all := items(list)
	if n < 0 {
		n += len(all)
	}
	if n < 0 || n >= len(all) {
		return nil
	}
	return all[n]
}

// without is the list without some items; case does not count, because it does not in names of VMs.
func without(list any, but ...any) []any {
	return slices.DeleteFunc(slices.Clone(items(list)), func(v any) bool {
		return slices.ContainsFunc(but, func(b any) bool { return strings.EqualFold(text(v), text(b)) })
	})
}

// longestName is how much of a name is shown; Azure's own have at most 80 characters.
const longestName = 80

// names are the first n of a list and how many more there are, for people.
func names(n, list any) string {
	all := items(list)
	shown := all[:max(0, min(len(all), int(number(n))))]
	var b strings.Builder
	for i, v := range shown {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(Cut(Line(text(v)), longestName))
	}
	if more := len(all) - len(shown); more > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	return b.String()
}

// dict makes a map of names and values by turns.
func dict(pairs ...any) map[string]any {
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		if m[text(pairs[i])] = ""; i+1 < len(pairs) {
			m[text(pairs[i])] = pairs[i+1]
		}
	}
	return m
}

// dig walks from a map, which comes last, by names into maps. What stands before the map is given instead of what is
// not there.
func dig(path ...any) any {
	if len(path) < 2 {
		return nil
	}
	v, instead := path[len(path)-1], path[len(path)-2]
	for _, name := range path[:len(path)-2] {
		m, _ := v.(map[string]any)
		if v = m[text(name)]; v == nil {
			return instead
		}
	}
	return v
}

// coalesce is the first value that is not empty: missing, "", 0, false, or a list or map of nothing.
func coalesce(values ...any) any {
	for _, v := range values {
		if truth(v) {
			return v
		}
	}
	return nth(values, -1)
}

// required is the value, or ends the template when it is empty.
func required(name, v any) (any, error) {
	if !truth(v) {
		return nil, fmt.Errorf("%s is missing", text(name))
	}
	return v, nil
}

func truth(v any) bool {
	full, ok := template.IsTrue(v)
	return ok && full
}

// title begins every word with a capital.
func title(v any) string {
	between := true
	return strings.Map(func(r rune) rune {
		first := between
		if between = unicode.IsSpace(r); first {
			return unicode.ToTitle(r)
		}
		return r
	}, text(v))
}

// Cut shortens a text to at most n characters, the last of which is then "…". It cuts neither an entity of Slack's
// such as &amp; nor what stands in angle brackets, because half of one would show or be refused.
func Cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	if n <= 0 {
		return ""
	}
	end := len(s)
	for i := range s { // the byte at which character n begins
		if n--; n == 0 {
			end = i
			break
		}
	}
	if i := strings.LastIndexByte(s[:end], '<'); i > strings.LastIndexByte(s[:end], '>') {
		if rest := strings.IndexAny(s[i+1:], "<>"); rest >= 0 && s[i+1+rest] == '>' {
			end = i
		}
	}
	for _, entity := range []string{"&amp;", "&lt;", "&gt;"} {
		if i := strings.LastIndexByte(s[:end], '&'); i >= 0 && strings.HasPrefix(s[i:], entity) && i+len(entity) > end {
			end = i
		}
	}
	return s[:end] + "…"
}

// indent begins every line with n spaces.
func indent(n, v any) string {
	pad := strings.Repeat(" ", max(0, min(80, int(number(n)))))
	return pad + strings.ReplaceAll(text(v), "\n", "\n"+pad)
}

// Line is a text on one line that shows what it holds: white space and control characters become single spaces, what
// does not print or changes the direction of writing is left out.
func Line(s string) string {
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r), unicode.IsControl(r):
			return ' '
		case unicode.IsPrint(r) && r != unicode.ReplacementChar:
			return r
		}
		return -1
	}, s)), " ")
}

// number is a value as a number; 0 when it is none.
func number(v any) float64 {
	n, err := strconv.ParseFloat(strings.TrimSpace(text(v)), 64)
	if err != nil || math.IsNaN(n) {
		return 0
	}
	return max(-math.MaxInt32, min(math.MaxInt32, n))
}

// toTime reads a time as CloudEvents and as Azure write it, or as seconds since 1970; the zero time when it is none.
func toTime(v any) time.Time {
	if t, ok := v.(time.Time); ok {
		return t
	}
	s := strings.TrimSpace(text(v))
	for _, layout := range []string{time.RFC3339Nano, time.RFC1123, time.RFC1123Z} {
		if t, err := time.Parse(layout, s); err == nil {
			return t
		}
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.Unix(n, 0).UTC()
	}
	return time.Time{}
}

// format is a time in a layout of Go, "" for none.
func format(t time.Time, layout string) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(layout)
}

// humanizeDuration says a number of seconds to a person, rounded down so that nobody counts on more than there is.
func humanizeDuration(seconds any) string {
	n := int64(number(seconds))
	switch {
	case n < 0:
		return "-" + humanizeDuration(-n)
	case n < 120:
		return fmt.Sprintf("%d s", n)
	case n < 2*60*60:
		return fmt.Sprintf("%d min", n/60)
	case n < 48*60*60:
		return fmt.Sprintf("%d h %d min", n/3600, n%3600/60)
	}
	return fmt.Sprintf("%d days %d h", n/86400, n%86400/3600)
}

// zones are the time zones in use. mu guards known.
type zones struct {
	mu    sync.Mutex
	known map[string]*time.Location
}

// in is t in a zone; one that does not exist is UTC.
func (z *zones) in(t time.Time, name string) time.Time {
	z.mu.Lock()
	defer z.mu.Unlock()
	zone := z.known[name]
	if zone == nil {
		var err error
		if zone, err = time.LoadLocation(name); err != nil {
			zone = time.UTC
		}
		z.known[name] = zone
	}
	return t.In(zone)
}

// clock is a time of day in the zone of the fields, with the day when it is not that of now; in Slack each reader sees
// his own. "" for no time.
func (z *zones) clock(fields, v any, seconds bool) string {
	t := toTime(v)
	if t.IsZero() {
		return ""
	}
	f, _ := fields.(map[string]any)
	zone := text(f["zone"])
	t = z.in(t, zone)
	layout, token := "15:04 MST", "{time}"
	if seconds {
		layout, token = "15:04:05 MST", "{time_secs}"
	}
	if now := toTime(f["now"]); !now.IsZero() && z.in(now, zone).Format(time.DateOnly) != t.Format(time.DateOnly) {
		layout, token = layout+" on Mon 2 Jan", token+" on {date_short}"
	}
	if f["markup"] == "slack" {
		return slackTime(t, token, t.Format(layout))
	}
	return t.Format(layout)
}

// full is a time with its day and beside UTC, "" for none.
func (z *zones) full(fields, v any) string {
	t := toTime(v)
	if t.IsZero() {
		return ""
	}
	f, _ := fields.(map[string]any)
	local := z.in(t, text(f["zone"])).Format("Mon 2 Jan 2006 at 15:04 MST")
	if strings.HasSuffix(local, " UTC") {
		return local
	}
	return local + t.UTC().Format(" (15:04 UTC)")
}

// slackTime is a time that Slack shows to each reader in his own zone, and the text that stands where it cannot.
func slackTime(t time.Time, layout, instead string) string {
	if t.IsZero() {
		return ""
	}
	clean := func(s string) string {
		return strings.Map(func(r rune) rune {
			if strings.ContainsRune("^|<>", r) {
				return -1
			}
			return r
		}, s)
	}
	return fmt.Sprintf("<!date^%d^%s|%s>", t.Unix(), clean(layout), clean(instead))
}

// slackEscape makes a text one in Slack's mrkdwn: it can mention nobody and link to nothing.
func slackEscape(v any) string {
	s := text(v)
	if !strings.ContainsAny(s, "&<>") {
		return s
	}
	s = strings.ReplaceAll(s, "&", "&amp;")
	return strings.ReplaceAll(strings.ReplaceAll(s, "<", "&lt;"), ">", "&gt;")
}

// longestInSlack is how much of one text is shown in Slack, which refuses long messages as a whole.
const longestInSlack = 500

// slack is a copy of the fields for mrkdwn: every text in it is short and escaped, and clock gives times that each
// reader sees in his own zone.
func slack(fields any) any {
	escaped := escapeAll(fields)
	if m, ok := escaped.(map[string]any); ok {
		m["markup"] = "slack"
	}
	return escaped
}

func escapeAll(v any) any {
	switch v := v.(type) {
	case string:
		return slackEscape(Cut(v, longestInSlack))
	case []string:
		all := make([]string, len(v))
		for i, s := range v {
			all[i] = slackEscape(Cut(s, longestName))
		}
		return all
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = escapeAll(v[i])
		}
		return all
	case []map[string]any:
		all := make([]map[string]any, len(v))
		for i := range v {
			all[i] = escapeAll(v[i]).(map[string]any)
			all[i]["markup"] = "slack"
		}
		return all
	case map[string]any:
		m := make(map[string]any, len(v)+1)
		for name, value := range v {
			m[name] = escapeAll(value)
		}
		return m
	}
	return v
}

// longestID is how long the id of a resource may be; Azure's own stay below it.
const longestID = 1000

// portalURL is the page of a resource in Azure's portal, "" for no resource.
func portalURL(id any) string {
	s := strings.Trim(Line(text(id)), "/")
	if s == "" || len(s) > longestID {
		return ""
	}
	parts := strings.Split(s, "/")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(url.PathEscape(p), "&", "%26")
	}
	return "https://portal.azure.com/#@/resource/" + strings.Join(parts, "/")
}

// activityLogURL is the page that says who did what to a resource, "" for no resource.
func activityLogURL(id any) string {
	if page := portalURL(id); page != "" {
		return page + "/eventlogs"
	}
	return ""
}

// text is a value as a text, "" when it is missing.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64: // a number of JSON
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}
