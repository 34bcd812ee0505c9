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

	"forewarn/bridge"
	"forewarn/bridge/clock"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/wording"
)

// addCompletions lets the shell complete what help explains, the ids of open events, and the values of flags: fixed
// words, and the sinks of the settings file. As arguments it offers files only where they are read.
func addCompletions(root *cobra.Command, p *program) {
	words := map[string][]string{
		"output": {"text", "json"}, "log-format": {"text", "json"}, "log-level": {"debug", "info", "warn", "error"},
		"state": {outbox.StatePending, outbox.StateDead}, "sample": cloudevent.SampleNames,
		"change": {"scheduled", "updated", "started", "vanished"}, "type": bridge.TypesValues,
	}
	sinks := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		s, err := p.bareSettingsAsRoot()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp // forewarn check reports the error
		}
		return s.Names, cobra.ShellCompDirectiveNoFileComp
	}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for flag, values := range words {
			if c.Flag(flag) != nil {
				_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
			}
		}
		if c.ValidArgsFunction == nil && c.Name() != "history" {
			c.ValidArgsFunction = cobra.NoFileCompletions
		}
		for _, flag := range []string{"sink", "to"} {
			if c.Flag(flag) != nil {
				_ = c.RegisterFlagCompletionFunc(flag, sinks) // an error means that a parent command has registered it
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.ValidArgsFunction = completeHelp
		case "approve":
			c.ValidArgsFunction = p.completeEvents
		}
	}
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

// completeEvents completes the ids of the events that the running forewarn knows and that can still be approved. If
// none runs, there is nothing to complete; the command itself says why.
func (p *program) completeEvents(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	p.err = io.Discard // the shell would show it amid the command line
	quiet := slog.New(slog.DiscardHandler)
	s, err := control.Locate(p.loader(quiet), p.config, quiet)
	if err != nil || p.dropRoot(string(s.State)) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionPatience)
	defer cancel()
	st, err := p.client(s).Status(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var ids []string
	for _, e := range wording.ByUrgency(st.Events) {
		a := wording.ReadEvent(e.Event)
		id := a.EventID
		if prefix == strings.ToLower(prefix) {
			id = strings.ToLower(id) // shells compare completions with the prefix, letter by letter
		}
		if a.EventStatus == wording.Started || !strings.HasPrefix(id, prefix) || slices.Contains(args, id) {
			continue
		}
		what := fmt.Sprintf("%s of %s", a.EventType, vmWords(a.Resources, st.Observer.Name))
		if !e.NotBefore.IsZero() {
			what += ", " + clock.Due(e.NotBefore, time.Now(), st.Settings.Location())
		}
		ids = append(ids, id+"\t"+wording.Printable(what))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}
