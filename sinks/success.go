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

// A success is an expression over an answer that says whether the destination has taken the message. Some services have
// their failures inside a 200. The zero value takes every answer.
type success struct {
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

// parseSuccess compiles the expression src; "" is the zero value.
func parseSuccess(src string) (success, error) {
	if src == "" {
		return success{}, nil
	}
	program, err := expr.Compile(src, expr.Env(answered{}), expr.AsBool())
	if err != nil {
		return success{}, fmt.Errorf("%s; expected an expression over status, headers, json and text, such as "+
			"json.errors == false", success{text: src}.problem(err))
	}
	return success{program, src}, nil
}

// check returns an error that says why the answer isn't one of success.
func (s success) check(r response) error {
	if s.program == nil {
		return nil
	}
	a := answered{Status: r.status, Headers: map[string]string{}, Text: r.body}
	for name := range r.header {
		a.Headers[http.CanonicalHeaderKey(name)] = r.header.Get(name)
	}
	_ = json.Unmarshal([]byte(r.body), &a.JSON) // what isn't JSON is nil
	yes, err := expr.Run(s.program, a)
	if err != nil {
		return fmt.Errorf("the expression of success fails: %s", s.problem(err))
	}
	if yes != true {
		return errors.New("success doesn't hold")
	}
	return nil
}

// problem returns what an error says of the expression, without the keys in it.
func (s success) problem(err error) string {
	first, _, _ := strings.Cut(err.Error(), "\n") // the rest repeats the expression
	return templates.HideKeys(first, s.text)
}
