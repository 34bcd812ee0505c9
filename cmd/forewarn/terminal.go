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

// A terminal writes to a terminal and escapes control characters: text from outside cannot clear the screen, set its
// title, reverse the direction of writing or hide other text. Commands that control the terminal themselves write to
// its file, and call escapeControls for the text that they print.
type terminal struct {
	file *os.File

	mu   sync.Mutex // guards rest
	rest []byte     // an incomplete character at the end of the last write
}

// output returns a terminal if f is one. Files and pipes are returned as they are: they get data unchanged.
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
	whole := len(text) - incompleteSuffix(text)
	t.rest = append([]byte(nil), text[whole:]...)
	if _, err := io.WriteString(t.file, escapeControls(string(text[:whole]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// incompleteSuffix returns the number of bytes at the end of text that may be the start of a character or of "\r\n".
func incompleteSuffix(text []byte) int {
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

// escapeControls replaces what would control a terminal by an escape such as \u001b: control characters except tabs and
// line ends, and marks that change the direction of writing. Invalid bytes become U+FFFD. Inside a JSON string, the
// escape stands for the same character.
func escapeControls(text string) string {
	var b strings.Builder
	for i, r := range text {
		end := r == '\r' && strings.HasPrefix(text[i+1:], "\n")
		if r == '\n' || r == '\t' || end || !unicode.IsControl(r) && !unicode.Is(unicode.Bidi_Control, r) {
			b.WriteRune(r) // U+FFFD for an invalid byte
		} else {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
