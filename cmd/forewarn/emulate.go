package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"forewarn/bridge/imdstest"
)

// emulated is the first line that emulate prints, for whoever started it.
type emulated struct {
	Endpoint string   `json:"endpoint"`
	Control  string   `json:"control"`
	VMs      []string `json:"vms"`
}

func (p *program) emulateCommand() *cobra.Command {
	var listen, control, scenario string
	var speed float64
	var vms []string
	var leave bool
	c := &cobra.Command{
		Use: "emulate", Short: "Serve an emulated Azure metadata endpoint, to develop and test against",
		Long: `Serves Scheduled Events, approvals, instance metadata and identity tokens as Azure does, with its headers, refusals and
oddities, and plays a scenario if one is named. The first line on standard output says where, as JSON. It is for tests:
it asks nobody who they are.

Built-in scenarios: ` + strings.Join(imdstest.Names(), ", ") + `. A file holds one of your own.

Each VM has an endpoint of its own at <endpoint>/vm/<name>, so that many bridges can run against one emulator. The
control address takes JSON: GET /state, POST /events, PATCH and DELETE /events/{id}, POST /events/{id}/start, PUT and
DELETE /document, PUT and DELETE /faults, POST /reset, GET /requests.`,
		Example: `  forewarn emulate --scenario reboot --speed 60
  curl -s -H Metadata:true 'http://127.0.0.1:8254/metadata/scheduledevents?api-version=2020-07-01'
  curl -s -X POST http://127.0.0.1:8255/events -d '{"EventType":"Preempt"}'
  curl -s -X PUT http://127.0.0.1:8255/faults -d '{"status":503,"for":"30s"}'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if speed <= 0 {
				return exit(exitUsage, fmt.Errorf("--speed %v: expected a number above 0", speed))
			}
			if leave && scenario == "" {
				return exit(exitUsage, errors.New("--exit needs a --scenario whose end it can wait for"))
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			sc, err := findScenario(scenario)
			if err != nil {
				return err
			}
			if len(vms) == 0 {
				vms = sc.VMs
			}
			azure := imdstest.New(imdstest.Options{VMs: vms, Speed: speed, AutoStart: true})
			return p.emulate(ctx, azure, sc, listen, control, speed, leave)
		},
	}
	f := c.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8254", "address of the metadata endpoint; port 0 takes a free one")
	f.StringVar(&control, "control", "127.0.0.1:8255", "address of the control API")
	f.StringVar(&scenario, "scenario", "", "a built-in scenario, or the file of one")
	f.Float64Var(&speed, "speed", 1, "how many times as fast time goes, notices too")
	f.StringArrayVar(&vms, "vm", nil, "name of a VM of the set; repeat it for more (default vm_0, or the scenario's)")
	f.BoolVar(&leave, "exit", false, "end when the scenario is over")
	return c
}

// emulate serves until ctx is done, or the scenario is over if it is to leave then.
func (p *program) emulate(ctx context.Context, azure *imdstest.Server, sc imdstest.Scenario, listen, control string, speed float64, leave bool) error {
	served, err := azure.Listen(listen, control)
	if err != nil {
		return exit(exitUnavailable, fmt.Errorf("serve: %w; stop what uses it, or set --listen and --control", err))
	}
	defer served.Close()
	if err := json.NewEncoder(p.out).Encode(emulated{served.URL, served.ControlURL, azure.VMs()}); err != nil {
		return err
	}
	fmt.Fprintf(p.err, "see the document:   curl -s -H Metadata:true '%s/metadata/scheduledevents?api-version=2020-07-01'\n", served.URL)
	fmt.Fprintf(p.err, "announce a reboot:  curl -s -X POST %s/events -d '{\"EventType\":\"Reboot\"}'\n", served.ControlURL)
	if len(sc.Steps) > 0 {
		if err := azure.Play(ctx, sc, speed); err != nil && ctx.Err() == nil {
			return err
		}
		if leave || ctx.Err() != nil {
			return nil
		}
		fmt.Fprintf(p.err, "forewarn: scenario %s is over; the endpoint stays until it is stopped\n", sc.Name)
	}
	<-ctx.Done()
	return nil
}

// findScenario is the built-in scenario of that name, or the one in that file; without a name it is empty.
func findScenario(name string) (imdstest.Scenario, error) {
	if name == "" {
		return imdstest.Scenario{}, nil
	}
	if slices.Contains(imdstest.Names(), name) {
		return imdstest.Builtin(name)
	}
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return imdstest.Scenario{}, exit(exitUsage, fmt.Errorf("--scenario %s: neither a file nor one of %s", name, strings.Join(imdstest.Names(), ", ")))
	} else if err != nil {
		return imdstest.Scenario{}, exit(exitData, err)
	}
	sc, err := imdstest.ParseScenario(name, data)
	return sc, exit(exitData, err)
}
