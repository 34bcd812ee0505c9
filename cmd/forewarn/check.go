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
	"forewarn/sinks"
)

// A checkReport is the output of check.
type checkReport struct {
	Settings string          `json:"settings"` // path of the file; "" for the defaults
	Hash     string          `json:"hash"`
	State    string          `json:"state"`
	Endpoint string          `json:"endpoint"`
	Stream   string          `json:"stream,omitempty"` // of a relay
	Sinks    []string        `json:"sinks"`
	Samples  []sampleRow     `json:"samples"`
	Notes    []string        `json:"notes"`
	Connect  []connectResult `json:"connect,omitempty"` // with --connect
}

// A sampleRow says what the settings would do with one sample event.
type sampleRow struct {
	Sample string `json:"sample"`
	VM     string `json:"vm"` // the VM that the event names: "this" or "other"
	// Approval names the rules of approve that would approve it and what they wait for, or says why none would; "" without
	// rules.
	Approval string            `json:"approval,omitempty"`
	Sinks    map[string]string `json:"sinks"` // by the name of the sink: "told", or "no: " and the key that filters it out
}

func (p *program) checkCommand() *cobra.Command {
	var reach bool
	c := p.outputFlag(&cobra.Command{
		Use: "check", Short: "Check the settings, and show which sink would get which events",
		Long: `Checks the settings file without contacting the endpoint or any destination. For each sample event it
prints which sinks would get it, or the key of the settings that filters it out, and whether a rule
of approve would approve it. Exit 78 if the settings are wrong.

With --connect it also connects to each destination, without sending anything, and tries whether the
state can be written. It signs in where that takes no message: at a mail server, NATS, and Slack with
a token. Whether others take the credentials forewarn send shows. Exit 69 if something fails.`,
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
			if st, err := p.client(s).Status(cmd.Context()); err == nil {
				c.Notes = append(c.Notes, muteNotes(st)...)
			}
			if reach {
				c.Connect = connect(cmd.Context(), s.Routes)
				first := connectToState
				if s.Relay != nil {
					first = p.connectToStream
				}
				c.Connect = append([]connectResult{first(cmd.Context(), s)}, c.Connect...)
			}
			show := p.printCheck
			if p.output == "json" {
				show = func(c checkReport) error { return wording.PrintJSON(p.out, c) }
			}
			if err := show(c); err != nil {
				return err
			}
			if slices.ContainsFunc(c.Connect, connectResult.failed) {
				return errUnreachable
			}
			return nil
		},
	})
	c.Flags().BoolVar(&reach, "connect", false, "also connect to each destination, without sending anything")
	return c
}

// check runs every sample event through the filters and rules of the settings: all samples for this VM, and one for
// another VM of its set.
func check(s *settings.Settings, now time.Time) (checkReport, error) {
	c := checkReport{
		Settings: s.Path, Hash: s.Hash, State: string(s.State), Endpoint: s.IMDS.Endpoint,
		Sinks: []string{}, Notes: append([]string{}, s.Notes...),
	}
	self := s.IMDS.VMName
	if self == "" {
		self = "this-vm"
	}
	for _, r := range s.Routes {
		c.Sinks = append(c.Sinks, r.Name)
	}
	vms := []string{"this", "other"}
	if s.Relay != nil {
		c.State, c.Endpoint, c.Stream, vms = "", "", s.Relay.Stream, []string{"other"}
	}
	for _, vm := range vms {
		names := cloudevent.SampleNames
		if vm == "other" && s.Relay == nil {
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
				result, err := filterResult(r.Filter, sample, imds.Observer{Name: self}, now)
				if err != nil {
					return c, err
				}
				row.Sinks[r.Name] = result
			}
			if err := row.forecastApproval(s.Rules, sample, self, now); err != nil {
				return c, err
			}
			c.Samples = append(c.Samples, row)
		}
	}
	if len(s.Routes) == 0 {
		c.Notes = append(c.Notes, "there are no sinks, so nobody is notified")
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
	if runtime.GOOS != "windows" { // Windows has access lists instead of modes
		c.Notes = append(c.Notes, settingsPermissionNotes(s)...)
		for _, r := range s.Routes {
			c.Notes = append(c.Notes, secretPermissionNotes(r)...)
		}
	}
	c.Notes = append([]string{}, s.Showable(c.Notes)...)
	return c, nil
}

// settingsPermissionNotes warns when every user of this machine can change a settings file, which names commands and
// destinations, or can read the secrets in it.
func settingsPermissionNotes(s *settings.Settings) (notes []string) {
	for _, file := range s.Files {
		info, err := os.Stat(file.Path)
		if err != nil {
			continue
		}
		notes = append(notes, changeableNotes(file.Path)...)
		if mode := info.Mode().Perm(); mode&0o004 != 0 && len(file.Inline) > 0 {
			notes = append(notes, fmt.Sprintf("every user of this machine can read the secret in %s (mode %04o): %s; "+
				"run chmod 0640 on it and give it the group that forewarn runs as", file.Path, mode, strings.Join(file.Inline, ", ")))
		}
	}
	return notes
}

// secretPermissionNotes names the secret files of a route that every user of this machine can read, or that their group
// can change. Reading by the group is fine: that is how root shares a secret with the service. Certificates aren't
// secret.
func secretPermissionNotes(r bridge.Route) []string {
	var notes []string
	for _, file := range r.Secrets {
		info, err := os.Stat(file)
		if err != nil || onlyCertificates(file) {
			continue // opening the sink has reported an unreadable file
		}
		var who string
		switch mode := info.Mode().Perm(); {
		case mode&0o004 != 0 && !onlyAddress(file):
			who = "every user of this machine can read"
		case mode&0o002 != 0:
			who = "every user of this machine can change"
		case mode&0o020 != 0:
			who = "its group can change"
		default:
			continue
		}
		notes = append(notes,
			fmt.Sprintf("%s: %s the secret in %s (mode %04o); run chmod 0400 on it and give it to the user "+
				"that forewarn runs as", r.Name, who, file, info.Mode().Perm()))
	}
	return notes
}

// onlyAddress reports whether a file holds an address, or a list of them, without a secret in it.
func onlyAddress(file string) bool {
	text, err := os.ReadFile(file)
	return err == nil && bytes.Contains(text, []byte("://")) && !sinks.MayBeSecret("url", "", string(text))
}

// onlyCertificates reports whether a file is in PEM form and holds no private key.
func onlyCertificates(file string) bool {
	text, err := os.ReadFile(file)
	return err == nil && bytes.Contains(text, []byte("-----BEGIN CERTIFICATE-----")) &&
		!bytes.Contains(text, []byte("PRIVATE KEY-----"))
}

// filterResult returns "told" if the filter passes the sample, else "no: " and the key that filters it out. An update
// or an end passes only if the filter would have passed the event when it was scheduled, as in the running program.
func filterResult(f bridge.Filter, s cloudevent.Sample, o imds.Observer, now time.Time) (string, error) {
	first := s
	if k := s.Change.Kind; k == imds.Updated || k == imds.Vanished {
		first = cloudevent.Sample{Name: s.Name, Change: imds.Change{Kind: imds.Scheduled, Event: s.Change.Event}}
	}
	ce, err := first.CloudEvent(o, now)
	if err != nil {
		return "", err
	}
	wanted, key, err := f.MatchEvent(first.Change, cloudevent.Fields(ce), o.Name)
	switch {
	case !wanted:
		return "no: " + key, nil
	case err != nil:
		return "told (when fails: " + err.Error() + ")", nil
	}
	if ok, key := f.MatchChange(s.Change, o.Name); !ok {
		return "no: " + key, nil
	}
	return "told", nil
}

func (p *program) printCheck(c checkReport) error {
	from := c.Settings
	if from == "" {
		from = "no settings file (using the defaults, with standard output as the only sink)"
	}
	where := fmt.Sprintf("state %s, endpoint %s", c.State, c.Endpoint)
	if c.Stream != "" {
		where = "relay of stream " + c.Stream
	}
	fmt.Fprintf(p.out, "%s: ok\n%s\n", from, where)
	if err := p.printSamples(c); err != nil {
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

// printSamples prints what would happen to the sample events; nothing if there is neither a sink nor a rule.
func (p *program) printSamples(c checkReport) error {
	heads := append([]string{"EVENT"}, c.Sinks...)
	rules := slices.ContainsFunc(c.Samples, func(row sampleRow) bool { return row.Approval != "" })
	if rules {
		heads = append(heads, "APPROVAL")
	}
	if len(heads) == 1 {
		return nil
	}
	fmt.Fprintln(p.out, "\nWhich sinks would be told:")
	t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(heads, "\t"))
	for _, row := range c.Samples {
		name := row.Sample
		if row.VM == "other" && c.Stream == "" {
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
	return t.Flush()
}
