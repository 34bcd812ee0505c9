package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"forewarn/cmd/forewarn/internal/wording"
)

// strict has every command below root refuse, with exit code 2 and what was expected, the words and flags that it does
// not know. Left alone, a group of commands would answer a mistyped one with its help and success.
func strict(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return exit(exitUsage, fmt.Errorf("%w; %s", err, flagHint(c, err)))
	})
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", helpWidth)))
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		c.Long = filled(c.Long, helpWidth)
		switch {
		case c.Name() == "help":
			c.Args = func(_ *cobra.Command, args []string) error { return unknownTopic(root, args) }
		case c.IsAdditionalHelpTopicCommand():
		case c.HasSubCommands() && !c.Runnable():
			c.Args, c.RunE, c.DisableFlagsInUseLine = cobra.ArbitraryArgs, group, true
		case c.Args != nil:
			c.Args = counted(c.Args)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// helpWidth is how wide help is, in columns.
const helpWidth = 100

// filled breaks the lines of a text anew, so that none is longer than the width. Lines that are indented stay as they are.
func filled(text string, width int) string {
	var b strings.Builder
	column := 0
	for _, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, " ") {
			if column > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(line + "\n")
			column = 0
			continue
		}
		for _, word := range strings.Fields(line) {
			switch n := utf8.RuneCountInString(word); {
			case column == 0:
				column = n
			case column+1+n > width:
				b.WriteByte('\n')
				column = n
			default:
				b.WriteByte(' ')
				column += 1 + n
			}
			b.WriteString(word)
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// group is what a command does that only holds others.
func group(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	return exit(exitUsage, fmt.Errorf("unknown command %q; %s", strings.TrimPrefix(c.CommandPath()+" "+args[0], "forewarn "), commandHint(c, args[0])))
}

// commandHint names the command below c that is meant by word, or all of them.
func commandHint(c *cobra.Command, word string) string {
	var known []string
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			known = append(known, sub.Name())
		}
	}
	return wording.Suggestion(word, known)
}

// unknownTopic refuses what there is no help about.
func unknownTopic(root *cobra.Command, args []string) error {
	c, rest, err := root.Find(args)
	if err == nil && (len(rest) == 0 || !c.HasSubCommands()) {
		return nil
	}
	return exit(exitUsage, fmt.Errorf("no help about %q; %s", strings.Join(args, " "), commandHint(c, rest[0])))
}

// counted says in our words that args are too many or too few.
func counted(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		switch err := args(c, given); {
		case err == nil:
			return nil
		case len(given) == 0:
			return exit(exitUsage, fmt.Errorf("an argument is missing; expected %s", c.UseLine()))
		default:
			return exit(exitUsage, fmt.Errorf("unexpected argument %q; expected %s", given[len(given)-1], c.UseLine()))
		}
	}
}

// flagName finds the flags in the text that help prints of them.
var flagName = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([\w-]+)`)

// flagHint names the flag of c that is meant by the one that err says is unknown, or else where its flags are explained.
func flagHint(c *cobra.Command, err error) string {
	hint := fmt.Sprintf("see %s --help", c.CommandPath())
	var unknown interface{ GetSpecifiedName() string }
	if !errors.As(err, &unknown) || c.Flags().Lookup(unknown.GetSpecifiedName()) != nil {
		return hint
	}
	for _, m := range flagName.FindAllStringSubmatch(c.Flags().FlagUsages(), -1) {
		if wording.Distance(unknown.GetSpecifiedName(), m[1]) <= 2 {
			return fmt.Sprintf("did you mean --%s?", m[1])
		}
	}
	return hint
}
