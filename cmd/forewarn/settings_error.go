package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"forewarn/sinks"
)

// A settingsError is what is wrong with a settings file, and where.
type settingsError struct {
	Path         string
	Line, Column int    // from 1, in characters; 0 when it is the file as a whole
	Message      string // one line
	Excerpt      string // the lines around the place, without secrets; "" without a place
}

func (e *settingsError) Error() string {
	if e.Line == 0 {
		return e.Path + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s\n%s", e.Path, e.Line, e.Column, e.Message, e.Excerpt)
}

// errorAt is an error at a place of the file.
func (doc *document) errorAt(at pos, format string, args ...any) error {
	e := &settingsError{Path: doc.path, Line: at.line, Column: at.column}
	e.Message = strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")
	if at.line > 0 {
		e.Excerpt = doc.excerpt(at)
	}
	return e
}

// refuse is an error about the value n of a key.
func (doc *document) refuse(n *node, key, want string) error {
	return doc.errorAt(n.pos, "%s: %s is not valid; expected %s", key, doc.name(n.text, n.pos), want)
}

func (doc *document) wrongKind(n *node, key string, want kind) error {
	hint := ""
	switch {
	case n.kind == nothing:
		hint = "; give it a value, or remove the key"
	case want == aText && n.kind == aBoolean:
		hint = "; put it in quotes if it is meant as text"
	case want == aList && n.kind == aTable:
		hint = `; begin each item with "- "`
	case want == aList:
		hint = "; put [ ] around it"
	case want == aTable && strings.Contains(n.text, ":") && !strings.Contains(n.text, "://"):
		hint = "; put a space after the colon of a key"
	}
	return doc.errorAt(n.pos, "%s: expected %s, got %s%s", cmp.Or(key, "settings"), want, n.kind, hint)
}

// wrongKey is err as an error about the entry e: at the key below it that a *sinks.KeyError names, or at e itself.
func (doc *document) wrongKey(e entry, err error) error {
	if placed, ok := errors.AsType[*settingsError](err); ok {
		return placed
	}
	key := e.key
	if k, ok := errors.AsType[*sinks.KeyError](err); ok {
		if below, _ := e.value.find(k.Key); below.value != e.value {
			e.pos = below.pos
		}
		key, err = join(key, k.Key), k.Err
	}
	if err == nil {
		return nil
	}
	return doc.errorAt(e.pos, "%s: %v", key, err)
}

// name shows in an error the key or value s from a place, if the excerpt shows it too.
func (doc *document) name(s string, at pos) string {
	if _, masked := doc.lines(); !strings.Contains(masked[at.line-1], s) {
		return "•••"
	}
	text, _ := show(s, s, 0)
	return strconv.Quote(text)
}

// suggestion names the word that is meant, or all that are known if none is near.
func suggestion(word string, known []string) string {
	if word, _, ok := strings.Cut(word, ":"); ok && slices.Contains(known, word) {
		return "expected a space after the colon"
	}
	near := slices.MinFunc(known, func(a, b string) int { return distance(word, a) - distance(word, b) })
	if distance(word, near) <= min(2, 1+len(word)/5) {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "expected one of " + strings.Join(known, ", ")
}

// distance counts the letters to insert, drop, change or swap to make b of a, whatever their case.
func distance(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	if len(a) > 2*len(b)+2 {
		return len(a) // far enough, and not worth the work
	}
	d := make([][]int, len(a)+1) // d[i][j] is the distance of a[:i] and b[:j]
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			switch {
			case i == 0 || j == 0:
				d[i][j] = i + j
			case a[i-1] == b[j-1]:
				d[i][j] = d[i-1][j-1]
			default:
				d[i][j] = 1 + min(d[i-1][j], d[i][j-1], d[i-1][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], 1+d[i-2][j-2])
			}
		}
	}
	return d[len(a)][len(b)]
}

// inside is the place of a character of n's text, or of n where escapes or folding hide it.
func (doc *document) inside(n *node, line, column int) pos {
	want, lines := strings.Split(n.text, "\n"), strings.Split(doc.text, "\n")
	for at := n.line + line - 1; line <= len(want) && at <= min(n.line+line, len(lines)); at++ {
		if i := strings.LastIndex(lines[at-1], want[line-1]); i >= 0 {
			return pos{at, utf8.RuneCountInString(lines[at-1][:i]) + column + 1}
		}
	}
	return n.pos
}

// lines are those of the text, and what mask makes of them.
func (doc *document) lines() (plain, masked []string) {
	text := strings.TrimSuffix(doc.text, "\n")
	return strings.Split(text, "\n"), strings.Split(mask(text), "\n")
}

// excerpt shows the line of a place between its neighbours, with a caret below the column.
func (doc *document) excerpt(at pos) string {
	lines, masked := doc.lines()
	at.line = min(at.line, len(lines))
	last := min(at.line+1, len(lines))
	width := len(strconv.Itoa(last))
	var out []string
	for i := max(1, at.line-1); i <= last; i++ {
		if i != at.line {
			text, _ := show(lines[i-1], masked[i-1], 0)
			out = append(out, fmt.Sprintf("  %*d | %s", width, i, text))
			continue
		}
		text, caret := show(lines[i-1], masked[i-1], at.column)
		out = append(out, fmt.Sprintf("> %*d | %s", width, i, text), fmt.Sprintf("  %*s | %*s", width, "", caret+1, "^"))
	}
	return strings.Join(out, "\n")
}

// show makes a line readable: ••• for what is masked, an arrow for a tab, and of a long line the part around the
// column. It returns where the column went.
func show(line, masked string, column int) (string, int) {
	const most = 110
	var out []rune
	caret, n := -1, 0
	for i, r := range line {
		if masked[i] == 0 && i > 0 && masked[i-1] == 0 {
			out = out[:len(out)-3] // still the same •••
		}
		if n++; n == column {
			caret = len(out)
		}
		switch {
		case masked[i] == 0:
			out = append(out, '•', '•', '•')
		case r == '\t':
			out = append(out, '→')
		case unicode.IsPrint(r):
			out = append(out, r)
		default:
			out = append(out, utf8.RuneError)
		}
	}
	if caret < 0 && column > 0 {
		caret = len(out)
	}
	if len(out) > most {
		from := max(0, min(caret-most/2, len(out)-most))
		out, caret = append([]rune("…"), out[from:from+most]...), caret-from+1
	}
	return string(out), caret
}
