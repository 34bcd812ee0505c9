package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"forewarn/bridge"
	"forewarn/bridge/clock"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imdstest"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/wording"
)

// addCompletions lets the shell complete what help explains, ids and keys that the running forewarn knows, and the values
// of flags: fixed words, and the sinks of the settings file. As arguments it offers files only where they are read.
func addCompletions(root *cobra.Command, p *program) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		complete := func(f *pflag.Flag) {
			if with := p.completeFlag(f.Name); with != nil {
				_ = c.RegisterFlagCompletionFunc(f.Name, with) // an error means that it is registered already
			}
		}
		c.Flags().VisitAll(complete)
		c.PersistentFlags().VisitAll(complete)
		c.ValidArgsFunction = p.completeArguments(c.CommandPath())
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// completeFlag completes the values of the flag with that name; nil for files.
func (p *program) completeFlag(name string) cobra.CompletionFunc {
	words := func(words ...string) cobra.CompletionFunc {
		return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
	}
	switch name {
	case "output", "log-format":
		return words("text", "json")
	case "log-level":
		return words("debug", "info", "warn", "error")
	case "state":
		return words(outbox.StatePending, outbox.StateDead)
	case "sample":
		return words(cloudevent.SampleNames...)
	case "change":
		return words("scheduled", "updated", "started", "vanished")
	case "type":
		return words(bridge.TypesValues...)
	case "scenario":
		return cobra.FixedCompletions(imdstest.Names(), cobra.ShellCompDirectiveDefault) // or a file
	case "event":
		return p.completeRecorded
	case "sink", "to":
		return p.completeSinks
	}
	return nil
}

// completeArguments completes the arguments of the command with that path.
func (p *program) completeArguments(path string) cobra.CompletionFunc {
	switch path {
	case "forewarn help":
		return completeHelp
	case "forewarn approve":
		return p.completeOpen
	case "forewarn outbox show", "forewarn outbox drop":
		return p.completeKeys(outbox.Selection{})
	case "forewarn outbox replay":
		return p.completeKeys(outbox.Selection{State: outbox.StateDead})
	case "forewarn unmute":
		return p.completeMutes
	case "forewarn history":
		return nil // files
	}
	return cobra.NoFileCompletions
}

// completeSinks completes the names of the sinks in the settings file; forewarn check reports what is wrong with it.
func (p *program) completeSinks(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	s, err := p.bareSettingsAsRoot()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return s.Names, cobra.ShellCompDirectiveNoFileComp
}

// completeHelp completes the words that help explains: commands and topics with what they hold, and once a word is
// begun, keys and other names too.
func completeHelp(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	about, rest, err := c.Root().Find(args)
	if err != nil || len(rest) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var words []string
	for _, sub := range about.Commands() {
		if !sub.Hidden && strings.HasPrefix(sub.Name(), prefix) {
			words = append(words, sub.Name()+"\t"+sub.Short)
		}
	}
	if about == c.Root() && prefix != "" {
		for _, name := range helpWords() {
			if strings.HasPrefix(name, prefix) && !slices.ContainsFunc(words, func(w string) bool {
				return strings.HasPrefix(w, name+"\t")
			}) {
				words = append(words, name)
			}
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completionPatience is how long a completion waits for the running forewarn.
const completionPatience = 2 * time.Second

// askRunning asks the running forewarn or, where that is possible, its file for completions. If it can't be asked there
// are none; the command itself says why.
func (p *program) askRunning(
	ask func(context.Context, *control.Client) ([]string, error),
) ([]string, cobra.ShellCompDirective) {
	p.err = io.Discard // the shell would show it amid the command line
	quiet := slog.New(slog.DiscardHandler)
	s, err := control.Locate(p.loader(quiet), p.config, quiet)
	if err != nil || p.dropRoot(string(s.State)) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionPatience)
	defer cancel()
	words, err := ask(ctx, p.client(s))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completedID writes an id with what it is about. Shells compare completions with the prefix, letter by letter, so it is
// in lower case unless the prefix has capitals.
func completedID(id, what, prefix string) string {
	if prefix == strings.ToLower(prefix) {
		id = strings.ToLower(id)
	}
	return id + "\t" + wording.Printable(what)
}

// completeOpen completes the ids of the events that the running forewarn knows and that can still be approved.
func (p *program) completeOpen(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return p.askRunning(func(ctx context.Context, running *control.Client) (ids []string, err error) {
		st, err := running.Status(ctx)
		for _, e := range wording.ByUrgency(st.Events) {
			a := wording.ReadEvent(e.Event)
			what := fmt.Sprintf("%s of %s", a.EventType, vmWords(a.Resources, st.Observer.Name))
			if !e.NotBefore.IsZero() {
				what += ", " + clock.Due(e.NotBefore, time.Now(), st.Settings.Location())
			}
			word := completedID(a.EventID, what, prefix)
			given := slices.ContainsFunc(args, func(arg string) bool { return strings.EqualFold(arg, a.EventID) })
			if a.EventStatus != wording.Started && strings.HasPrefix(word, prefix) && !given {
				ids = append(ids, word)
			}
		}
		return ids, err
	})
}

// completeRecorded completes the ids of the events that the history has, the latest first.
func (p *program) completeRecorded(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return p.askRunning(func(ctx context.Context, running *control.Client) (ids []string, err error) {
		recorded, err := running.History(ctx, bridge.Period{}, wording.ShownRows)
		for _, e := range slices.Backward(recorded.Rows) {
			what := fmt.Sprintf("%s of %s", e.Type, vmWords(e.Resources, ""))
			ids = append(ids, completedID(e.Event, what, prefix))
		}
		return ids, err
	})
}

// completeKeys completes the keys of deliveries in the outbox.
func (p *program) completeKeys(of outbox.Selection) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return p.askRunning(func(ctx context.Context, running *control.Client) (keys []string, err error) {
			list, err := running.List(ctx, of, wording.ShownRows)
			for _, d := range list.Rows {
				if !slices.Contains(args, d.Key) {
					keys = append(keys, d.Key+"\t"+d.State+", "+eventWords(d.Delivery))
				}
			}
			return keys, err
		})
	}
}

// completeMutes completes the ids of the mutes of the running forewarn.
func (p *program) completeMutes(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return p.askRunning(func(ctx context.Context, running *control.Client) (ids []string, err error) {
		st, err := running.Status(ctx)
		for _, m := range st.Mutes {
			ids = append(ids, m.ID+"\t"+wording.Muted(*m, nil)+": "+wording.Printable(m.Reason))
		}
		return ids, err
	})
}
