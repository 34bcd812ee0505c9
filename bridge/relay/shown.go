package relay

import (
	"context"
	"log/slog"
)

// A shownError is an error in the form that may be shown. It is still known for what it is.
type shownError struct {
	text string
	was  error
}

func (e *shownError) Error() string { return e.text }
func (e *shownError) Unwrap() error { return e.was }

// shownOnce returns a function that returns each error as shown has it, but is nil for nil, and leaves alone what may be
// shown already. A shown that is nil shows every error.
func shownOnce(shown func(error) error) func(error) error {
	return func(err error) error {
		if _, done := err.(*shownError); err == nil || done || shown == nil {
			return err
		}
		return &shownError{shown(err).Error(), err}
	}
}

// toShow puts an error that a method returns into the form that may be shown.
func (r *Relay) toShow(err *error) { *err = r.Shown(*err) }

// shownErrors is a handler that logs each error in the form that may be shown: what servers say may repeat the credentials.
type shownErrors struct {
	slog.Handler
	shown func(error) error
}

func (h shownErrors) Handle(ctx context.Context, r slog.Record) error {
	shown := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.AnyValue(h.shown(err))
		}
		shown.AddAttrs(a)
		return true
	})
	return h.Handler.Handle(ctx, shown)
}

func (h shownErrors) WithAttrs(attrs []slog.Attr) slog.Handler {
	return shownErrors{h.Handler.WithAttrs(attrs), h.shown}
}

func (h shownErrors) WithGroup(name string) slog.Handler {
	return shownErrors{h.Handler.WithGroup(name), h.shown}
}
