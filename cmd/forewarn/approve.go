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
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

const (
	approvalLimit = 30 * time.Second // for the endpoint to take an approval
	leastPrefix   = 8                // characters of an EventId that are enough
)

// approval is what came of approving one event.
type approval struct {
	Event   string  `json:"event"`
	Result  string  `json:"result"` // approved, refused, unanswered, moot
	Status  string  `json:"status,omitempty"`
	Error   string  `json:"error,omitempty"`
	Effect  string  `json:"effect"`  // started, gone, none
	Seconds float64 `json:"seconds"` // until the document showed it
}

func (p *program) approveCommand() *cobra.Command {
	var yes, anyVM bool
	var timeout time.Duration
	c := p.outputFlag(&cobra.Command{
		Use: "approve EVENT-ID...", Short: "Have Azure begin an event now, instead of when its notice is over",
		Long: `Shows the events whose ids begin as given, asks, and approves them: Azure then begins them at once,
for every VM that they name. It can't be taken back.

An event is refused if it has begun, if it differs from what was shown, or if it doesn't name this
VM (but see --any-vm). Who approved it is on record. If Azure doesn't answer, it may have taken the
approval all the same, so forewarn waits for the effect then too.

Exit code: 0 when the document shows the effect, 1 refused, 65 no such event, 69 no answer from the
endpoint, 75 no effect in time.`,
		Example: "  forewarn approve 602d9444\n  forewarn approve 602d9444 --yes --timeout 3m -o json",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, ids []string) error {
			if timeout < 0 {
				return exit(exitUsage, fmt.Errorf("--timeout %v: expected no less than 0", timeout))
			}
			_, s, err := p.running()
			if err != nil {
				return err
			}
			if err := p.asRunning(c.Context(), s); err != nil {
				return err
			}
			if err := p.endpoint(c.Context(), s); err != nil {
				return err
			}
			client := imds.NewClient(s.IMDS.Endpoint, s.IMDS.APIVersion, p.log(), nil)
			ctx, cancel := context.WithTimeoutCause(c.Context(), approvalLimit, fmt.Errorf("no answer within %v", approvalLimit))
			defer cancel()
			doc, err := client.Document(ctx)
			if err != nil {
				return exit(exitUnavailable, fmt.Errorf("ask %s: %w; %s", s.IMDS.Endpoint, err, bridge.EndpointHint(s.IMDS.Endpoint)))
			}
			events, err := chosenEvents(doc, ids)
			if err != nil {
				return err
			}
			self, err := p.mayApprove(ctx, s, client, events, anyVM)
			if err != nil {
				return err
			}
			p.printAsked(events, self)
			if !yes {
				if err := p.confirmed(); err != nil {
					return err
				}
			}
			results := p.approveEvents(c.Context(), s, client, events, timeout)
			return p.printApprovals(results)
		},
	})
	f := c.Flags()
	f.BoolVar(&yes, "yes", false, "do not ask")
	f.BoolVar(&anyVM, "any-vm", false, "also events that do not name this VM")
	f.DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the effect")
	return c
}

// chosenEvents are the document's events whose ids begin so.
func chosenEvents(doc imds.Document, ids []string) (events []imds.Event, err error) {
	for _, id := range ids {
		if len(id) < leastPrefix {
			return nil, exit(exitUsage, fmt.Errorf("%s: expected at least the first %d characters of an EventId", id, leastPrefix))
		}
		var found []imds.Event
		for _, e := range doc.Events {
			if strings.HasPrefix(e.ID, strings.ToUpper(id)) {
				found = append(found, e)
			}
		}
		switch {
		case len(found) == 0:
			return nil, exit(exitData, fmt.Errorf("%s: Azure lists no such event now; forewarn events shows what it lists", id))
		case len(found) > 1:
			return nil, exit(exitData, fmt.Errorf("%s: %d events begin so; give more of the id", id, len(found)))
		case !slices.ContainsFunc(events, func(e imds.Event) bool { return e.ID == found[0].ID }):
			events = append(events, found[0])
		}
	}
	return events, nil
}

// mayApprove refuses what has begun, and what does not concern this VM. It returns this VM's name, "" if that is not
// known and --any-vm is given.
func (p *program) mayApprove(
	ctx context.Context, s *settings.Settings, client *imds.Client, events []imds.Event, anyVM bool,
) (self string, err error) {
	self = s.IMDS.VMName
	if self == "" {
		o, err := client.Instance(ctx)
		if err != nil && !anyVM {
			return "", fmt.Errorf("the name of this VM is not known, so nobody can tell whether the event names it: %w; "+
				"set imds.vm_name, or give --any-vm", err)
		}
		self = o.Name
	}
	for _, e := range events {
		switch {
		case strings.EqualFold(e.Status, "Started"):
			return "", fmt.Errorf("%s: refused: it has begun already", e.ID)
		case !anyVM && !e.Affects(self):
			return "", fmt.Errorf("%s: refused: it does not hit this VM (%s), it names %s; if that is what you want, give --any-vm",
				e.ID, wording.Printable(self), wording.Printable(named(e.Resources)))
		}
	}
	return self, nil
}

// named are names for a sentence.
func named(vms []string) string {
	if len(vms) == 0 {
		return "no VM"
	}
	return strings.Join(vms, ", ")
}

// printAsked shows what will be approved, and which VMs other than self begin with it.
func (p *program) printAsked(events []imds.Event, self string) {
	t := tabwriter.NewWriter(p.err, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "EVENT\tTYPE\tASKED FOR BY\tVMS\tNOT BEFORE")
	for _, e := range events {
		notBefore := "-"
		if !e.NotBefore.IsZero() {
			notBefore = fmt.Sprintf("%s (in %v)", e.NotBefore.Format("2006-01-02 15:04:05 UTC"), time.Until(e.NotBefore).Round(time.Second))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", e.ID, wording.Printable(e.Type), wording.Printable(cmp.Or(e.Source, "-")), wording.Printable(named(e.Resources)), notBefore)
	}
	t.Flush()
	for _, e := range events {
		others := slices.DeleteFunc(slices.Clone(e.Resources), func(vm string) bool {
			return (imds.Event{Resources: []string{vm}}).Affects(self)
		})
		if len(others) > 0 {
			fmt.Fprintf(p.err, "%.8s ALSO BEGINS ON: %s\n", e.ID, wording.Printable(named(others)))
		}
	}
}

// confirmed asks.
func (p *program) confirmed() error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return exit(exitUsage, errors.New("there is no terminal to ask; give --yes to approve without a question"))
	}
	fmt.Fprint(p.err, "Azure begins this at once, for every VM named. Approve? [y/N] ")
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return errors.New("not approved")
	}
	return nil
}

// approveEvents approves one event after the other, and then waits until the document shows that each has begun. An
// interrupt ends the wait, not the record.
func (p *program) approveEvents(ctx context.Context, s *settings.Settings, client *imds.Client, events []imds.Event, timeout time.Duration) []approval {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	began := time.Now()
	results := make([]approval, len(events))
	for i, e := range events {
		results[i] = p.approveEvent(ctx, s, client, e)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for i, r := range results {
		if r.Result == cloudevent.ResultApproved || r.Result == cloudevent.ResultUnanswered {
			results[i].Effect = effect(ctx, client, r.Event)
		}
		results[i].Seconds = time.Since(began).Round(100 * time.Millisecond).Seconds()
	}
	return results
}

// approveEvent has the running bridge approve, or does it itself where none runs.
func (p *program) approveEvent(ctx context.Context, s *settings.Settings, client *imds.Client, e imds.Event) approval {
	if ctx.Err() != nil {
		return approval{Event: e.ID, Result: cloudevent.ResultRefused, Error: "not sent, because of the interrupt", Effect: "none"}
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
		a.Result, a.Error = cloudevent.ResultRefused, err.Error()
	case err != nil:
		fmt.Fprintf(p.err, "forewarn: %s: what came of it is not on record: %v\n", e.ID, err)
	}
	switch a.Result {
	case cloudevent.ResultApproved:
		fmt.Fprintf(p.err, "forewarn: %s: Azure took it (%s), waiting for the effect\n", e.ID, wording.Printable(a.Status))
	case cloudevent.ResultMoot:
		p.printDifference(ctx, client, e)
	case cloudevent.ResultUnanswered:
		fmt.Fprintf(p.err, "forewarn: %s: Azure may have taken it (%s), waiting for the effect\n", e.ID, wording.Printable(a.Error))
	}
	return approval{Event: e.ID, Result: a.Result, Status: a.Status, Error: a.Error, Effect: "none"}
}

// approveAlone approves where no bridge runs. What came of it goes into the outbox, if there is one.
func (p *program) approveAlone(ctx context.Context, client *imds.Client, e imds.Event) (cloudevent.Approval, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, approvalLimit, fmt.Errorf("no answer within %v", approvalLimit))
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	s, err := p.settings(quiet)
	if err != nil {
		return cloudevent.Approval{}, err
	}
	box, err := outbox.Open(s.State, outbox.Options{Log: quiet})
	if err != nil {
		return cloudevent.Approval{}, fmt.Errorf("%w; %s, because what is approved goes on record there", err, wording.TryElevated)
	}
	o := p.bridgeOptions(s, box, quiet)
	o.Client = client
	a := bridge.New(o).ApproveNow(ctx, e.ID, e.Digest(), p.user())
	return a, box.Close()
}

// printDifference shows how an event differs from what was shown of it, which is why it was not approved.
func (p *program) printDifference(ctx context.Context, client *imds.Client, shown imds.Event) {
	ctx, cancel := context.WithTimeout(ctx, approvalLimit)
	defer cancel()
	doc, err := client.Document(ctx)
	if err != nil {
		return // that it differs is said all the same
	}
	doc.Events = slices.DeleteFunc(slices.Clone(doc.Events), func(e imds.Event) bool { return e.ID != shown.ID })
	for _, change := range imds.Diff([]imds.Event{shown}, doc) {
		for _, field := range change.Fields {
			fmt.Fprintf(p.err, "forewarn: %s: %s was shown as %s and is now %s\n", shown.ID, wording.Printable(field),
				wording.Printable(fieldText(shown, field)), wording.Printable(fieldText(change.Event, field)))
		}
	}
}

// fieldText is the value of one of Azure's fields as it was sent.
func fieldText(e imds.Event, field string) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(e.Raw, &fields) != nil || fields[field] == nil {
		return "nothing"
	}
	return string(fields[field])
}

// effect waits until the document shows that the event began or is gone: started, gone, or none in time.
func effect(ctx context.Context, client *imds.Client, id string) string {
	for {
		doc, err := client.Document(ctx)
		if err == nil {
			i := slices.IndexFunc(doc.Events, func(e imds.Event) bool { return e.ID == id })
			switch {
			case i < 0 && !doc.Partial:
				return "gone"
			case i >= 0 && strings.EqualFold(doc.Events[i].Status, "Started"):
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

func (p *program) printApprovals(results []approval) error {
	if p.output == "json" {
		if err := wording.PrintJSON(p.out, results); err != nil {
			return err
		}
	} else {
		t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "EVENT\tRESULT\tEFFECT\tSECONDS\tANSWER")
		for _, r := range results {
			fmt.Fprintf(t, "%s\t%s\t%s\t%.1f\t%s\n", r.Event, r.Result, r.Effect, r.Seconds, wording.Printable(cmp.Or(r.Error, r.Status, "-")))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	which := func(is func(r approval) bool) bool { return slices.ContainsFunc(results, is) }
	switch {
	case which(func(r approval) bool {
		return r.Result == cloudevent.ResultRefused || r.Result == cloudevent.ResultMoot
	}):
		return errors.New("not every event was approved")
	case which(func(r approval) bool { return r.Result == cloudevent.ResultUnanswered && r.Effect == "none" }):
		return exit(exitTryAgain, errors.New("nobody knows whether Azure took the approval, and the document shows no effect; to approve again does no harm"))
	case which(func(r approval) bool { return r.Effect == "none" }):
		return exit(exitTryAgain, errors.New("the approval was taken, but the event has not begun yet; forewarn events shows when it does"))
	}
	return nil
}
