// Package templates holds the default texts for people, the ready-made bodies of webhooks, and the functions that
// templates in the settings may use. Everything is embedded: it never reads files, the environment or the network.
package templates

import (
	"embed"
	"fmt"
	htmltemplate "html/template"
	"io"
	"strings"
	"sync"
	"text/template"
	"text/template/parse"
)

// The default texts of the sinks for people. Their fields are those of a message. SlackText is the notification of a
// root message or, if reply is true, the text of a reply in its thread. SlackBlocks is the root message as a JSON array
// of blocks.
var (
	SlackText    = embedded("slack-text.txt")
	SlackBlocks  = embedded("slack-blocks.json")
	EmailSubject = embedded("email-subject.txt")
	EmailText    = embedded("email-text.txt")
	EmailHTML    = embeddedHTML("email.html")
)

//go:embed slack-text.txt slack-blocks.json email-subject.txt email-text.txt email.html
var files embed.FS

// words holds the defines that all texts share, the shared words. A template in the settings may use them too, or
// define one of them anew.
//
//go:embed words.txt
var words string

// wordTrees returns the parsed shared words by name. All text templates use the same trees, because executing one never
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

// embeddedTexts returns the set of the shared words and the default texts, except the HTML one.
var embeddedTexts = sync.OnceValues(func() (textSet, error) {
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

// A textSet is a set of text templates, with the budget that its functions spend from.
type textSet struct {
	*template.Template
	budget *budget
}

// A Template is a parsed template. The embedded ones are parsed at their first use. It is safe for concurrent use, but
// is executed by one goroutine at a time; the others wait.
type Template struct{ parsed func() (executor, error) }

// An executor is a template of text/template or of html/template, with the budget that its functions spend from.
type executor struct {
	execute func(io.Writer, any) error
	budget  *budget
}

// Execute applies the template to fields and writes the result to w. It fails, after part of the result may have been
// written, if the template does, or if it exceeds a limit: about a second of work, 8 MiB of output, or 1000 nested
// defines.
func (t *Template) Execute(w io.Writer, fields any) error {
	parsed, err := t.parsed()
	if err != nil {
		return err
	}
	return parsed.budget.use(w, func(w io.Writer) error { return parsed.execute(w, fields) })
}

// embedded returns one of the default texts.
func embedded(name string) *Template {
	return &Template{func() (executor, error) {
		set, err := embeddedTexts()
		if err != nil {
			return executor{}, err
		}
		return executor{set.Lookup(name).Execute, set.budget}, nil
	}}
}

// embeddedHTML returns a default text that is HTML.
func embeddedHTML(name string) *Template {
	return &Template{sync.OnceValues(func() (executor, error) {
		text, err := files.ReadFile(name)
		if err != nil {
			return executor{}, err
		}
		return parseHTML(name, string(text))
	})}
}

// Say applies one of the shared words, such as headline, to fields and writes the result to w. Its limits are those of
// Template.Execute.
func Say(w io.Writer, word string, fields any) error {
	set, err := embeddedTexts()
	if err != nil {
		return err
	}
	return set.budget.use(w, func(w io.Writer) error { return set.ExecuteTemplate(w, word, fields) })
}

// Parse parses a template that may use Funcs, include and the shared words, as in {{template "headline" .}}. A missing
// field prints as <no value>; a function takes it as empty. An error names the template, the line and, where
// text/template knows it, the column.
func Parse(name, text string) (*Template, error) {
	return ready(parseText(name, text))
}

// ParseHTML is Parse for HTML: each value is escaped for the place where it is inserted. What include returns is plain
// text, which is escaped like any other value.
func ParseHTML(name, text string) (*Template, error) {
	return ready(parseHTML(name, text))
}

// ready returns a Template that has been parsed already.
func ready(parsed executor, err error) (*Template, error) {
	switch {
	case err == nil:
		return &Template{func() (executor, error) { return parsed, nil }}, nil
	case strings.HasSuffix(err.Error(), "not defined"):
		err = fmt.Errorf("%w; forewarn help fields lists the functions", err)
	case strings.HasSuffix(err.Error(), "unexpected EOF"):
		err = fmt.Errorf("%w; expected an {{end}} for each {{if}}, {{range}} and {{with}}", err)
	}
	return nil, err
}

func parseText(name, text string) (executor, error) {
	t, b := newSet(name)
	if err := parseInto(t, text); err != nil {
		return executor{}, err
	}
	return executor{t.Execute, b}, nil
}

func parseHTML(name, text string) (executor, error) {
	plain, b := newSet(name) // for include, whose text is not escaped yet
	if strings.Contains(text, "include") {
		if err := parseInto(plain, text); err != nil {
			return executor{}, err
		}
	}
	t := htmltemplate.New(name).Option("missingkey=default").Funcs(setFuncs(plain, b))
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
			continue // the text has its own define
		}
		if _, err := t.AddParseTree(define, tree.Copy()); err != nil { // a copy, because escaping changes the tree
			return executor{}, err
		}
	}
	return executor{t.Execute, b}, nil
}

// newSet returns an empty text template that has all functions, and the budget that they spend from.
func newSet(name string) (*template.Template, *budget) {
	t, b := template.New(name).Option("missingkey=default"), new(budget)
	return t.Funcs(setFuncs(t, b)), b
}

// setFuncs returns all functions, spending from b. include executes the defines of t.
func setFuncs(t *template.Template, b *budget) template.FuncMap {
	return bounded(functions(func(define string, data any) (string, error) {
		var text strings.Builder
		err := t.ExecuteTemplate(&text, define, data)
		return text.String(), err
	}), b)
}

// parseInto parses the text into t, which gets the shared words too.
func parseInto(t *template.Template, text string) error {
	if _, err := t.Parse(text); err != nil {
		return err
	}
	for _, define := range t.Templates() {
		countSteps(define.Tree)
	}
	return addWords(t)
}

// addWords adds to t the shared words that it does not define itself.
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
