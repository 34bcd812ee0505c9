package service

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

// eventLog is a slog.Handler that writes each line of the log as an entry of Windows' Event Log: a service has no
// standard error that anybody reads.
type eventLog struct {
	slog.Handler             // writes to entry.text
	entry        *eventEntry // shared by all handlers that come of one
	asJSON       bool
}

// eventEntry is the one that is being written.
type eventEntry struct {
	mu    sync.Mutex
	text  bytes.Buffer
	write EventWriter
}

// An EventWriter writes an entry to the Event Log.
type EventWriter func(level slog.Level, text string) error

// NewEventLog is a handler that writes the entries with write, the level of each among warn, error and, for all that is less, info.
func NewEventLog(level slog.Level, asJSON bool, write EventWriter) slog.Handler {
	e := &eventEntry{write: write}
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		known := len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey && !asJSON)
		if known { // every entry has a time and a level of its own, and begins with the message
			return slog.Attr{}
		}
		return a
	}}
	if asJSON {
		return &eventLog{slog.NewJSONHandler(&e.text, o), e, true}
	}
	return &eventLog{slog.NewTextHandler(&e.text, o), e, false}
}

// Handle writes one entry.
func (l *eventLog) Handle(ctx context.Context, r slog.Record) error {
	l.entry.mu.Lock()
	defer l.entry.mu.Unlock()
	l.entry.text.Reset()
	if !l.asJSON {
		l.entry.text.WriteString(r.Message + "\r\n")
	}
	if err := l.Handler.Handle(ctx, r); err != nil {
		return err
	}
	return l.entry.write(max(slog.LevelInfo, r.Level), eventText(l.entry.text.String()))
}

// WithAttrs and WithGroup keep to the one entry.
func (l *eventLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &eventLog{l.Handler.WithAttrs(attrs), l.entry, l.asJSON}
}

func (l *eventLog) WithGroup(name string) slog.Handler {
	return &eventLog{l.Handler.WithGroup(name), l.entry, l.asJSON}
}

// placeholder is what the Event Viewer replaces in the text of an entry, such as the zone in fe80::1%4.
var placeholder = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`%+[0-9!]`) })

// eventLimit keeps an entry below the 31,839 characters that Windows takes.
const eventLimit = 30_000

// eventText makes a text one that Windows takes as an entry, and shows as it is.
func eventText(s string) string {
	s = strings.TrimSpace(strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD"))
	s = placeholder().ReplaceAllStringFunc(s, func(p string) string { return p[:len(p)-1] + " " + p[len(p)-1:] })
	if len(s) <= eventLimit {
		return s
	}
	cut := eventLimit
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + " …"
}
