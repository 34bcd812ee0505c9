package delivery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"
)

var errDown = errors.New("connection refused")

// Each reason for trying a delivery again has its own name.
func TestFailureReasons(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("post: %w", ErrBlocked), FailedBlocked},
		{fmt.Errorf("%w: %w", ErrBlocked, &RetryAfter{time.Minute, errDown}), FailedBlocked}, // who waits does not help
		{fmt.Errorf("429: %w", &RetryAfter{time.Minute, errDown}), FailedRateLimited},
		{&RetryAfter{Err: errDown}, FailedAgain},
		{fmt.Errorf("%w within 10s (EOF)", errNoAnswer), FailedTimeout},
		{context.DeadlineExceeded, FailedTimeout},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, FailedTimeout},
		{&net.OpError{Op: "dial", Err: errDown}, FailedAgain},
		{errDown, FailedAgain},
	} {
		if got := failure(tt.err); got != tt.want {
			t.Errorf("failure(%v) = %s, want %s", tt.err, got, tt.want)
		}
	}
}
