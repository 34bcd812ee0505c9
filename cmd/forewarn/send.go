package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge"
)

// sent is what came of a test message at one sink.
type sent struct {
	Sink      string  `json:"sink"`
	Result    string  `json:"result"` // accepted, again, blocked, rejected
	Answer    string  `json:"answer"`
	Seconds   float64 `json:"seconds"`
	WouldPass bool    `json:"wouldPass"` // whether a real event like the sample would pass the sink's filter
}

func (p *program) sendCommand() *cobra.Command {
	var names []string
	var sample string
	c := p.outputFlag(&cobra.Command{
		Use: "send", Short: "Send a message marked TEST through the real sinks",
		Long: `Sends a message marked TEST through the sinks of the settings, one attempt each, and prints what the destinations
answered. It is laid out as the real one for the sample would be; its type is ` + bridge.BridgeTest + `. The outbox is
not touched. Exit code: 0 when all accepted it, else that of the worst: 1 rejected, 69 blocked, 75 to be tried again.`,
		Example: "  forewarn send\n  forewarn send --sink ops --sample preempt -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := p.settings(p.log())
			if err != nil {
				return err
			}
			routes, err := chosen(s.Routes, names)
			if err != nil {
				return err
			}
			if len(names) == 0 {
				routes = p.withoutActing(routes)
			}
			o := p.observer(c.Context(), s)
			picked, ok := bridge.NewSample(sample, o.Name, time.Now())
			if !ok {
				return exit(exitUsage, unknownSample(sample))
			}
			results := []sent{}
			worst := exitOK
			for _, r := range routes {
				result, code, err := sendTo(c.Context(), r, picked, o)
				if err != nil {
					return err
				}
				results = append(results, result)
				if rank(code) > rank(worst) {
					worst = code
				}
			}
			if err := p.printSent(results, sample); err != nil {
				return err
			}
			if worst != exitOK {
				return exit(worst, errors.New("not every sink accepted the test"))
			}
			return nil
		},
	})
	c.Flags().StringArrayVar(&names, "sink", nil, "only this sink; repeat it for more (default all but exec)")
	c.Flags().StringVar(&sample, "sample", "reboot", "which message: "+strings.Join(bridge.SampleNames, ", "))
	return c
}

// rank orders the exit codes of send by how bad they are.
func rank(code int) int {
	return slices.Index([]int{exitOK, exitTryAgain, exitUnavailable, exitFailed}, code)
}

func unknownSample(name string) error {
	return fmt.Errorf("--sample %s: expected one of %s", name, strings.Join(bridge.SampleNames, ", "))
}

// chosen are the routes of those names, all without any.
func chosen(routes []bridge.Route, names []string) ([]bridge.Route, error) {
	if len(names) == 0 {
		if len(routes) == 0 {
			return nil, exit(exitSettings, errors.New("the settings have no sinks"))
		}
		return routes, nil
	}
	var picked []bridge.Route
	for _, name := range names {
		i := slices.IndexFunc(routes, func(r bridge.Route) bool { return r.Name == name })
		if i < 0 {
			known := make([]string, len(routes))
			for i, r := range routes {
				known[i] = r.Name
			}
			return nil, exit(exitUsage, fmt.Errorf("--sink %s: the settings have no such sink; they have %s", name, strings.Join(known, ", ")))
		}
		picked = append(picked, routes[i])
	}
	return picked, nil
}

// withoutActing leaves out the sinks that do something rather than tell, and says so.
func (p *program) withoutActing(routes []bridge.Route) []bridge.Route {
	return slices.DeleteFunc(slices.Clone(routes), func(r bridge.Route) bool {
		if r.Terms.Acts {
			fmt.Fprintf(p.err, "%s is left out, because %s does something; --sink %s runs it\n", r.Name, r.Kind, r.Name)
		}
		return r.Terms.Acts
	})
}

// observer is this VM as the running forewarn knows it, or else as far as the settings and the host tell.
func (p *program) observer(ctx context.Context, s *settings) bridge.Observer {
	var st bridge.Status
	if p.askControl(ctx, s, "/status", nil, &st) == nil && st.Observer.Name != "" {
		return st.Observer
	}
	name := s.IMDS.VMName
	if name == "" {
		name, _ = os.Hostname()
	}
	return bridge.Observer{Name: name}
}

// sendTo makes one attempt. The code is the exit code of its result.
func sendTo(ctx context.Context, r bridge.Route, sample bridge.Sample, o bridge.Observer) (sent, int, error) {
	now := time.Now()
	ce, err := sample.Test(o, now)
	if err != nil {
		return sent{}, 0, err
	}
	word, err := told(r.Filter, sample, o, now)
	if err != nil {
		return sent{}, 0, err
	}
	result := sent{Sink: r.Name, WouldPass: strings.HasPrefix(word, "told")}
	if r.Terms.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.Terms.Timeout, fmt.Errorf("no answer within %v", r.Terms.Timeout))
		defer cancel()
	}
	answer, err := r.Sink.Deliver(ctx, []bridge.Delivery{{Event: ce, Attempt: 1}})
	result.Seconds = time.Since(now).Round(time.Millisecond).Seconds()
	switch {
	case err == nil:
		result.Result, result.Answer = "accepted", answer.Status
		return result, exitOK, nil
	case errors.Is(err, bridge.ErrRejected):
		result.Result, result.Answer = "rejected", err.Error()
		return result, exitFailed, nil
	case errors.Is(err, bridge.ErrBlocked):
		result.Result, result.Answer = "blocked", err.Error()
		return result, exitUnavailable, nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	result.Result, result.Answer = "again", err.Error()
	return result, exitTryAgain, nil
}

func (p *program) printSent(results []sent, sample string) error {
	if p.output == "json" {
		return printJSON(p.out, results)
	}
	t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SINK\tRESULT\tSECONDS\tA REAL "+strings.ToUpper(sample)+"\tANSWER")
	for _, r := range results {
		passes := "would be told"
		if !r.WouldPass {
			passes = "would be filtered out"
		}
		fmt.Fprintf(t, "%s\t%s\t%.3f\t%s\t%s\n", r.Sink, r.Result, r.Seconds, passes, printable(r.Answer))
	}
	return t.Flush()
}
