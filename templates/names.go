package templates

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template/parse"
)

// A Shape describes a value that templates use. A nil Shape describes a value that may be anything.
type Shape struct {
	Names map[string]*Shape // of a map: the names that may be in it
	Items *Shape            // of a list: the shape of each item
	More  bool              // the map may have other names too; only index may ask for those
}

// item returns the shape of an item of a list.
func (s *Shape) item() *Shape {
	if s == nil {
		return nil
	}
	return s.Items
}

// The shapes of a Fact and a Link.
var (
	factShape = &Shape{Names: map[string]*Shape{"Label": nil, "Text": nil, "Command": nil}}
	linkShape = &Shape{Names: map[string]*Shape{"Text": nil, "URL": nil}}
)

// An UnknownName is the error for a name that a template uses and that no message has.
type UnknownName struct {
	Name  string
	Known []string // the names that could be used there, sorted
	Line  int      // of the text, counted from 1
	Rune  int      // of the line, counted from 1: where the name, or the expression it is part of, begins
}

func (e *UnknownName) Error() string {
	return fmt.Sprintf("line %d: unknown name; expected one of %s", e.Line, strings.Join(e.Known, ", "))
}

// CheckNames checks that every name the text uses can exist, also in branches that few messages take. It follows the
// fields, which have the given shape, through the template as far as that is possible without executing it. The first
// unknown name is returned as an *UnknownName. The text must be one that Parse accepts.
func CheckNames(text string, fields *Shape) error {
	tree := parse.New("text")
	tree.Mode = parse.SkipFuncCheck
	defines := make(map[string]*parse.Tree)
	if _, err := tree.Parse(text, "", "", defines); err != nil {
		return withoutKeys(err, text)
	}
	c := &nameChecker{text: text, defines: defines, walked: make(map[walk]bool)}
	c.define("text", fields)
	for _, name := range slices.Sorted(maps.Keys(defines)) {
		if aboutMessage(name, fields) {
			c.define(name, fields) // the shared words use it instead of their own
		}
	}
	if c.unknown != nil {
		return c.unknown
	}
	return nil
}

// aboutMessage reports whether a shared word is executed on the fields of a message, as most are, and not on another
// value.
func aboutMessage(word string, fields *Shape) bool {
	set, err := wordSet()
	if err != nil || set.Lookup(word) == nil {
		return false
	}
	trees := make(map[string]*parse.Tree)
	for _, define := range set.Templates() {
		trees[define.Name()] = define.Tree
	}
	c := &nameChecker{text: words, defines: trees, walked: make(map[walk]bool)}
	c.define(word, fields)
	return c.unknown == nil
}

// A nameChecker walks through the defines of a text, and through each once for every shape that it is executed on.
type nameChecker struct {
	text    string
	defines map[string]*parse.Tree
	walked  map[walk]bool
	vars    []shapedVariable
	unknown *UnknownName // the first one found
}

// A walk is a define and the shape that it is executed on.
type walk struct {
	define string
	dot    *Shape
}

type shapedVariable struct {
	name  string
	shape *Shape
}

// define walks through a define that is executed on dot.
func (c *nameChecker) define(name string, dot *Shape) {
	tree := c.defines[name]
	if tree == nil || c.walked[walk{name, dot}] {
		return
	}
	c.walked[walk{name, dot}] = true
	outer := c.vars
	c.vars = []shapedVariable{{"$", dot}}
	c.list(tree.Root, dot)
	c.vars = outer
}

func (c *nameChecker) list(list *parse.ListNode, dot *Shape) {
	if list == nil {
		return
	}
	for _, n := range list.Nodes {
		c.node(n, dot)
	}
}

func (c *nameChecker) node(n parse.Node, dot *Shape) {
	outer := len(c.vars)
	switch n := n.(type) {
	case *parse.ActionNode:
		c.pipe(n.Pipe, dot)
		return // a variable that it declares stays in scope
	case *parse.TemplateNode:
		c.define(n.Name, c.pipe(n.Pipe, dot))
	case *parse.IfNode:
		c.pipe(n.Pipe, dot)
		c.list(n.List, dot)
		c.list(n.ElseList, dot)
	case *parse.WithNode:
		c.list(n.List, c.pipe(n.Pipe, dot))
		c.list(n.ElseList, dot)
	case *parse.RangeNode:
		item := c.pipe(n.Pipe, dot).item()
		if len(n.Pipe.Decl) > 0 {
			c.vars[len(c.vars)-1].shape = item
		}
		if len(n.Pipe.Decl) > 1 { // the first variable is the index
			c.vars[len(c.vars)-2].shape = nil
		}
		c.list(n.List, item)
		c.list(n.ElseList, dot)
	}
	c.vars = c.vars[:outer]
}

// pipe returns the shape of a pipeline's result, and declares or changes its variables.
func (c *nameChecker) pipe(p *parse.PipeNode, dot *Shape) (result *Shape) {
	if p == nil {
		return nil
	}
	for i, command := range p.Cmds {
		result = c.command(command, dot, result, i > 0)
	}
	for _, v := range p.Decl {
		if !p.IsAssign {
			c.vars = append(c.vars, shapedVariable{v.Ident[0], result})
		} else if known := c.variable(v.Ident[0]); known != nil && known.shape != result {
			known.shape = nil // which of the two it is depends on the branch that is executed
		}
	}
	return result
}

func (c *nameChecker) variable(name string) *shapedVariable {
	for i := len(c.vars) - 1; i >= 0; i-- {
		if c.vars[i].name == name {
			return &c.vars[i]
		}
	}
	return nil
}

// command returns the shape of a command's result. If it is piped, before is the shape of the previous result.
func (c *nameChecker) command(n *parse.CommandNode, dot, before *Shape, piped bool) *Shape {
	shapes := make([]*Shape, len(n.Args))
	for i, arg := range n.Args {
		shapes[i] = c.operand(arg, dot)
	}
	function, ok := n.Args[0].(*parse.IdentifierNode)
	if !ok {
		return shapes[0]
	}
	args, nodes := shapes[1:], n.Args[1:]
	if piped {
		args = append(args, before)
	}
	if len(args) == 0 {
		return nil
	}
	last := args[len(args)-1]
	switch function.Ident {
	case "slack":
		return last // escaping texts keeps the shape
	case "without":
		return args[0]
	case "first", "last":
		return last.item()
	case "facts":
		return &Shape{Items: factShape}
	case "links":
		return &Shape{Items: linkShape}
	case "include":
		if name, ok := nodes[0].(*parse.StringNode); ok {
			c.define(name.Text, last)
		}
	case "index":
		result := c.index(args[0], nodes[min(1, len(nodes)):])
		if !piped { // the piped value is one more key, which is not known
			return result
		}
	case "dig": // its arguments are names, a default, and the map
		for i := range len(args) - 2 {
			name, ok := nodes[i].(*parse.StringNode)
			if !ok {
				return nil
			}
			last = c.named(last, name.Text, name)
		}
	}
	return nil
}

// index returns the shape that the keys lead to from s.
func (c *nameChecker) index(s *Shape, keys []parse.Node) *Shape {
	for _, key := range keys {
		switch key := key.(type) {
		case *parse.StringNode:
			if s != nil && s.More {
				if _, listed := s.Names[key.Text]; !listed {
					return nil
				}
			}
			s = c.named(s, key.Text, key)
		case *parse.NumberNode:
			s = s.item()
		default:
			return nil
		}
	}
	return s
}

// operand returns the shape of one argument.
func (c *nameChecker) operand(n parse.Node, dot *Shape) *Shape {
	switch n := n.(type) {
	case *parse.DotNode:
		return dot
	case *parse.FieldNode:
		return c.path(dot, n.Ident, n)
	case *parse.ChainNode:
		return c.path(c.operand(n.Node, dot), n.Field, n)
	case *parse.PipeNode:
		return c.pipe(n, dot)
	case *parse.VariableNode:
		if v := c.variable(n.Ident[0]); v != nil {
			return c.path(v.shape, n.Ident[1:], n)
		}
	}
	return nil
}

// path returns the shape that a chain of names leads to from s.
func (c *nameChecker) path(s *Shape, names []string, at parse.Node) *Shape {
	for _, name := range names {
		s = c.named(s, name, at)
	}
	return s
}

// named returns the shape of the value with that name in s. A name that cannot be in s is noted as unknown.
func (c *nameChecker) named(s *Shape, name string, at parse.Node) *Shape {
	if s == nil || s.Names == nil {
		return nil
	}
	found, ok := s.Names[name]
	if !ok && c.unknown == nil {
		before := c.text[:min(int(at.Position()), len(c.text))]
		line := before[strings.LastIndexByte(before, '\n')+1:]
		c.unknown = &UnknownName{
			Name: name, Known: slices.Sorted(maps.Keys(s.Names)),
			Line: strings.Count(before, "\n") + 1, Rune: len([]rune(line)) + 1,
		}
	}
	return found
}

// Beginning returns what every result of a template begins with, and whether that is all of it. Defines are no part of
// the result.
func Beginning(text string) (fixed string, all bool) {
	tree := parse.New("text")
	tree.Mode = parse.SkipFuncCheck
	if _, err := tree.Parse(text, "", "", make(map[string]*parse.Tree)); err != nil {
		return "", false
	}
	for _, n := range tree.Root.Nodes {
		text, ok := n.(*parse.TextNode)
		if !ok {
			return fixed, false
		}
		fixed += string(text.Text)
	}
	return fixed, true
}
