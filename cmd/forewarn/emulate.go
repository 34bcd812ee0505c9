package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"forewarn/bridge/imdstest"
)

// emulatorAddresses is the first line that emulate prints, for the program that started it.
type emulatorAddresses struct {
	Endpoint string   `json:"endpoint"`
	Control  string   `json:"control"`
	VMs      []string `json:"vms"`
}

func (p *program) emulateCommand() *cobra.Command {
	var listen, control, scenario string
	var speed float64
	var o imdstest.Options
	var exitAtEnd bool
	c := &cobra.Command{
		Use: "emulate", Short: "Serve an emulated Azure metadata endpoint, to develop and test against",
		Long: `Serves Scheduled Events, approvals, instance metadata and identity tokens as Azure does, with its
headers, refusals and quirks, and plays a scenario if one is named. The first line on standard
output is JSON with the addresses. The emulator is for tests: it has no access control.

Each VM has its own endpoint at <endpoint>/vm/<name>, so that many bridges can share one emulator.
Requests without a VM name get the first VM.

The control address takes JSON:
  GET /state                        events, document, faults, approvals
  POST /events                      announce an event: Azure's fields; missing ones are filled in
  PATCH, DELETE /events/{id}        change or end the event
  POST /events/{id}/start           start the event
  PUT, DELETE /document             serve these bytes instead of the events
  PUT, DELETE /faults               break the answers of one path, for all VMs or one
  POST /reset                       start anew, as after a day without a request
  GET /requests                     the requests so far

A fault has any of these keys:
  path (scheduledevents, approvals, instance, identity), vm, for, times, hang, delay, status,
  retryAfter, body, empty, html, isoDates, noETag, newId, newestVersion, truncate, noLength,
  contentLength, incarnation, approve, approveDelay

newId gives an event another EventId when it starts, as Microsoft's mock does. With the path
instance, status 404 or 410 emulates a host without instance metadata.

With the path approvals, approve decides about approvals: refuse answers 400; ignore accepts them
but starts nothing; late accepts them but breaks the answer, by delay, hang or status. approveDelay
is the time until the event starts.

Built-in scenarios:
` + indented(imdstest.Names(), 100) + `

A scenario file of your own looks like this; start and reset are the other steps:
  name: mine
  vms: [vm_0, vm_1]
  approve_delay: 20s
  steps:
    - {at: 10s, schedule: {event: A, type: Reboot, notice: 15m, resources: [vm_0], source: User}}
    - {at: 5m, update: {event: A, notice: 20m}}
    - {at: 6m, fault: {status: 503, for: 30s}}
    - {at: 40m, end: A}`,
		Example: `  forewarn emulate --scenario reboot --speed 60
  curl -s -H Metadata:true 'http://127.0.0.1:8254/metadata/scheduledevents?api-version=2020-07-01'
  curl -s -X POST http://127.0.0.1:8255/events -d '{"EventType":"Preempt"}'
  curl -s -X PUT http://127.0.0.1:8255/faults -d '{"status":503,"for":"30s"}'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkEmulateFlags(listen, control, speed, o); err != nil {
				return exit(exitUsage, err)
			}
			if exitAtEnd && scenario == "" {
				return exit(exitUsage, errors.New("--exit needs a --scenario to wait for"))
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			sc, err := findScenario(scenario)
			if err != nil {
				return err
			}
			if len(o.VMs) == 0 {
				o.VMs = sc.VMs
			}
			o.Speed, o.AutoStart = speed, true
			return p.emulate(ctx, imdstest.New(o), sc, listen, control, speed, exitAtEnd)
		},
	}
	f := c.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8254", "address of the metadata endpoint; port 0 picks a free one")
	f.StringVar(&control, "control", "127.0.0.1:8255", "address of the control API; \"\" for none")
	f.StringVar(&scenario, "scenario", "", "name of a built-in scenario, or a scenario file")
	f.Float64Var(&speed, "speed", 1, "how many times faster than real time; shortens notices too")
	f.StringArrayVar(&o.VMs, "vm", nil,
		"name of a VM of the set; repeat the flag for more (default vm_0, or the scenario's)")
	f.BoolVar(&exitAtEnd, "exit", false, "exit when the scenario is over")
	f.IntVar(&o.RateLimit, "rate-limit", 0, "requests per second and VM before 429; Azure's limit is 5 (default none)")
	f.DurationVar(&o.ApproveDelay, "approve-delay", 0, "time from an approval to the start; a scenario may set its own")
	f.IntVar(&o.UnknownApproval, "unknown-approval", 400, "status for the approval of an unknown event: 400 or 200")
	f.BoolVar(&o.Lax, "lax", false, "accept requests without the Metadata header, and forwarded requests")
	return c
}

// checkEmulateFlags returns an error about the first flag that is wrong.
func checkEmulateFlags(listen, control string, speed float64, o imdstest.Options) error {
	for _, f := range []struct{ flag, address string }{{"listen", listen}, {"control", control}} {
		if f.flag == "control" && f.address == "" {
			continue
		}
		_, port, err := net.SplitHostPort(f.address)
		if _, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil {
			return fmt.Errorf("--%s %s: expected host:port, such as 127.0.0.1:8254", f.flag, f.address)
		}
	}
	if math.IsNaN(speed) || speed < 0.1 || speed > 1e6 { // below 0.1, the longest notice would overflow a Duration
		return fmt.Errorf("--speed %v: expected a number from 0.1 to 1000000; 1 is real time", speed)
	}
	seen := make(map[string]bool)
	for _, vm := range o.VMs {
		switch {
		case vm == "" || strings.ContainsAny(vm, "/?#"):
			return fmt.Errorf("--vm %q: expected a name without /, ? and #", vm)
		case seen[strings.ToLower(vm)]:
			return fmt.Errorf("--vm %s: given twice; names ignore case", vm)
		}
		seen[strings.ToLower(vm)] = true
	}
	switch {
	case o.RateLimit < 0:
		return fmt.Errorf("--rate-limit %d: expected requests per second, or 0 for no limit", o.RateLimit)
	case o.ApproveDelay < 0:
		return fmt.Errorf("--approve-delay %v: expected a duration of 0 or more, such as 30s", o.ApproveDelay)
	case o.UnknownApproval != http.StatusOK && o.UnknownApproval != http.StatusBadRequest:
		return fmt.Errorf("--unknown-approval %d: expected 400 or 200", o.UnknownApproval)
	}
	return nil
}

// indented lists words in lines of at most width columns, each indented by two spaces.
func indented(words []string, width int) string {
	line, text := " ", ""
	for i, word := range words {
		if len(line)+len(word)+2 > width {
			text, line = text+line+"\n", " "
		}
		line += " " + word
		if i < len(words)-1 {
			line += ","
		}
	}
	return text + line
}

// emulate serves until ctx is done or, with exitAtEnd, the scenario is over.
func (p *program) emulate(
	ctx context.Context, azure *imdstest.Server, sc imdstest.Scenario, listen, control string, speed float64,
	exitAtEnd bool,
) error {
	served, err := azure.Listen(listen, control)
	if err != nil {
		return exit(exitUnavailable,
			fmt.Errorf("%w; choose other addresses with --listen and --control (port 0 picks a free one)", err))
	}
	defer served.Close()
	if err := json.NewEncoder(p.out).Encode(emulatorAddresses{served.URL, served.ControlURL, azure.VMs()}); err != nil {
		return err
	}
	fmt.Fprintf(p.err,
		"see the document:   curl -s -H Metadata:true '%s/metadata/scheduledevents?api-version=2020-07-01'\n",
		served.URL)
	if served.ControlURL != "" {
		fmt.Fprintf(p.err, "announce a reboot:  curl -s -X POST %s/events -d '{\"EventType\":\"Reboot\"}'\n",
			served.ControlURL)
	}
	if len(sc.Steps) > 0 {
		if err := azure.Play(ctx, sc, speed); err != nil && ctx.Err() == nil {
			return err
		}
		if exitAtEnd || ctx.Err() != nil {
			return nil
		}
		fmt.Fprintf(p.err, "forewarn: scenario %s is over; the endpoint keeps serving until you stop it\n", sc.Name)
	}
	<-ctx.Done()
	return nil
}

// findScenario returns the built-in scenario of that name, or the one in that file; an empty scenario for "".
func findScenario(name string) (imdstest.Scenario, error) {
	if name == "" {
		return imdstest.Scenario{}, nil
	}
	if slices.Contains(imdstest.Names(), name) {
		return imdstest.Builtin(name)
	}
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return imdstest.Scenario{}, exit(exitUsage, fmt.Errorf("--scenario %s: no such file; the built-in scenarios are %s",
			name, strings.Join(imdstest.Names(), ", ")))
	} else if err != nil {
		return imdstest.Scenario{}, exit(exitData, fmt.Errorf("--scenario: %w", err))
	}
	sc, err := imdstest.ParseScenario(name, data)
	return sc, exit(exitData, err)
}
