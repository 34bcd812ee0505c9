// Package templates holds the texts that people read, the ready-made bodies of webhooks, and the functions that the
// templates of the settings may use. Nothing in it reads files, the environment or the network.
package templates

import (
	"bytes"
	_ "embed"
	"errors"
	htmltemplate "html/template"
	"sync"
	"sync/atomic"
	"text/template"
	"text/template/parse"
)

// The texts of the sinks for people, as they are unless the settings have their own. SlackText is the notification of a
// root message or, with reply, what is said in its thread; SlackBlocks is the root message as a JSON array of blocks.
var (
	//go:embed slack-text.txt
	SlackText string
	//go:embed slack-blocks.json
	SlackBlocks string
	//go:embed email-subject.txt
	EmailSubject string
	//go:embed email-text.txt
	EmailText string
	//go:embed email.html
	EmailHTML string
)

// words are the definitions that all texts share. A template of the settings may use them too, and define its own in
// their place.
//
//go:embed words.txt
var words string

// wordTrees are the words as parsed, by their names. They are by far the largest part of every template, so all share
// them: nothing that executes a text template changes its tree.
var wordTrees = sync.OnceValues(func() (map[string]*parse.Tree, error) {
	t, err := template.New("words").Funcs(functions(nil)).Parse(words)
	if err != nil {
		return nil, err
	}
	trees := make(map[string]*parse.Tree)
	for _, define := range t.Templates() {
		trees[define.Name()] = define.Tree
	}
	return trees, nil
})

// Parse parses a template that may use Funcs and the words, as in {{template "headline" .}}. A field that is not there
// prints as <no value>, except through a function, which takes it for empty. Errors name the template, the line and,
// where text/template knows it, the column.
func Parse(name, text string) (*template.Template, error) {
	t := template.New(name).Option("missingkey=default")
	var depth atomic.Int32
	t.Funcs(functions(func(define string, data any) (string, error) {
		return captured(&depth, func(b *bytes.Buffer) error { return t.ExecuteTemplate(b, define, data) })
	}))
	trees, err := wordTrees()
	if err != nil {
		return nil, err
	}
	for name, tree := range trees {
		if _, err := t.AddParseTree(name, tree); err != nil {
			return nil, err
		}
	}
	return t.Parse(text)
}

// ParseHTML is Parse for HTML: what a template puts in is escaped for the place where it stands.
func ParseHTML(name, text string) (*htmltemplate.Template, error) {
	plain, err := Parse("words of "+name, "")
	if err != nil {
		return nil, err
	}
	t := htmltemplate.New(name).Option("missingkey=default")
	var depth atomic.Int32
	t.Funcs(functions(func(define string, data any) (string, error) { // as plain text, which is then escaped
		return captured(&depth, func(b *bytes.Buffer) error { return plain.ExecuteTemplate(b, define, data) })
	}))
	trees, err := wordTrees()
	if err != nil {
		return nil, err
	}
	for name, tree := range trees {
		if _, err := t.AddParseTree(name, tree.Copy()); err != nil { // which escaping changes
			return nil, err
		}
	}
	return t.Parse(text)
}

// captured is what a define prints. One that includes itself would else end the program.
func captured(depth *atomic.Int32, execute func(*bytes.Buffer) error) (string, error) {
	defer depth.Add(-1)
	if depth.Add(1) > maxDepth {
		return "", errors.New("include goes too deep")
	}
	var b bytes.Buffer
	err := execute(&b)
	return b.String(), err
}

// maxDepth is how deep include may nest, over all uses of one template at a time.
const maxDepth = 200
