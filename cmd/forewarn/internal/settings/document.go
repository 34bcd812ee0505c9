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

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"forewarn/sinks"
)

// A document is a parsed settings file, with the problems found so far.
type document struct {
	path, text string
	dir        string // that relative paths are relative to; "" for the working directory
	root       *node
	problems   Problems
	inline     []string // see File.Inline
}

// A node is a value of the file. Aliases and merge keys are resolved, so nodes may be shared; no node contains itself.
type node struct {
	pos
	kind    kind
	text    string // of a scalar; numbers as written
	items   []*node
	entries []entry

	// decode sets the first four; document.showable and secretValues read them.
	open     bool        // the value of a known key that is not secret
	secret   bool        // the value of a secret key
	anyKeys  bool        // a section with arbitrary keys, such as names of headers
	holds    sinks.Value // the file, the variable or the secret in Key Vault that it names in place of a secret
	anchored bool        // inside an anchor, so it may be the value of other keys too
}

// An entry is a key of a section, its position, and its value.
type entry struct {
	pos
	key   string
	value *node
}

type pos struct{ line, column int }

func posOf(t *token.Token) pos { return pos{t.Position.Line, t.Position.Column} }

// A kind is the type of a node, or the type that was expected, in the words of an error.
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

// Bounds of a settings file. The parser's time grows with the square of the number of tokens; a sink has about 20.
const (
	maxFile   = 1 << 20
	maxTokens = 20_000
)

// parseDocument parses YAML into nodes.
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
			return nil, doc.errorAt(pos{line, utf8.RuneCountInString(s[:i]) + 1},
				"not text in UTF-8; expected a file saved as UTF-8")
		}
	}
	tokens := lexer.Tokenize(doc.text)
	if len(tokens) > maxTokens {
		return nil, doc.errorAt(pos{}, "more than %d YAML tokens; expected a settings file", maxTokens)
	}
	docs, err := parseTokens(tokens)
	if at, ok := commentInFlow(tokens); ok && err != nil {
		return nil, doc.errorAt(at, "%s", commentHint)
	}
	if err != nil {
		doc.report(doc.syntaxError(err))
		docs = doc.withoutTabs()
		if docs == nil {
			return nil, doc.err()
		}
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
	doc.root = converter{doc, make(map[string]*node), new(int)}.node(docs[0].Body)
	return doc, nil
}

// commentInFlow returns the position of a comment inside [ ] or { } that was probably meant as a value: it takes the
// place of one, or the closing bracket with it.
func commentInFlow(tokens token.Tokens) (at pos, found bool) {
	depth := 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.CommentType:
			if depth == 0 || t.Prev == nil || t.Prev.Position.Line != t.Position.Line {
				continue
			}
			if t.Prev.Type == token.MappingValueType || strings.ContainsAny(t.Value, "]}") {
				return posOf(t), true
			}
		}
	}
	return at, false
}

// withoutTabs reports the tabs that indent lines, and parses the text again with spaces in their place, so that other
// problems can be reported in the same run. It returns nil if there are no such tabs or the text still isn't YAML.
func (doc *document) withoutTabs() []*ast.DocumentNode {
	lines := strings.SplitAfter(doc.text, "\n")
	found := false
	depth, opens := 0, false // of the previous line: where its content begins, and whether it opens a section
	for i, line := range lines {
		content := strings.TrimLeft(line, " \t")
		if strings.TrimSpace(content) == "" || strings.HasPrefix(content, "#") {
			continue
		}
		blank := len(line) - len(content)
		if tab := strings.IndexByte(line[:blank], '\t'); tab >= 0 {
			found = true
			doc.report(doc.errorAt(pos{i + 1, tab + 1}, "a tab; expected spaces"))
			blank = depth
			if opens {
				blank += 2
			}
			lines[i] = strings.Repeat(" ", blank) + content
		}
		depth = blank + len(content) - len(strings.TrimLeft(content, "- "))
		opens = strings.HasSuffix(strings.TrimSpace(content), ":")
	}
	if !found {
		return nil
	}
	docs, err := parseTokens(lexer.Tokenize(strings.Join(lines, "")))
	if err != nil {
		return nil
	}
	return docs
}

// parseTokens runs the parser, and turns a panic of it into an error.
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

// syntaxErrors translates the parser's messages about common mistakes. The first match counts.
var syntaxErrors = []struct{ parser, ours string }{
	{"could not find end character", "unterminated quote; expected the same quote after the value"},
	{"tab character", "a tab; expected spaces"},
	{"'\t'", "a tab; expected spaces"},
	{"mapping value is not allowed",
		`unquoted value contains ": "; expected quotes around the value, or the next key indented like this one`},
	{"unexpected key name",
		"misplaced key; expected key: value, with a space after the colon, indented like its neighbours"},
	{"non-map value is specified", "missing key; expected key: value, with a space after the colon"},
	{"pre-defined",
		"text after the end of a value; expected quotes around the value, or a key indented like its neighbours"},
	{"value is not allowed in this context", "wrong indentation; expected the line to be indented like its neighbours"},
	{"']'", `unterminated list; expected "," or "]"`},
	{"'}'", `unterminated section; expected "," or "}"`},
	{"block sequence entries", "list on the same line as its key; expected each - on a line of its own"},
	{"reserved character", "a value cannot begin with this character; expected quotes around it"},
	{"unexpected scalar value", "missing value, or one that begins with a YAML sign; expected quotes around it"},
	{"invalid header option", "text after | or >; expected it on the next line, indented"},
	{"escape character", `unknown \ sequence; expected \\ for a backslash, or single quotes around the value`},
	{"invalid key", "key that is not text; expected key: value"},
}

// syntaxError translates an error of the parser.
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
			return doc.errorAt(posOf(q), "quote closed only in line %d; expected the same quote after the value", at.line)
		}
	}
	for _, s := range syntaxErrors {
		if strings.Contains(message, s.parser) {
			return doc.errorAt(at, "%s", s.ours)
		}
	}
	return doc.errorAt(at, "not YAML; expected key: value") // the parser's own message may repeat a secret
}

// A converter turns the parser's syntax tree into nodes. An anchor is usable once its value is complete, so that no
// node can contain itself.
type converter struct {
	doc     *document
	anchors map[string]*node
	inside  *int // nesting depth of anchors
}

// node converts n. What can't be converted is reported, and becomes a node of no kind. It is wrong as any value, at a
// position that is reported already.
func (c converter) node(n ast.Node) *node {
	if n == nil {
		return &node{kind: nothing}
	}
	v := &node{pos: posOf(n.GetToken()), kind: nothing, anchored: *c.inside > 0}
	switch n := n.(type) {
	case *ast.AnchorNode:
		*c.inside++
		v := c.node(n.Value)
		*c.inside--
		c.anchors[n.Name.GetToken().Value] = v
		return v
	case *ast.AliasNode:
		if v := c.anchors[n.Value.GetToken().Value]; v != nil {
			return v
		}
		return c.unreadable(v, "unknown alias, no & of this name stands above; "+
			"expected quotes around a text that begins with *")
	case *ast.TagNode:
		return c.unreadable(v, "YAML tag; expected a value, in quotes if it begins with !")
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
			if text, ok := colonInside(item); ok {
				v.items = append(v.items, &node{pos: text.pos, kind: aText, text: text.text, anchored: v.anchored})
				continue
			}
			v.items = append(v.items, c.node(item))
		}
	case *ast.MappingNode:
		v.kind = aTable
		if !n.IsFlowStyle && len(n.Values) > 0 {
			v.pos = posOf(n.Values[0].Key.GetToken())
		}
		c.entries(v, n)
	default:
		return c.unreadable(v, "misplaced; expected a value")
	}
	return v
}

// colonInside returns an item of a list that is text by YAML's rules, because no space follows its colon, such as
// nats://h:4222. Inside { } the parser takes it for a key with a value.
func colonInside(item ast.Node) (text node, ok bool) {
	section, ok := item.(*ast.MappingNode)
	if !ok || section.IsFlowStyle || len(section.Values) != 1 {
		return text, false
	}
	entry := section.Values[0]
	key, value := entry.Key.GetToken(), entry.Value.GetToken()
	quoted := key.Type == token.SingleQuoteType || key.Type == token.DoubleQuoteType
	end := pos{entry.Start.Position.Line, entry.Start.Position.Column + 1}
	if quoted || posOf(value) != end {
		return text, false
	}
	return node{pos: posOf(key), text: key.Value + ":" + value.Value}, true
}

// unreadable reports what is wrong with a node, and takes its kind away.
func (c converter) unreadable(v *node, why string) *node {
	c.doc.report(c.doc.errorAt(v.pos, "%s", why))
	v.kind = ""
	return v
}

// entries converts the entries of a mapping into those of v. A key of the mapping itself wins over a merged one.
func (c converter) entries(v *node, n *ast.MappingNode) {
	var merged []entry
	for _, m := range n.Values {
		e := entry{pos: posOf(m.Key.GetToken()), key: m.Key.GetToken().Value}
		switch m.Key.(type) {
		case *ast.MappingKeyNode, *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
			c.doc.report(c.doc.errorAt(e.pos, "key that is not text; expected key: value"))
			continue
		}
		e.value = c.node(m.Value)
		if i := v.index(e.key); i >= 0 {
			c.doc.report(c.doc.errorAt(e.pos, "duplicate key, first in line %d; expected it once", v.entries[i].line))
			continue
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
				c.doc.report(c.doc.errorAt(e.pos, "<< merges a section; expected the alias of one, such as *common"))
				continue
			}
			merged = append(merged, s.entries...)
		}
	}
	for _, e := range merged {
		if v.index(e.key) < 0 {
			v.entries = append(v.entries, e)
		}
	}
}

// list returns the items of a list. Where a list is expected, one value will do.
func (n *node) list() []*node {
	switch n.kind {
	case aList:
		return n.items
	case nothing:
		return nil
	}
	return []*node{n}
}

func (n *node) index(key string) int {
	return slices.IndexFunc(n.entries, func(e entry) bool { return e.key == key })
}

// find follows a dotted key, in which numbers are indexes of lists from 0. If a part is missing, ok is false and e is
// the last entry found.
func (n *node) find(dotted string) (e entry, ok bool) {
	e = entry{pos: n.pos, value: n}
	for key := range strings.SplitSeq(dotted, ".") {
		if i := e.value.index(key); i >= 0 {
			e = e.value.entries[i]
		} else if i, err := strconv.ParseUint(key, 10, 16); err == nil && int(i) < len(e.value.list()) {
			item := e.value.list()[i]
			e = entry{item.pos, key, item}
		} else {
			return e, false
		}
	}
	return e, true
}
