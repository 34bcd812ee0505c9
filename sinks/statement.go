package sinks

import "fmt"

// An Own is a text of the program's own, such as the key of a setting, and no value.
type Own string

// A statement is an error in the program's own words about what its args hold.
type statement struct {
	err  error
	args []any
}

// says returns a statement. Its format is the program's own, and so is each argument that is an Own.
func says(format string, args ...any) error { return &statement{fmt.Errorf(format, args...), args} }

func (s *statement) Error() string { return s.err.Error() }
func (s *statement) Unwrap() error { return s.err }

// Quoted returns what the arguments of a text say that is not the program's own, and may be a secret in the wrong place.
// Of an error that is all of its text, unless it is known which words are the program's.
func Quoted(args ...any) []string {
	all := []string{}
	for _, arg := range args {
		switch arg := arg.(type) {
		case nil, Own, int:
		case *statement:
			all = append(all, Quoted(arg.args...)...)
		default:
			all = append(all, fmt.Sprint(arg))
		}
	}
	return all
}
