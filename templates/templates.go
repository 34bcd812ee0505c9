// Package templates holds the texts that people read, the ready-made bodies of webhooks, and the functions that the
// templates of the settings may use. Nothing in it reads files, the environment or the network.
package templates

import (
	"embed"
	htmltemplate "html/template"
	"io"
	"strings"
	"sync"
	"text/template"
	"text/template/parse"
)

// The texts of the sinks for people, as they are unless the settings have their own; they see the fields of a message.
// SlackText is the notification of a root message or, with reply, what is said in its thread; SlackBlocks is the root
// message as a JSON array of blocks.
var (
	SlackText    = own("slack-text.txt")
	SlackBlocks  = own("slack-blocks.json")
	EmailSubject = own("email-subject.txt")
	EmailText    = own("email-text.txt")
	EmailHTML    = ownHTML("email.html")
)

//go:embed slack-text.txt slack-blocks.json email-subject.txt email-text.txt email.html
var files embed.FS

// words are the definitions that all texts share. A template of the settings may use them too, and define its own in
// their place.
//
//go:embed words.txt
var words string

// wordTrees are the words as parsed, by their names. All texts share them: nothing that executes a text template
// changes its tree.
var wordTrees = sync.OnceValues(func() (map[string]*parse.Tree, error) {
	set, _ := newSet("words")
	t, err := set.Parse(words)
	if err != nil {
		return nil, err
	}
	trees := make(map[string]*parse.Tree)
	for _, define := range t.Templates() {
		countSteps(define.Tree)
		trees[define.Name()] = define.Tree
	}
	return trees, nil
})

// ownTexts are the words and the texts of the sinks, in one set.
var ownTexts = sync.OnceValues(func() (textSet, error) {
	set, b := newSet("")
	if err := addWords(set); err != nil {
		return textSet{}, err
	}
	for _, name := range []string{"slack-text.txt", "slack-blocks.json", "email-subject.txt", "email-text.txt"} {
		text, err := files.ReadFile(name)
		if err != nil {
			return textSet{}, err
		}
		t, err := set.New(name).Parse(string(text))
		if err != nil {
			return textSet{}, err
		}
		countSteps(t.Tree)
	}
	return textSet{set, b}, nil
})

// A textSet is a set of templates, with the budget that its functions count in.
type textSet struct {
	*template.Template
	budget *budget
}

// A Template is a parsed text. One of our own is parsed when it is first used. Several goroutines may execute it, one
// after the other.
type Template struct{ parsed func() (executor, error) }

// An executor is a template of text/template or of html/template, with the budget that its functions count in.
type executor struct {
	execute func(io.Writer, any) error
	budget  *budget
}

// Execute writes what the template makes of fields. An error is one of executing it, also because it does not come to
// an end.
func (t *Template) Execute(w io.Writer, fields any) error {
	parsed, err := t.parsed()
	if err != nil {
		return err
	}
	return parsed.budget.use(w, func(w io.Writer) error { return parsed.execute(w, fields) })
}

// own is one of the texts of the sinks.
func own(name string) *Template {
	return &Template{func() (executor, error) {
		set, err := ownTexts()
		if err != nil {
			return executor{}, err
		}
		return executor{set.Lookup(name).Execute, set.budget}, nil
	}}
}

// ownHTML is one of the texts of the sinks that is HTML.
func ownHTML(name string) *Template {
	return &Template{sync.OnceValues(func() (executor, error) {
		text, err := files.ReadFile(name)
		if err != nil {
			return executor{}, err
		}
		return parseHTML(name, string(text))
	})}
}

// Say writes what one of the words says of fields.
func Say(w io.Writer, word string, fields any) error {
	set, err := ownTexts()
	if err != nil {
		return err
	}
	return set.budget.use(w, func(w io.Writer) error { return set.ExecuteTemplate(w, word, fields) })
}

// Parse parses a template that may use Funcs and the words, as in {{template "headline" .}}. A field that is not there
// prints as <no value>, except through a function, which takes it for empty. Errors name the template, the line and,
// where text/template knows it, the column.
func Parse(name, text string) (*Template, error) {
	return ready(parseText(name, text))
}

// ParseHTML is Parse for HTML: what a template puts in is escaped for the place where it stands. A word that is
// included is made as plain text, and then escaped.
func ParseHTML(name, text string) (*Template, error) {
	return ready(parseHTML(name, text))
}

// ready is a template that is parsed.
func ready(parsed executor, err error) (*Template, error) {
	if err != nil {
		return nil, err
	}
	return &Template{func() (executor, error) { return parsed, nil }}, nil
}

func parseText(name, text string) (executor, error) {
	t, b := newSet(name)
	if _, err := t.Parse(text); err != nil {
		return executor{}, err
	}
	for _, define := range t.Templates() {
		countSteps(define.Tree)
	}
	return executor{t.Execute, b}, addWords(t)
}

func parseHTML(name, text string) (executor, error) {
	t, b := htmltemplate.New(name).Option("missingkey=default"), new(budget)
	// what include uses: the words, and the text's own in their place
	plain := template.New(name).Option("missingkey=default")
	funcs := bounded(functions(func(define string, data any) (string, error) {
		var said strings.Builder
		err := plain.ExecuteTemplate(&said, define, data)
		return said.String(), err
	}), b)
	t.Funcs(funcs)
	if strings.Contains(text, "include") {
		if _, err := plain.Funcs(funcs).Parse(text); err != nil {
			return executor{}, err
		}
		for _, define := range plain.Templates() {
			countSteps(define.Tree)
		}
		if err := addWords(plain); err != nil {
			return executor{}, err
		}
	}
	if _, err := t.Parse(text); err != nil {
		return executor{}, err
	}
	for _, define := range t.Templates() {
		countSteps(define.Tree)
	}
	words, err := wordTrees()
	if err != nil {
		return executor{}, err
	}
	for define, tree := range words {
		if t.Lookup(define) != nil {
			continue // it is the text's own
		}
		if _, err := t.AddParseTree(define, tree.Copy()); err != nil { // which escaping changes
			return executor{}, err
		}
	}
	return executor{t.Execute, b}, nil
}

// newSet is an empty template of text/template that knows the functions, and the budget that they count in.
func newSet(name string) (*template.Template, *budget) {
	t, b := template.New(name).Option("missingkey=default"), new(budget)
	return t.Funcs(bounded(functions(func(define string, data any) (string, error) {
		var said strings.Builder
		err := t.ExecuteTemplate(&said, define, data)
		return said.String(), err
	}), b)), b
}

// addWords adds to t the words that it does not define itself.
func addWords(t *template.Template) error {
	trees, err := wordTrees()
	if err != nil {
		return err
	}
	for define, tree := range trees {
		if t.Lookup(define) != nil {
			continue
		}
		if _, err := t.AddParseTree(define, tree); err != nil {
			return err
		}
	}
	return nil
}
