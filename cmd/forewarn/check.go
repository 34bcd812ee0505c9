package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge"
)

// checked is what check prints of the settings.
type checked struct {
	Settings string      `json:"settings"` // the file, "" for the defaults
	Hash     string      `json:"hash"`
	State    string      `json:"state"`
	Endpoint string      `json:"endpoint"`
	Sinks    []string    `json:"sinks"`
	Samples  []sampleRow `json:"samples"`
	Notes    []string    `json:"notes"`
}

// sampleRow is one sample event and what each sink would make of it.
type sampleRow struct {
	Sample string            `json:"sample"`
	VM     string            `json:"vm"` // this, other
	Sinks  map[string]string `json:"sinks"`
}

func (p *program) checkCommand() *cobra.Command {
	return p.outputFlag(&cobra.Command{
		Use: "check", Short: "Check the settings, and show which events which sink would hear of",
		Long: `Checks the settings file without touching the endpoint or any destination, and prints for sample events whether each
sink would be told, or the key of the settings that keeps it out. Wrong settings: exit 78.`,
		Example: "  forewarn check --config forewarn.yaml",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			s, err := p.settings(p.log())
			if err != nil {
				return err
			}
			c, err := check(s, time.Now())
			if err != nil {
				return err
			}
			if p.output == "json" {
				return printJSON(p.out, c)
			}
			return p.printCheck(c)
		},
	})
}

// check asks the filters of every sink about every sample, for this VM and for another of its set.
func check(s *settings, now time.Time) (checked, error) {
	c := checked{Settings: s.Path, Hash: s.Hash, State: s.State, Endpoint: s.IMDS.Endpoint, Sinks: []string{}, Notes: append([]string{}, s.Notes...)}
	self := s.IMDS.VMName
	if self == "" {
		self = "this-vm"
	}
	everything := false
	for _, r := range s.Routes {
		c.Sinks = append(c.Sinks, r.Name)
		everything = everything || strings.EqualFold(r.Filter.Only.VMs, "all")
	}
	for _, vm := range []string{"this", "other"} {
		names := bridge.SampleNames
		if vm == "other" {
			names = names[:1]
		}
		for _, name := range names {
			hit := self
			if vm == "other" {
				hit = self + "-neighbour"
			}
			sample, _ := bridge.NewSample(name, hit, now)
			ce, err := sample.CloudEvent(bridge.Observer{Name: self}, now)
			if err != nil {
				return c, err
			}
			row := sampleRow{Sample: name, VM: vm, Sinks: map[string]string{}}
			for _, r := range s.Routes {
				row.Sinks[r.Name] = told(r.Filter, sample.Change, bridge.Fields(ce), self)
			}
			c.Samples = append(c.Samples, row)
		}
	}
	if !everything {
		c.Notes = append(c.Notes, "no sink has only: {vms: all}: the end of an event is heard only if this machine lives to see it")
	}
	if len(s.Routes) == 0 {
		c.Notes = append(c.Notes, "there are no sinks, so nobody is told")
	}
	return c, nil
}

// told is the word for what a filter makes of a change.
func told(f bridge.Filter, change bridge.Change, fields map[string]any, self string) string {
	verdict, key, err := f.Event(change, fields, self, true)
	switch {
	case verdict == bridge.Refused:
		return "no: " + key
	case err != nil:
		return "told (when fails: " + err.Error() + ")"
	}
	if ok, key := f.Change(change, self); !ok {
		return "no: " + key
	}
	return "told"
}

func (p *program) printCheck(c checked) error {
	from := c.Settings
	if from == "" {
		from = "no settings file: the defaults, and standard output"
	}
	fmt.Fprintf(p.out, "%s: ok\nstate %s, endpoint %s\n\n", from, c.State, c.Endpoint)
	t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "EVENT\t"+strings.Join(c.Sinks, "\t"))
	for _, row := range c.Samples {
		name := row.Sample
		if row.VM == "other" {
			name += " of another VM"
		}
		cells := []string{name}
		for _, sink := range c.Sinks {
			cells = append(cells, printable(row.Sinks[sink]))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range c.Notes {
		fmt.Fprintf(p.out, "\nnote: %s\n", note)
	}
	return nil
}
