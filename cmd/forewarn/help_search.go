package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"forewarn/cmd/forewarn/internal/manual"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
)

// helpAbout prints the help of a command, a topic or a kind of sink. Any other word is looked up in the tables of the
// documents: keys, fields, functions, metrics and ready-made bodies.
func helpAbout(root *cobra.Command, out io.Writer, args []string) error {
	c, rest, err := root.Find(args)
	if err == nil && (len(rest) == 0 || !c.HasSubCommands()) {
		return c.Help()
	}
	word := args[len(args)-1]
	if kind, rest, err := root.Find([]string{"sinks", word}); err == nil && len(rest) == 0 {
		return kind.Help()
	}
	entries := lookUp(word)
	if len(entries) == 0 {
		return exit(exitUsage, fmt.Errorf("no help about %q; %s", strings.Join(args, " "), helpHint(c, word)))
	}
	for i, e := range entries {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "forewarn help %s\n\n%s", e.topic, manual.Format([]manual.Block{e.table}))
	}
	return nil
}

// An entry is what a topic of help says about a word: a table with the rows that begin with it.
type entry struct {
	topic string
	table manual.Block
}

// lookUp returns what the tables say about a word: the name of a row, or the last part of a name with dots.
func lookUp(word string) (found []entry) {
	for _, t := range searched() {
		for _, b := range manual.Parse(t.text()) {
			if b.Kind != manual.Table || b.Rows[0][0] == "" {
				continue
			}
			rows := slices.DeleteFunc(slices.Clone(b.Rows[1:]), func(row []string) bool {
				return !strings.EqualFold(row[0], word) && !strings.HasSuffix(strings.ToLower(row[0]), "."+strings.ToLower(word))
			})
			if len(rows) > 0 {
				b.Rows = append(b.Rows[:1:1], rows...)
				found = append(found, entry{t.name, b})
			}
		}
	}
	return found
}

// searched returns the topics to look a word up in: each table is in one of them.
func searched() (all []topic) {
	for _, t := range topics {
		switch t.name {
		case "sinks":
			for _, kind := range slices.Sorted(maps.Keys(sinks.Kinds)) {
				all = append(all, topic{"sinks " + kind, "", t.document, []string{kind}})
			}
		case "templates": // its tables are in fields
		default:
			all = append(all, t)
		}
	}
	return all
}

// helpHint points to the topics that mention a word, or suggests what may have been meant. c is the command that help
// was asked about.
func helpHint(c *cobra.Command, word string) string {
	var mentions []string
	whole := regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(word) + `\b`)
	for _, t := range searched() {
		if whole.MatchString(t.text()) {
			mentions = append(mentions, "forewarn help "+t.name)
		}
	}
	if len(mentions) > 0 && len(mentions) <= 4 { // a word that many mention leads nowhere
		return "it is mentioned in " + strings.Join(mentions, ", ")
	}
	var names []string
	for _, t := range searched() {
		for _, b := range manual.Parse(t.text()) {
			for _, row := range b.Rows {
				names = append(names, row[0][strings.LastIndexByte(row[0], '.')+1:])
			}
		}
	}
	if near, ok := wording.Nearest(word, names); ok {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return commandHint(c, word)
}
