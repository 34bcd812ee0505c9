package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
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
	Connect  []reached   `json:"connect,omitempty"` // with --connect
}

// sampleRow is one sample event and what each sink would make of it.
type sampleRow struct {
	Sample string `json:"sample"`
	VM     string `json:"vm"` // this, other
	// Approval says which rules of approve would approve it and after what, or why none would; "" without rules.
	Approval string            `json:"approval,omitempty"`
	Sinks    map[string]string `json:"sinks"`
}

func (p *program) checkCommand() *cobra.Command {
	var reach bool
	c := p.outputFlag(&cobra.Command{
		Use: "check", Short: "Check the settings, and show which sink would get which events",
		Long: `Checks the settings file without touching the endpoint or any destination. Prints for sample events
whether each sink would get them, or the key of the settings that keeps them out, and whether a rule
of approve would approve them. Exit 78 if the settings are wrong.

With --connect it also reaches each destination and shows it the credentials, without sending
anything. Exit 69 if one can't be reached.`,
		Example: "  forewarn check --config forewarn.yaml\n  forewarn check --connect",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := p.settings(p.log())
			if err != nil {
				return err
			}
			c, err := check(s, time.Now())
			if err != nil {
				return err
			}
			if reach {
				c.Connect = connect(cmd.Context(), s.Routes)
			}
			show := p.printCheck
			if p.output == "json" {
				show = func(c checked) error { return wording.PrintJSON(p.out, c) }
			}
			if err := show(c); err != nil {
				return err
			}
			if slices.ContainsFunc(c.Connect, func(r reached) bool { return r.Result == "unreachable" }) {
				return errUnreachable
			}
			return nil
		},
	})
	c.Flags().BoolVar(&reach, "connect", false, "reach each destination too, without sending anything")
	return c
}

// check asks the filters of every sink about every sample, for this VM and for another of its set.
func check(s *settings.Settings, now time.Time) (checked, error) {
	c := checked{Settings: s.Path, Hash: s.Hash, State: s.State, Endpoint: s.IMDS.Endpoint, Sinks: []string{}, Notes: append([]string{}, s.Notes...)}
	self := s.IMDS.VMName
	if self == "" {
		self = "this-vm"
	}
	for _, r := range s.Routes {
		c.Sinks = append(c.Sinks, r.Name)
	}
	for _, vm := range []string{"this", "other"} {
		names := cloudevent.SampleNames
		if vm == "other" {
			names = names[:1]
		}
		for _, name := range names {
			hit := self
			if vm == "other" {
				hit = self + "-neighbour"
			}
			sample, _ := cloudevent.NewSample(name, hit, now)
			row := sampleRow{Sample: name, VM: vm, Sinks: map[string]string{}}
			for _, r := range s.Routes {
				word, err := told(r.Filter, sample, imds.Observer{Name: self}, now)
				if err != nil {
					return c, err
				}
				row.Sinks[r.Name] = word
			}
			if err := row.foresee(s.Rules, sample, self, now); err != nil {
				return c, err
			}
			c.Samples = append(c.Samples, row)
		}
	}
	if len(s.Routes) == 0 {
		c.Notes = append(c.Notes, "there are no sinks, so nobody is told")
	}
	notes, err := sinkNotes(s, c.Samples, self, now)
	if err != nil {
		return c, err
	}
	c.Notes = append(c.Notes, notes...)
	notes, err = approvalNotes(s, self, now)
	if err != nil {
		return c, err
	}
	c.Notes = append(c.Notes, notes...)
	if runtime.GOOS != "windows" { // which has lists of rights instead of these
		c.Notes = append(c.Notes, looseSettings(s)...)
		for _, r := range s.Routes {
			c.Notes = append(c.Notes, looseSecrets(r)...)
		}
	}
	return c, nil
}

// looseSettings says that others on this machine can change the settings, which name commands and destinations, or can
// read the secrets that are written out in them.
func looseSettings(s *settings.Settings) []string {
	info, err := os.Stat(s.Path)
	if err != nil {
		return nil // there is no file, and the defaults count
	}
	var notes []string
	mode := info.Mode().Perm()
	if mode&0o002 != 0 {
		notes = append(notes, fmt.Sprintf("everybody on this machine can change %s (mode %04o), and so what forewarn does; chmod o-w prevents that", s.Path, mode))
	}
	if mode&0o004 != 0 && len(s.Written) > 0 {
		notes = append(notes, fmt.Sprintf("everybody on this machine can read the secret in %s (mode %04o): %s; chmod 0640 leaves it to its owner and its group, "+
			"which must be that of whom forewarn runs as", s.Path, mode, strings.Join(s.Written, ", ")))
	}
	return notes
}

// looseSecrets names the files of a route's secrets that others on this machine can read, or its group can change. That
// the group reads them is how secrets are shared with a service that does not own them. Certificates are no secrets.
func looseSecrets(r bridge.Route) []string {
	var notes []string
	for _, file := range r.Secrets {
		info, err := os.Stat(file)
		if err != nil || onlyCertificates(file) {
			continue // what cannot be read was an error before
		}
		var who string
		switch mode := info.Mode().Perm(); {
		case mode&0o004 != 0:
			who = "everybody on this machine can read"
		case mode&0o002 != 0:
			who = "everybody on this machine can change"
		case mode&0o020 != 0:
			who = "its group can change"
		default:
			continue
		}
		notes = append(notes, fmt.Sprintf("%s: %s the secret in %s (mode %04o); chmod 0400 leaves it to its owner, who must be whom forewarn runs as",
			r.Name, who, file, info.Mode().Perm()))
	}
	return notes
}

// onlyCertificates tells whether a file is in PEM form and holds no private key.
func onlyCertificates(file string) bool {
	text, err := os.ReadFile(file)
	return err == nil && bytes.Contains(text, []byte("-----BEGIN CERTIFICATE-----")) && !bytes.Contains(text, []byte("PRIVATE KEY-----"))
}

// told is the word for what a filter makes of a sample. One that is no event's first change is told when that was.
func told(f bridge.Filter, s cloudevent.Sample, o imds.Observer, now time.Time) (string, error) {
	first := s
	if k := s.Change.Kind; k == imds.Updated || k == imds.Vanished {
		first = cloudevent.Sample{Name: s.Name, Change: imds.Change{Kind: imds.Scheduled, Event: s.Change.Event}}
	}
	ce, err := first.CloudEvent(o, now)
	if err != nil {
		return "", err
	}
	verdict, key, err := f.Event(first.Change, cloudevent.Fields(ce), o.Name, true)
	switch {
	case verdict == bridge.Refused:
		return "no: " + key, nil
	case err != nil:
		return "told (when fails: " + err.Error() + ")", nil
	}
	if ok, key := f.Change(s.Change, o.Name); !ok {
		return "no: " + key, nil
	}
	return "told", nil
}

func (p *program) printCheck(c checked) error {
	from := c.Settings
	if from == "" {
		from = "no settings file: the defaults, and standard output"
	}
	fmt.Fprintf(p.out, "%s: ok\nstate %s, endpoint %s\n\nWho would be told of what:\n", from, c.State, c.Endpoint)
	t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	heads := append([]string{"EVENT"}, c.Sinks...)
	rules := slices.ContainsFunc(c.Samples, func(row sampleRow) bool { return row.Approval != "" })
	if rules {
		heads = append(heads, "APPROVAL")
	}
	fmt.Fprintln(t, strings.Join(heads, "\t"))
	for _, row := range c.Samples {
		name := row.Sample
		if row.VM == "other" {
			name += " of another VM"
		}
		cells := []string{name}
		for _, sink := range c.Sinks {
			cells = append(cells, wording.Printable(row.Sinks[sink]))
		}
		if rules {
			cells = append(cells, wording.Printable(row.Approval))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range c.Notes {
		fmt.Fprintf(p.out, "\nnote: %s\n", note)
	}
	if c.Connect != nil {
		return p.printReached(c.Connect)
	}
	return nil
}
