package templates

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template/parse"
)

// A Shape is what is known of a value that templates see. Nothing is known of nil, which may be anything.
type Shape struct {
	Names map[string]*Shape // of a map: what may stand in it
	Items *Shape            // of a list: what its items are
	More  bool              // there may be other names too, which only index asks for
}

// has reports whether the name may stand in a map.
func (s *Shape) has(name string) bool {
	_, ok := s.Names[name]
	return ok
}

// item is the shape of one of a list.
func (s *Shape) item() *Shape {
	if s == nil {
		return nil
	}
	return s.Items
}

// An UnknownName is a name that a template asks for and that is never there.
type UnknownName struct {
	Name  string
	Known []string // sorted: what there is instead
	Line  int      // of the text, from 1
	Rune  int      // of the line, from 1: where the name begins, or what it stands in
}

func (e *UnknownName) Error() string {
	return fmt.Sprintf("line %d: unknown name; expected one of %s", e.Line, strings.Join(e.Known, ", "))
}

// CheckNames looks for names in the text of a template that are never there, wherever they stand: also in what only
// some messages come to. It follows what a template does with its fields, which have the shape, as far as that can be
// known without executing it. The text must be one that Parse takes; its error is an *UnknownName.
func CheckNames(text string, fields *Shape) error {
	tree := parse.New("text")
	tree.Mode = parse.SkipFuncCheck
	defines := make(map[string]*parse.Tree)
	if _, err := tree.Parse(text, "", "", defines); err != nil {
		return err
	}
	c := &nameChecker{text: text, defines: defines, walked: make(map[walk]bool)}
	c.define("text", fields)
	for _, name := range slices.Sorted(maps.Keys(defines)) {
		if aboutMessage(name, fields) {
			c.define(name, fields) // the words use it, in place of their own
		}
	}
	if c.unknown != nil {
		return c.unknown
	}
	return nil
}

// aboutMessage reports whether one of the words sees the fields of a message, as most do, and not what they are given
// beside it.
func aboutMessage(word string, fields *Shape) bool {
	trees, err := wordTrees()
	if err != nil || trees[word] == nil {
		return false
	}
	c := &nameChecker{text: words, defines: trees, walked: make(map[walk]bool)}
	c.define(word, fields)
	return c.unknown == nil
}

// A nameChecker walks through the defines of a text. Each is walked once for each shape that it is used on.
type nameChecker struct {
	text    string
	defines map[string]*parse.Tree
	walked  map[walk]bool
	vars    []shapedVariable
	unknown *UnknownName // the first
}

type walk struct {
	define string
	dot    *Shape
}

type shapedVariable struct {
	name  string
	shape *Shape
}

// define walks through a define that is used on dot.
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
		return // a variable that it declares is there for what follows
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
		if len(n.Pipe.Decl) > 1 { // the first counts
			c.vars[len(c.vars)-2].shape = nil
		}
		c.list(n.List, item)
		c.list(n.ElseList, dot)
	}
	c.vars = c.vars[:outer]
}

// pipe is the shape of what comes out of a pipeline. Its variables are declared, or changed.
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
			known.shape = nil // which it is depends on what is executed
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

// command is the shape of what a command gives. before is that of the command before it, if it is piped.
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
		return last // with every text in it escaped
	case "without":
		return args[0]
	case "first", "last":
		return last.item()
	case "include":
		if name, ok := nodes[0].(*parse.StringNode); ok {
			c.define(name.Text, last)
		}
	case "index": // a map or a list, and what leads into it
		into := args[0]
		for _, key := range nodes[min(1, len(nodes)):] {
			switch key := key.(type) {
			case *parse.StringNode:
				if into != nil && into.More && !into.has(key.Text) {
					return nil
				}
				into = c.named(into, key.Text, key)
			case *parse.NumberNode:
				into = into.item()
			default:
				return nil
			}
		}
		if !piped { // else one more, which nobody knows
			return into
		}
	case "dig": // names, what else, and the map
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

// operand is the shape of one argument.
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

// path is the shape that names lead to.
func (c *nameChecker) path(s *Shape, names []string, at parse.Node) *Shape {
	for _, name := range names {
		s = c.named(s, name, at)
	}
	return s
}

// named is the shape of what has the name in s. The name is noted if there can be none of it.
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
