package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"forewarn/bridge"
	"forewarn/bridge/clock"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
)

// dryRun polls, and prints what would be delivered and what the rules would decide. It uses a temporary outbox, and
// neither listens, sends nor approves.
func (p *program) dryRun(ctx context.Context) error {
	log := p.log()
	s, err := p.settings(log)
	if err == nil && s.Relay != nil {
		err = exit(exitSettings, fmt.Errorf("--dry-run is for the settings of a VM: %w", settings.ErrIsRelay))
	}
	if err != nil {
		return err
	}
	log.Info(startNotice, "version", programVersion(), "endpoint", s.IMDS.Endpoint, "dryRun", true)
	state, err := os.MkdirTemp("", "forewarn-dry-run-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	box, err := outbox.Open(state, outbox.Options{Log: log})
	if err != nil {
		return err
	}
	printer := &dryRunPrinter{out: p.out, json: p.output == "json", zone: s.Timezone}
	for i, r := range s.Routes {
		s.Routes[i].Sink = dryRunSink{printer, r.Name, r.Kind}
	}
	o := p.bridgeOptions(s, box, log)
	o.Rules = nil // the bridge must not approve anything
	b, err := bridge.New(o)
	if err != nil {
		return err
	}
	if len(s.Rules) > 0 {
		var done sync.WaitGroup
		changes, stop := box.Follow()
		defer stop()
		done.Go(func() { printer.forecastApprovals(ctx, b, s.Rules, changes, log) })
		defer done.Wait()
	}
	return b.Run(ctx)
}

// A dryRunPrinter prints the results of a dry run.
type dryRunPrinter struct {
	mu   sync.Mutex // one line at a time
	out  io.Writer
	json bool
	zone *time.Location // of times for people
}

// clock returns the time of a CloudEvent.
func (p *dryRunPrinter) clock(ce event.Event) string {
	return clock.Time(ce.Time(), ce.Time(), p.zone)
}

// A dryRunApproval is a line of JSON that says what the rules would decide.
type dryRunApproval struct {
	Event    string `json:"event"`
	Approval string `json:"approval"`
}

// forecastApprovals prints what the rules would decide about each event that is scheduled or updated, until ctx is
// done.
func (p *dryRunPrinter) forecastApprovals(
	ctx context.Context, b *bridge.Bridge, rules []bridge.Rule, changes <-chan json.RawMessage, log *slog.Logger,
) {
	for {
		select {
		case <-ctx.Done():
			return
		case body, ok := <-changes:
			if !ok {
				log.Warn("too many changes at once: the decisions of the rules are no longer printed")
				return
			}
			if err := p.forecastApproval(b, rules, body); err != nil {
				log.Error("cannot evaluate the rules of approve", "err", err)
			}
		}
	}
}

func (p *dryRunPrinter) forecastApproval(b *bridge.Bridge, rules []bridge.Rule, body []byte) error {
	var ce event.Event
	if err := json.Unmarshal(body, &ce); err != nil {
		return err
	}
	switch imds.ChangeKind(strings.TrimPrefix(ce.Type(), cloudevent.EventPrefix)) {
	case imds.Scheduled, imds.Updated:
	default:
		return nil // the rules look at no other change
	}
	forecasts := b.Forecasts(rules, ce.Subject())
	if len(forecasts) == 0 {
		return nil
	}
	result := forecastText(forecasts)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.json {
		return json.NewEncoder(p.out).Encode(dryRunApproval{ce.Subject(), result})
	}
	words := "would be approved by " + result
	if why, refused := strings.CutPrefix(result, "no: "); refused {
		words = "would not be approved: " + why
	}
	_, err := fmt.Fprintf(p.out, "%s  %s %s\n", p.clock(ce), ce.Subject(), wording.Printable(words))
	return err
}

// A dryRunDelivery is a line of JSON about a delivery that a sink would get.
type dryRunDelivery struct {
	Sink       string          `json:"sink"`
	Kind       string          `json:"kind"`
	CloudEvent json.RawMessage `json:"cloudEvent"`
}

// A dryRunSink stands in for a sink of the settings, and prints what that sink would get.
type dryRunSink struct {
	*dryRunPrinter
	sink, kind string
}

// Deliver prints a line for each delivery, and accepts it.
func (d dryRunSink) Deliver(_ context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, each := range batch {
		ce, err := each.Event.MarshalJSON()
		if err != nil {
			return delivery.Answer{}, fmt.Errorf("%w: %w", delivery.ErrRejected, err)
		}
		if d.json {
			err = json.NewEncoder(d.out).Encode(dryRunDelivery{d.sink, d.kind, ce})
		} else {
			_, err = fmt.Fprintf(d.out, "%s  %s (%s) would get %s\n",
				d.clock(each.Event), d.sink, d.kind, each.Event.ID())
		}
		if err != nil {
			return delivery.Answer{}, err
		}
	}
	return delivery.Answer{Status: "printed"}, nil
}
