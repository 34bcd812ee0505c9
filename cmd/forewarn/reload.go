package main

import (
	"context"
	"fmt"
	"log/slog"

	"forewarn/bridge"
	"forewarn/cmd/forewarn/internal/settings"
)

// reload handles SIGHUP: it loads the settings again, gives them to the bridge and returns them. On any error the old
// settings stay in force, and it returns nil.
func (p *program) reload(ctx context.Context, b *bridge.Bridge, old *settings.Settings, log *slog.Logger) *settings.Settings {
	s, err := p.loader(log).Reload(p.config)
	if err == nil && s.Relay != nil {
		err = settings.ErrIsRelay
	}
	if err == nil {
		err = b.Reload(ctx, s.Routes, s.Rules, settingsInfo(s))
	}
	if err != nil {
		log.Error("settings not reloaded; the old ones stay in force", "err", err)
		b.SettingsFailed(err)
		return nil
	}
	for _, fixed := range []struct {
		key      string
		was, now string
	}{
		{"imds", fmt.Sprint(old.IMDS), fmt.Sprint(s.IMDS)}, {"state", string(old.State), string(s.State)},
		{"control", string(old.Control), string(s.Control)},
		{"listen", old.Listen, s.Listen}, {"metrics", old.Metrics, s.Metrics}, {"cloudevents_source", old.Source, s.Source},
	} {
		if fixed.was != fixed.now {
			log.Warn("changed setting takes effect at the next start", "key", fixed.key)
		}
	}
	log.Info("settings reloaded", "settings", s.Path, "hash", s.Hash, "sinks", len(s.Routes))
	return s
}
