package sinks

import (
	"slices"
	"strings"
)

// An output keeps the first and the last max/2 bytes that a program writes. It is for one goroutine at a time.
type output struct {
	max  int
	kept []byte
	cut  bool // bytes are missing from the middle of kept
}

// Write never fails.
func (o *output) Write(p []byte) (int, error) {
	o.kept = append(o.kept, p...)
	if excess := len(o.kept) - o.max; excess > 0 {
		o.kept, o.cut = slices.Delete(o.kept, o.max/2, o.max/2+excess), true
	}
	return len(p), nil
}

// text returns the part of the output that is logged: printable lines without secrets, at most maxOutput bytes.
func (o *output) text(redact *redactor) string {
	if !o.cut {
		all := lines(redact, redact.text(string(o.kept)))
		if len(all) > maxOutput {
			all = shorten(all, all)
		}
		return all
	}
	head, tail := redact.text(string(o.kept[:o.max/2])), redact.text(string(o.kept[o.max/2:]))
	// The cut may be inside a secret.
	head, tail = head[:max(0, len(head)-redact.longest)], tail[min(len(tail), redact.longest):]
	return shorten(lines(redact, head), lines(redact, tail))
}

// shorten returns the beginning of head and the end of tail, together at most maxOutput bytes, with … between them.
func shorten(head, tail string) string {
	const gap, half = "\n…\n", maxOutput/2 - 8
	head = strings.ToValidUTF8(head[:min(len(head), half)], "")
	tail = strings.ToValidUTF8(tail[max(0, len(tail)-half):], "")
	return head + gap + tail
}

// lines returns the lines of a text in a form that may be shown, without empty ones.
func lines(redact *redactor, text string) string {
	var all []string
	for line := range strings.Lines(text) {
		if line = redact.line(line, false, len(text)); line != "" {
			all = append(all, line)
		}
	}
	return strings.Join(all, "\n")
}
