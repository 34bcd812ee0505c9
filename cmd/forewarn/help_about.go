package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
)

// helpAbout prints the help of a command, a topic or a kind of sink, or explains any other name.
func (p *program) helpAbout(root *cobra.Command, args []string) error {
	phrase := strings.Join(args, " ")
	c, rest, err := root.Find(args)
	last := phrase[strings.LastIndexAny(phrase, ". ")+1:]
	if sinks.Kinds()[last].Open != nil {
		c, rest, err = root.Find([]string{"sinks", last})
	}
	if err == nil && len(rest) == 0 {
		if err := c.Help(); err != nil || phrase == "" {
			return err
		}
		for _, e := range explain(phrase) {
			if c.Runnable() {
				fmt.Fprintf(p.out, "\nSee also: forewarn help %s\n", e.topic)
			}
		}
		return nil
	}
	if own := p.ownService(last); own != nil {
		p.page(terminalText(blocksOf(serviceSection(own, ownKeyTable(own))), p.helpWidth()))
		return nil
	}
	entries := explainPath(phrase)
	beginning, _, isMessage := strings.Cut(phrase, ";") // of the log
	switch {
	case len(entries) > 0:
	case isMessage:
		entries = explain(beginning)
	default:
		entries = explainSpelling(phrase)
	}
	if c, rest, err := root.Find([]string{phrase + "s"}); len(entries) == 0 && err == nil && len(rest) == 0 {
		return c.Help()
	}
	if len(entries) == 0 && !isMessage {
		entries = sectionsAbout(last)
	}
	if len(entries) == 0 {
		return exit(exitUsage, fmt.Errorf("no help about %q; %s", phrase, helpHint(args[len(args)-1])))
	}
	var texts []string
	for _, e := range entries {
		texts = append(texts, fmt.Sprintf("forewarn help %s\n\n%s", e.topic, terminalText(e.blocks, p.helpWidth())))
	}
	p.page(strings.Join(texts, "\n"))
	return nil
}

// An entry is what a topic of help says about a name.
type entry struct {
	topic  string
	blocks []block
}

// explainPath explains a name, or one with what it is below, such as "sinks.slack.channel" or "approve wait": the longest
// end of it that is known, in the topic that the rest names, if it names one. Of a sentence that it doesn't know, such as a
// message of the log, it explains nothing: its last words by themselves are about something else.
func explainPath(phrase string) []entry {
	for at := 0; ; {
		found := explain(phrase[at:])
		if len(found) > 0 {
			return within(found, phrase[:at])
		}
		next := strings.IndexAny(phrase[at:], ". ")
		if next < 0 {
			return nil
		}
		above := phrase[at : at+next]
		if phrase[at+next] == ' ' && len(explain(above)) == 0 && !namesTopic(above) {
			return nil
		}
		at += next + 1
	}
}

// namesTopic reports whether a word is the last of a topic's name, as of "sinks slack".
func namesTopic(word string) bool {
	return slices.ContainsFunc(slices.Concat(topics, kindTopics()), func(t topic) bool { return lastWord(t.name) == word })
}

// lastWord returns the last word of a topic's name.
func lastWord(topic string) string { return topic[strings.LastIndexByte(topic, ' ')+1:] }

// within returns the entries of topics that a path names, such as sinks slack for "sinks.slack."; all if it names none.
func within(entries []entry, path string) []entry {
	parts := strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == ' ' })
	elsewhere := func(e entry) bool { return !slices.Contains(parts, lastWord(e.topic)) }
	if there := slices.DeleteFunc(slices.Clone(entries), elsewhere); len(there) > 0 {
		return there
	}
	return entries
}

// explain returns what explains a name, topic by topic: the rows of tables that begin with it, and the paragraphs and
// items that do, with the block that follows a colon.
func explain(name string) (found []entry) {
	name = strings.ToLower(name)
	explained := map[string]bool{} // by the text of the block: topics overlap
	for _, t := range slices.Concat(topics[:1], kindTopics(), topics[1:]) {
		e := entry{topic: t.name}
		blocks := t.blocks()
		for i, b := range blocks {
			text := strings.Join(b.lines, "\n")
			b = b.about(name)
			if len(b.lines) == 0 || explained[text] {
				continue
			}
			explained[text] = true
			e.blocks = append(e.blocks, b)
			if strings.HasSuffix(text, ":") && i+1 < len(blocks) {
				next := blocks[i+1]
				explained[strings.Join(next.lines, "\n")] = true
				e.blocks = append(e.blocks, next)
			}
		}
		if len(e.blocks) > 0 {
			found = append(found, e)
		}
	}
	return found
}

// about returns the part of a block that explains a name: of a table the head and the rows that begin with it.
func (b block) about(name string) block {
	about := block{kind: b.kind}
	switch b.kind {
	case tableBlock:
		for _, line := range b.lines[2:] {
			if isAbout(line, name) {
				about.lines = append(about.lines, line)
			}
		}
		if len(about.lines) > 0 {
			about.lines = slices.Concat(b.lines[:2], about.lines)
		}
	case paragraphBlock, itemBlock:
		if beginning.MatchString(b.lines[0]) && isAbout(b.lines[0], name) {
			about.lines = b.lines
		}
	}
	return about
}

// beginning matches a line that begins with a name, written as code.
var beginning = regexp.MustCompile("^(- |\\| )?`")

// isAbout reports whether a line begins with a name, or with one that ends or begins in it at a dot. What has several
// words may also be a part of the first cell of a row, such as a message of the log.
func isAbout(line, name string) bool {
	cell, _, isRow := strings.Cut(strings.TrimPrefix(strings.ToLower(line), "| "), " | ")
	if isRow && strings.Contains(name, " ") && strings.Contains(plain(cell), name) {
		return true
	}
	names := codeSpan.FindAllStringSubmatch(cell, -1)
	if !isRow {
		names = names[:min(1, len(names))]
	}
	return slices.ContainsFunc(names, func(m []string) bool {
		key, _, _ := strings.Cut(strings.TrimPrefix(m[1], "forewarn_"), ":")
		return key == strings.TrimPrefix(name, "forewarn_") || strings.HasSuffix(key, "."+name) ||
			strings.HasPrefix(key, name+".")
	})
}

// explainSpelling explains another spelling of a secret, such as token_vault: what its key is, and how it is spelled.
func explainSpelling(phrase string) []entry {
	for suffix, about := range map[string]string{"_vault": "vault", "_file": "secrets", "_env": "secrets"} {
		if key, ok := strings.CutSuffix(phrase, suffix); ok {
			return append(explainPath(key), sectionsAbout(about)...)
		}
	}
	return nil
}

// sectionsAbout returns the sections of the topics whose heading has a word, in the singular or the plural. A word of
// less than four letters says too little.
func sectionsAbout(word string) (found []entry) {
	singular := func(s string) string { return strings.TrimSuffix(strings.ToLower(s), "s") }
	is := func(other string) bool { return singular(other) == singular(word) }
	if len(word) < 4 {
		return nil
	}
	shown := ""
	for _, t := range topics {
		for line := range strings.Lines(t.markdown()) {
			level := headingLevel(line)
			heading := strings.TrimSpace(line[level:])
			if level < 2 || !slices.ContainsFunc(strings.Fields(heading), is) {
				continue
			}
			section := sectionOf(t.markdown(), heading)
			if !strings.Contains(shown, section) {
				shown += section
				found = append(found, entry{t.name, blocksOf(section)})
			}
		}
	}
	return found
}

// helpHint suggests what may have been meant by a name that nothing explains, or where to look.
func helpHint(name string) string {
	if near, ok := wording.Nearest(name, helpWords()); ok {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "forewarn help lists the topics, forewarn help settings the keys"
}

// helpWords returns the names of topics, and those that the tables explain: keys, fields, functions, metrics and others.
func helpWords() (names []string) {
	for _, t := range topics {
		names = append(names, t.name)
		for _, b := range blocksOf(t.markdown()) {
			if b.kind != tableBlock {
				continue
			}
			for _, row := range b.rows()[1:] {
				name := row[0][strings.LastIndexByte(row[0], '.')+1:]
				if name != "" && !strings.Contains(name, " ") {
					names = append(names, name)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
