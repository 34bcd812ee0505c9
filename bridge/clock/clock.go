// Package clock writes times for people. All times that people read, but those in messages, are written by it. Messages
// have the functions of package templates.
package clock

import "time"

// Time writes t for people: the time of day in their zone, with the date if it is another day than now.
func Time(t, now time.Time, zone *time.Location) string {
	t, now = t.In(zone), now.In(zone)
	layout := "15:04:05 MST"
	if t.Year() != now.Year() {
		layout = "2 Jan 2006, " + layout
	} else if t.YearDay() != now.YearDay() {
		layout = "Mon 2 Jan, " + layout
	}
	return t.Format(layout)
}

// Due writes a time that decides something, such as when an event begins or a mute ends: as Time does, followed by the
// time in UTC, which Azure and other people's logs use, with the weekday if it is another one there.
func Due(t, now time.Time, zone *time.Location) string {
	local, utc := t.In(zone), t.UTC()
	text := Time(t, now, zone)
	if name, offset := local.Zone(); name == "UTC" && offset == 0 {
		return text
	}
	if local.Day() != utc.Day() {
		return text + utc.Format(" (Mon 15:04:05 UTC)")
	}
	return text + utc.Format(" (15:04:05 UTC)")
}
