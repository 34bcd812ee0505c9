package templates

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"
	"text/template"
	"text/template/parse"
	"unicode"
)

// What one use of a template may do. It is counted and not timed, so that a VM that stands still for a minute, or has
// other things to do, does not end a template that is right. All of maxWork takes about a second.
const (
	maxWork   = 32 << 20 // bytes that functions read and make, and what follows
	workOfOne = 128      // of it for each call of a function, and each round of a range
	maxOutput = 8 << 20  // bytes
	maxDepth  = 1000     // of defines that use one another
)

var (
	errTooDeep = errors.New("goes too deep: something in it uses itself")
	errEndless = errors.New("does not come to an end: it repeats something too often, or makes too long a text of it")
	errTooLong = errors.New("writes more than 8 MiB")
)

// A budget is what is left for the use of a template that is under way. There is one use at a time of the templates
// that share a budget: mu is held from its beginning to its end, and guards the rest.
type budget struct {
	mu    sync.Mutex
	left  int
	depth int
}

// use runs execute within the budget.
func (b *budget) use(w io.Writer, execute func(io.Writer) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left, b.depth = maxWork, 0
	out := &boundedWriter{w: w, left: maxOutput}
	err := execute(out)
	switch {
	case err == nil:
		return nil
	case b.depth > maxDepth:
		return errTooDeep // without the place, which need not be to blame
	case b.left < 0:
		return errEndless
	case out.left < 0:
		return errTooLong
	}
	return err
}

// spend takes work from the budget.
func (b *budget) spend(n int) error {
	if n > maxWork { // and so that sums do not overflow
		n = maxWork + 1
	}
	if b.left -= n; b.left < 0 {
		b.left = -1
		return errEndless
	}
	return nil
}

// A boundedWriter refuses what is over its bound.
type boundedWriter struct {
	w    io.Writer
	left int
}

func (w *boundedWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		w.left = -1
		return 0, errTooLong
	}
	return w.w.Write(p)
}

// What every round of a range calls, and every define at its beginning and at its end. Nobody else has a use for them.
const (
	roundName = "_round"
	enterName = "_enter"
	leaveName = "_leave"
)

// steps are {{if NAME}}{{end}} for each of the names, which write nothing, and in which html/template has nothing to
// escape.
var steps = sync.OnceValue(func() map[string]parse.Node {
	all := make(map[string]parse.Node)
	for _, name := range []string{roundName, enterName, leaveName} {
		t := template.New(name).Funcs(template.FuncMap{name: func() bool { return false }})
		all[name] = template.Must(t.Parse("{{if " + name + "}}{{end}}")).Root.Nodes[0]
	}
	return all
})

// countSteps makes every round of a range in the tree, and every use of it, count.
func countSteps(tree *parse.Tree) {
	if tree == nil || tree.Root == nil {
		return
	}
	countRounds(tree.Root)
	tree.Root.Nodes = slices.Insert(tree.Root.Nodes, 0, steps()[enterName].Copy())
	tree.Root.Nodes = append(tree.Root.Nodes, steps()[leaveName].Copy())
}

func countRounds(list *parse.ListNode) {
	if list == nil {
		return
	}
	for _, n := range list.Nodes {
		var branch *parse.BranchNode
		switch n := n.(type) {
		case *parse.IfNode:
			branch = &n.BranchNode
		case *parse.WithNode:
			branch = &n.BranchNode
		case *parse.RangeNode:
			branch = &n.BranchNode
		default:
			continue
		}
		countRounds(branch.List)
		countRounds(branch.ElseList)
		if n.Type() == parse.NodeRange {
			branch.List.Nodes = slices.Insert(branch.List.Nodes, 0, steps()[roundName].Copy())
		}
	}
}

// bounded are the functions of all, and those of text/template by which a text can grow, within a budget.
func bounded(all template.FuncMap, b *budget) template.FuncMap {
	sized := func(v any) error { return b.spend(weight(v)) }
	for name, f := range map[string]any{
		"print":   fmt.Sprint,
		"println": fmt.Sprintln,
		"printf": func(format string, v ...any) (string, error) {
			if err := b.spend(printfWeight(format, v)); err != nil {
				return "", err
			}
			return fmt.Sprintf(format, v...), nil
		},
		"js": template.JSEscaper,
		"list": func(items ...any) ([]any, error) {
			return items, sized(items)
		},
		"dict": func(pairs ...any) (map[string]any, error) {
			return dict(pairs...), sized(pairs)
		},
		"slack": func(fields any) (any, error) {
			if err := b.spend(weight(fields) + groupWeight(fields)); err != nil {
				return nil, err
			}
			return slack(fields), nil
		},
		"join": func(sep, list any) (string, error) {
			if err := b.spend(len(items(list))*len(text(sep)) + weight(list)); err != nil {
				return "", err
			}
			return join(sep, list), nil
		},
		"replace": func(old, with, v any) (string, error) {
			if err := b.spend(strings.Count(text(v), text(old)) * len(text(with))); err != nil {
				return "", err
			}
			return strings.ReplaceAll(text(v), text(old), text(with)), nil
		},
	} {
		all[name] = f
	}
	for name, f := range all {
		all[name] = counted(f, b)
	}
	all[roundName] = func() (bool, error) { return false, b.spend(workOfOne) }
	all[enterName] = func() (bool, error) {
		if b.depth++; b.depth > maxDepth {
			return false, errTooDeep
		}
		return false, b.spend(workOfOne)
	}
	all[leaveName] = func() bool { b.depth--; return false }
	return all
}

// counted is the function f, with its calls and the texts that it takes and gives counted.
func counted(f any, b *budget) any {
	call, failure := reflect.ValueOf(f), reflect.TypeFor[error]()
	t := call.Type()
	in := make([]reflect.Type, t.NumIn())
	for i := range in {
		in[i] = t.In(i)
	}
	refused := func(err error) []reflect.Value {
		return []reflect.Value{reflect.Zero(t.Out(0)), reflect.ValueOf(&err).Elem()}
	}
	do := call.Call
	if t.IsVariadic() {
		do = call.CallSlice
	}
	return reflect.MakeFunc(reflect.FuncOf(in, []reflect.Type{t.Out(0), failure}, t.IsVariadic()),
		func(args []reflect.Value) []reflect.Value {
			cost := workOfOne
			for _, a := range args {
				cost += length(a)
			}
			if err := b.spend(cost); err != nil {
				return refused(err)
			}
			got := do(args)
			if len(got) == 2 && !got[1].IsNil() {
				return got
			}
			if err := b.spend(length(got[0])); err != nil {
				return refused(err)
			}
			return []reflect.Value{got[0], reflect.Zero(failure)}
		}).Interface()
}

// length is that of a text, 0 of all else.
func length(v reflect.Value) int {
	if v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Kind() == reflect.String {
		return v.Len()
	}
	return 0
}

// weight is about how much text v gives when it is printed, as far as it matters: a list that holds another twice, and
// is held twice by a third, soon gives more than there is memory.
func weight(v any) int {
	n := 32
	switch v := v.(type) {
	case string:
		n += len(v)
	case []any:
		for _, item := range v {
			if n += weight(item); n > maxWork {
				break
			}
		}
	case map[string]any:
		for name, item := range v {
			if n += len(name) + weight(item); n > maxWork {
				break
			}
		}
	}
	return n
}

// groupWeight is that of the messages that the fields of a message are a group of.
func groupWeight(fields any) (n int) {
	m, _ := fields.(map[string]any)
	group, _ := m["group"].([]map[string]any)
	for _, g := range group {
		n += weight(g)
	}
	return n
}

// printfWeight is more than printf makes of its arguments.
func printfWeight(format string, args []any) int {
	longest := 0
	for _, a := range args {
		longest = max(longest, weight(a))
	}
	width, number := 0, 0 // widths and precisions, which may ask for much padding
	for _, r := range format {
		switch {
		case r == '*':
			width += 1e6
		case unicode.IsDigit(r):
			number = min(1e6, number*10+int(r-'0'))
			width += number
		default:
			number = 0
		}
	}
	return len(format) + width + strings.Count(format, "%")*longest
}
