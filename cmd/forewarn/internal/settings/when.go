package settings

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/expr-lang/expr/file"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/templates"
)

// exprWords makes messages of the compiler of conditions readable: it also replaces Go's names of types.
var exprWords = strings.NewReplacer("unexpected token EOF", "the condition ends too early",
	`unexpected token Operator("=")`, `unexpected "="; expected "==" to compare`, "unexpected token ", "unexpected ",
	"bad number syntax:", "expected a number, such as 600 for 10 minutes, got",
	"map[string]interface {}", "map", "[]interface {}", "array", "[]string", "array", "interface {}", "any", "float64",
	"float")

// parseWhen compiles the condition of a sink or rule. An error has its position inside the expression.
func parseWhen(doc *document, n *node) (*bridge.When, error) {
	if strings.TrimSpace(n.text) == "" {
		return nil, doc.valueError(n, "when", "a condition such as duration > 10, or no when at all")
	}
	if strings.Contains(n.text, "{{") {
		return nil, doc.errorAt(n.pos, "when: a template; expected a condition without {{ }}, such as duration > 10")
	}
	when, err := bridge.ParseWhen(n.text)
	if err == nil {
		return when, nil
	}
	e, ok := errors.AsType[*file.Error](err)
	if !ok {
		return nil, doc.valueError(n, "when", "a condition that is true or false, such as duration > 10")
	}
	what, at := exprWords.Replace(e.Message), doc.positionIn(n, e.Line, e.Column)
	fields := slices.Sorted(maps.Keys(cloudevent.Fields(event.New())))
	if name, ok := strings.CutPrefix(what, "unknown name "); ok {
		what = unknownWord("name", name, fields, doc.showable(n))
	} else if !doc.showable(n) && quotesOf(what, n.text, fields) {
		what = "not a condition"
	}
	switch {
	case strings.Contains(what, "; expected"), strings.Contains(what, "expected a number"), strings.Contains(what, "; did you"):
	case strings.Contains(what, "mismatched types"):
		what += `; expected types that go together, such as azeventtype == "Reboot" or duration > 10`
	default:
		what += "; expected a condition that is true or false, such as duration > 10"
	}
	return nil, doc.errorAt(at, "when: %s", templates.HideKeys(what, n.text))
}

// quotesOf reports whether a message repeats a word of text that is not a known one.
func quotesOf(message, text string, known []string) bool {
	words := strings.FieldsFunc(message,
		func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	return slices.ContainsFunc(words,
		func(w string) bool { return !slices.Contains(known, w) && strings.Contains(text, w) })
}
