package settings

import (
	"regexp"
	"strings"
	"testing"

	"forewarn/sinks"
)

// What the example of a service leaves to fill in, in upper case, is a placeholder that check names.
func TestPlaceholdersOfServicesAreKnown(t *testing.T) {
	upper := regexp.MustCompile(`//[A-Z]+\.`)
	for _, s := range sinks.Services() {
		for line := range strings.Lines(s.Example) {
			if upper.MatchString(line) && !yourOwn.MatchString(line) {
				t.Errorf("%s: nothing would be said about %s", s.Name, line)
			}
		}
	}
}
