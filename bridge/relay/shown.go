package relay

import (
	"context"
	"log/slog"
)

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
