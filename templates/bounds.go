package templates

import (
	"errors"
	"io"
)

// The bounds of one execution of a template. They stop what a slip of the pen makes endless. What doesn't write, such as
// an empty range over a large number, isn't stopped: whoever writes the settings is trusted with everything.
const (
	maxOutput  = 8 << 20 // bytes: the body of a webhook may list thousands of events
	maxInclude = 100     // nested calls of include; text/template bounds those of template itself
)

var (
	errTooDeep = errors.New("goes too deep: something in it uses itself")
	errTooLong = errors.New("writes more than 8 MiB; does it repeat something without end?")
)

// A boundedWriter passes on at most left bytes. A write that exceeds them fails as a whole.
type boundedWriter struct {
	w    io.Writer
	left int
}

func (w *boundedWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		w.left = 0
		return 0, errTooLong
	}
	w.left -= len(p)
	return w.w.Write(p)
}
