// Package templates holds the default texts for people, the ready-made bodies of webhooks, and the functions that
// templates in the settings may use. Everything is embedded: it never reads files, the environment or the network.
package templates

import (
	"embed"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"io"
	"strings"
	"sync"
	"sync/atomic"
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
	t, err := newSet("words").Parse(words)
	if err != nil {
		return nil, err
	}
	trees := make(map[string]*parse.Tree)
	for _, define := range t.Templates() {
		trees[define.Name()] = define.Tree
	}
	return trees, nil
})

// embeddedTexts returns the set of the shared words and the default texts, except the HTML one.
var embeddedTexts = sync.OnceValues(func() (*template.Template, error) {
	set := newSet("")
	if err := addWords(set); err != nil {
		return nil, err
	}
	for _, name := range []string{"slack-text.txt", "slack-blocks.json", "email-subject.txt", "email-text.txt"} {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if _, err := set.New(name).Parse(string(text)); err != nil {
			return nil, err
		}
	}
	return set, nil
})

// A Template is a parsed template. The embedded ones are parsed at their first use. It is safe for concurrent use.
type Template struct{ parsed func() (executor, error) }

// An executor is a template of text/template or of html/template.
type executor interface{ Execute(io.Writer, any) error }

// Execute applies the template to fields and writes the result to w. It fails, after part of the result may have been
// written, if the template does, or if it exceeds a bound: 8 MiB of output, or 100 nested calls of include.
func (t *Template) Execute(w io.Writer, fields any) error {
	parsed, err := t.parsed()
	if err != nil {
		return err
	}
	return parsed.Execute(&boundedWriter{w, maxOutput}, fields)
}

// embedded returns one of the default texts.
func embedded(name string) *Template {
	return &Template{func() (executor, error) {
		set, err := embeddedTexts()
		if err != nil {
			return nil, err
		}
		return set.Lookup(name), nil
	}}
}

// embeddedHTML returns a default text that is HTML.
func embeddedHTML(name string) *Template {
	return &Template{sync.OnceValues(func() (executor, error) {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		return parseHTML(name, string(text))
	})}
}

// Say applies one of the shared words, such as headline, to fields and writes the result to w. Its bounds are those of
// Template.Execute.
func Say(w io.Writer, word string, fields any) error {
	set, err := embeddedTexts()
	if err != nil {
		return err
	}
	return set.ExecuteTemplate(&boundedWriter{w, maxOutput}, word, fields)
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

// ParseURL is Parse for a URL or a part of one: each value is percent-encoded, so that it stays one part of the path or
// one value of the query. A define is inserted with include, which makes it a value too.
func ParseURL(name, text string) (*Template, error) {
	t := newSet(name).Funcs(template.FuncMap{percentEncoder: percentEncode})
	err := parseInto(t, text)
	if err == nil && t.Tree != nil {
		err = encodeValues(t.Tree.Root)
	}
	return ready(t, err)
}

func parseText(name, text string) (executor, error) {
	t := newSet(name)
	return t, parseInto(t, text)
}

func parseHTML(name, text string) (executor, error) {
	plain := newSet(name) // for include and the facts, whose text is not escaped yet
	if err := parseInto(plain, text); err != nil {
		return nil, err
	}
	t := htmltemplate.New(name).Option("missingkey=default").Funcs(setFuncs(plain))
	if _, err := t.Parse(text); err != nil {
		return nil, err
	}
	words, err := wordTrees()
	if err != nil {
		return nil, err
	}
	for define, tree := range words {
		if t.Lookup(define) != nil {
			continue // the text has its own define
		}
		if _, err := t.AddParseTree(define, tree.Copy()); err != nil { // a copy, because escaping changes the tree
			return nil, err
		}
	}
	return t, nil
}

// newSet returns an empty text template that has all functions.
func newSet(name string) *template.Template {
	t := template.New(name).Option("missingkey=default")
	return t.Funcs(setFuncs(t))
}

// An includeFunc executes a define on data and returns its text.
type includeFunc func(define string, data any) (string, error)

// setFuncs returns all functions. Those that use defines use those of t.
func setFuncs(t *template.Template) template.FuncMap { return functions(including(t)) }

// including returns a function that executes the defines of t, and itself at most 100 times nested.
func including(t *template.Template) includeFunc {
	var depth atomic.Int32
	return func(define string, data any) (string, error) {
		defer depth.Add(-1)
		if depth.Add(1) > maxInclude {
			return "", errTooDeep
		}
		var text strings.Builder
		err := t.ExecuteTemplate(&boundedWriter{&text, maxOutput}, define, data)
		if errors.Is(err, errTooDeep) {
			return "", errTooDeep // without the positions of all the calls
		}
		return text.String(), err
	}
}

// parseInto parses the text into t, which gets the shared words too.
func parseInto(t *template.Template, text string) error {
	if _, err := t.Parse(text); err != nil {
		return err
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
