package mutes_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"forewarn/bridge/delivery"
	"forewarn/bridge/mutes"
)

// A mute that is over stays so when the clock is set back. One that is not lasts no longer than it was to last.
func TestMutesAndTheClock(t *testing.T) {
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	there := func(string) bool { return false }
	m := delivery.Mute{ID: "m", Since: now, Until: now.Add(2 * time.Hour)}
	over := mutes.Due([]*delivery.Mute{&m}, there, m.Until, 0)
	if len(over) != 1 || !over[0].Ended.Equal(m.Until) {
		t.Fatalf("at its end there is %+v", over)
	}
	if again := mutes.Due([]*delivery.Mute{&over[0]}, there, now.Add(-time.Hour), 0); len(again) != 0 {
		t.Errorf("with the clock set back there is %+v", again)
	}
	if early := mutes.Due([]*delivery.Mute{&m}, there, now, 0); len(early) != 0 {
		t.Errorf("at its beginning there is %+v", early)
	}
	back := now.Add(-365 * 24 * time.Hour)
	if anew := mutes.Due([]*delivery.Mute{&m}, there, back, 0); len(anew) != 1 || !anew[0].Active() ||
		!anew[0].Until.Equal(back.Add(2*time.Hour)) {
		t.Errorf("with the clock set back by a year there is %+v", anew)
	}
}

// A mute needs a reason and an end, and names what there is.
func TestWhatAMuteNeeds(t *testing.T) {
	now := time.Now()
	for want, c := range map[string]struct {
		m delivery.Mute
		d time.Duration
	}{
		"at most 30 days":     {delivery.Mute{Reason: "x"}, mutes.Longest + 1},
		"more than 0":         {delivery.Mute{Reason: "x"}, 0},
		"needs a reason":      {delivery.Mute{Reason: " "}, time.Hour},
		"is no pattern":       {delivery.Mute{Reason: "x", VM: "vm-["}, time.Hour},
		`is called "Restart"`: {delivery.Mute{Reason: "x", Types: []string{"Restart"}}, time.Hour},
	} {
		if _, err := mutes.New(c.m, c.d, nil, now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v for %v: %v, want %q", c.m, c.d, err, want)
		}
	}
	first, err := mutes.New(delivery.Mute{Reason: "x", Types: []string{"freeze"}}, mutes.Longest, nil, now)
	if err != nil || first.Types[0] != "Freeze" || !first.Until.Equal(now.Add(mutes.Longest)) {
		t.Errorf("New = %+v, %v", first, err)
	}
	all := []*delivery.Mute{&first}
	for len(all) < 100 {
		m, err := mutes.New(delivery.Mute{Reason: "x"}, time.Hour, all, now)
		if err != nil || slices.ContainsFunc(all, func(other *delivery.Mute) bool { return other.ID == m.ID }) {
			t.Fatalf("mute %d is %+v, %v", len(all), m, err)
		}
		all = append(all, &m)
	}
	const full = "there are 100 mutes; end one first"
	if _, err := mutes.New(delivery.Mute{Reason: "x"}, time.Hour, all, now); fmt.Sprint(err) != full {
		t.Errorf("of one more than the most: %v, want %s", err, full)
	}
}

// What is asked for stays as it is, though its types are written as Azure writes them in the mute.
func TestANewMuteLeavesTheRequestAsItIs(t *testing.T) {
	types := []string{"freeze"}
	if m, err := mutes.New(delivery.Mute{Reason: "x", Types: types}, time.Hour, nil, time.Now()); err != nil || m.Types[0] != "Freeze" {
		t.Errorf("the mute is of %q, %v", m.Types, err)
	}
	if types[0] != "freeze" {
		t.Errorf("the request is of %q now", types)
	}
}

// A sink is muted until the last of the mutes ends that hold back all that it gets.
func TestASinkIsMutedUntilTheLastOfItsMutes(t *testing.T) {
	now := time.Now().UTC()
	until := func(sink, vm string, d time.Duration, types ...string) *delivery.Mute {
		return &delivery.Mute{Sink: sink, VM: vm, Types: types, Until: now.Add(d)}
	}
	forPeople := &delivery.Mute{People: true, Until: now.Add(3 * time.Hour)}
	for _, tt := range []struct {
		given []*delivery.Mute
		want  time.Duration
	}{
		{[]*delivery.Mute{until("a", "", time.Hour), forPeople}, time.Hour},
		{[]*delivery.Mute{until("", "", 2*time.Hour), until("a", "", time.Hour)}, 2 * time.Hour},
		{[]*delivery.Mute{until("a", "", time.Hour), until("", "", 2*time.Hour)}, 2 * time.Hour},
		{[]*delivery.Mute{until("a", "", time.Hour), until("b", "", 2*time.Hour)}, time.Hour},
		{[]*delivery.Mute{until("a", "", time.Hour), until("a", "vm-0", 2*time.Hour)}, time.Hour},
		{[]*delivery.Mute{until("a", "", time.Hour), until("a", "", 2*time.Hour, "Freeze")}, time.Hour},
	} {
		if got := mutes.Until(tt.given, "a", false).Sub(now); got != tt.want {
			t.Errorf("of %d mutes the last ends after %v, want %v", len(tt.given), got, tt.want)
		}
	}
	if got := mutes.Until([]*delivery.Mute{forPeople}, "a", true).Sub(now); got != 3*time.Hour {
		t.Errorf("of a mute of all sinks for people, the last ends after %v, want 3h", got)
	}
}
