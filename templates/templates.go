// Package templates holds the default texts for people and the functions that
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
)

// The default texts of the sinks for people. Their fields are those of a message. SlackText is the notification of a
// root message or, if reply is true, the text of a reply in its thread. SlackWhole is the whole message as text, for what
// takes Slack's incoming webhooks and shows no blocks. SlackBlocks is the root message as a JSON array of blocks.
var (
	SlackText    = embedded("slack-text.txt")
	SlackWhole   = embedded("slack-whole.txt")
	SlackBlocks  = embedded("slack-blocks.json")
	EmailSubject = embedded("email-subject.txt")
	EmailText    = embedded("email-text.txt")
	EmailHTML    = embeddedHTML("email.html")
)

//go:embed slack-text.txt slack-whole.txt slack-blocks.json email-subject.txt email-text.txt email.html
var files embed.FS

// words is the text of the defines that all texts share, the shared words. A template in the settings may use them too,
// or define one of them anew.
//
//go:embed words.txt
var words string

// wordSet returns the shared words.
var wordSet = sync.OnceValues(func() (*template.Template, error) { return newSet("words").Parse(words) })

// A Template is a parsed template. The embedded ones are parsed at their first use. It is safe for concurrent use.
type Template struct {
	parsed func() (executor, error)
	text   string // of the settings; "" for an embedded one
}

// An executor is a template of text/template or of html/template.
type executor interface{ Execute(io.Writer, any) error }

// Execute applies the template to fields and writes the result to w. It fails, after part of the result may have been
// written, if the template does, or if it exceeds a bound: 8 MiB of output, or 100 nested calls of include. Its error shows
// none of the text's Keys.
func (t *Template) Execute(w io.Writer, fields any) error {
	parsed, err := t.parsed()
	if err != nil {
		return err
	}
	return withoutKeys(parsed.Execute(&boundedWriter{w, maxOutput}, fields), t.text)
}

// embedded returns one of the default texts.
func embedded(name string) *Template { return embeddedAs(name, parseText) }

// embeddedHTML returns a default text that is HTML.
func embeddedHTML(name string) *Template { return embeddedAs(name, parseHTML) }

func embeddedAs[T executor](name string, parse func(name, text string) (T, error)) *Template {
	return &Template{parsed: sync.OnceValues(func() (executor, error) {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		return parse(name, string(text))
	})}
}

// Say applies one of the shared words, such as headline, to fields and writes the result to w. Its bounds are those of
// Template.Execute.
func Say(w io.Writer, word string, fields any) error {
	set, err := wordSet()
	if err != nil {
		return err
	}
	return set.ExecuteTemplate(&boundedWriter{w, maxOutput}, word, fields)
}

// Parse parses a template that may use Funcs, include and the shared words, as in {{template "headline" .}}. A missing
// field prints as <no value>; a function takes it as empty. An error names the template, the line and, where
// text/template knows it, the column. It shows none of the text's Keys.
func Parse(name, text string) (*Template, error) {
	t, err := parseText(name, text)
	return ready(t, text, err)
}

// ParseHTML is Parse for HTML: each value is escaped for the place where it is inserted. What include returns is plain
// text, which is escaped like any other value.
func ParseHTML(name, text string) (*Template, error) {
	t, err := parseHTML(name, text)
	return ready(t, text, err)
}

// ready returns the Template of a text that has been parsed already.
func ready(parsed executor, text string, err error) (*Template, error) {
	switch {
	case err == nil:
		return &Template{func() (executor, error) { return parsed, nil }, text}, nil
	case strings.HasSuffix(err.Error(), "not defined"):
		err = fmt.Errorf("%w; forewarn help fields lists the functions", err)
	case strings.HasSuffix(err.Error(), "unexpected EOF"):
		err = fmt.Errorf("%w; expected an {{end}} for each {{if}}, {{range}} and {{with}}", err)
	}
	return nil, withoutKeys(err, text)
}

// ParseURL is Parse for a URL or a part of one: each value is percent-encoded, so that it stays one part of the path or
// one value of the query. A define is inserted with include, which makes it a value too.
func ParseURL(name, text string) (*Template, error) {
	t, err := parseText(name, text)
	if err == nil {
		t.Funcs(template.FuncMap{percentEncoder: percentEncode})
		err = encodeValues(t.Root)
	}
	return ready(t, text, err)
}

// parseText parses a text, and adds the shared words that it doesn't define itself. All sets have the same trees of them,
// because executing one never changes its tree.
func parseText(name, text string) (*template.Template, error) {
	t := newSet(name)
	if _, err := t.Parse(text); err != nil {
		return nil, err
	}
	words, err := wordSet()
	if err != nil {
		return nil, err
	}
	for _, word := range words.Templates() {
		if t.Lookup(word.Name()) != nil {
			continue
		}
		if _, err := t.AddParseTree(word.Name(), word.Tree); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// parseHTML is parseText for HTML. The text of include and of the facts is not escaped yet, so it comes from a set of its
// own. Escaping changes a tree.
func parseHTML(name, text string) (*htmltemplate.Template, error) {
	plain, err := parseText(name, text)
	if err != nil {
		return nil, err
	}
	t := htmltemplate.New(name).Option("missingkey=default").Funcs(setFuncs(plain))
	for _, define := range plain.Templates() {
		if _, err := t.AddParseTree(define.Name(), define.Tree.Copy()); err != nil {
			return nil, err
		}
	}
	return t.Lookup(name), nil
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
