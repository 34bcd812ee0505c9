package chain

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// A Report is the result of a verification.
type Report struct {
	Intact bool   `json:"intact"`
	Files  int    `json:"files"`          // that were read
	Lines  int    `json:"lines"`          // that belong to the chain
	From   string `json:"from,omitempty"` // chainprevious of the first line; Start if the chain begins there
	Head   string `json:"head,omitempty"` // chainhash of the last line

	// The first line that does not belong to the chain, if it is not intact.
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// A Verifier checks that files hold one chain. The zero value is ready to use.
type Verifier struct {
	report Report
	before string // the file of the last line
}

// Report returns what was found until now.
func (v *Verifier) Report() Report {
	r := v.report
	r.Intact = r.Problem == ""
	return r
}

// Read reads the next file. It returns false once a line does not belong to the chain, and an error only if it cannot
// read.
func (v *Verifier) Read(name string, in io.Reader) (intact bool, err error) {
	v.report.Files++
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	lines.Split(withNewline)
	n := 1
	for ; v.report.Problem == "" && lines.Scan(); n++ {
		v.refuse(name, n, v.check(name, n, lines.Bytes()))
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		v.refuse(name, n, fmt.Sprintf("it is longer than %d MiB, which forewarn does not write", maxLine>>20))
	case err != nil:
		return false, fmt.Errorf("%s:%d: %w", name, n, err)
	}
	return v.report.Problem == "", nil
}

// withNewline splits a text into lines with their newlines, which the last one may lack.
func withNewline(data []byte, atEOF bool) (advance int, token []byte, err error) {
	n := bytes.IndexByte(data, '\n') + 1
	if n == 0 && atEOF {
		n = len(data)
	}
	if n == 0 {
		return 0, nil, nil
	}
	return n, data[:n], nil
}

// refuse notes the problem of a line, if it has one.
func (v *Verifier) refuse(name string, n int, problem string) {
	if problem != "" {
		v.report.File, v.report.Line, v.report.Problem = name, n, problem
	}
}

// check takes a line into the chain, or returns why it does not belong there.
func (v *Verifier) check(name string, n int, line []byte) (problem string) {
	text, whole := bytes.CutSuffix(line, []byte("\n"))
	previous, hash := attributes(text)
	switch {
	case hash == "" && !whole:
		return "it is incomplete: cut off, or forewarn was stopped while writing it"
	case hash == "" && v.report.Lines == 0:
		return "it has no chainhash at its end: it was changed, or the file was written without chain: true"
	case hash == "":
		return "it has no chainhash at its end: it was changed or added"
	case hashOf(text[:len(text)-len(hash)-len(beforeHash)-len(end)+1]) != hash:
		return "it was changed: its content does not have its chainhash"
	case !whole:
		return "its newline is missing: cut off, or forewarn was stopped while writing it"
	case v.report.Lines > 0 && previous != v.report.Head:
		return v.gap(name, n, previous)
	case v.report.Lines == 0:
		v.report.From = previous
	}
	v.report.Lines++
	v.report.Head, v.before = hash, name
	return ""
}

// gap describes a line that does not follow the one before.
func (v *Verifier) gap(name string, n int, previous string) string {
	text := fmt.Sprintf("it does not follow line %d: that line was changed, or one was left out, added or moved", n-1)
	if n == 1 {
		text = "it does not follow the last line of " + v.before +
			": lines or a file are missing, or the files are in the wrong order"
	}
	if previous == Start {
		text += "; a new chain begins here"
	}
	return text
}
