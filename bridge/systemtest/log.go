package systemtest

import (
	"log/slog"
	"strings"
	"sync"
)

// A Log is a log that tests search. It may be written and read at the same time.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write adds to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all that was logged until now.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count returns how often the log has the words.
func (l *Log) Count(words string) int { return strings.Count(l.String(), words) }

// Logger returns a logger that writes to the log as text, from the level Info on.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
