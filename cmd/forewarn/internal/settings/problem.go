package settings

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
	"forewarn/templates"
)

// A Problem is something wrong in a settings file, with its position. Problems appear in logs and on the page, so they
// repeat text of the file only if document.showable allows it.
type Problem struct {
	Path         string
	Line, Column int    // from 1, in characters; 0 for the file as a whole
	Message      string // one line

	quoted  []string // what the message says that is not the program's own; nil for all of it
	missing bool     // something that belongs there isn't, which is no reason for other problems
	refused bool     // the value of a key by its tags: the section was decoded, without that value
}

func (e *Problem) Error() string {
	if e.Line == 0 {
		return e.Path + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.Path, e.Line, e.Column, e.Message)
}

// Problems is everything wrong in a settings file, in the order of the file.
type Problems []*Problem

// Error returns one line for each problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, each := range p {
		lines[i] = each.Error()
	}
	return strings.Join(lines, "\n")
}

// with returns p with the problems of err added; err may be nil.
func (p Problems) with(err error) Problems {
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

// err returns p as an error, nil if p is empty.
func (p Problems) err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// Unwrap lets errors.As find each problem.
func (p Problems) Unwrap() (all []error) {
	for _, each := range p {
		all = append(all, each)
	}
	return all
}

// report records problems, so that the rest of the file can be checked too. It leaves out those at a position that was
// reported before, because they probably follow from what is wrong there. A problem that something is missing follows
// from nothing.
func (doc *document) report(errs ...error) {
	for _, err := range errs {
		before := doc.problems
		for _, p := range Problems(nil).with(err) {
			same := func(other *Problem) bool {
				return other.Line == p.Line && other.Column == p.Column && !other.missing && !p.missing
			}
			if !slices.ContainsFunc(before, same) {
				doc.problems = append(doc.problems, p)
			}
		}
	}
}

// err returns all reported problems as an error, nil if there are none.
func (doc *document) err() error {
	if len(doc.problems) == 0 {
		return nil
	}
	sort.SliceStable(doc.problems, func(i, j int) bool {
		a, b := doc.problems[i], doc.problems[j]
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column)) < 0
	})
	return doc.problems
}

// isClean reports whether there are no problems in an entry and below it. A problem there may be the reason why
// something seems to be missing.
func (doc *document) isClean(e entry) bool {
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

// errorAt returns a problem at a position of the file. The format is the program's own; see sinks.Quoted.
func (doc *document) errorAt(at pos, format string, args ...any) *Problem {
	message := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")
	return &Problem{Path: doc.path, Line: at.line, Column: at.column, Message: message, quoted: sinks.Quoted(args...)}
}

// missingAt returns a problem with a section that lacks something.
func (doc *document) missingAt(at pos, format string, args ...any) error {
	p := doc.errorAt(at, format, args...)
	p.missing = true
	return p
}

// valueError returns a problem with the value n of a key.
func (doc *document) valueError(n *node, key, want string) *Problem {
	value := "the value"
	if doc.showable(n) {
		value = quoted(n.text)
	}
	return doc.errorAt(n.pos, "%s: %s is not valid; expected %s", key, value, want)
}

// showable reports whether an error may show the value n. Its key must be known and not secret, and the value must
// stand on one line. A value of several lines, or with ": " in it, may contain a neighbouring secret after a missing
// comma or a wrong indentation. A value inside an anchor may also belong to a secret key. A URL with a user may hold a
// password.
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

// quoted returns s in quotes, shortened if it is long.
func quoted(s string) string {
	const most = 80
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most]) + "…"
	}
	return strconv.Quote(s)
}

func (doc *document) kindError(n *node, key string, want kind) error {
	hint := ""
	switch {
	case n.kind == nothing && doc.isComment(n):
		hint = "; " + commentHint
	case n.kind == nothing:
		hint = "; give it a value, or remove the key"
	case want == aText && n.kind == aBoolean:
		hint = "; put it in quotes if it is meant as text"
	case want == aList:
		hint = `; begin each item with "- "`
	case want == aTable && strings.Contains(n.text, ":") && !strings.Contains(n.text, "://"):
		hint = "; put a space after the colon of a key"
	}
	return doc.errorAt(n.pos, "%s: expected %s, got %s%s", cmp.Or(key, "settings"), want, n.kind, hint)
}

// commentHint is the remedy for a value that was taken for a comment.
const commentHint = `# after a space begins a comment; write such a value in quotes: "#ops"`

// isComment reports whether a comment stands in place of the value n.
func (doc *document) isComment(n *node) bool {
	lines := strings.Split(doc.text, "\n")
	if n.line < 1 || n.line > len(lines) {
		return false
	}
	line := []rune(lines[n.line-1])
	rest := strings.TrimLeft(string(line[min(max(n.column-1, 0), len(line)):]), "-: \t")
	return strings.HasPrefix(rest, "#")
}

// keyError returns err as a problem at the entry e, or at the key below it that a *sinks.KeyError names.
func (doc *document) keyError(e entry, err error) error {
	if all, ok := errors.AsType[Problems](err); ok {
		return all
	}
	if placed, ok := errors.AsType[*Problem](err); ok {
		return placed
	}
	key, missing := e.key, false
	if k, ok := errors.AsType[*sinks.KeyError](err); ok {
		key = join(key, namedPath(e.value, k.Key))
		if below, _ := e.value.find(k.Key); below.value != e.value {
			e = below
		} else {
			missing = true
		}
		err = k.Err
	}
	if err == nil {
		return nil
	}
	if u, ok := errors.AsType[*templates.UnknownName](err); ok {
		return doc.unknownName(e, key, u)
	}
	problem := doc.errorAt(e.pos, "%s: %s", key, doc.withoutValue(err, e.value))
	problem.missing = missing
	return problem
}

// unknownName returns a problem with a name in a template, which may be in a file of its own.
func (doc *document) unknownName(e entry, key string, u *templates.UnknownName) error {
	what := templates.HideKeys(unknownWord("name", u.Name, u.Known, doc.showable(e.value)), u.Name)
	if strings.HasSuffix(key, "_file") {
		return doc.errorAt(e.pos, "%s: %s, line %d: %s", key, e.value.text, u.Line, what)
	}
	return doc.errorAt(doc.positionIn(e.value, u.Line, u.Rune-1), "%s: %s", key, what)
}

// namedPath shortens a dotted key below n to its known names. Names of headers and environment variables are arbitrary,
// and a misspelt one may be a secret.
func namedPath(n *node, dotted string) string {
	path := ""
	for key := range strings.SplitSeq(dotted, ".") {
		if n.anyKeys {
			break
		}
		path = join(path, key)
		below, _ := n.find(key)
		n = below.value
	}
	return path
}

// withoutValue returns an error about the value n, without the value if it must not be shown.
func (doc *document) withoutValue(err error, n *node) error {
	says := func(s string) bool { return repeats(s, n.text) || repeats(s, strconv.Quote(n.text)) }
	if !slices.ContainsFunc(sinks.Quoted(err), says) || doc.showable(n) {
		return err
	}
	if _, want, ok := strings.Cut(err.Error(), "; expected "); ok && !says(want) {
		return errors.New("the value is not valid; expected " + want)
	}
	return errors.New("the value is not valid")
}

// repeats reports whether a message repeats a text. A short text inside a longer word counts as coincidence.
func repeats(message, text string) bool {
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

// unknownWord returns a message about an unknown word, with the known word it resembles, or else all of them. Unless it
// is showable, the word itself appears only if it resembles a known one: otherwise it may be a secret.
func unknownWord(what, word string, known []string, showable bool) string {
	if before, _, ok := strings.Cut(word, ":"); ok && slices.Contains(known, before) {
		return fmt.Sprintf("unknown %s; expected a space after the colon of %s", what, before)
	}
	if _, near := wording.Nearest(word, known); near || showable {
		what += " " + quoted(word)
	}
	return fmt.Sprintf("unknown %s; %s", what, wording.Suggestion(word, known))
}

// positionIn returns the position of a character of n's text, or of n itself if escapes or folding hide that position.
func (doc *document) positionIn(n *node, line, column int) pos {
	want, lines := strings.Split(n.text, "\n"), strings.Split(doc.text, "\n")
	for at := n.line + line - 1; line <= len(want) && at <= min(n.line+line, len(lines)); at++ {
		if i := strings.LastIndex(lines[at-1], want[line-1]); i >= 0 {
			return pos{at, utf8.RuneCountInString(lines[at-1][:i]) + column + 1}
		}
	}
	return n.pos
}
