package templates

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// toTime returns the time in v: in RFC 3339 as CloudEvents write it, in RFC 1123 as Azure does, or in seconds since
// 1970. It returns the zero time if v is none of these.
func toTime(v any) time.Time {
	if t, ok := v.(time.Time); ok {
		return t
	}
	s := strings.Replace(strings.TrimSpace(text(v)), " UTC", " GMT", 1)
	// GMT is text in the layout, because time.Parse takes every zone for UTC that it does not know.
	for _, layout := range []string{time.RFC3339Nano, "Mon, _2 Jan 2006 15:04:05 GMT", time.RFC1123Z} {
		if t, err := time.Parse(layout, s); err == nil {
			return t
		}
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.Unix(n, 0).UTC()
	}
	return time.Time{}
}

// format returns a time in a layout of Go, and "" for the zero time.
func format(t time.Time, layout string) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(layout)
}

// humanizeDuration returns a number of seconds for people. It rounds down, so that nobody counts on more time than
// there is.
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

// zones caches the time zones in use. mu guards loaded.
type zones struct {
	mu     sync.Mutex
	loaded map[string]*time.Location
}

// in returns t in the zone of that name, or in UTC if there is none.
func (z *zones) in(t time.Time, name string) time.Time {
	z.mu.Lock()
	defer z.mu.Unlock()
	zone := z.loaded[name]
	if zone == nil {
		var err error
		zone, err = time.LoadLocation(name)
		if err != nil {
			zone = time.UTC
		}
		z.loaded[name] = zone
	}
	return t.In(zone)
}

// clock returns a time of day in the zone of the fields, and "" for the zero time. It adds the day if that is not
// today. For Slack it returns a date token, which each reader sees in their own zone.
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

// full returns a time with its day in the zone of the fields, followed by the time in UTC, with the weekday if it is
// another there. clock is the layout of the time of day. It returns "" for the zero time.
func (z *zones) full(fields, v any, clock string) string {
	t := toTime(v)
	if t.IsZero() {
		return ""
	}
	f, _ := fields.(map[string]any)
	there, utc := z.in(t, text(f["zone"])), t.UTC()
	local := there.Format("Mon 2 Jan 2006 at " + clock + " MST")
	switch {
	case strings.HasSuffix(local, " UTC"):
		return local
	case there.Day() != utc.Day():
		return local + utc.Format(" (Mon "+clock+" UTC)")
	}
	return local + utc.Format(" ("+clock+" UTC)")
}
