// Package wording holds what the command's texts share, on the page, in a terminal and in the status line of systemd:
// numbers and durations, the state of a sink, the order of lists, and their limits.
package wording

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode"

	"forewarn/bridge/delivery"
)

// PrintJSON writes v as one indented JSON value.
func PrintJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Printable replaces everything unprintable by spaces, so that text from outside fits on one line of a terminal.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}

// First returns at most the first n elements of the list.
func First[T any](list []T, n int) []T { return list[:min(n, len(list))] }

// Plural returns n with the singular or plural of a word.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Cut shortens a text to n runes, with "…" at the end.
func Cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// Ago returns the time from t to now as Span does.
func Ago(now, t time.Time) string { return Span(now.Sub(t)) }

// Span formats a duration in its two largest units.
func Span(d time.Duration) string {
	d = max(0, d.Round(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d d %d h", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// More says how many rows a list leaves out, and which command shows them; "" for none.
func More(more int, command string) string {
	if more <= 0 {
		return ""
	}
	return fmt.Sprintf("and %d more; %s shows all\n", more, command)
}

// Duration formats a duration as settings do: 5m rather than 5m0s.
func Duration(d time.Duration) string { return delivery.Readable(d) }

// LogValue makes the durations in a log line readable; it is an option of slog's text handler.
func LogValue(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration && a.Value.Duration() >= time.Second {
		a.Value = slog.StringValue(Duration(a.Value.Duration()))
	}
	return a
}

// Reason returns the system's reason inside a network error, or err itself.
func Reason(err error) error {
	var e *os.SyscallError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
