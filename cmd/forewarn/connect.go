package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"text/tabwriter"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

// A connectResult says whether the destination of a sink could be reached.
type connectResult struct {
	Sink    string  `json:"sink"`
	Result  string  `json:"result"` // "reached", "refused", "unreachable" or "untried"
	Answer  string  `json:"answer"`
	Seconds float64 `json:"seconds"`
}

// failed reports whether nothing could be delivered there.
func (r connectResult) failed() bool { return r.Result == "unreachable" || r.Result == "refused" }

// connect connects to the destinations of all routes concurrently, without sending anything.
func connect(ctx context.Context, routes []bridge.Route) []connectResult {
	results := make([]connectResult, len(routes))
	var all sync.WaitGroup
	for i, r := range routes {
		all.Go(func() { results[i] = connectTo(ctx, r) })
	}
	all.Wait()
	return results
}

func connectTo(ctx context.Context, r bridge.Route) connectResult {
	c, ok := r.Sink.(delivery.Connecter)
	if !ok {
		return connectResult{Sink: r.Name, Result: "untried", Answer: "a " + r.Kind + " sink has nothing to connect to"}
	}
	timeout := r.Terms.Timeout
	if timeout <= 0 {
		timeout = connectTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %s", wording.Duration(timeout)))
	defer cancel()
	began := time.Now()
	answer, err := c.Connect(ctx)
	result := connectResult{
		Sink: r.Name, Result: "reached", Answer: answer, Seconds: time.Since(began).Round(time.Millisecond).Seconds(),
	}
	switch {
	case err != nil && answer != "":
		result.Result, result.Answer = "refused", answer+", but "+delivery.WithoutClass(err.Error())
	case err != nil:
		result.Result, result.Answer = "unreachable", delivery.WithoutClass(err.Error())
	}
	return result
}

// connectToState reports whether the outbox could be written. It leaves nothing behind.
func connectToState(_ context.Context, s *settings.Settings) connectResult {
	began, dir := time.Now(), string(s.State)
	for _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir); _, err = os.Stat(dir) {
		dir = filepath.Dir(dir) // run makes what is missing
	}
	tried := dir
	f, err := os.CreateTemp(dir, ".forewarn-*")
	if err == nil {
		_, err = f.Write(make([]byte, os.Getpagesize())) // on a full disk only this fails
		err = errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
	}
	if err == nil {
		tried = filepath.Join(string(s.State), "outbox.db")
		f, err = os.OpenFile(tried, os.O_RDWR, 0)
		if err == nil {
			err = f.Close()
		} else if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	r := connectResult{
		Sink: "(state)", Result: "reached", Answer: string(s.State) + " can be written to",
		Seconds: time.Since(began).Round(time.Millisecond).Seconds(),
	}
	if err != nil {
		if bare, ok := errors.AsType[*fs.PathError](err); ok { // without a name that was made up
			err = bare.Err
		}
		r.Result, r.Answer = "unreachable", fmt.Sprintf("%s: %v", tried, err)
	}
	return r
}

// connectTimeout is the timeout for a sink without one.
const connectTimeout = 10 * time.Second

// errUnreachable is the error of check --connect when a destination could not be reached, or refuses.
var errUnreachable = exit(exitUnavailable, errors.New("not every destination can be delivered to"))

func (p *program) printReached(results []connectResult) error {
	fmt.Fprintln(p.out)
	t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SINK\tRESULT\tSECONDS\tANSWER")
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%s\t%.3f\t%s\n", r.Sink, r.Result, r.Seconds, wording.Printable(r.Answer))
	}
	return t.Flush()
}
