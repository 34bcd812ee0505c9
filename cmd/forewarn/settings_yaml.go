package main

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

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

// A document is the text of a settings file and what stands in it.
type document struct {
	path, text string
	root       *node
}

// A node is a value of the file. Aliases and merge keys are already followed, so nodes may be shared; none contains
// itself.
type node struct {
	pos
	kind    kind
	text    string // of a scalar; a number as it was written
	items   []*node
	entries []entry
}

// An entry is a key of a section, at its place, with its value.
type entry struct {
	pos
	key   string
	value *node
}

type pos struct{ line, column int }

func posOf(t *token.Token) pos { return pos{t.Position.Line, t.Position.Column} }

// kind is what a node is, or should be, in the words of an error.
type kind string

const (
	nothing      kind = "nothing"
	aText        kind = "text"
	aNumber      kind = "a number"
	aWholeNumber kind = "a whole number"
	aBoolean     kind = "true or false"
	aDuration    kind = "a duration such as 30s or 7d"
	aList        kind = "a list"
	aTable       kind = "a section of keys"
)

// What no settings file exceeds. The time the parser takes grows with the square of the tokens; a sink has about 20.
const (
	maxFile   = 1 << 20
	maxTokens = 20_000
)

// parseDocument reads YAML text to its nodes and refuses what is right in no settings file.
func parseDocument(path string, data []byte) (*document, error) {
	doc := &document{path: path, text: strings.TrimPrefix(strings.ReplaceAll(string(data), "\r\n", "\n"), "\ufeff")}
	if len(data) > maxFile {
		return nil, doc.errorAt(pos{}, "larger than 1 MiB; expected a settings file")
	}
	line := 0
	noText := func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) && r != '\n' && r != '\t' }
	for s := range strings.Lines(doc.text) {
		line++
		if i := strings.IndexFunc(s, noText); i >= 0 {
			return nil, doc.errorAt(pos{line, utf8.RuneCountInString(s[:i]) + 1}, "not text in UTF-8; expected a file saved as UTF-8")
		}
	}
	tokens := lexer.Tokenize(doc.text)
	if len(tokens) > maxTokens {
		return nil, doc.errorAt(pos{}, "more than %d words and signs; expected a settings file", maxTokens)
	}
	docs, err := parseTokens(tokens)
	if err != nil {
		return nil, doc.syntaxError(err)
	}
	docs = slices.DeleteFunc(docs, func(d *ast.DocumentNode) bool {
		return d.Body == nil || d.Body.Type() == ast.DirectiveType
	})
	if len(docs) == 0 {
		return nil, doc.errorAt(pos{}, "the file is empty; expected at least the key sinks")
	}
	if len(docs) > 1 {
		second := cmp.Or(docs[1].Start, docs[1].Body.GetToken())
		return nil, doc.errorAt(posOf(second), "a second YAML document; expected one only")
	}
	doc.root, err = converter{doc, make(map[string]*node)}.node(docs[0].Body)
	return doc, err
}

// parseTokens turns a panic of the parser, which reads text from outside, into an error.
func parseTokens(tokens token.Tokens) (docs []*ast.DocumentNode, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	f, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, err
	}
	return f.Docs, nil
}

// syntaxErrors has our words for what the parser says about the mistakes that people make.
var syntaxErrors = []struct{ parser, ours string }{
	{"could not find end character", "a quote opens here and is never closed; expected the same quote after the value"},
	{"tab character", "a tab; expected spaces"},
	{"'\t'", "a tab; expected spaces"},
	{"mapping value is not allowed", `a value that goes on with ": "; expected quotes around all of it, or the next key indented like this one`},
	{"unexpected key name", "a key out of place; expected key: value, with a space after the colon, indented like its neighbours"},
	{"non-map value is specified", "no key; expected key: value, with a space after the colon"},
	{"pre-defined", "text behind the end of a value; expected quotes around all of it, or a key indented like its neighbours"},
	{"value is not allowed in this context", "the indentation fits nothing above; expected the line to begin below its neighbours"},
	{"']'", "a list in [ ] that is not closed or lacks a comma; expected , or ]"},
	{"'}'", "a section in { } that is not closed or lacks a comma; expected , or }"},
	{"block sequence entries", "a list behind its key; expected each - on a line of its own"},
	{"reserved character", "no value begins with this character; expected quotes around it"},
	{"unexpected scalar value", "no value, or one that begins with a sign of YAML; expected quotes around it"},
	{"invalid header option", "text behind | or >; expected it on the next line, indented"},
	{"escape character", `an unknown \ sequence; expected \\ for a backslash, or single quotes around the value`},
	{"invalid key", "a key that is not text; expected key: value"},
}

// syntaxError says in our words what the parser found.
func (doc *document) syntaxError(err error) error {
	at, message := pos{1, 1}, err.Error()
	var e interface {
		GetToken() *token.Token
		GetMessage() string
	}
	if errors.As(err, &e) {
		at, message = posOf(e.GetToken()), e.GetMessage()
		q := e.GetToken().Prev
		quoted := q != nil && (q.Type == token.DoubleQuoteType || q.Type == token.SingleQuoteType)
		if quoted && q.Position.Line < at.line {
			return doc.errorAt(posOf(q), "a quote opens here and is closed only in line %d; expected the same quote after the value",
				at.line)
		}
	}
	for _, s := range syntaxErrors {
		if strings.Contains(message, s.parser) {
			return doc.errorAt(at, "%s", s.ours)
		}
	}
	return doc.errorAt(at, "not YAML; expected key: value") // the parser's own words may hold a secret
}

// A converter makes nodes of the parser's syntax tree. An anchor is known once its value is complete, so that no node
// contains itself.
type converter struct {
	doc     *document
	anchors map[string]*node
}

// node converts n.
func (c converter) node(n ast.Node) (*node, error) {
	if n == nil {
		return &node{kind: nothing}, nil
	}
	v := &node{pos: posOf(n.GetToken()), kind: nothing}
	switch n := n.(type) {
	case *ast.AnchorNode:
		v, err := c.node(n.Value)
		c.anchors[n.Name.GetToken().Value] = v
		return v, err
	case *ast.AliasNode:
		if v := c.anchors[n.Value.GetToken().Value]; v != nil {
			return v, nil
		}
		return nil, c.doc.errorAt(v.pos, "an alias of nothing, no & of this name stands above; expected quotes around "+
			"a text that begins with *")
	case *ast.TagNode:
		return nil, c.doc.errorAt(v.pos, "a tag; expected a value, in quotes if it begins with !")
	case *ast.StringNode:
		v.kind, v.text = aText, n.Value
	case *ast.LiteralNode:
		v.kind, v.text = aText, n.Value.Value
	case *ast.NullNode:
	case *ast.BoolNode:
		v.kind, v.text = aBoolean, n.Token.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		v.kind, v.text = aNumber, n.GetToken().Value
	case *ast.SequenceNode:
		v.kind = aList
		for _, item := range n.Values {
			i, err := c.node(item)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, i)
		}
	case *ast.MappingNode:
		v.kind = aTable
		if !n.IsFlowStyle && len(n.Values) > 0 {
			v.pos = posOf(n.Values[0].Key.GetToken())
		}
		return v, c.entries(v, n)
	default:
		return nil, c.doc.errorAt(v.pos, "out of place; expected a value")
	}
	return v, nil
}

// entries converts the entries of a mapping into those of v. What stands in it counts more than what a merge brings.
func (c converter) entries(v *node, n *ast.MappingNode) error {
	var merged []entry
	for _, m := range n.Values {
		e := entry{pos: posOf(m.Key.GetToken()), key: m.Key.GetToken().Value}
		switch m.Key.(type) {
		case *ast.MappingKeyNode, *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
			return c.doc.errorAt(e.pos, "a key that is not text; expected key: value")
		}
		var err error
		if e.value, err = c.node(m.Value); err != nil {
			return err
		}
		if i := v.index(e.key); i >= 0 {
			return c.doc.errorAt(e.pos, "the key %s stands here twice, first in line %d; expected it once",
				c.doc.name(e.key, e.pos), v.entries[i].line)
		}
		if !m.Key.IsMergeKey() {
			v.entries = append(v.entries, e)
			continue
		}
		sections := e.value.items
		if e.value.kind != aList {
			sections = []*node{e.value}
		}
		for _, s := range sections {
			if s.kind != aTable {
				return c.doc.errorAt(e.pos, "<< brings in another section; expected the alias of one, such as *common")
			}
			merged = append(merged, s.entries...)
		}
	}
	for _, e := range merged {
		if v.index(e.key) < 0 {
			v.entries = append(v.entries, e)
		}
	}
	return nil
}

func (n *node) index(key string) int {
	return slices.IndexFunc(n.entries, func(e entry) bool { return e.key == key })
}

// find follows a dotted key, in which numbers count the items of lists from 0. If the file does not go that far, ok is
// false and the entry is the last on the way.
func (n *node) find(dotted string) (e entry, ok bool) {
	e = entry{pos: n.pos, value: n}
	for key := range strings.SplitSeq(dotted, ".") {
		if i := e.value.index(key); i >= 0 {
			e = e.value.entries[i]
		} else if i, err := strconv.ParseUint(key, 10, 16); err == nil && int(i) < len(e.value.items) {
			e = entry{e.value.items[i].pos, key, e.value.items[i]}
		} else {
			return e, false
		}
	}
	return e, true
}

// decode fills the struct that to points at from n, strictly: every key must be one of its fields or among others,
// which are left alone, and every value of its field's type. What the file does not name keeps its value. path names n
// in errors.
func (doc *document) decode(n *node, to any, path string, others ...string) error {
	return doc.fill(n, reflect.ValueOf(to).Elem(), path, others...)
}

func (doc *document) fill(n *node, v reflect.Value, path string, others ...string) error {
	to := v.Addr().Interface()
	if u, ok := to.(interface{ UnmarshalYAML(func(any) error) error }); ok {
		return doc.wrongKey(entry{n.pos, path, n}, u.UnmarshalYAML(func(to any) error { return doc.decode(n, to, path) }))
	}
	if v.Kind() == reflect.Pointer { // of a section that may be absent
		v.Set(reflect.New(v.Type().Elem()))
		return doc.fill(n, v.Elem(), path)
	}
	want := map[reflect.Kind]kind{
		reflect.String: aText, reflect.Bool: aBoolean, reflect.Int: aWholeNumber, reflect.Int64: aWholeNumber,
		reflect.Slice: aList, reflect.Map: aTable, reflect.Struct: aTable,
	}[v.Kind()]
	text, isText := to.(encoding.TextUnmarshaler)
	duration, isDuration := to.(*time.Duration)
	if isText {
		want = aText
	} else if isDuration {
		want = aDuration
	}
	if want != "" && !n.is(want) {
		return doc.wrongKind(n, path, want)
	}
	switch {
	case isText:
		return doc.wrongKey(entry{n.pos, path, n}, text.UnmarshalText([]byte(n.text)))
	case isDuration:
		d, ok := parseDuration(n.text)
		if !ok {
			return doc.refuse(n, path, "a number with its unit, such as 500ms, 30s, 5m, 2h or 7d")
		}
		*duration = d
	case v.Kind() == reflect.Struct:
		return doc.fillStruct(n, v, path, others)
	case v.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for _, e := range n.entries {
			value := reflect.New(v.Type().Elem()).Elem()
			if err := doc.fill(e.value, value, path); err != nil {
				return err
			}
			v.SetMapIndex(reflect.ValueOf(e.key), value)
		}
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
		for i, item := range n.items {
			if err := doc.fill(item, v.Index(i), path); err != nil {
				return err
			}
		}
	case want == aText:
		v.SetString(n.text)
	case want == aBoolean:
		v.SetBool(strings.EqualFold(n.text, "true"))
	case want == aWholeNumber:
		i, err := strconv.ParseInt(n.text, 10, v.Type().Bits())
		if err != nil {
			return doc.refuse(n, path, string(want))
		}
		v.SetInt(i)
	default:
		panic("settings cannot hold a " + v.Type().String())
	}
	return nil
}

// is tells whether the node can be read as k. A number is also text, and an absent value an empty list or section.
func (n *node) is(k kind) bool {
	switch n.kind {
	case aNumber:
		return k == aText || k == aDuration || k == aWholeNumber
	case aText:
		return k == aText || k == aDuration
	case nothing:
		return k == aList || k == aTable
	}
	return n.kind == k
}

func (doc *document) fillStruct(n *node, v reflect.Value, path string, others []string) error {
	fields := make(map[string]reflect.Value)
	known := slices.Concat(collect(v, fields), others)
	for _, e := range n.entries {
		if field, ok := fields[e.key]; ok {
			if err := doc.fill(e.value, field, join(path, e.key)); err != nil {
				return err
			}
		} else if !slices.Contains(others, e.key) {
			return doc.errorAt(e.pos, "unknown key %s; %s", doc.name(e.key, e.pos), suggestion(e.key, known))
		}
	}
	return nil
}

// collect puts the fields of the struct v under their keys and returns these in order. A field without a yaml tag has
// no key.
func collect(v reflect.Value, fields map[string]reflect.Value) (keys []string) {
	for f, value := range v.Fields() {
		if key, ok := f.Tag.Lookup("yaml"); ok {
			keys = append(keys, key)
			fields[key] = value
		}
	}
	return keys
}

func join(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }

var days = regexp.MustCompile(`^([0-9]{1,5})d(.*)$`)

// parseDuration reads a duration as in Go, with days in front: 90s, 7d, 1d12h.
func parseDuration(s string) (time.Duration, bool) {
	var before time.Duration
	if m := days.FindStringSubmatch(s); m != nil {
		n, _ := strconv.Atoi(m[1])
		before, s = time.Duration(n)*24*time.Hour, cmp.Or(m[2], "0")
	}
	d, err := time.ParseDuration(s)
	return before + d, err == nil && d >= 0 && before+d >= 0
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

var (
	anyKey      = regexp.MustCompile(`([\w.-]+)["']?\s*:`)
	beforeValue = regexp.MustCompile(`^[ \t]*([&!]\S*[ \t]+)*`)
	quotedOrIn  = regexp.MustCompile(`"(?:[^"\\]|\\.)*"?|'(?:[^']|'')*'?|[\[{\]}]`)
	flowEnd     = regexp.MustCompile(`(?m)\s*(,\s*["']?[\w.-]+["']?\s*:(\s|$)|[\]}][\]},\s]*(#.*)?$)`)
	content     = regexp.MustCompile(`\S([^\n]*\S)?`)
	headerName  = regexp.MustCompile(`^["']?[\w-]+["']?:\s`)
	urlSecrets  = regexp.MustCompile(`://(\S*@)?[^\s/?#"',\]}]*[/?#]?([^\s"',\]}]*)`)
)

// mask returns text with zeros for every byte that may belong to a secret: the values of secret keys, whatever they
// hold, and of each URL all but scheme and host. It reads the bare text, because what is not even YAML is shown too,
// and in doubt it hides more.
func mask(text string) string {
	out := []byte(text)
	for _, m := range anyKey.FindAllStringSubmatchIndex(text, -1) {
		key := text[m[2]:m[3]]
		if !isSecret(key) {
			continue
		}
		end := secretEnd(text, m[0], m[1])
		column := 0 // of the names of headers, which are shown
		for _, c := range content.FindAllStringIndex(text[m[1]:end], -1) {
			from, to := m[1]+c[0], m[1]+c[1]
			line := strings.LastIndexByte(text[:from], '\n')
			if key == "headers" && line >= m[1] && (column == 0 || column == from-line) {
				column = from - line
				from += len(headerName.FindString(text[from:to]))
			}
			clear(out[from:to])
		}
	}
	for _, m := range urlSecrets.FindAllStringSubmatchIndex(text, -1) {
		clear(out[max(m[2], 0):max(m[3], 0)])
		clear(out[m[4]:m[5]])
	}
	return string(out)
}

// isSecret tells whether the values of a key may be secret; a key that is misspelled may be meant as one.
func isSecret(key string) bool {
	key = strings.ToLower(key)
	last := key[strings.LastIndexAny(key, "_-.")+1:]
	words := []string{"url", "token", "password", "bearer", "secret", "secrets", "headers", "proxy"}
	return key == "env" || slices.ContainsFunc(words, func(s string) bool {
		return strings.HasSuffix(key, s) || distance(last, s) <= len(s)/4
	})
}

// secretEnd is where the value of a secret key ends: what is quoted or in brackets at the closing one, what stands in a
// flow before the next key, everything else after the last line that is indented deeper than the key's. If nothing but a
// wrong indentation can be why there is no value behind the key, what follows counts as the value.
func secretEnd(text string, key, colon int) int {
	end := colon + len(beforeValue.FindString(text[colon:]))
	if end < len(text) && strings.ContainsRune(`"'[{`, rune(text[end])) {
		end += closing(text[end:])
	}
	line := strings.LastIndexByte(text[:key], '\n') + 1
	misplaced := strings.HasPrefix(strings.TrimLeft(text[end:], "|>-+0123456789 \t"), "\n")
	if !misplaced && strings.ContainsAny(text[line:key], "{[") {
		if m := flowEnd.FindStringIndex(text[end:]); m != nil {
			return end + m[0]
		}
		return len(text)
	}
	indent := len(text[line:]) - len(strings.TrimLeft(text[line:], " -"))
	for i, l := range strings.SplitAfter(text[end:], "\n") {
		in := len(l) - len(strings.TrimLeft(l, " \t"))
		if i > 0 && strings.TrimSpace(l) != "" {
			if misplaced && in <= indent {
				indent = in - 1
			}
			misplaced = false
			if in < indent || in == indent && l[in] != '-' {
				break
			}
		}
		end += len(l)
	}
	return end
}

// closing is where the quote or bracket that text begins with is closed, or its end.
func closing(text string) int {
	depth := 0
	for _, m := range quotedOrIn.FindAllStringIndex(text, -1) {
		switch text[m[0]] {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		}
		if depth == 0 {
			return m[1]
		}
	}
	return len(text)
}
