package main

import (
	"io"
	"os"
	"testing"
)

// A terminal gets ordinary text unchanged, also characters that are written in pieces, and escapes instead of control
// characters.
func TestTerminalWritesWholeCharacters(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"größer als 3 €, 👩‍🔧\tja\n", "größer als 3 €, 👩‍🔧\tja\n"},
		{"a line\r\nanother", "a line\r\nanother"},
		{"over\rwritten", `over\u000dwritten`},
		{"\x1b[2J\x07\x7f\u009b2J\u202e\u2067", `\u001b[2J\u0007\u007f\u009b2J\u202e\u2067`},
		{"8 bits: \x9b2J.", "8 bits: \ufffd2J."},
	} {
		for _, size := range []int{1, 2, 3, len(tt.text)} {
			screen, file, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			w := &terminal{file: file}
			for rest := tt.text; rest != ""; {
				n := min(size, len(rest))
				if done, err := io.WriteString(w, rest[:n]); done != n || err != nil {
					t.Fatalf("Write(%q) = %d, %v", rest[:n], done, err)
				}
				rest = rest[n:]
			}
			file.Close()
			if got, err := io.ReadAll(screen); string(got) != tt.want {
				t.Errorf("%q written in pieces of %d shows %q (%v), want %q", tt.text, size, got, err, tt.want)
			}
			screen.Close()
		}
	}
}
