// Package templates holds the functions that the templates of the settings may use, and later the texts that people
// read. Nothing in it reads files, the environment or the network.
package templates

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"text/template"
)

// Parse parses a template that may use Funcs. A field that is not there prints as <no value>, except through a
// function, which takes it for empty. Errors name the template, the line and, where text/template knows it, the column.
func Parse(name, text string) (*template.Template, error) {
	return template.New(name).Option("missingkey=default").Funcs(Funcs()).Parse(text)
}

// Funcs are the functions of templates, under the names and with the order of arguments that Alertmanager and sprig
// have, so that the value comes last and can be piped. They take any value: what is missing is empty, what is no text is
// printed.
func Funcs() template.FuncMap {
	return template.FuncMap{
		"json":    toJSON,
		"upper":   func(v any) string { return strings.ToUpper(text(v)) },
		"lower":   func(v any) string { return strings.ToLower(text(v)) },
		"join":    join,
		"default": orDefault,
		"replace": func(old, with string, v any) string { return strings.ReplaceAll(text(v), old, with) },
		"trunc":   trunc,
	}
}

// toJSON is v as compact JSON, with nothing escaped for HTML.
func toJSON(v any) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// join puts sep between the items of a list. What is no list is its only item.
func join(sep string, list any) string {
	v := reflect.ValueOf(list)
	if v.Kind() != reflect.Slice && v.Kind() != reflect.Array {
		return text(list)
	}
	items := make([]string, v.Len())
	for i := range items {
		items[i] = text(v.Index(i).Interface())
	}
	return strings.Join(items, sep)
}

// orDefault is value, or instead when value is empty: missing, "", 0, false or a list of nothing.
func orDefault(instead, value any) any {
	if full, ok := template.IsTrue(value); ok && full {
		return value
	}
	return instead
}

// trunc shortens a text to at most n characters, the last of which is then "…".
func trunc(n int, v any) string {
	runes := []rune(text(v))
	if len(runes) <= n {
		return string(runes)
	}
	if n <= 0 {
		return ""
	}
	return string(runes[:n-1]) + "…"
}

func text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}
