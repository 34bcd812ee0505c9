package imdstest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

const eventsURL = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"

func request(t *testing.T, ctx context.Context, method, url string, header ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Metadata", "true")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// An answer through RoundTripper looks as it does over a socket.
func TestRoundTripperShowsLengthsLikeANetwork(t *testing.T) {
	for _, tt := range []struct {
		name   string
		fault  Fault
		length int64
		read   int
		err    error
	}{
		{"healthy", Fault{}, 37, 37, nil},
		{"empty", Fault{Empty: true}, 0, 0, nil},
		{"truncated", Fault{Truncate: 10}, 37, 10, io.ErrUnexpectedEOF},
		{"truncated where it ends", Fault{Truncate: 37}, 37, 37, nil},
		{"ended by the connection", Fault{NoLength: true}, -1, 37, nil},
		{"cut unnoticeably", Fault{NoLength: true, Truncate: 10}, -1, 10, nil},
		{"length too great", Fault{ContentLength: 50}, 50, 37, io.ErrUnexpectedEOF},
		{"length too small", Fault{ContentLength: 5}, 5, 5, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Options{})
				s.SetFault(tt.fault)
				resp, err := s.RoundTripper().RoundTrip(request(t, t.Context(), "GET", eventsURL))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				if resp.ContentLength != tt.length || len(resp.TransferEncoding) != 0 {
					t.Errorf("length %d, encoding %v, want %d and none", resp.ContentLength, resp.TransferEncoding, tt.length)
				}
				if len(body) != tt.read || !errors.Is(err, tt.err) {
					t.Errorf("read %q, %v, want %d bytes and %v", body, err, tt.read, tt.err)
				}
			})
		})
	}
}

// An answer that hangs ends with the context of its request, and leaves no goroutine behind.
func TestHangingAnswerEndsWithTheRequest(t *testing.T) {
	for _, f := range []Fault{{Hang: true}, {Delay: time.Minute}} {
		synctest.Test(t, func(t *testing.T) {
			s := New(Options{})
			s.SetFault(f)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			began := time.Now()
			_, err := s.RoundTripper().RoundTrip(request(t, ctx, "GET", eventsURL))
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 10*time.Second {
				t.Errorf("%+v: %v after %v, want a deadline exceeded after 10s", f, err, time.Since(began))
			}
		})
	}
}
