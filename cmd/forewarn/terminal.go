package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// A terminal is a writer to a terminal that nothing printed can steer: whatever it is made of, text from outside cannot
// clear the screen, set its title, turn the direction of writing, or hide what stands before it. Commands that steer the
// terminal themselves write to its file, and make what they write there visible on their own.
type terminal struct {
	file *os.File

	mu   sync.Mutex
	rest []byte // of the last write: the beginning of a character, whose end comes with the next
}

// output is a writer to f: a terminal if f is one, else f itself, because to a file or a pipe data goes as it is.
func output(f *os.File) io.Writer {
	if !term.IsTerminal(int(f.Fd())) {
		return f
	}
	return &terminal{file: f}
}

func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := append(t.rest, p...)
	whole := len(text) - unfinished(text)
	t.rest = append([]byte(nil), text[whole:]...)
	if _, err := io.WriteString(t.file, visible(string(text[:whole]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// unfinished is how many bytes at the end of text may become a character, or the end of a line, with those that follow.
func unfinished(text []byte) int {
	for n := 1; n <= min(len(text), utf8.UTFMax-1); n++ {
		if last := text[len(text)-n:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) || string(last) == "\r" {
				return n
			}
			break
		}
	}
	return 0
}

// visible shows what would steer a terminal as an escape: control characters but for tabs and ends of lines, marks that
// turn the direction of writing, and bytes that are no text. In a JSON value an escape means the character itself.
func visible(text string) string {
	var b strings.Builder
	for i, r := range text {
		end := r == '\r' && strings.HasPrefix(text[i+1:], "\n")
		if r == '\n' || r == '\t' || end || !unicode.IsControl(r) && !unicode.Is(unicode.Bidi_Control, r) {
			b.WriteRune(r) // U+FFFD for a byte that is no text
		} else {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
