package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"forewarn/bridge"
	"forewarn/bridge/clock"
	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/fleet"
	"forewarn/cmd/forewarn/internal/wording"
)

func (p *program) statusCommand() *cobra.Command {
	var watch, check bool
	var filter fleet.Filter
	c := p.outputFlag(&cobra.Command{
		Use: "status", Short: "Show how the running forewarn is doing",
		Long: `Shows how the running forewarn is doing: the endpoint, the outbox, open events and sinks.

Exit code: 0 when it is ready, 1 when it is not, 69 when no forewarn answers.

--check prints one line for Nagios, Icinga, Zabbix or Sensu, with data for graphs. Then the exit code is
0 when all is well, 1 for a warning (an event is open, a sink fails), 2 when it is critical (not ready,
a sink needs somebody) and 3 when no forewarn answers.`,
		Example: "  forewarn status\n  forewarn status --set 'web*'\n  forewarn status --watch\n  forewarn status --check\n" +
			"  forewarn status -o json | jq .sinks",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if watch && p.output == "json" {
				return exit(exitUsage, errors.New("--watch does not work with -o json"))
			}
			if check && (watch || p.output == "json") {
				return exit(exitUsage, errors.New("--check prints one line; it works neither with --watch nor with -o json"))
			}
			if check {
				return p.checkStatus(c.Context(), filter)
			}
			running, s, err := p.running()
			if err != nil {
				return err
			}
			if filter != (fleet.Filter{}) && s.Relay == nil && s.Broken == nil {
				return exit(exitUsage, errors.New("--set and --group work only with a relay; these are the settings of one VM"))
			}
			if watch {
				ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
				defer stop()
				return p.watchStatus(ctx, running, filter)
			}
			st, err := running.Status(c.Context())
			if err != nil {
				return err
			}
			st = filter.Status(st)
			if p.output == "json" {
				err = wording.PrintJSON(p.out, st)
			} else {
				now := time.Now()
				_, err = io.WriteString(p.out, statusText(st, now, now))
			}
			if err != nil || st.Ready {
				return err
			}
			return errors.New("not ready")
		},
	})
	c.Flags().BoolVar(&watch, "watch", false, "update every second until interrupted")
	c.Flags().BoolVar(&check, "check", false, "print one line, and exit with 0 to 3 as monitoring plugins do")
	c.Flags().StringVar(&filter.Set, "set", "", "of a relay: VMs and events of this scale set only, or of this pattern")
	c.Flags().StringVar(&filter.Group, "group", "", "of a relay: of this resource group only, or of this pattern")
	return c
}

// checkStatus says how the running forewarn is doing as a monitoring plugin does.
func (p *program) checkStatus(ctx context.Context, filter fleet.Filter) error {
	running, _, err := p.running()
	var st bridge.Status
	if err == nil {
		st, err = running.Status(ctx)
	}
	state, line := pluginUnknown, ""
	if err != nil {
		line = pluginLine(state, err.Error(), "")
	} else {
		state, line = checkStatus(filter.Status(st), time.Now())
	}
	_, err = io.WriteString(p.out, line)
	return errors.Join(err, state.exit())
}

// watchStatus shows the status every second until ctx is done. A forewarn must run at the start; later it may stop and
// come back. On a terminal the status fills the screen, and at the end the last status stays below the earlier content.
func (p *program) watchStatus(ctx context.Context, running *control.Client, filter fleet.Filter) error {
	w := statusWatch{out: p.out}
	if t, ok := p.out.(*terminal); ok && p.getenv("TERM") != "dumb" && supportsControls(t.file) {
		w.out = t.file
		w.size = func() (int, int) {
			width, height, err := term.GetSize(int(t.file.Fd()))
			if err != nil || width < 1 || height < 1 {
				return 80, 24
			}
			return width, height
		}
	}
	defer w.restoreScreen()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		st, err := running.Status(ctx)
		if ctx.Err() != nil {
			return nil
		} else if err != nil && w.lastTime.IsZero() {
			return err
		} else if err := w.show(filter.Status(st), err, time.Now()); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// A statusWatch shows one status after the other. On a terminal each replaces the one before. Elsewhere they follow
// each other, and an outage of forewarn is printed once.
type statusWatch struct {
	out  io.Writer
	size func() (width, height int) // of the terminal; nil if out is none

	last        bridge.Status
	lastTime    time.Time // when last was received; zero before the first status
	silentSince time.Time // when forewarn stopped answering; zero while it answers
	onScreen    bool      // the alternate screen is in use
}

// Control sequences that switch to the alternate screen, as editors do, and back. While there, the cursor is hidden and
// long lines are not wrapped.
const (
	takeScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	giveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// show shows the status st; if err is not nil, it shows the error and the last status.
func (w *statusWatch) show(st bridge.Status, err error, now time.Time) error {
	var text strings.Builder
	switch wasSilent := !w.silentSince.IsZero(); {
	case err == nil:
		if wasSilent {
			fmt.Fprintf(&text, "forewarn answers again, after %s\n\n", wording.Ago(now, w.silentSince))
		}
		w.last, w.lastTime, w.silentSince = st, now, time.Time{}
		text.WriteString(statusText(st, now, now))
	case wasSilent && w.size == nil:
		return nil
	default:
		if !wasSilent {
			w.silentSince = now
		}
		fmt.Fprintf(&text, "FOREWARN DOES NOT ANSWER since %s, trying again: %v\n",
			clock.Time(w.silentSince, now, w.last.Settings.Location()), err)
		if w.size != nil {
			fmt.Fprintf(&text, "\nIts last status, %s old:\n\n%s",
				wording.Ago(now, w.lastTime), statusText(w.last, w.lastTime, now))
		}
	}
	if w.size == nil {
		_, err = fmt.Fprintln(w.out, text.String())
		return err
	}
	width, height := w.size()
	lines := fit(escapeControls(text.String()), width, height)
	lines = append(lines, make([]string, height-len(lines))...)
	screen := "\x1b[H\x1b[K" + strings.Join(lines, "\r\n\x1b[K") // go to the top; clear each line before writing it
	if !w.onScreen {
		screen, w.onScreen = takeScreen+screen, true
	}
	_, err = io.WriteString(w.out, screen)
	return err
}

// restoreScreen switches back from the alternate screen and prints the last status in full.
func (w *statusWatch) restoreScreen() {
	if !w.onScreen {
		return
	}
	w.onScreen = false
	_, _ = io.WriteString(w.out, giveScreen+escapeControls(statusText(w.last, w.lastTime, w.lastTime)))
}

// fit returns the lines of text for a screen of this size. It wraps the indented details if all of them fit. Otherwise
// it cuts every line, and if there are still too many, the last line says so.
func fit(text string, width, height int) []string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	var wrapped, short []string
	for _, line := range lines {
		short = append(short, wording.Cut(line, width))
		if strings.HasPrefix(line, " ") {
			wrapped = append(wrapped, wrap(line, width)...)
		} else {
			wrapped = append(wrapped, wording.Cut(line, width))
		}
	}
	switch {
	case len(wrapped) <= height:
		return wrapped
	case len(short) <= height:
		return short
	}
	more := fmt.Sprintf("and %s; enlarge the window, or run forewarn status",
		wording.Plural(len(short)-height+1, "more line", "more lines"))
	return append(short[:height-1], wording.Cut(more, width))
}

// wrap breaks a line at spaces, or within a word longer than the width. The following lines keep its indentation.
func wrap(line string, width int) []string {
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
	if len(indent) > width/2 {
		return []string{wording.Cut(line, width)}
	}
	var all []string
	rest := []rune(line)
	for len(rest) > width {
		end := width
		for i := width; i > len(indent); i-- {
			if rest[i] == ' ' {
				end = i
				break
			}
		}
		all = append(all, string(rest[:end]))
		rest = []rune(indent + strings.TrimLeft(string(rest[end:]), " "))
	}
	return append(all, string(rest))
}
