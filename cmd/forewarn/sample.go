package main

import (
	"cmp"
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
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/settings"
)

// A sampleRequest holds the flags that send and render share: which message, and through which sinks.
type sampleRequest struct {
	sinks  []string // names; empty for all sinks of the settings
	sample string

	settings *settings.Settings // chosenRoutes sets them
	mutes    []*bridge.Mute     // of the running forewarn; chosenRoutes sets them
}

func (r *sampleRequest) flags(c *cobra.Command) *cobra.Command {
	c.Flags().StringArrayVar(&r.sinks, "sink", nil, "only this sink; repeat the flag for more (default all)")
	c.Flags().StringVar(&r.sample, "sample", "reboot", "which message: "+strings.Join(cloudevent.SampleNames, ", "))
	return c
}

// newSample makes the requested sample event, for the VM o.
func (r *sampleRequest) newSample(o imds.Observer) (cloudevent.Sample, error) {
	s, ok := cloudevent.NewSample(r.sample, o.Name, time.Now())
	if !ok {
		return s, exit(exitUsage,
			fmt.Errorf("--sample %s: expected one of %s", r.sample, strings.Join(cloudevent.SampleNames, ", ")))
	}
	return s, nil
}

// chosenRoutes loads the settings and returns the requested routes, and this VM. It says what is muted.
func (p *program) chosenRoutes(ctx context.Context, req *sampleRequest) ([]bridge.Route, imds.Observer, error) {
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
	for _, name := range req.sinks {
		i := slices.Index(known, name)
		if i < 0 {
			return nil, o, exit(exitUsage,
				fmt.Errorf("--sink %s: the settings have no such sink; they have %s", name, strings.Join(known, ", ")))
		}
		picked = append(picked, s.Routes[i])
	}
	if len(req.sinks) == 0 {
		picked = s.Routes
	}
	req.settings = s
	st, err := p.client(s).Status(ctx)
	if err == nil {
		req.mutes = st.Mutes
	}
	for _, note := range muteNotes(st) {
		fmt.Fprintln(p.err, note)
	}
	return picked, observer(st, s), nil
}

// promise gives a sample the rules that would approve it, so that messages name them.
func (r *sampleRequest) promise(s *cloudevent.Sample, o imds.Observer, now time.Time) error {
	ce, err := s.CloudEvent(o, now)
	if err != nil {
		return err
	}
	gets := func(sink string) (at time.Time, ok bool) {
		i := slices.IndexFunc(r.settings.Routes, func(route bridge.Route) bool { return route.Name == sink })
		if i < 0 {
			return at, false
		}
		return r.getsAt(r.settings.Routes[i], *s, o, now)
	}
	forecasts := bridge.Forecasts(r.settings.Rules, s.Change.Event, cloudevent.Fields(ce), o.Name, gets, now)
	s.Rules = bridge.PromisedRules(forecasts)
	return nil
}

// getsAt returns when a route would get a sample, which may have passed; ok is false if its filter keeps it out.
func (r *sampleRequest) getsAt(route bridge.Route, s cloudevent.Sample, o imds.Observer, now time.Time) (
	at time.Time, ok bool,
) {
	result, err := filterResult(route.Filter, s, o, now)
	message := delivery.Message{AzureType: s.Change.Event.Type, VMs: s.Change.Event.Resources}
	mutes := delivery.MutesFor(r.mutes, route.Name, route.Terms.People)
	mute := delivery.MuteOf(mutes, &delivery.Item{Message: &message})
	at = route.LeadTime(s.Change.Kind, s.Change.Event.NotBefore)
	if mute.Active() && mute.Until.After(at) {
		at = mute.Until
	}
	return at, err == nil && strings.HasPrefix(result, "told")
}

// observer returns this VM as the running forewarn knows it; if none runs, and its status is empty, only its name, from
// the settings or the host name.
func observer(st bridge.Status, s *settings.Settings) imds.Observer {
	if st.Observer.Name != "" {
		o := st.Observer
		o.OSType = cmp.Or(o.OSType, imds.ThisOS)
		return o
	}
	name := s.IMDS.VMName
	if name == "" {
		name, _ = os.Hostname()
	}
	return imds.Observer{Name: name, OSType: imds.ThisOS}
}
