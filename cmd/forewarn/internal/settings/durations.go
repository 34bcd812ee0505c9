package settings

import (
	"cmp"
	"regexp"
	"strconv"
	"time"

	"forewarn/cmd/forewarn/internal/wording"
)

// writtenDuration formats a duration as in the settings file, such as 7d; "" for 0.
func writtenDuration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return wording.Duration(d)
}

// ParseDuration parses a duration as Go does, with optional days in front: 90s, 7d, 1d12h. It refuses negative ones.
func ParseDuration(s string) (time.Duration, bool) {
	var before time.Duration
	if m := days.FindStringSubmatch(s); m != nil {
		n, _ := strconv.Atoi(m[1])
		before, s = time.Duration(n)*24*time.Hour, cmp.Or(m[2], "0")
	}
	d, err := time.ParseDuration(s)
	return before + d, err == nil && d >= 0 && before+d >= 0
}

// isTooLong reports whether s would be a duration if its numbers were smaller.
func isTooLong(s string) bool {
	_, fits := ParseDuration(s)
	_, ok := ParseDuration(numbers.ReplaceAllString(s, "1"))
	return ok && !fits
}

var numbers = regexp.MustCompile(`[0-9]+`)

var days = regexp.MustCompile(`^([0-9]{1,5})d(.*)$`)
