package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/service"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

func (p *program) reloadCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reload", Short: "Have the running forewarn read its settings again",
		Long: `Asks the running forewarn to read its settings file again, and waits until it has. If the settings are
wrong, the errors are printed, the exit code is 78, and the old ones stay in force.`,
		Example: "  sudo forewarn reload",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			running, _, err := p.running()
			if err != nil {
				return err
			}
			done, err := running.Reload(c.Context(), p.user())
			if err != nil {
				return err
			}
			if done.Error != "" {
				return exit(exitSettings, fmt.Errorf("the old settings stay in force: %s", done.Error))
			}
			fmt.Fprintf(p.err, "reloaded, with %s\n", wording.Plural(done.Sinks, "sink", "sinks"))
			if len(done.NextStart) > 0 {
				fmt.Fprintf(p.err, "effective at the next start only: %s\n", strings.Join(done.NextStart, ", "))
			}
			return nil
		},
	}
}

// A reloader reloads the settings of a running bridge or relay, one reload at a time.
type reloader struct {
	program *program
	log     *slog.Logger
	started *settings.Settings                              // those of the start
	apply   func(context.Context, *settings.Settings) error // gives settings to the bridge or relay
	refused func(error)                                     // records why the old ones stay in force
	asked   chan reloadRequest
}

// A reloadRequest is that of a command.
type reloadRequest struct {
	by   string
	done chan control.Reloaded
}

// ask reloads for a user's command. The error says why nothing was tried.
func (r *reloader) ask(ctx context.Context, by string) (control.Reloaded, error) {
	request := reloadRequest{by, make(chan control.Reloaded, 1)}
	select {
	case r.asked <- request:
	case <-ctx.Done():
		return control.Reloaded{}, fmt.Errorf("another reload is under way: %w", context.Cause(ctx))
	}
	select {
	case done := <-request.done:
		return done, nil
	case <-ctx.Done():
		return control.Reloaded{}, fmt.Errorf("the reload is under way still: %w", context.Cause(ctx))
	}
}

// serve reloads on signals and for commands until ctx is done. manager is told, and the sockets and the secrets in Key
// Vault follow the settings.
func (r *reloader) serve(ctx context.Context, signals <-chan os.Signal, manager *service.Notifier, sockets *controlSockets) {
	r.program.secrets.keep(ctx, r.started.Keep)
	for {
		request := reloadRequest{by: "a signal", done: make(chan control.Reloaded, 1)}
		select {
		case <-signals:
		case request = <-r.asked:
		case <-ctx.Done():
			manager.Stopping()
			return
		}
		manager.Reloading()
		now, done := r.reload(ctx, request.by)
		if now != nil {
			sockets.follow(now)
			r.program.vault.Expire()
			r.program.secrets.keep(ctx, now.Keep)
		}
		manager.Ready()
		request.done <- done
	}
}

// reload loads the settings again and applies them. now is nil on any error: then the old ones stay in force.
func (r *reloader) reload(ctx context.Context, by string) (now *settings.Settings, done control.Reloaded) {
	now, err := r.program.loader(r.log).Reload(r.program.config)
	switch {
	case err != nil:
	case r.started.Relay == nil && now.Relay != nil:
		err = settings.ErrIsRelay
	case r.started.Relay != nil && now.Relay == nil:
		err = settings.ErrNoRelay
	default:
		err = r.apply(ctx, now)
	}
	if err != nil {
		r.log.Error("settings not reloaded; the old ones stay in force", "by", by, "err", err)
		r.refused(err)
		return nil, control.Reloaded{Error: err.Error()}
	}
	restart := settings.NeedRestart(r.started, now)
	for _, key := range restart {
		r.log.Warn("changed setting takes effect at the next start", "key", key)
	}
	r.log.Info("settings reloaded", "by", by, "settings", now.Path, "hash", now.Hash, "sinks", len(now.Routes))
	return now, control.Reloaded{Sinks: len(now.Routes), NextStart: restart}
}
