package service

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// Each record is one entry with its level, the message first and the attributes below. It has nothing of other
// entries, and no time or level, because Windows adds them.
func TestEventLogHasOneEntryPerRecord(t *testing.T) {
	type entry struct {
		level slog.Level
		text  string
	}
	for _, tt := range []struct {
		json bool
		want []entry
	}{
		{false, []entry{
			{slog.LevelInfo, "sink recovered\r\nsink=ops after=2m"},
			{slog.LevelWarn, "the outbox cannot be written\r\nerr=\"disk full\" a.b=1"},
			{slog.LevelError, "forewarn has ended"},
		}},
		{true, []entry{
			{slog.LevelInfo, `{"msg":"sink recovered","sink":"ops","after":120000000000}`},
			{slog.LevelWarn, `{"msg":"the outbox cannot be written","err":"disk full","a":{"b":1}}`},
			{slog.LevelError, `{"msg":"forewarn has ended"}`},
		}},
	} {
		var got []entry
		log := slog.New(NewEventLog(slog.LevelInfo, tt.json, func(level slog.Level, text string) error {
			got = append(got, entry{level, text})
			return nil
		}))
		log.Debug("not wanted")
		log.With("sink", "ops").Info("sink recovered", "after", 2*time.Minute)
		log.WithGroup("").Warn("the outbox cannot be written", "err", errors.New("disk full"), slog.Group("a", "b", 1))
		log.Error("forewarn has ended")
		if len(got) != len(tt.want) {
			t.Fatalf("%d entries were written: %v, want %d", len(got), got, len(tt.want))
		}
		for i := range got {
			if got[i] != tt.want[i] {
				t.Errorf("entry %d is %v %q, want %v %q", i, got[i].level, got[i].text, tt.want[i].level, tt.want[i].text)
			}
		}
	}
}

// Windows accepts every entry: none is too long, has a NUL, or has a placeholder that the Event Viewer would replace.
func TestEventTextIsSafeForTheEventLog(t *testing.T) {
	for text, want := range map[string]string{
		"plain 100% sure\n":      "plain 100% sure",
		"nul \x00 and \xff":      "nul \uFFFD and \uFFFD",
		"dial fe80::1%4: no":     "dial fe80::1% 4: no",
		"%1 %%2 %!s! %n %":       "% 1 %% 2 % !s! %n %",
		"Größe\r\nnext=\"line\"": "Größe\r\nnext=\"line\"",
	} {
		if got := eventText(text); got != want {
			t.Errorf("eventText(%q) = %q, want %q", text, got, want)
		}
	}
	for pad := range 3 {
		got := eventText(strings.Repeat("x", pad) + strings.Repeat("ü", 40_000))
		if n := utf8.RuneCountInString(got); !utf8.ValidString(got) || len(got) > 31_839 || n < 14_000 ||
			!strings.HasSuffix(got, " …") {
			t.Errorf("a text of 40,000 letters is cut to %d, want it valid, marked, and at most 31,839", n)
		}
	}
}
