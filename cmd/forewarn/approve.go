package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"forewarn/bridge"
	"forewarn/bridge/clock"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

const (
	approvalLimit = 30 * time.Second // time limit for the endpoint to answer
	minPrefix     = 8                // characters of an EventId that identify an event
)

// An approvalResult is the outcome of approving one event, as approve prints it.
type approvalResult struct {
	Event   string  `json:"event"`
	Result  string  `json:"result"` // approved, refused, unanswered, moot
	Status  string  `json:"status,omitempty"`
	Error   string  `json:"error,omitempty"`
	Effect  string  `json:"effect"`  // started, gone, none
	Seconds float64 `json:"seconds"` // until the document showed the effect
}

func (p *program) approveCommand() *cobra.Command {
	var yes, anyVM bool
	var timeout time.Duration
	c := p.outputFlag(&cobra.Command{
		Use: "approve EVENT-ID...", Short: "Let Azure start an event now instead of at the end of its notice",
		Long: `Shows the events with these ids, asks for confirmation, and approves them. Azure then starts them at
once, on every VM that they name. An approval can't be taken back. The first 8 characters of an id
are enough.

An event is refused if it has started, if it has changed since it was shown, or if it doesn't name
this VM (but see --any-vm). The outbox records who approved it. If Azure doesn't answer, it may have
accepted the approval all the same, so forewarn still waits for the effect.

Exit code: 0 when the document shows the effect, 1 refused, 65 no such event, 69 no answer from the
endpoint, 75 no effect in time.`,
		Example: "  forewarn approve 602d9444\n  forewarn approve 602d9444 --yes --timeout 3m -o json",
		Args:    cobra.MinimumNArgs(1), Annotations: map[string]string{argumentSource: "forewarn status shows the ids"},
		RunE: func(c *cobra.Command, ids []string) error {
			if timeout < 0 {
				return exit(exitUsage, fmt.Errorf("--timeout %s: expected 0 or more", wording.Duration(timeout)))
			}
			_, s, err := p.running()
			if err != nil {
				return err
			}
			if err := p.fillFromRunning(c.Context(), s); err != nil {
				return err
			}
			if err := noRelay(s); err != nil {
				return err
			}
			client := imds.NewClient(s.IMDS.Endpoint, s.IMDS.APIVersion, p.log(), nil)
			ctx, cancel := context.WithTimeoutCause(c.Context(), approvalLimit, fmt.Errorf("no answer within %v", approvalLimit))
			defer cancel()
			doc, err := client.Document(ctx)
			if err != nil {
				return exit(exitUnavailable,
					fmt.Errorf("ask %s: %w; %s", s.IMDS.Endpoint, err, imds.EndpointHint(s.IMDS.Endpoint)))
			}
			events, err := chosenEvents(doc, ids)
			if err != nil {
				return err
			}
			self, err := p.mayApprove(ctx, s, client, doc, events, anyVM)
			if err != nil {
				return err
			}
			p.printEvents(events, self, p.zone(ctx, s))
			if !yes {
				if err := p.confirm(); err != nil {
					return err
				}
			}
			results := p.approveEvents(c.Context(), s, client, events, timeout)
			return p.printApprovals(results)
		},
	})
	f := c.Flags()
	f.BoolVar(&yes, "yes", false, "don't ask for confirmation")
	f.BoolVar(&anyVM, "any-vm", false, "also approve events that don't name this VM")
	f.DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the effect")
	return c
}

// chosenEvents returns the events of the document whose ids begin with one of ids.
func chosenEvents(doc imds.Document, ids []string) (events []imds.Event, err error) {
	for _, id := range ids {
		if len(id) < minPrefix {
			return nil, exit(exitUsage, fmt.Errorf("%s: expected at least the first %d characters of an EventId", id, minPrefix))
		}
		var found []imds.Event
		for _, e := range doc.Events {
			if strings.HasPrefix(e.ID, imds.Upper(id)) {
				found = append(found, e)
			}
		}
		switch {
		case len(found) == 0:
			return nil, exit(exitData, fmt.Errorf("%s: Azure lists no such event now; forewarn events shows its list", id))
		case len(found) > 1:
			return nil, exit(exitData, fmt.Errorf("%s: %d events have this prefix; give more of the id", id, len(found)))
		case !slices.ContainsFunc(events, func(e imds.Event) bool { return e.ID == found[0].ID }):
			events = append(events, found[0])
		}
	}
	return events, nil
}

// mayApprove refuses events of the document that have started or are in doubt and, without anyVM, those that do not name
// this VM. It returns this VM's name, which may be "" with anyVM.
func (p *program) mayApprove(
	ctx context.Context, s *settings.Settings, client *imds.Client, doc imds.Document, events []imds.Event, anyVM bool,
) (self string, err error) {
	self = s.IMDS.VMName
	if self == "" {
		o, err := client.Instance(ctx)
		if err != nil && !anyVM {
			return "", fmt.Errorf("cannot tell whether the event names this VM, because its own name is unknown: %w; "+
				"set imds.vm_name, or give --any-vm", err)
		}
		self = o.Name
	}
	for _, e := range events {
		_, doubt := doc.Confirm(e.ID, e.Digest())
		switch {
		case e.Status == imds.StatusStarted:
			return "", fmt.Errorf("%s: refused: it has started already", e.ID)
		case doubt != nil:
			return "", fmt.Errorf("%s: refused: %w", e.ID, doubt)
		case !anyVM && !e.Affects(self):
			return "", fmt.Errorf("%s: refused: it names %s, not this VM (%s); to approve it all the same, give --any-vm",
				e.ID, wording.Printable(vmNames(e.Resources)), wording.Printable(self))
		}
	}
	return self, nil
}

// vmNames lists VMs for a sentence.
func vmNames(vms []string) string {
	if len(vms) == 0 {
		return "no VM"
	}
	return strings.Join(vms, ", ")
}

// printEvents shows the events to be approved, with times in the zone, and the VMs other than self on which they start too.
func (p *program) printEvents(events []imds.Event, self string, zone *time.Location) {
	t := tabwriter.NewWriter(p.err, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "EVENT\tTYPE\tASKED FOR BY\tVMS\tNOT BEFORE")
	for _, e := range events {
		notBefore := wording.NoTime(e.Raw)
		if !e.NotBefore.IsZero() {
			due := "due now"
			if left := time.Until(e.NotBefore); left >= time.Second {
				due = "in " + wording.Span(left)
			}
			notBefore = clock.Due(e.NotBefore, time.Now(), zone) + ", " + due
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", e.ID, wording.Printable(e.Type),
			wording.Printable(cmp.Or(e.Source, "-")), wording.Printable(vmNames(e.Resources)), notBefore)
	}
	t.Flush()
	for _, e := range events {
		others := slices.DeleteFunc(slices.Clone(e.Resources), func(vm string) bool {
			return (imds.Event{Resources: []string{vm}}).Affects(self)
		})
		if len(others) > 0 {
			fmt.Fprintf(p.err, "%.8s ALSO STARTS ON: %s\n", e.ID, wording.Printable(vmNames(others)))
		}
	}
}

// confirm asks on the terminal whether to approve; any answer but yes is an error.
func (p *program) confirm() error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return exit(exitUsage, errors.New("cannot ask for confirmation without a terminal; give --yes to approve without it"))
	}
	fmt.Fprint(p.err, "Azure starts this at once, on every VM named. Approve? [y/N] ")
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return errors.New("not approved")
	}
	return nil
}

// approveEvents approves one event after the other, then waits until the document shows that each has started. An
// interrupt ends the wait; what happened so far is still recorded and returned.
func (p *program) approveEvents(
	ctx context.Context, s *settings.Settings, client *imds.Client, events []imds.Event, timeout time.Duration,
) []approvalResult {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	began := time.Now()
	results := make([]approvalResult, len(events))
	for i, e := range events {
		results[i] = p.approveEvent(ctx, s, client, e)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for i, r := range results {
		if r.Result == cloudevent.ResultApproved || r.Result == cloudevent.ResultUnanswered {
			results[i].Effect = awaitEffect(ctx, client, r.Event)
		}
		results[i].Seconds = time.Since(began).Round(100 * time.Millisecond).Seconds()
	}
	return results
}

// approveEvent asks the running forewarn to approve the event, or approves it here if none runs.
func (p *program) approveEvent(ctx context.Context, s *settings.Settings, client *imds.Client,
	e imds.Event) approvalResult {
	if ctx.Err() != nil {
		return approvalResult{Event: e.ID, Result: cloudevent.ResultRefused, Error: "not sent: interrupted", Effect: "none"}
	}
	a, err := p.client(s).Approve(ctx, e.ID, e.Digest(), p.user())
	if errors.Is(err, control.ErrNotRunning) {
		a, err = p.approveAlone(ctx, client, e)
	}
	switch {
	case err != nil && a.Result == "" && ctx.Err() != nil:
		a.Result, a.Error = cloudevent.ResultUnanswered, "interrupted"
	case errors.Is(err, control.ErrSilent):
		a.Result, a.Error = cloudevent.ResultUnanswered, err.Error()
	case err != nil && a.Result == "":
		a.Result, a.Error = cloudevent.ResultRefused, "not sent: "+err.Error()
	case err != nil:
		fmt.Fprintf(p.err, "forewarn: %s: the result could not be recorded: %v\n", e.ID, err)
	}
	switch a.Result {
	case cloudevent.ResultApproved:
		fmt.Fprintf(p.err, "forewarn: %s: Azure accepted it (%s), waiting for the effect\n", e.ID,
			wording.Printable(a.Status))
	case cloudevent.ResultMoot:
		p.printDifference(ctx, client, e)
	case cloudevent.ResultUnanswered:
		fmt.Fprintf(p.err, "forewarn: %s: Azure may have accepted it (%s), waiting for the effect\n",
			e.ID, wording.Printable(a.Error))
	}
	return approvalResult{Event: e.ID, Result: a.Result, Status: a.Status, Error: a.Error, Effect: "none"}
}

// approveAlone approves while no forewarn runs, and records the result in the outbox.
func (p *program) approveAlone(ctx context.Context, client *imds.Client, e imds.Event) (cloudevent.Approval, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, approvalLimit, fmt.Errorf("no answer within %v", approvalLimit))
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	s, err := p.settings(quiet)
	if err != nil {
		return cloudevent.Approval{}, err
	}
	box, err := outbox.Open(string(s.State), outbox.Options{Log: quiet})
	if err != nil {
		return cloudevent.Approval{}, fmt.Errorf("cannot record the approval: %w; %s", err, wording.TryElevated)
	}
	o := p.bridgeOptions(s, box, quiet)
	o.Client = client
	b, err := bridge.New(o)
	if err != nil {
		return cloudevent.Approval{}, errors.Join(err, box.Close())
	}
	a := b.ApproveNow(ctx, e.ID, e.Digest(), p.user())
	return a, box.Close()
}

// printDifference prints the fields of an event that have changed since it was shown; that is why it was not approved.
func (p *program) printDifference(ctx context.Context, client *imds.Client, shown imds.Event) {
	ctx, cancel := context.WithTimeout(ctx, approvalLimit)
	defer cancel()
	doc, err := client.Document(ctx)
	if err != nil {
		return // the result still says that the event differs
	}
	now, err := doc.Confirm(shown.ID, shown.Digest())
	if !errors.Is(err, imds.ErrChanged) {
		return
	}
	for _, field := range imds.DifferingFields(shown, now) {
		fmt.Fprintf(p.err, "forewarn: %s: %s was %s and is now %s\n", shown.ID, wording.Printable(field),
			wording.Printable(fieldText(shown, field)), wording.Printable(fieldText(now, field)))
	}
}

// fieldText returns the value of a field as Azure sent it.
func fieldText(e imds.Event, field string) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(e.Raw, &fields) != nil || fields[field] == nil {
		return "nothing"
	}
	return string(fields[field])
}

// awaitEffect waits until the document shows that the event has "started" or is "gone"; "none" if ctx ends first.
func awaitEffect(ctx context.Context, client *imds.Client, id string) string {
	for {
		doc, err := client.Document(ctx)
		if err == nil {
			i := slices.IndexFunc(doc.Events, func(e imds.Event) bool { return e.ID == id })
			switch {
			case i < 0 && !doc.Partial:
				return "gone"
			case i >= 0 && doc.Events[i].Status == imds.StatusStarted:
				return "started"
			}
		}
		select {
		case <-ctx.Done():
			return "none"
		case <-time.After(time.Second):
		}
	}
}

func (p *program) printApprovals(results []approvalResult) error {
	if p.output == "json" {
		if err := wording.PrintJSON(p.out, results); err != nil {
			return err
		}
	} else {
		t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "EVENT\tRESULT\tEFFECT\tSECONDS\tANSWER")
		for _, r := range results {
			fmt.Fprintf(t, "%s\t%s\t%s\t%.1f\t%s\n",
				r.Event, r.Result, r.Effect, r.Seconds, wording.Printable(cmp.Or(r.Error, r.Status, "-")))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	which := func(is func(r approvalResult) bool) bool { return slices.ContainsFunc(results, is) }
	switch {
	case which(func(r approvalResult) bool {
		return r.Result == cloudevent.ResultRefused || r.Result == cloudevent.ResultMoot
	}):
		return errors.New("not every event was approved")
	case which(func(r approvalResult) bool { return r.Result == cloudevent.ResultUnanswered && r.Effect == "none" }):
		return exit(exitTryAgain,
			errors.New("nobody knows whether Azure accepted the approval, and the document shows no effect; "+
				"approving again does no harm"))
	case which(func(r approvalResult) bool { return r.Effect == "none" }):
		return exit(exitTryAgain, errors.New("the approval was accepted by Azure, but the event has not started yet; "+
			"forewarn events shows when it does"))
	}
	return nil
}
