package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/wording"
)

// resultBlocked is the result of a sink that accepts nothing until somebody acts. People read "needs you".
const resultBlocked = "blocked"

// A sendResult is the result of a test message at one sink.
type sendResult struct {
	Sink      string  `json:"sink"`
	Result    string  `json:"result"` // accepted, again, blocked, rejected
	Answer    string  `json:"answer"`
	Seconds   float64 `json:"seconds"`
	WouldPass bool    `json:"wouldPass"` // a real event like the sample would pass the sink's filter

	FilteredBy string `json:"filteredBy,omitempty"` // the key of the filter that keeps it out
	Muted      bool   `json:"muted,omitempty"`      // it would wait until a mute ends
}

func (p *program) sendCommand() *cobra.Command {
	var req sampleRequest
	c := p.outputFlag(&cobra.Command{
		Use: "send", Short: "Send a message marked TEST through the real sinks",
		Long: `Sends a message marked TEST through the sinks of the settings, one attempt each, and prints what the
destinations answered. A sink for automation, such as exec, starts nothing unless --sink names it.

The message looks like the real one for the sample; its type is ` + cloudevent.BridgeTest + `. The
outbox is not touched.

As root, send switches to the owner of the state directory, so it has the same rights as the service.

Exit code: 0 if every sink accepted it, else the worst: 1 rejected, 69 it needs you, 75 try again.`,
		Example: "  sudo forewarn send\n  forewarn send --sink ops --sample preempt -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p.chooseText(c)
			if p.output == "json" {
				p.sinkOut = p.err // so that standard output is one JSON value
			}
			routes, o, err := p.chosenRoutes(c.Context(), &req)
			if err != nil {
				return err
			}
			sample, err := req.newSample(o)
			if err == nil {
				err = req.promise(&sample, o, time.Now())
			}
			if err != nil {
				return err
			}
			if len(req.sinks) == 0 {
				routes = p.withoutActingSinks(routes)
			}
			results := []sendResult{}
			worst := exitOK
			for _, r := range routes {
				result, code, err := sendTo(c.Context(), r, sample, o)
				if err != nil {
					return err
				}
				e := sample.Change.Event
				result.Muted = slices.ContainsFunc(req.mutes, func(m *bridge.Mute) bool {
					return m.Covers(r.Name, r.Terms.People, &delivery.Message{AzureType: e.Type, VMs: e.Resources})
				})
				results = append(results, result)
				if rank(code) > rank(worst) {
					worst = code
				}
			}
			if err := p.printSent(results, req.sample); err != nil {
				return err
			}
			if worst != exitOK {
				return exit(worst, errors.New("not every sink accepted the test; forewarn help sinks explains the results"))
			}
			return nil
		},
	})
	return req.flags(c)
}

// rank orders the exit codes of send from good to bad.
func rank(code int) int {
	return slices.Index([]int{exitOK, exitTryAgain, exitUnavailable, exitFailed}, code)
}

// withoutActingSinks removes the sinks that run something instead of sending a message, and says so.
func (p *program) withoutActingSinks(routes []bridge.Route) (others []bridge.Route) {
	for _, r := range routes {
		if r.Terms.Acts {
			fmt.Fprintf(p.err, "%s left out, because it starts something; to start it, give --sink %s\n", r.Name, r.Name)
			continue
		}
		others = append(others, r)
	}
	return others
}

// sendTo makes one attempt. The int is the exit code for its result.
func sendTo(ctx context.Context, r bridge.Route, sample cloudevent.Sample, o imds.Observer) (sendResult, int, error) {
	now := time.Now()
	ce, err := sample.Test(o, now)
	if err != nil {
		return sendResult{}, 0, err
	}
	filtered, err := filterResult(r.Filter, sample, o, now)
	if err != nil {
		return sendResult{}, 0, err
	}
	result := sendResult{Sink: r.Name, WouldPass: strings.HasPrefix(filtered, "told")}
	if !result.WouldPass {
		result.FilteredBy = strings.TrimPrefix(filtered, "no: ")
	}
	if r.Terms.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.Terms.Timeout,
			fmt.Errorf("no answer within %s", wording.Duration(r.Terms.Timeout)))
		defer cancel()
	}
	answer, err := r.Sink.Deliver(ctx, []delivery.Delivery{{Event: ce, Attempt: 1}})
	result.Seconds = time.Since(now).Round(time.Millisecond).Seconds()
	switch {
	case err == nil:
		result.Result, result.Answer = "accepted", answer.Status
		return result, exitOK, nil
	case errors.Is(err, delivery.ErrRejected):
		result.Result, result.Answer = "rejected", err.Error()
		return result, exitFailed, nil
	case errors.Is(err, delivery.ErrBlocked):
		result.Result, result.Answer = resultBlocked, err.Error()
		return result, exitUnavailable, nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	result.Result, result.Answer = "again", err.Error()
	return result, exitTryAgain, nil
}

func (p *program) printSent(results []sendResult, sample string) error {
	if p.output == "json" {
		return wording.PrintJSON(p.out, results)
	}
	t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SINK\tRESULT\tSECONDS\tA REAL "+strings.ToUpper(sample)+"\tANSWER")
	for _, r := range results {
		passes := "would be sent"
		switch {
		case !r.WouldPass:
			passes = "would not be sent: " + r.FilteredBy
		case r.Muted:
			passes = "would wait: muted"
		}
		words := r.Result
		if words == resultBlocked {
			words = "needs you"
		}
		fmt.Fprintf(t, "%s\t%s\t%.3f\t%s\t%s\n", r.Sink, words, r.Seconds, passes, wording.ErrorWords(r.Answer))
	}
	return t.Flush()
}
