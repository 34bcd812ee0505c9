package settings

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
	"forewarn/templates"
)

// A Problem is what is wrong with a settings file, and where. It shows no text of the file but values that
// document.showable lets through: it goes to logs, the page and whoever asks the control socket.
type Problem struct {
	Path         string
	Line, Column int    // from 1, in characters; 0 when it is the file as a whole
	Message      string // one line
}

func (e *Problem) Error() string {
	if e.Line == 0 {
		return e.Path + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.Path, e.Line, e.Column, e.Message)
}

// Problems are all that is wrong with a settings file, in the order of their places.
type Problems []*Problem

// Error has a line for each.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, each := range p {
		lines[i] = each.Error()
	}
	return strings.Join(lines, "\n")
}

// and is p with the error of another value, which may be several.
func (p Problems) and(err error) Problems {
	switch e := err.(type) {
	case nil:
		return p
	case *Problem:
		return append(p, e)
	case Problems:
		return append(p, e...)
	}
	return append(p, &Problem{Message: err.Error()})
}

// err is p as an error, nil if nothing is wrong.
func (p Problems) err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// Unwrap lets errors.As find the first.
func (p Problems) Unwrap() (all []error) {
	for _, each := range p {
		all = append(all, each)
	}
	return all
}

// report notes what is wrong, so that the rest can be looked at too. At one place only the first counts: what comes after
// is likely to follow from it.
func (doc *document) report(errs ...error) {
	for _, err := range errs {
		for _, p := range Problems(nil).and(err) {
			same := func(other *Problem) bool { return other.Line == p.Line && other.Column == p.Column }
			if !slices.ContainsFunc(doc.problems, same) {
				doc.problems = append(doc.problems, p)
			}
		}
	}
}

// failed is all that was reported, nil if nothing was.
func (doc *document) failed() error {
	if len(doc.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(doc.problems, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return doc.problems
}

// sound tells whether nothing was reported about an entry and what is below it. What is wrong there may be why something
// seems to be missing.
func (doc *document) sound(e entry) bool {
	if len(doc.problems) == 0 {
		return true
	}
	places := make(map[pos]bool, len(doc.problems))
	for _, p := range doc.problems {
		places[pos{p.Line, p.Column}] = true
	}
	seen := make(map[*node]bool) // aliases share nodes
	var wrong func(at pos, n *node) bool
	wrong = func(at pos, n *node) bool {
		if places[at] || places[n.pos] {
			return true
		}
		if seen[n] {
			return false
		}
		seen[n] = true
		return slices.ContainsFunc(n.items, func(item *node) bool { return wrong(item.pos, item) }) ||
			slices.ContainsFunc(n.entries, func(e entry) bool { return wrong(e.pos, e.value) })
	}
	return !wrong(e.pos, e.value)
}

// errorAt is an error at a place of the file.
func (doc *document) errorAt(at pos, format string, args ...any) error {
	message := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")
	return &Problem{Path: doc.path, Line: at.line, Column: at.column, Message: message}
}

// refuse is an error about the value n of a key.
func (doc *document) refuse(n *node, key, want string) error {
	value := "the value"
	if doc.showable(n) {
		value = quoted(n.text)
	}
	return doc.errorAt(n.pos, "%s: %s is not valid; expected %s", key, value, want)
}

// showable tells whether an error may show the value n: its key is known and not secret, and it stands on one line,
// behind that key. A value of several lines, or with a colon as behind a key, may have swallowed the neighbour that it
// lacks a comma or an indentation to; one inside an anchor may be the value of other keys too; and an address with a user
// holds a password.
func (doc *document) showable(n *node) bool {
	if !n.open || n.secret || n.anchored || strings.Contains(n.text, ": ") ||
		strings.Contains(n.text, "://") && strings.Contains(n.text, "@") {
		return false
	}
	lines := strings.Split(doc.text, "\n")
	if n.line < 1 || n.line > len(lines) {
		return false
	}
	line := []rune(lines[n.line-1])
	rest := string(line[max(0, min(n.column-1, len(line))):])
	return strings.HasPrefix(strings.TrimLeft(rest, `"'`), n.text)
}

// quoted is a text in quotes, or its beginning if it is long.
func quoted(s string) string {
	const most = 80
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most]) + "…"
	}
	return strconv.Quote(s)
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
	if all, ok := errors.AsType[Problems](err); ok {
		return all
	}
	if placed, ok := errors.AsType[*Problem](err); ok {
		return placed
	}
	key := e.key
	if k, ok := errors.AsType[*sinks.KeyError](err); ok {
		key = join(key, namedPath(e.value, k.Key))
		if below, _ := e.value.find(k.Key); below.value != e.value {
			e = below
		}
		err = k.Err
	}
	if err == nil {
		return nil
	}
	if u, ok := errors.AsType[*templates.UnknownName](err); ok {
		return doc.unknownName(e, key, u)
	}
	return doc.errorAt(e.pos, "%s: %s", key, doc.withoutValue(err.Error(), e.value))
}

// unknownName is an error about a name in a template, at its place, which may be in a file of its own.
func (doc *document) unknownName(e entry, key string, u *templates.UnknownName) error {
	what := unknown("name", u.Name, u.Known, doc.showable(e.value))
	if strings.HasSuffix(key, "_file") {
		return doc.errorAt(e.pos, "%s: %s, line %d: %s", key, e.value.text, u.Line, what)
	}
	return doc.errorAt(doc.inside(e.value, u.Line, u.Rune-1), "%s: %s", key, what)
}

// namedPath is a dotted key below n as far as its names are known: those of headers and variables are the file's own,
// and one that is misspelt may be a secret.
func namedPath(n *node, dotted string) string {
	path := ""
	for key := range strings.SplitSeq(dotted, ".") {
		if n.free {
			break
		}
		path = join(path, key)
		below, _ := n.find(key)
		n = below.value
	}
	return path
}

// withoutValue is what is wrong with the value n, without n where that must not be shown.
func (doc *document) withoutValue(message string, n *node) string {
	says := func(s string) bool { return holds(s, n.text) || holds(s, strconv.Quote(n.text)) }
	if !says(message) || doc.showable(n) {
		return message
	}
	if _, want, ok := strings.Cut(message, "; expected "); ok && !says(want) {
		return "the value is not valid; expected " + want
	}
	return "the value is not valid"
}

// holds tells whether a message repeats a text. A few letters inside a longer word stand there by chance.
func holds(message, text string) bool {
	const chance = 8
	letter := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
	for from := 0; text != ""; from++ {
		i := strings.Index(message[from:], text)
		if i < 0 {
			break
		}
		from += i
		before, _ := utf8.DecodeLastRuneInString(message[:from])
		after, _ := utf8.DecodeRuneInString(message[from+len(text):])
		if len(text) >= chance || !letter(before) && !letter(after) {
			return true
		}
	}
	return false
}

// unknown says that a word is none of those that are known, and which one is meant, or all if none is near. Where it may
// not be shown, because it may be a secret whose key was misspelt, it is only when it nearly is one that is known.
func unknown(what, word string, known []string, showable bool) string {
	if before, _, ok := strings.Cut(word, ":"); ok && slices.Contains(known, before) {
		return fmt.Sprintf("unknown %s; expected a space after the colon of %s", what, before)
	}
	if _, near := wording.Nearest(word, known); near || showable {
		what += " " + quoted(word)
	}
	return fmt.Sprintf("unknown %s; %s", what, wording.Suggestion(word, known))
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
