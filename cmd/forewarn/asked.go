package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/settings"
)

// asked is which message send and render are asked for, and through which sinks.
type asked struct {
	sinks  []string // all of the settings without any
	sample string
}

func (a *asked) flags(c *cobra.Command) *cobra.Command {
	c.Flags().StringArrayVar(&a.sinks, "sink", nil, "only this sink; repeat it for more (default all)")
	c.Flags().StringVar(&a.sample, "sample", "reboot", "which message: "+strings.Join(cloudevent.SampleNames, ", "))
	return c
}

// newSample is the sample that is asked for, as it would hit o.
func (a *asked) newSample(o imds.Observer) (cloudevent.Sample, error) {
	s, ok := cloudevent.NewSample(a.sample, o.Name, time.Now())
	if !ok {
		return s, exit(exitUsage, fmt.Errorf("--sample %s: expected one of %s", a.sample, strings.Join(cloudevent.SampleNames, ", ")))
	}
	return s, nil
}

// chosen are the routes of the settings that are asked for, and this VM.
func (p *program) chosen(ctx context.Context, a asked) ([]bridge.Route, imds.Observer, error) {
	var o imds.Observer
	s, err := p.settings(p.log())
	if err != nil {
		return nil, o, err
	}
	if len(s.Routes) == 0 {
		return nil, o, exit(exitSettings, errors.New("the settings have no sinks"))
	}
	known := make([]string, len(s.Routes))
	for i, r := range s.Routes {
		known[i] = r.Name
	}
	var picked []bridge.Route
	for _, name := range a.sinks {
		i := slices.Index(known, name)
		if i < 0 {
			return nil, o, exit(exitUsage, fmt.Errorf("--sink %s: the settings have no such sink; they have %s", name, strings.Join(known, ", ")))
		}
		picked = append(picked, s.Routes[i])
	}
	if len(a.sinks) == 0 {
		picked = s.Routes
	}
	return picked, p.observer(ctx, s), nil
}

// observer is this VM as the running forewarn knows it, or else as far as the settings and the host tell.
func (p *program) observer(ctx context.Context, s *settings.Settings) imds.Observer {
	if st, err := p.client(s).Status(ctx); err == nil && st.Observer.Name != "" {
		return st.Observer
	}
	name := s.IMDS.VMName
	if name == "" {
		name, _ = os.Hostname()
	}
	return imds.Observer{Name: name}
}
