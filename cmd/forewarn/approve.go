package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"forewarn/bridge"
)

const (
	approvalLimit = 30 * time.Second // for the endpoint to take an approval
	controlLimit  = 8 * time.Second  // and for a running bridge to get that done
	leastPrefix   = 8                // characters of an EventId that are enough
)

// approval is what came of approving one event.
type approval struct {
	Event   string  `json:"event"`
	Result  string  `json:"result"` // approved, refused, moot
	Status  string  `json:"status,omitempty"`
	Error   string  `json:"error,omitempty"`
	Effect  string  `json:"effect"`  // started, gone, none
	Seconds float64 `json:"seconds"` // until the document showed it
}

// approvalRequest is what the command asks of a running bridge.
type approvalRequest struct {
	Event string `json:"event"`
	By    string `json:"by"`
}

func (p *program) approveCommand() *cobra.Command {
	var yes, anyVM bool
	var timeout time.Duration
	c := p.outputFlag(&cobra.Command{
		Use: "approve EVENT-ID...", Short: "Have Azure begin an event now, instead of when its notice is over",
		Long: `Shows the events whose ids begin as given, asks, and approves them: Azure then begins them at once, for every VM that they
name. It cannot be taken back. An event that has begun is refused, and so is one that does not name this VM, unless
--any-vm says otherwise. Who approved is on record. Exit code: 0 when the document shows the effect, 1 refused, 65 no such
event, 69 no answer from the endpoint, 75 no effect in time.`,
		Example: "  forewarn approve 602d9444\n  forewarn approve 602d9444 --yes --timeout 3m -o json",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, ids []string) error {
			s, err := p.places()
			if err != nil {
				return err
			}
			client := bridge.NewClient(s.IMDS.Endpoint, s.IMDS.APIVersion, p.log(), nil)
			ctx, cancel := context.WithTimeoutCause(c.Context(), approvalLimit, fmt.Errorf("no answer within %v", approvalLimit))
			defer cancel()
			doc, err := client.Document(ctx)
			if err != nil {
				return exit(exitUnavailable, fmt.Errorf("ask %s: %w; is this an Azure VM?", s.IMDS.Endpoint, err))
			}
			events, err := chosenEvents(doc, ids)
			if err != nil {
				return err
			}
			if err := p.mayApprove(ctx, s, client, events, anyVM); err != nil {
				return err
			}
			p.printAsked(events)
			if err := p.confirmed(yes); err != nil {
				return err
			}
			results := []approval{}
			for _, e := range events {
				results = append(results, p.approveEvent(c.Context(), s, client, e, timeout))
			}
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
func chosenEvents(doc bridge.Document, ids []string) (events []bridge.Event, err error) {
	for _, id := range ids {
		if len(id) < leastPrefix {
			return nil, exit(exitUsage, fmt.Errorf("%s: expected at least the first %d characters of an EventId", id, leastPrefix))
		}
		var found []bridge.Event
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
		case !slices.ContainsFunc(events, func(e bridge.Event) bool { return e.ID == found[0].ID }):
			events = append(events, found[0])
		}
	}
	return events, nil
}

// mayApprove refuses what has begun, and what does not concern this VM.
func (p *program) mayApprove(ctx context.Context, s *settings, client *bridge.Client, events []bridge.Event, anyVM bool) error {
	self := s.IMDS.VMName
	if self == "" && !anyVM {
		o, err := client.Instance(ctx)
		if err != nil {
			return fmt.Errorf("the name of this VM is not known, so nobody can tell whether the event names it: %w; set imds.vm_name, or give --any-vm", err)
		}
		self = o.Name
	}
	for _, e := range events {
		switch {
		case strings.EqualFold(e.Status, "Started"):
			return fmt.Errorf("%s: refused: it has begun already", e.ID)
		case !anyVM && !e.Affects(self):
			return fmt.Errorf("%s: refused: it hits %s, not this VM (%s); if that is what you want, give --any-vm",
				e.ID, printable(named(e.Resources)), printable(self))
		}
	}
	return nil
}

// named are names for a sentence.
func named(vms []string) string {
	if len(vms) == 0 {
		return "nobody knows which VM"
	}
	return strings.Join(vms, ", ")
}

// printAsked shows what will be approved.
func (p *program) printAsked(events []bridge.Event) {
	t := tabwriter.NewWriter(p.err, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "EVENT\tTYPE\tASKED FOR BY\tVMS\tNOT BEFORE")
	for _, e := range events {
		notBefore := "-"
		if !e.NotBefore.IsZero() {
			notBefore = fmt.Sprintf("%s (in %v)", e.NotBefore.Format("2006-01-02 15:04:05 UTC"), time.Until(e.NotBefore).Round(time.Second))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", e.ID, printable(e.Type), printable(cmp.Or(e.Source, "-")), printable(named(e.Resources)), notBefore)
	}
	t.Flush()
}

// confirmed asks, unless yes.
func (p *program) confirmed(yes bool) error {
	if yes {
		return nil
	}
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

// approveEvent has the running bridge approve, or does it itself where none runs, and waits for the effect.
func (p *program) approveEvent(ctx context.Context, s *settings, client *bridge.Client, e bridge.Event, timeout time.Duration) approval {
	var a bridge.Approval
	began := time.Now()
	err := p.tellControl(ctx, s, "/approve", approvalRequest{e.ID, p.user()}, &a)
	if errors.Is(err, errNoBridge) {
		a, err = p.approveAlone(ctx, client, e.ID)
	}
	result := approval{Event: e.ID, Result: a.Result, Status: a.Status, Error: a.Error, Effect: "none"}
	if err != nil {
		result.Result, result.Error = bridge.ResultRefused, err.Error()
	}
	if result.Result == bridge.ResultApproved {
		fmt.Fprintf(p.err, "forewarn: %s: Azure took it (%s), waiting for the effect\n", e.ID, printable(a.Status))
		result.Effect = effect(ctx, client, e.ID, timeout)
	}
	result.Seconds = time.Since(began).Round(100 * time.Millisecond).Seconds()
	return result
}

// approveAlone approves where no bridge runs. What came of it goes into the outbox, if there is one.
func (p *program) approveAlone(ctx context.Context, client *bridge.Client, id string) (bridge.Approval, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, approvalLimit, fmt.Errorf("no answer within %v", approvalLimit))
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	s, err := p.settings(quiet)
	if err != nil {
		return bridge.Approval{}, err
	}
	outbox, err := bridge.OpenOutbox(s.State, quiet)
	if err != nil {
		return bridge.Approval{}, fmt.Errorf("%w; %s, because what is approved goes on record there", err, tryElevated)
	}
	o := p.bridgeOptions(s, outbox, quiet)
	o.Client = client
	a := bridge.New(o).ApproveNow(ctx, id, p.user())
	return a, outbox.Close()
}

// effect waits until the document shows that the event began or is gone: started, gone, or none in time.
func effect(ctx context.Context, client *bridge.Client, id string, timeout time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		doc, err := client.Document(ctx)
		if err == nil {
			i := slices.IndexFunc(doc.Events, func(e bridge.Event) bool { return e.ID == id })
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
		if err := printJSON(p.out, results); err != nil {
			return err
		}
	} else {
		t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "EVENT\tRESULT\tEFFECT\tSECONDS\tANSWER")
		for _, r := range results {
			fmt.Fprintf(t, "%s\t%s\t%s\t%.1f\t%s\n", r.Event, r.Result, r.Effect, r.Seconds, printable(cmp.Or(r.Error, r.Status, "-")))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(results, func(r approval) bool { return r.Result != bridge.ResultApproved }) {
		return errors.New("not every event was approved")
	}
	if slices.ContainsFunc(results, func(r approval) bool { return r.Effect == "none" }) {
		return exit(exitTryAgain, errors.New("the approval was taken, but the event has not begun yet; forewarn status shows when it does"))
	}
	return nil
}

// serveApproval approves on behalf of a command.
func serveApproval(b *bridge.Bridge) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var request approvalRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeoutCause(r.Context(), controlLimit, fmt.Errorf("no answer within %v", controlLimit))
		defer cancel()
		a := b.ApproveNow(ctx, request.Event, request.By)
		w.Header().Set("Content-Type", "application/json")
		_ = printJSON(w, a)
	}
}
