package sinks

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/vm"

	"forewarn/templates"
)

// A condition is an expression over an answer of 2xx: whether the destination has taken the message, or whether somebody
// must act before it does. Some services have their failures inside a 200. The zero value is no condition.
type condition struct {
	program *vm.Program
	text    string
}

// An answered is what such an expression sees.
type answered struct {
	Status  int               `expr:"status"`
	Headers map[string]string `expr:"headers"` // the first value of each, by its name as in Content-Type
	JSON    any               `expr:"json"`    // nil if the body isn't JSON
	Text    string            `expr:"text"`
}

// parseCondition compiles the expression src; "" is the zero value. example is one, for people.
func parseCondition(src, example string) (condition, error) {
	if src == "" {
		return condition{}, nil
	}
	program, err := expr.Compile(src, expr.Env(answered{}), expr.AsBool())
	if err != nil {
		return condition{}, fmt.Errorf("%s; expected an expression over status, headers, json and text, such as %s",
			condition{text: src}.problem(err), example)
	}
	return condition{program, src}, nil
}

// holds reports whether the condition is true of an answer. One that is none is true of every answer if without is.
func (c condition) holds(r response, without bool) (bool, error) {
	if c.program == nil {
		return without, nil
	}
	a := answered{Status: r.status, Headers: map[string]string{}, Text: r.body}
	for name := range r.header {
		a.Headers[http.CanonicalHeaderKey(name)] = r.header.Get(name)
	}
	notJSON := json.Unmarshal([]byte(r.body), &a.JSON)
	yes, err := expr.Run(c.program, a)
	switch {
	case err != nil && notJSON != nil && strings.Contains(c.text, "json"): // the error says only that nil has no fields
		return false, errors.New("the answer isn't JSON")
	case err != nil:
		return false, errors.New(c.problem(err))
	}
	return yes == true, nil
}

// problem returns what an error says of the expression, without the keys in it.
func (c condition) problem(err error) string {
	first, _, _ := strings.Cut(err.Error(), "\n") // the rest repeats the expression
	return templates.HideKeys(first, c.text)
}
