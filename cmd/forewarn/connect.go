package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"text/tabwriter"
	"time"

	"forewarn/bridge"
	"forewarn/bridge/delivery"
	"forewarn/cmd/forewarn/internal/wording"
)

// reached is whether a sink's destination could be reached.
type reached struct {
	Sink    string  `json:"sink"`
	Result  string  `json:"result"` // reached, unreachable, untried
	Answer  string  `json:"answer"`
	Seconds float64 `json:"seconds"`
}

// connect reaches the destinations of all routes at once, without sending anything.
func connect(ctx context.Context, routes []bridge.Route) []reached {
	results := make([]reached, len(routes))
	var all sync.WaitGroup
	for i, r := range routes {
		all.Go(func() { results[i] = connectTo(ctx, r) })
	}
	all.Wait()
	return results
}

func connectTo(ctx context.Context, r bridge.Route) reached {
	c, ok := r.Sink.(delivery.Connecter)
	if !ok {
		return reached{Sink: r.Name, Result: "untried", Answer: "a " + r.Kind + " has nothing to reach"}
	}
	patience := r.Terms.Timeout
	if patience <= 0 {
		patience = connectPatience
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	began := time.Now()
	answer, err := c.Connect(ctx)
	result := reached{Sink: r.Name, Result: "reached", Answer: answer, Seconds: time.Since(began).Round(time.Millisecond).Seconds()}
	if err != nil {
		result.Result, result.Answer = "unreachable", err.Error()
	}
	return result
}

const connectPatience = 10 * time.Second

// errUnreachable is how check --connect ends when a destination could not be reached.
var errUnreachable = exit(exitUnavailable, errors.New("not every destination could be reached"))

func (p *program) printReached(results []reached) error {
	fmt.Fprintln(p.out)
	t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SINK\tRESULT\tSECONDS\tANSWER")
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%s\t%.3f\t%s\n", r.Sink, r.Result, r.Seconds, wording.Printable(r.Answer))
	}
	return t.Flush()
}
