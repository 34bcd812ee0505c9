// Package manual turns the project's documents from Markdown into plain text for a terminal. It supports the Markdown
// that they use: headings, paragraphs, lists, tables and code.
package manual

import (
	"regexp"
	"strings"
)

// A Kind is the kind of a block.
type Kind int

// The kinds of blocks.
const (
	Heading Kind = iota
	Paragraph
	Item
	Table
	Code
)

// A Block is a part of a document. Its texts are plain: without backticks, stars and targets of links into the
// repository.
type Block struct {
	Kind  Kind
	Level int        // of a heading; the title has 1
	Mark  string     // of a list item: "-", or its number and a dot
	Text  string     // one line; code is unchanged
	Rows  [][]string // of a table; the first is its head
}

// Section returns the section of a document with that heading, heading included; "" if there is none. It ends before
// the next heading of the same or a higher level.
func Section(doc, heading string) string {
	var b strings.Builder
	level, code := 0, false
	for line := range strings.Lines(doc) {
		if strings.HasPrefix(line, fence) {
			code = !code
		}
		if n, text := headingOf(line); n > 0 && !code {
			if level > 0 && n <= level {
				break
			}
			if level == 0 && text == heading {
				level = n
			}
		}
		if level > 0 {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Parse splits a document, or a part of one, into blocks.
func Parse(doc string) []Block {
	var blocks []Block
	var open *Block // the block that the next line may continue
	code := false
	for line := range strings.Lines(doc) {
		line = strings.TrimRight(line, "\n")
		level, heading := headingOf(line)
		switch mark := listMark.FindString(line); {
		case strings.HasPrefix(line, fence):
			if code = !code; code {
				blocks = append(blocks, Block{Kind: Code})
			}
			open = nil
		case code:
			last := &blocks[len(blocks)-1]
			last.Text += line + "\n"
		case level > 0:
			blocks = append(blocks, Block{Kind: Heading, Level: level, Text: plain(heading)})
			open = nil
		case strings.HasPrefix(line, "|"):
			if open == nil || open.Kind != Table {
				blocks = append(blocks, Block{Kind: Table})
				open = &blocks[len(blocks)-1]
			}
			if !tableRule.MatchString(line) {
				open.Rows = append(open.Rows, cells(line))
			}
		case strings.TrimSpace(line) == "", strings.HasPrefix(line, "<!--"), strings.HasPrefix(line, "!["):
			open = nil
		case mark != "":
			blocks = append(blocks, Block{Kind: Item, Mark: strings.TrimSpace(mark), Text: line[len(mark):]})
			open = &blocks[len(blocks)-1]
		case open != nil && open.Kind != Table:
			open.Text += " " + strings.TrimSpace(line)
		default:
			blocks = append(blocks, Block{Kind: Paragraph, Text: line})
			open = &blocks[len(blocks)-1]
		}
	}
	for i := range blocks {
		if k := blocks[i].Kind; k == Paragraph || k == Item {
			blocks[i].Text = plain(blocks[i].Text)
		}
	}
	return blocks
}

const fence = "```"

var (
	listMark  = regexp.MustCompile(`^(- |[0-9]+\. )`)
	tableRule = regexp.MustCompile(`^\|[ |:-]+$`)
	span      = regexp.MustCompile("`` .+? ``|`[^`]+`|[^`]+|`")
	link      = regexp.MustCompile(`\[([^\]]*)\]\(([^)\s]*)\)`)
)

// headingOf returns the level and text of a heading; level 0 if the line is none.
func headingOf(line string) (level int, text string) {
	level = len(line) - len(strings.TrimLeft(line, "#"))
	if level == 0 || !strings.HasPrefix(line[level:], " ") {
		return 0, ""
	}
	return level, strings.TrimSpace(line[level:])
}

// cells splits a line of a table. A bar after a backslash is text.
func cells(line string) []string {
	const bar = "\x00"
	line = strings.ReplaceAll(strings.TrimSpace(line), `\|`, bar)
	all := strings.Split(strings.Trim(line, "|"), "|")
	for i, c := range all {
		all[i] = plain(strings.ReplaceAll(strings.TrimSpace(c), bar, "|"))
	}
	return all
}

// plain removes the marks of Markdown. It keeps the targets of links to the web.
func plain(text string) string {
	var b strings.Builder
	text = link.ReplaceAllStringFunc(text, func(l string) string {
		m := link.FindStringSubmatch(l)
		if strings.Contains(m[2], "://") && !strings.Contains(m[1], "://") {
			return m[1] + " (" + m[2] + ")"
		}
		return m[1]
	})
	for _, s := range span.FindAllString(text, -1) {
		if strings.HasPrefix(s, "`") {
			s = strings.TrimSuffix(strings.TrimPrefix(strings.Trim(s, "`"), " "), " ")
		} else {
			s = strings.ReplaceAll(s, "**", "")
		}
		b.WriteString(s)
	}
	return b.String()
}
