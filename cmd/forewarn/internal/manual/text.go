package manual

import (
	"strings"
	"unicode/utf8"
)

// Width is the greatest width of a text in columns.
const Width = 100

const (
	indent    = "  " // of everything but headings
	gap       = "  " // between the columns of a table
	narrowest = 12   // width below which no column shrinks
	readable  = 30   // width below which the last column stands below the others
)

// Text formats blocks for a terminal of that many columns. It does not break code, and only code and long words exceed
// the width.
func Text(blocks []Block, width int) string {
	var b strings.Builder
	for i, block := range blocks {
		if i > 0 && !(block.Kind == Item && blocks[i-1].Kind == Item) {
			b.WriteString("\n")
		}
		switch block.Kind {
		case Heading:
			text := block.Text
			if block.Level <= 2 {
				text = strings.ToUpper(text)
			}
			b.WriteString(text + "\n")
		case Paragraph:
			hanging(&b, indent, wrap(block.Text, width-len(indent)))
		case Item:
			hanging(&b, indent+block.Mark+" ", wrap(block.Text, width-len(indent)-len(block.Mark)-1))
		case Code:
			for line := range strings.Lines(block.Text) {
				b.WriteString(strings.TrimRight(indent+indent+line, " \n") + "\n")
			}
		case Table:
			table(&b, block.Rows, width)
		}
	}
	return b.String()
}

// hanging writes lines with the mark before the first and the others aligned below it.
func hanging(b *strings.Builder, mark string, lines []string) {
	for i, line := range lines {
		if i == 1 {
			mark = strings.Repeat(" ", utf8.RuneCountInString(mark))
		}
		b.WriteString(mark + line + "\n")
	}
}

// table writes rows in columns, and wraps wide cells within their column. If the last column, which explains the
// others, is too narrow to be read, it stands below them.
func table(b *strings.Builder, rows [][]string, width int) {
	widths := columnWidths(rows, width)
	last := len(widths) - 1
	below := last > 0 && widths[last] < readable && widest(rows, last) > widths[last]
	if below {
		others := make([][]string, len(rows))
		for r, row := range rows {
			others[r] = row[:min(last, len(row))]
		}
		widths = columnWidths(others, width)
	}
	for r, row := range rows {
		explained := ""
		if below && len(row) > last {
			row, explained = row[:last], row[last]
		}
		if r == 0 && strings.Join(row, "") == "" {
			continue // a table without a head
		}
		columns := make([][]string, len(row))
		height := 1
		for c, cell := range row {
			columns[c] = wrap(cell, widths[c])
			height = max(height, len(columns[c]))
		}
		for y := range height {
			line := indent
			for c := range columns {
				text := ""
				if y < len(columns[c]) {
					text = columns[c][y]
				}
				line += text + strings.Repeat(" ", max(0, widths[c]-utf8.RuneCountInString(text))) + gap
			}
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
		if r > 0 && explained != "" {
			mark := strings.Repeat(indent, 3)
			hanging(b, mark, wrap(explained, width-len(mark)))
		}
		if r == 0 {
			line := indent
			for _, w := range widths {
				line += strings.Repeat("-", w) + gap
			}
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
	}
}

// widest returns the width of the widest cell of a column.
func widest(rows [][]string, column int) (width int) {
	for _, row := range rows {
		if column < len(row) {
			width = max(width, utf8.RuneCountInString(row[column]))
		}
	}
	return width
}

// columnWidths returns the widths of the columns of a table. It shrinks the widest column until the table fits, but
// none below its longest word, so a table of very long words stays too wide.
func columnWidths(rows [][]string, width int) []int {
	var widths, least []int
	for _, row := range rows {
		for c, cell := range row {
			if c == len(widths) {
				widths, least = append(widths, 0), append(least, narrowest)
			}
			widths[c] = max(widths[c], utf8.RuneCountInString(cell))
			for _, word := range strings.Fields(cell) {
				least[c] = max(least[c], utf8.RuneCountInString(word))
			}
		}
	}
	for {
		total, shrink := len(indent)-len(gap), -1
		for c, w := range widths {
			total += w + len(gap)
			if w > least[c] && (shrink < 0 || w > widths[shrink]) {
				shrink = c
			}
		}
		if total <= width || shrink < 0 {
			return widths
		}
		widths[shrink]--
	}
}

// wrap breaks text between words into lines of at most width characters.
func wrap(text string, width int) []string {
	var lines []string
	line, n := "", 0
	for _, word := range strings.Fields(text) {
		size := utf8.RuneCountInString(word)
		switch {
		case line == "":
			line, n = word, size
		case n+1+size > width:
			lines = append(lines, line)
			line, n = word, size
		default:
			line, n = line+" "+word, n+1+size
		}
	}
	return append(lines, line)
}
