package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"forewarn/bridge"
)

// dryRun polls, and prints what would go where. It has an outbox of its own, which is gone afterwards, and neither
// listens nor sends.
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
	outbox, err := bridge.OpenOutbox(state, log)
	if err != nil {
		return err
	}
	paper := &paper{out: p.out, json: p.output == "json"}
	for i, r := range s.Routes {
		s.Routes[i].Sink = note{paper, r.Name, r.Kind}
	}
	o := p.bridgeOptions(s, outbox, log)
	return bridge.New(o).Run(ctx)
}

// paper is what a dry run writes on.
type paper struct {
	mu   sync.Mutex
	out  io.Writer
	json bool
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

func (n note) Deliver(_ context.Context, batch []bridge.Delivery) (bridge.Answer, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range batch {
		ce, err := d.Event.MarshalJSON()
		if err != nil {
			return bridge.Answer{}, fmt.Errorf("%w: %w", bridge.ErrRejected, err)
		}
		if n.json {
			err = json.NewEncoder(n.out).Encode(noted{n.sink, n.kind, ce})
		} else {
			_, err = fmt.Fprintf(n.out, "%s  %s (%s) would be told %s\n", d.Event.Time().Format(time.TimeOnly), n.sink, n.kind, d.Event.ID())
		}
		if err != nil {
			return bridge.Answer{}, err
		}
	}
	return bridge.Answer{Status: "noted"}, nil
}
