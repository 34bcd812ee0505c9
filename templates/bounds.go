package templates

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"text/template"
	"text/template/parse"
	"unicode"
)

// The limits of one execution of a template. Work is counted rather than timed, so that a correct template never fails
// because the VM is busy, or was frozen for a minute. An execution that uses up maxWork takes about a second.
const (
	maxWork   = 32 << 20 // bytes that functions read and return, plus stepCost for each step
	stepCost  = 128      // of one function call, one iteration of a range, or one define
	maxOutput = 8 << 20  // bytes
	maxDepth  = 1000     // nested defines
)

var (
	errTooDeep = errors.New("goes too deep: something in it uses itself")
	errEndless = errors.New("does not come to an end: it repeats something too often, or makes too long a text of it")
	errTooLong = errors.New("writes more than 8 MiB")
)

// A budget counts what the current execution may still do. Templates that share a budget are executed one at a time:
// mu is held during an execution, and guards the other fields.
type budget struct {
	mu    sync.Mutex
	left  int
	depth int
}

// use calls execute with the limits of one execution, and returns which limit it exceeded, if any.
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
		return errTooDeep // without the position: the define that exceeds the limit need not be the one at fault
	case b.left < 0:
		return errEndless
	case out.left < 0:
		return errTooLong
	}
	return err
}

// spend subtracts n from the work that is left. It returns errEndless if there is less than that.
func (b *budget) spend(n int) error {
	if n > maxWork { // also keeps later sums from overflowing
		n = maxWork + 1
	}
	b.left -= n
	if b.left < 0 {
		b.left = -1
		return errEndless
	}
	return nil
}

// A boundedWriter passes on at most left bytes. A write that exceeds them fails as a whole.
type boundedWriter struct {
	w    io.Writer
	left int
}

func (w *boundedWriter) Write(p []byte) (int, error) {
	w.left -= len(p)
	if w.left < 0 {
		w.left = -1
		return 0, errTooLong
	}
	return w.w.Write(p)
}

// The names of the functions that countSteps inserts: into each iteration of a range, and at the beginning and the end
// of each define.
const (
	roundName = "_round"
	enterName = "_enter"
	leaveName = "_leave"
)

// steps returns the node {{if NAME}}{{end}} for each of these names. It writes nothing, and html/template finds nothing
// to escape in it.
var steps = sync.OnceValue(func() map[string]parse.Node {
	all := make(map[string]parse.Node)
	for _, name := range []string{roundName, enterName, leaveName} {
		t := template.New(name).Funcs(template.FuncMap{name: func() bool { return false }})
		all[name] = template.Must(t.Parse("{{if " + name + "}}{{end}}")).Root.Nodes[0]
	}
	return all
})

// countSteps inserts calls into the tree, so that each execution of it and each iteration of its ranges is counted.
func countSteps(tree *parse.Tree) {
	if tree == nil || tree.Root == nil {
		return
	}
	countRounds(tree.Root)
	tree.Root.Nodes = append([]parse.Node{steps()[enterName].Copy()}, tree.Root.Nodes...)
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
			branch.List.Nodes = append([]parse.Node{steps()[roundName].Copy()}, branch.List.Nodes...)
		}
	}
}

// bounded returns all, each function of which now spends from the budget. So do the functions of text/template that can
// make a text grow: it adds its own versions of them. A function whose result can be much larger than its arguments
// pays for the result before it makes it.
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
	all[roundName] = func() (bool, error) { return false, b.spend(stepCost) }
	all[enterName] = func() (bool, error) {
		b.depth++
		if b.depth > maxDepth {
			return false, errTooDeep
		}
		return false, b.spend(stepCost)
	}
	all[leaveName] = func() bool { b.depth--; return false }
	return all
}

// counted returns the function f, but each call spends stepCost and the length of every text that f takes and returns.
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
			cost := stepCost
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

// length returns the length of a text in bytes, and 0 for any other value.
func length(v reflect.Value) int {
	if v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Kind() == reflect.String {
		return v.Len()
	}
	return 0
}

// weight estimates the size of v in bytes when it is printed. It stops counting above maxWork: a list that holds
// another one twice, and is itself held twice by a third, soon prints as more than fits in memory.
func weight(v any) int {
	n := 32
	switch v := v.(type) {
	case string:
		n += len(v)
	case []any:
		for _, item := range v {
			n += weight(item)
			if n > maxWork {
				break
			}
		}
	case map[string]any:
		for name, item := range v {
			n += len(name) + weight(item)
			if n > maxWork {
				break
			}
		}
	}
	return n
}

// groupWeight returns the weight of the list group in the fields of a message, which weight does not look into.
func groupWeight(fields any) (n int) {
	m, _ := fields.(map[string]any)
	group, _ := m["group"].([]map[string]any)
	for _, g := range group {
		n += weight(g)
	}
	return n
}

// printfWeight returns an upper bound for the size of what printf makes of its arguments.
func printfWeight(format string, args []any) int {
	longest := 0
	for _, a := range args {
		longest = max(longest, weight(a))
	}
	width, number := 0, 0 // the sum of widths and precisions, which may ask for much padding
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
