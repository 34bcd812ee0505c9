package main

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A block is a part of a document as it is written in Markdown: a heading, a paragraph, an item of a list, a table, or
// code without its fences.
type block struct {
	kind  blockKind
	lines []string
}

type blockKind int

const (
	paragraphBlock blockKind = iota
	headingBlock
	itemBlock
	tableBlock
	codeBlock
)

const fence = "```"

var (
	itemMark = regexp.MustCompile(`^(- |[0-9]+\. )`)
	link     = regexp.MustCompile(`\(?\[([^\]]*)\]\(([^)\s]*)\)`)
	codeSpan = regexp.MustCompile("`([^`\n]+)`")
)

// blocksOf splits a document, or a part of one. It leaves out comments and pictures.
func blocksOf(doc string) (all []block) {
	open, inCode := false, false // whether the last block may go on; whether it is code
	for line := range strings.Lines(doc) {
		line = strings.TrimRight(line, "\n")
		kind := kindOfLine(line)
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), fence): // also one within an item
			inCode, open = !inCode, false
			if inCode {
				all = append(all, block{kind: codeBlock})
			}
			continue
		case inCode:
			kind, open = codeBlock, true
		case strings.TrimSpace(line) == "", strings.HasPrefix(line, "<!--"), strings.HasPrefix(line, "!["):
			open = false
			continue
		}
		last := len(all) - 1
		if open && (kind == paragraphBlock || kind == all[last].kind && kind != itemBlock) {
			all[last].lines = append(all[last].lines, line)
			continue
		}
		all = append(all, block{kind, []string{line}})
		open = kind != headingBlock
	}
	return all
}

// kindOfLine returns the kind of the block that begins with a line.
func kindOfLine(line string) blockKind {
	switch {
	case headingLevel(line) > 0:
		return headingBlock
	case strings.HasPrefix(line, "|"):
		return tableBlock
	case itemMark.MatchString(line):
		return itemBlock
	}
	return paragraphBlock
}

// headingLevel returns 1 for a title, 2 for a section and so on; 0 for what is no heading.
func headingLevel(line string) int {
	level := len(line) - len(strings.TrimLeft(line, "#"))
	if !strings.HasPrefix(line[level:], " ") {
		return 0
	}
	return level
}

// sectionOf returns the part of a document below a heading, heading included; "" if there is none. It ends before the
// next heading of the same or a higher level.
func sectionOf(doc, name string) string {
	var b strings.Builder
	level, inCode := 0, false
	for line := range strings.Lines(doc) {
		if strings.HasPrefix(line, fence) {
			inCode = !inCode
		}
		n := headingLevel(line)
		if n > 0 && !inCode {
			if level > 0 && n <= level {
				break
			}
			if level == 0 && strings.TrimSpace(line[n:]) == name {
				level = n
			}
		}
		if level > 0 {
			b.WriteString(line)
		}
	}
	return b.String()
}

// anchor returns how links name a heading: "The page" is the-page.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, heading)
}

// plain returns text without the marks of Markdown. Behind the text of a link stands where it leads, if that is of use
// in a terminal: an address, a topic of help, or a file among the examples. It doesn't stand behind the name of a topic
// that is written as code, as in the list of kinds.
func plain(text string) string {
	text = link.ReplaceAllStringFunc(text, func(l string) string {
		m := link.FindStringSubmatch(l)
		where := readOn(m[2])
		switch {
		case where == "" || where == m[1], strings.HasPrefix(m[1], "`") && strings.HasSuffix(where, " "+strings.Trim(m[1], "`")):
			return strings.TrimSuffix(l[:1], "[") + m[1]
		case strings.HasPrefix(l, "("):
			return "(" + m[1] + ": " + where
		}
		return m[1] + " (" + where + ")"
	})
	return strings.Join(strings.Fields(strings.NewReplacer("**", "", "`", "").Replace(text)), " ")
}

// rows returns the cells of a table as plain text; the first row is its head. A bar after a backslash is text.
func (b block) rows() (rows [][]string) {
	const bar = "\x00"
	for i, line := range b.lines {
		if i == 1 {
			continue // the line below the head
		}
		cells := strings.Split(strings.Trim(strings.ReplaceAll(line, `\|`, bar), "| "), " | ")
		for c := range cells {
			cells[c] = plain(strings.ReplaceAll(cells[c], bar, "|"))
		}
		rows = append(rows, cells)
	}
	return rows
}

// explanation is what a row of a table says of its first cell: sentences as they come, or else the last cell, and then
// what is between, named by the head.
func explanation(head, row []string) string {
	if len(row) < 2 {
		return ""
	}
	last := len(row) - 1
	if strings.HasSuffix(row[1], ".") {
		return strings.Join(row[1:], " ")
	}
	text := row[last]
	for i := 1; i < last; i++ {
		if row[i] != "" {
			text += " (" + head[i] + ": " + row[i] + ")"
		}
	}
	return text
}

// terminalText makes blocks readable in a terminal of that many columns. It breaks neither code nor long words.
func terminalText(blocks []block, width int) string {
	var b strings.Builder
	for i, block := range blocks {
		if i > 0 && !(block.kind == itemBlock && blocks[i-1].kind == itemBlock) {
			b.WriteString("\n")
		}
		text := strings.Join(block.lines, " ")
		switch block.kind {
		case headingBlock:
			level := headingLevel(text)
			text = plain(text[level:])
			if level <= 2 {
				text = strings.ToUpper(text)
			}
			b.WriteString(text + "\n")
		case paragraphBlock:
			b.WriteString(hanging("  ", plain(text), width))
		case itemBlock:
			mark := itemMark.FindString(text)
			b.WriteString(hanging("  "+mark, plain(text[len(mark):]), width))
		case tableBlock:
			b.WriteString(tableText(block.rows(), width))
		case codeBlock:
			b.WriteString("    " + strings.Join(block.lines, "\n    ") + "\n")
		}
	}
	return b.String()
}

// tableText writes each row of a table with its explanation beside the first cell, or below it if that is long.
func tableText(rows [][]string, width int) string {
	const longest = 26
	column := 0
	for _, row := range rows[1:] {
		n := utf8.RuneCountInString(row[0])
		if n <= longest {
			column = max(column, n)
		}
	}
	var b strings.Builder
	for _, row := range rows[1:] {
		first := "  " + row[0] + strings.Repeat(" ", max(0, column-utf8.RuneCountInString(row[0]))) + "  "
		if utf8.RuneCountInString(row[0]) > column {
			b.WriteString(hanging("  ", row[0], width))
			first = "      "
		}
		b.WriteString(hanging(first, explanation(rows[0], row), width))
	}
	return b.String()
}

// hanging writes text behind the beginning of its first line, and wraps it below itself.
func hanging(first, text string, width int) string {
	indent := strings.Repeat(" ", utf8.RuneCountInString(first))
	text = first + strings.ReplaceAll(fillText(text, width-len(indent)), "\n", "\n"+indent)
	return strings.TrimRight(text, " ") + "\n"
}
