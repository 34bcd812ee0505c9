package main

import (
	"github.com/spf13/cobra"

	"forewarn/bridge/cloudevent"
	"forewarn/bridge/outbox"
)

// addCompletions lets the shell complete the values of flags: fixed words, and the sinks of the settings file.
func addCompletions(root *cobra.Command, p *program) {
	words := map[string][]string{
		"output": {"text", "json"}, "log-format": {"text", "json"}, "log-level": {"debug", "info", "warn", "error"},
		"state": {outbox.StatePending, outbox.StateDead}, "sample": cloudevent.SampleNames,
		"change": {"scheduled", "updated", "started", "vanished"},
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
}
