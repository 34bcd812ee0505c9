package main

import (
	"strings"
	"testing"
	"time"
)

// A clock that shows a year without a written form is named at the start, instead of a failure at the first record.
func TestAClockBeyondAllYearsIsRefused(t *testing.T) {
	for now, refused := range map[time.Time]bool{
		time.Now(): false, time.Unix(0, 0): false,
		time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC):                       false,
		time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("west", -60*60)): true,
		time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC):                           true,
		time.Date(-1, 12, 31, 0, 0, 0, 0, time.UTC):                            true,
	} {
		if _, err := now.UTC().MarshalJSON(); (err != nil) != refused {
			t.Errorf("%v can be written: %v", now, err)
		}
		err := checkClock(now)
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "set it, and start forewarn again") {
			t.Errorf("with the clock at %v: %v", now, err)
		}
	}
}
