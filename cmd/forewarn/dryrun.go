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
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/bridge/outbox"
	"forewarn/cmd/forewarn/internal/wording"
)

// dryRun polls, and prints what would go where and what the rules would decide. It has an outbox of its own, which is
// gone afterwards, and neither listens, sends nor approves.
func (p *program) dryRun(ctx context.Context) error {
	log := p.log()
	s, err := p.settings(log)
	if err != nil {
		return err
	}
	log.Info(firstWord, "version", programVersion(), "endpoint", s.IMDS.Endpoint, "dryRun", true)
	state, err := os.MkdirTemp("", "forewarn-dry-run-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	box, err := outbox.Open(state, outbox.Options{Log: log})
	if err != nil {
		return err
	}
	paper := &paper{out: p.out, json: p.output == "json"}
	for i, r := range s.Routes {
		s.Routes[i].Sink = note{paper, r.Name, r.Kind}
	}
	o := p.bridgeOptions(s, box, log)
	o.Rules = nil // so that nothing can be approved
	b := bridge.New(o)
	if len(s.Rules) > 0 {
		var done sync.WaitGroup
		changes, stop := box.Follow()
		defer stop()
		done.Go(func() { paper.foretell(ctx, b, s.Rules, changes, log) })
		defer done.Wait()
	}
	return b.Run(ctx)
}

// paper is what a dry run writes on.
type paper struct {
	mu   sync.Mutex
	out  io.Writer
	json bool
}

// foretold is a line for programs about what the rules would decide.
type foretold struct {
	Event    string `json:"event"`
	Approval string `json:"approval"`
}

// foretell prints what the rules would decide about each event that is scheduled or changes, until ctx is done.
func (p *paper) foretell(
	ctx context.Context, b *bridge.Bridge, rules []bridge.Rule, changes <-chan json.RawMessage, log *slog.Logger,
) {
	for {
		select {
		case <-ctx.Done():
			return
		case body, ok := <-changes:
			if !ok {
				log.Warn("too many changes at once, so what the rules would decide is not printed any more")
				return
			}
			if err := p.foretellChange(b, rules, body); err != nil {
				log.Error("what the rules would decide cannot be said", "err", err)
			}
		}
	}
}

func (p *paper) foretellChange(b *bridge.Bridge, rules []bridge.Rule, body []byte) error {
	var ce event.Event
	if err := json.Unmarshal(body, &ce); err != nil {
		return err
	}
	switch imds.ChangeKind(strings.TrimPrefix(ce.Type(), cloudevent.EventPrefix)) {
	case imds.Scheduled, imds.Updated:
	default:
		return nil // nobody is asked about it
	}
	forecasts, err := b.Foresee(rules, ce.Subject())
	if err != nil || len(forecasts) == 0 {
		return err
	}
	said := forecastText(forecasts)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.json {
		return json.NewEncoder(p.out).Encode(foretold{ce.Subject(), said})
	}
	words := "would be approved by " + said
	if why, refused := strings.CutPrefix(said, "no: "); refused {
		words = "would not be approved: " + why
	}
	_, err = fmt.Fprintf(p.out, "%s  %s %s\n", ce.Time().Format(time.TimeOnly), ce.Subject(), wording.Printable(words))
	return err
}

// noted is one line of a dry run for programs.
type noted struct {
	Sink       string          `json:"sink"`
	Kind       string          `json:"kind"`
	CloudEvent json.RawMessage `json:"cloudEvent"`
}

// A note stands in for a sink and only notes what it would be given.
type note struct {
	*paper
	sink, kind string
}

func (n note) Deliver(_ context.Context, batch []delivery.Delivery) (delivery.Answer, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range batch {
		ce, err := d.Event.MarshalJSON()
		if err != nil {
			return delivery.Answer{}, fmt.Errorf("%w: %w", delivery.ErrRejected, err)
		}
		if n.json {
			err = json.NewEncoder(n.out).Encode(noted{n.sink, n.kind, ce})
		} else {
			_, err = fmt.Fprintf(n.out, "%s  %s (%s) would be told %s\n", d.Event.Time().Format(time.TimeOnly), n.sink, n.kind, d.Event.ID())
		}
		if err != nil {
			return delivery.Answer{}, err
		}
	}
	return delivery.Answer{Status: "noted"}, nil
}
