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
	"text/template"
	"time"
	"unicode"
	"unicode/utf8"
)

// Funcs returns the functions of templates. Most have the names and the order of arguments that they have in
// Alertmanager and sprig: the value comes last, so that it can be piped. They accept any value: a missing one is empty,
// and one that is not a text is used as it prints, or as JSON. Parse adds include, facts and links, which need a
// template.
func Funcs() template.FuncMap {
	z := &zones{loaded: make(map[string]*time.Location)}
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
		"list":     func(items ...any) []any { return items },
		"dict":     dict,
		"dig":      dig,
		"join":     join,
		"split":    func(sep, v any) []string { return strings.Split(text(v), text(sep)) },
		"first":    func(list any) any { return nth(list, 0) },
		"last":     func(list any) any { return nth(list, -1) },
		"without":  without,
		"names":    names,
		"families": families,

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
		"secondsBetween":   func(from, to any) int64 { return toTime(to).Unix() - toTime(from).Unix() },
		"humanizeDuration": humanizeDuration,
		"clock":            func(fields, t any) string { return z.clock(fields, t, false) },
		"clockSeconds":     func(fields, t any) string { return z.clock(fields, t, true) },
		"fullTime":         func(fields, t any) string { return z.full(fields, t, "15:04") },
		"fullTimeSeconds":  func(fields, t any) string { return z.full(fields, t, "15:04:05") },

		// Slack and Azure's portal.
		"slack":          slack,
		"slackEscape":    slackEscape,
		"slackTime":      func(layout, instead, t any) string { return slackTime(toTime(t), text(layout), text(instead)) },
		"portalURL":      portalURL,
		"activityLogURL": activityLogURL,
	}
}

// FuncNames returns the names of all functions, sorted.
func FuncNames() []string { return slices.Sorted(maps.Keys(functions(nil))) }

// functions returns Funcs and those that use the defines of a template.
func functions(include includeFunc) template.FuncMap {
	all := Funcs()
	all["include"] = func(define, data any) (string, error) { return include(text(define), data) }
	all["facts"] = func(fields any) ([]Fact, error) { return (&speaker{include: include, fields: fields}).facts() }
	all["links"] = func(fields any) ([]Link, error) { return (&speaker{include: include, fields: fields}).links() }
	return all
}

// toJSON returns v as compact JSON, with nothing escaped for HTML.
func toJSON(v any) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// items returns the items of a list. nil has none, and any other value is its own only item.
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

// nth returns item n of a list, counted from the end if n is negative. It returns nil if there is no such item.
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

// without returns the list without the items in but. It ignores case, because Azure does in names of VMs.
func without(list any, but ...any) []any {
	return slices.DeleteFunc(slices.Clone(items(list)), func(v any) bool {
		return slices.ContainsFunc(but, func(b any) bool { return strings.EqualFold(text(v), text(b)) })
	})
}

// longestName is the number of characters shown of a name. Azure's own names have at most 80.
const longestName = 80

// names returns the first n items of a list and how many more there are, for people.
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

// dict returns a map of its arguments, which are names and values by turns. A last name without a value gets "".
func dict(pairs ...any) map[string]any {
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		m[text(pairs[i])] = ""
		if i+1 < len(pairs) {
			m[text(pairs[i])] = pairs[i+1]
		}
	}
	return m
}

// dig returns the value below names in nested maps. The outermost map is the last argument; the one before it is the
// default, returned if a name is missing.
func dig(path ...any) any {
	if len(path) < 2 {
		return nil
	}
	v, instead := path[len(path)-1], path[len(path)-2]
	for _, name := range path[:len(path)-2] {
		m, _ := v.(map[string]any)
		v = m[text(name)]
		if v == nil {
			return instead
		}
	}
	return v
}

// coalesce returns the first value that is not empty, else the last. Empty are a missing value, "", 0, false, and a
// list or map without items.
func coalesce(values ...any) any {
	for _, v := range values {
		if truth(v) {
			return v
		}
	}
	return nth(values, -1)
}

// required returns the value, or an error, which ends the template, if it is empty.
func required(name, v any) (any, error) {
	if !truth(v) {
		return nil, fmt.Errorf("%s is missing", text(name))
	}
	return v, nil
}

// truth reports whether v is not empty.
func truth(v any) bool {
	full, ok := template.IsTrue(v)
	return ok && full
}

// title returns the text with a capital at the beginning of every word.
func title(v any) string {
	between := true
	return strings.Map(func(r rune) rune {
		first := between
		between = unicode.IsSpace(r)
		if first {
			return unicode.ToTitle(r)
		}
		return r
	}, text(v))
}

// Cut returns s, shortened to at most n characters if it is longer; the last one is then "…". It never returns part of
// a Slack entity such as &amp; or of a link in angle brackets, because Slack shows or refuses those. Invalid UTF-8 is
// replaced by U+FFFD.
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
		n--
		if n == 0 {
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

// indent returns the text with n spaces, at most 80, before every line.
func indent(n, v any) string {
	pad := strings.Repeat(" ", max(0, min(80, int(number(n)))))
	return pad + strings.ReplaceAll(text(v), "\n", "\n"+pad)
}

// Line returns s on one line, safe to print: each run of white space and control characters becomes one space, and
// characters that don't print or change the direction of writing are removed.
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

// number returns a value as a number within the range of an int32, and 0 if it is not a number.
func number(v any) float64 {
	n, err := strconv.ParseFloat(strings.TrimSpace(text(v)), 64)
	if err != nil || math.IsNaN(n) {
		return 0
	}
	return max(-math.MaxInt32, min(math.MaxInt32, n))
}

// portalURL returns the address of a resource's page in Azure's portal, and "" without a resource.
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

// activityLogURL returns the address of the page that lists who did what to a resource, and "" without a resource.
func activityLogURL(id any) string {
	if page := portalURL(id); page != "" {
		return page + "/eventlogs"
	}
	return ""
}

// text returns a value as it prints, a map or list as JSON, and "" if it is missing.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64: // a number of JSON
		return strconv.FormatFloat(v, 'f', -1, 64)
	case map[string]any, []any: // people know JSON rather than the forms of Go
		if s, err := toJSON(v); err == nil {
			return s
		}
	}
	return fmt.Sprint(v)
}
