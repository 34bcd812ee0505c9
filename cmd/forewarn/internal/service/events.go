package service

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"forewarn/cmd/forewarn/internal/wording"
)

// eventLog is a slog.Handler that writes each log record as an entry of the Windows Event Log.
type eventLog struct {
	slog.Handler             // formats into entry.text
	entry        *eventEntry // shared by all handlers derived from one
	asJSON       bool
}

// eventEntry is the buffer for the entry being written.
type eventEntry struct {
	mu    sync.Mutex // one entry at a time
	text  bytes.Buffer
	write EventWriter
}

// An EventWriter writes an entry to the Event Log.
type EventWriter func(level slog.Level, text string) error

// NewEventLog returns a handler that writes entries with write. Records below info are written as info.
func NewEventLog(level slog.Level, asJSON bool, write EventWriter) slog.Handler {
	e := &eventEntry{write: write}
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		known := len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey && !asJSON)
		if known { // an entry has its own time and level, and starts with the message
			return slog.Attr{}
		}
		if asJSON {
			return a
		}
		return wording.LogValue(groups, a)
	}}
	if asJSON {
		return &eventLog{slog.NewJSONHandler(&e.text, o), e, true}
	}
	return &eventLog{slog.NewTextHandler(&e.text, o), e, false}
}

// Handle writes an entry.
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

// WithAttrs returns a handler that shares the buffer.
func (l *eventLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &eventLog{l.Handler.WithAttrs(attrs), l.entry, l.asJSON}
}

// WithGroup returns a handler that shares the buffer.
func (l *eventLog) WithGroup(name string) slog.Handler {
	return &eventLog{l.Handler.WithGroup(name), l.entry, l.asJSON}
}

// placeholder matches what the Event Viewer would replace in the text of an entry, such as the zone in fe80::1%4.
var placeholder = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`%+[0-9!]`) })

// eventLimit bounds an entry, in bytes. Windows accepts 31,839 characters.
const eventLimit = 30_000

// eventText makes a text fit for an entry: valid, short enough, and without placeholders.
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
