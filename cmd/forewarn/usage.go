package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"forewarn/cmd/forewarn/internal/wording"
)

// strictUsage makes every command below root refuse unknown words and flags with exit code 2 and a hint. Without it,
// cobra answers a mistyped subcommand with the help of its group, and success.
func (p *program) strictUsage(root *cobra.Command) {
	width := p.helpWidth()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return exit(exitUsage, fmt.Errorf("%w; %s", err, flagHint(c, err)))
	})
	root.SetUsageTemplate(strings.NewReplacer(
		".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", width),
		"{{rpad .CommandPath .CommandPathPadding}} ", "forewarn help {{rpad .Name .NamePadding}}  ",
	).Replace(root.UsageTemplate()))
	narrowHelp(root, width)
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "duration" {
				return
			}
			if d, err := time.ParseDuration(f.DefValue); err == nil && d > 0 {
				f.DefValue = wording.Duration(d)
			}
		})
		switch {
		case c.Name() == "help":
			c.Use, c.Short = "help [COMMAND | TOPIC | KEY]", "Help about a command, a topic, or any key of the settings"
			c.Long = `Prints the help of a command, or a topic. Of a key of the settings, a field, a function, a metric or a
message of the log it prints what the topics say about it. On a terminal $PAGER shows topics, by
default less.`
			c.Args, c.Run = cobra.ArbitraryArgs, nil
			c.RunE = func(_ *cobra.Command, args []string) error { return p.helpAbout(root, args) }
		case c.IsAdditionalHelpTopicCommand():
		case c.HasSubCommands() && !c.Runnable():
			c.Args, c.RunE, c.DisableFlagsInUseLine = cobra.ArbitraryArgs, group, true
		case c.Args != nil:
			c.Args = argumentErrors(c.Args)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// narrowHelp wraps what commands say of themselves, and what stands in the second column of lists of commands and
// examples.
func narrowHelp(root *cobra.Command, width int) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		c.Long = fillText(c.Long, width)
		out := c.OutOrStdout()
		var text strings.Builder
		c.SetOut(&text)
		help(c, args)
		c.SetOut(out)
		for line := range strings.Lines(text.String()) {
			fmt.Fprint(out, hangIndent(line, width))
		}
	})
}

// secondColumn matches what comes before the second column of a line.
var secondColumn = regexp.MustCompile(`^ +\S.*?\S {2,}`)

// hangIndent wraps a line of text, or a line with two columns in the second. Any other indented line stays as it is.
func hangIndent(line string, width int) string {
	if !strings.HasPrefix(line, " ") {
		return fillText(line, width) + "\n"
	}
	first := secondColumn.FindString(line)
	if utf8.RuneCountInString(line) <= width+1 || first == "" || len(first) > width*2/3 {
		return line
	}
	return hanging(first, strings.TrimSpace(line[len(first):]), width)
}

// fillText wraps the paragraphs of a text to the width. Indented lines stay as they are.
func fillText(text string, width int) string {
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

// group runs a command that only holds subcommands: it prints the help, or refuses a mistyped subcommand.
func group(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	path := strings.TrimPrefix(c.CommandPath()+" "+args[0], "forewarn ")
	return exit(exitUsage, fmt.Errorf("unknown command %q; %s", path, commandHint(c, args[0])))
}

// commandHint suggests the subcommand of c that is spelled most like word, or lists all of them.
func commandHint(c *cobra.Command, word string) string {
	var known []string
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			known = append(known, sub.Name())
		}
	}
	return wording.Suggestion(word, known)
}

// argumentSource is the annotation of a command that says where its arguments come from.
const argumentSource = "argument source"

// argumentErrors replaces cobra's errors about too many or too few arguments with our own.
func argumentErrors(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, given []string) error {
		switch err := args(c, given); {
		case err == nil:
			return nil
		case len(given) == 0:
			missing := fmt.Sprintf("an argument is missing; expected %s", c.UseLine())
			if where := c.Annotations[argumentSource]; where != "" {
				missing += "; " + where
			}
			return exit(exitUsage, errors.New(missing))
		default:
			return exit(exitUsage, fmt.Errorf("unexpected argument %q; expected %s", given[len(given)-1], c.UseLine()))
		}
	}
}

// flagName matches the name of a flag in the help text of a command.
var flagName = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([\w-]+)`)

// flagHint suggests a flag of c that is spelled like the unknown one in err, or begins with that letter, or else points
// to the help of c.
func flagHint(c *cobra.Command, err error) string {
	hint := fmt.Sprintf("see %s --help", c.CommandPath())
	var unknown interface{ GetSpecifiedName() string }
	if !errors.As(err, &unknown) || c.Flags().Lookup(unknown.GetSpecifiedName()) != nil {
		return hint
	}
	name := unknown.GetSpecifiedName()
	for _, m := range flagName.FindAllStringSubmatch(c.Flags().FlagUsages(), -1) {
		if len(name) == 1 && m[1][:1] == name || len(name) > 1 && wording.Distance(name, m[1]) <= 2 {
			return fmt.Sprintf("did you mean --%s?", m[1])
		}
	}
	return hint
}
