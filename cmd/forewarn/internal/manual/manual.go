// Package manual turns the project's documents from Markdown into plain text for a terminal. It supports the Markdown
// that they use: headings, paragraphs, lists, tables and code.
package manual

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
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
	Names []string   // of a paragraph or list item: what it marks as code, in order
	Rows  [][]string // of a table; the first is its head
}

// Links says where to read on instead of following a link into the repository, given its text and target; "" if
// nowhere. It stands in parentheses behind the text. A nil function leaves the targets out.
type Links func(text, target string) string

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

// Sections returns the headings of the second level.
func Sections(doc string) []string {
	var all []string
	eachHeading(doc, func(level int, text string) {
		if level == 2 {
			all = append(all, text)
		}
	})
	return all
}

// Anchors returns the anchors of all headings, as links name them: "The page" has "the-page".
func Anchors(doc string) []string {
	var all []string
	eachHeading(doc, func(_ int, text string) {
		all = append(all, strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, text))
	})
	return all
}

func eachHeading(doc string, visit func(level int, text string)) {
	code := false
	for line := range strings.Lines(doc) {
		if strings.HasPrefix(line, fence) {
			code = !code
		}
		if level, text := headingOf(line); level > 0 && !code {
			visit(level, text)
		}
	}
}

// Parse splits a document, or a part of one, into blocks.
func Parse(doc string, links Links) []Block {
	var blocks []Block
	var open *Block // the block that the next line may continue
	code := false
	for line := range strings.Lines(doc) {
		line = strings.TrimRight(line, "\n")
		level, heading := headingOf(line)
		switch mark := listMark.FindString(line); {
		case strings.HasPrefix(line, fence):
			code = !code
			if code {
				blocks = append(blocks, Block{Kind: Code})
			}
			open = nil
		case code:
			last := &blocks[len(blocks)-1]
			last.Text += line + "\n"
		case level > 0:
			blocks = append(blocks, Block{Kind: Heading, Level: level, Text: plain(heading, links)})
			open = nil
		case strings.HasPrefix(line, "|"):
			if open == nil || open.Kind != Table {
				blocks = append(blocks, Block{Kind: Table})
				open = &blocks[len(blocks)-1]
			}
			if !tableRule.MatchString(line) {
				open.Rows = append(open.Rows, cells(line, links))
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
			blocks[i].Names = names(blocks[i].Text)
			blocks[i].Text = plain(blocks[i].Text, links)
		}
	}
	return blocks
}

const fence = "```"

var (
	listMark  = regexp.MustCompile(`^(- |[0-9]+\. )`)
	tableRule = regexp.MustCompile(`^\|[ |:]*-[ |:-]*$`) // the line below the head, which has at least one dash
	span      = regexp.MustCompile("`` .+? ``|`[^`]+`|[^`]+|`")
	link      = regexp.MustCompile(`\[([^\]]*)\]\(([^)\s]*)\)`)
	enclosed  = regexp.MustCompile(`\(` + link.String() + `\)`) // a link alone in parentheses
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
func cells(line string, links Links) []string {
	const bar = "\x00"
	line = strings.ReplaceAll(strings.TrimSpace(line), `\|`, bar)
	all := strings.Split(strings.Trim(line, "|"), "|")
	for i, c := range all {
		all[i] = plain(strings.ReplaceAll(strings.TrimSpace(c), bar, "|"), links)
	}
	return all
}

// plain removes the marks of Markdown. It keeps the targets of links to the web, and asks links about all others.
func plain(text string, links Links) string {
	var b strings.Builder
	follow := func(l string, format string) string {
		m := link.FindStringSubmatch(l)
		where := ""
		switch {
		case strings.Contains(m[2], "://") && !strings.Contains(m[1], "://"):
			where = m[2]
		case !strings.Contains(m[2], "://") && links != nil:
			where = links(m[1], m[2])
		}
		if where == "" {
			return strings.ReplaceAll(l, link.FindString(l), m[1])
		}
		return fmt.Sprintf(format, m[1], where)
	}
	text = enclosed.ReplaceAllStringFunc(text, func(l string) string { return follow(l, "(%s: %s)") })
	text = link.ReplaceAllStringFunc(text, func(l string) string { return follow(l, "%s (%s)") })
	for _, s := range span.FindAllString(text, -1) {
		if strings.HasPrefix(s, "`") {
			s = code(s)
		} else {
			s = strings.ReplaceAll(s, "**", "")
		}
		b.WriteString(s)
	}
	return b.String()
}

// code returns the text of a code span.
func code(span string) string {
	return strings.TrimSuffix(strings.TrimPrefix(strings.Trim(span, "`"), " "), " ")
}

// names returns the code spans of a text.
func names(text string) (all []string) {
	for _, s := range span.FindAllString(text, -1) {
		if strings.HasPrefix(s, "`") {
			all = append(all, code(s))
		}
	}
	return all
}
