package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"forewarn/cmd/forewarn/internal/manual"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
)

// helpAbout prints the help of a command, a topic or a kind of sink. Any other word is looked up in the documents:
// first what explains it (keys, fields, functions, metrics, log messages), and if nothing does, where it occurs.
func helpAbout(root *cobra.Command, out io.Writer, width int, args []string) error {
	phrase := strings.Join(args, " ")
	c, rest, err := root.Find(args)
	if err == nil && len(rest) == 0 {
		if err := c.Help(); err != nil {
			return err
		}
		return seeAlso(out, c, phrase)
	}
	if kind := phrase[strings.LastIndexAny(phrase, ". ")+1:]; sinks.Kinds[kind].Open != nil {
		kind, _, _ := root.Find([]string{"sinks", kind})
		return kind.Help()
	}
	entries := explanations(phrase)
	if len(entries) == 0 && err == nil && !c.HasSubCommands() {
		return c.Help() // of a command, with more words behind it
	}
	if len(entries) == 0 {
		entries = findMentions(phrase)
	}
	if len(entries) == 0 {
		return exit(exitUsage, fmt.Errorf("no help about %q; %s", phrase, helpHint(args[len(args)-1])))
	}
	for i, e := range entries {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if _, err := fmt.Fprintf(out, "forewarn help %s\n\n%s", e.topic, manual.Text(e.blocks, width)); err != nil {
			return err
		}
	}
	return nil
}

// seeAlso names the topics that explain a word which is a command or a topic too.
func seeAlso(out io.Writer, c *cobra.Command, word string) error {
	var also []string
	for _, e := range findEntries(word) {
		if "forewarn "+e.topic != c.CommandPath() {
			also = append(also, "forewarn help "+e.topic)
		}
	}
	if len(also) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "\nSee also: %s\n", strings.Join(also, ", "))
	return err
}

// An entry is what a topic of help says about a word.
type entry struct {
	topic  string
	blocks []manual.Block
}

// explanations looks up a word, or a key with what it is below, such as "sinks.slack.channel" or "approve wait". Of
// that the longest end which is known counts, in the topic that the rest names, if it names one.
func explanations(phrase string) []entry {
	parts := strings.FieldsFunc(phrase, func(r rune) bool { return r == '.' || r == ' ' })
	if found := findEntries(phrase); len(found) > 0 || len(parts) < 2 {
		return found
	}
	for i := range parts {
		found := findEntries(strings.Join(parts[i:], "."))
		var there []entry
		for _, e := range found {
			name := e.topic[strings.LastIndexByte(e.topic, ' ')+1:]
			if slices.ContainsFunc(parts[:i], func(p string) bool { return p == name || p == "approve" && name == "approval" }) {
				there = append(there, e)
			}
		}
		if len(there) > 0 {
			return there
		}
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// findEntries returns what explains a word, topic by topic: the rows of tables that begin with it, what begins with it
// as code, and the remarks on it.
func findEntries(word string) (found []entry) {
	for _, t := range searchedTopics() {
		blocks := t.blocks()
		e := entry{topic: t.name}
		explained := false
		for i, b := range blocks {
			switch {
			case b.Kind == manual.Table:
				b.Rows = rowsOf(b, word)
				if len(b.Rows) > 1 {
					e.blocks, explained = append(e.blocks, b), true
				}
			case len(b.Names) > 0 && isName(b.Names[0], word) && strings.HasPrefix(b.Text, b.Names[0]):
				e.blocks, explained = append(e.blocks, b), true
				if strings.HasSuffix(b.Text, ":") && i+1 < len(blocks) && blocks[i+1].Kind != manual.Heading {
					e.blocks = append(e.blocks, blocks[i+1])
				}
			case slices.ContainsFunc(b.Names, func(n string) bool { return isName(n, word) }):
				e.blocks = append(e.blocks, b)
			}
		}
		if explained {
			found = append(found, e)
		}
	}
	return found
}

// isName reports whether code is the word, or ends in it after a dot, perhaps with a value behind it.
func isName(code, word string) bool {
	name, _, _ := strings.Cut(strings.ToLower(code), ":")
	return name == strings.ToLower(word) || strings.HasSuffix(name, "."+strings.ToLower(word))
}

// rowsOf returns the head of a table and its rows about a word: it is their first cell, the last part or the first of a
// name with dots, or one of a few words.
func rowsOf(b manual.Block, word string) [][]string {
	if b.Rows[0][0] == "" {
		return nil // a list of files
	}
	word = strings.ToLower(word)
	rows := b.Rows[:1:1]
	for _, row := range b.Rows[1:] {
		cell := strings.ToLower(row[0])
		words := strings.FieldsFunc(cell, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' && r != '.'
		})
		if cell == word || cell == "forewarn_"+word || strings.HasSuffix(cell, "."+word) ||
			strings.HasPrefix(cell, word+".") || strings.Contains(word, " ") && strings.Contains(cell, word) ||
			len(words) <= 4 && slices.Contains(words, word) {
			rows = append(rows, row)
		}
	}
	return rows
}

// findMentions returns the paragraphs, list items and rows in which a word occurs, a longer word also with another
// ending. For a topic with many of them it returns only their number.
func findMentions(phrase string) (found []entry) {
	const few = 4
	stem := phrase
	if len(phrase) > 4 {
		for _, ending := range []string{"s", "e", "ion", "ing"} {
			stem = strings.TrimSuffix(stem, ending)
		}
	}
	pattern := `(?i)\b` + regexp.QuoteMeta(stem)
	if len(phrase) < 4 {
		pattern += `(?:\b[^'’]|_|$)` // so short a word begins many others
	}
	occurs := regexp.MustCompile(pattern).MatchString
	for _, t := range topics {
		if t.name == "fields" {
			continue // part of templates
		}
		e := entry{topic: t.name}
		n := 0
		for _, b := range t.blocks() {
			if b.Kind == manual.Table {
				rows := slices.DeleteFunc(slices.Clone(b.Rows[1:]), func(row []string) bool {
					return !occurs(strings.Join(row, " "))
				})
				if len(rows) == 0 {
					continue
				}
				n += len(rows) - 1
				b.Rows = slices.Concat(b.Rows[:1], rows)
			} else if !occurs(b.Text) || b.Kind == manual.Heading {
				continue
			}
			n++
			e.blocks = append(e.blocks, b)
		}
		switch {
		case n > few:
			e.blocks = []manual.Block{{Kind: manual.Paragraph, Text: fmt.Sprintf("%q occurs %d times.", phrase, n)}}
			found = append(found, e)
		case n > 0:
			found = append(found, e)
		}
	}
	return found
}

// searchedTopics returns the topics to look a word up in: each table is in one of them.
func searchedTopics() (all []topic) {
	for _, t := range topics {
		switch t.name {
		case "sinks":
			kinds := kindTopics()
			t.sections = slices.DeleteFunc(manual.Sections(t.document.text), func(s string) bool {
				return slices.ContainsFunc(kinds, func(k topic) bool { return k.sections[0] == s })
			})
			all = append(append(all, t), kinds...)
		case "templates": // its tables are in fields
		default:
			all = append(all, t)
		}
	}
	return all
}

// helpHint suggests what may have been meant by a word that occurs nowhere, or where to look.
func helpHint(word string) string {
	if near, ok := wording.Nearest(word, helpWords()); ok {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "forewarn help lists the topics, forewarn help settings the keys"
}

// helpWords returns the names that the tables explain: keys, fields, functions, metrics and others.
func helpWords() (names []string) {
	for _, t := range searchedTopics() {
		for _, b := range manual.Parse(t.markdown(), nil) {
			for _, row := range b.Rows {
				if name := row[0][strings.LastIndexByte(row[0], '.')+1:]; name != "" && !strings.Contains(name, " ") {
					names = append(names, name)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
