package sinks

import "slices"

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

// text returns the output as it is logged: printable lines, unless they repeat a secret.
func (o *output) text(redact *redactor) string {
	text := string(o.kept)
	if o.cut {
		text = text[:o.max/2] + outputGap + text[o.max/2:]
	}
	return redact.lines(text)
}
