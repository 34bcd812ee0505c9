package templates

import (
	"fmt"
	"strings"
	"time"
)

// slackTime returns a date token of Slack's, which each reader sees in their own zone. Where Slack cannot show it, the
// text instead appears. It returns "" for the zero time.
func slackTime(t time.Time, layout, instead string) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("<!date^%d^%s|%s>", t.Unix(), withoutTokens.Replace(layout), withoutTokens.Replace(instead))
}

// withoutTokens removes what begins, divides and ends a token of Slack's.
var withoutTokens = strings.NewReplacer("^", "", "|", "", "<", "", ">", "")

// slackEscape escapes a text for Slack's mrkdwn, so that it can neither mention anybody nor contain a link.
func slackEscape(v any) string { return slackEscapes.Replace(text(v)) }

var slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// longestInSlack is the number of characters of one text shown in Slack, which refuses a message that is too long as a
// whole.
const longestInSlack = 500

// literally replaces what Slack reads as formatting by what looks the same, because Slack has no escape for it. An
// underscore stays: names have it in their middle, where it is none, and people copy them.
var literally = strings.NewReplacer("*", "∗", "~", "∼", "`", "ˋ")

// slack returns a copy of the fields for Slack's mrkdwn: every text in it is shortened and escaped, and marked so that
// clock returns date tokens.
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
		return slackEscape(literally.Replace(Cut(v, longestInSlack)))
	case []string:
		all := make([]string, len(v))
		for i, s := range v {
			all[i] = slackEscape(literally.Replace(Cut(s, longestName)))
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

// longestID is the longest resource id that a link is made of, in bytes. Azure's own are shorter.
const longestID = 1000
