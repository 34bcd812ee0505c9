package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"forewarn/bridge"
	"forewarn/bridge/cloudevent"
	"forewarn/bridge/delivery"
	"forewarn/bridge/imds"
	"forewarn/cmd/forewarn/internal/wording"
)

// A rendering is the message that one sink would send.
type rendering struct {
	Sink string `json:"sink"`
	ID   string `json:"id"` // of the CloudEvent
	Text string `json:"text"`
	// FilteredBy is the key that keeps such an event from the sink when it is new; "" for none.
	FilteredBy string `json:"filteredBy,omitempty"`
}

func (p *program) renderCommand() *cobra.Command {
	var req sampleRequest
	var document, change string
	c := p.outputFlag(&cobra.Command{
		Use: "render", Short: "Print what each sink would send, for a sample or a document of your own",
		Long: `Prints the message that each sink would send, with secrets hidden, for a sample or for every event of
a Scheduled Events document. It sends nothing. The events of a document count as seen for the first
time, unless --change says otherwise. A sink whose filter keeps such an event out is named, with the
key, and its message is printed all the same.`,
		Example: `  forewarn render --sink ops --sample preempt
  forewarn events | forewarn render --document - --change vanished`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			routes, o, err := p.chosenRoutes(c.Context(), &req)
			if err != nil {
				return err
			}
			if document != "" && c.Flags().Changed("sample") {
				return exit(exitUsage, errors.New("--sample and --document don't go together; give one of them"))
			}
			samples, err := p.samples(req, document, change, o)
			if err != nil {
				return err
			}
			for i := range samples {
				err := req.promise(&samples[i], o, time.Now())
				if err != nil {
					return err
				}
			}
			return p.render(routes, samples, o)
		},
	})
	f := req.flags(c).Flags()
	f.StringVar(&document, "document", "", "use the events of this Scheduled Events document; - for standard input")
	f.StringVar(&change, "change", "", "with --document: treat all its events as scheduled, updated, started or vanished")
	return c
}

// samples returns the changes to render: the requested sample, or those of the document.
func (p *program) samples(req sampleRequest, document, change string, o imds.Observer) ([]cloudevent.Sample, error) {
	if document == "" {
		if change != "" {
			return nil, exit(exitUsage, errors.New("--change works only with --document; a sample has its own change"))
		}
		s, err := req.newSample(o)
		return []cloudevent.Sample{s}, err
	}
	in := os.Stdin
	if document != "-" {
		f, err := os.Open(document)
		if err != nil {
			return nil, exit(exitData, err)
		}
		defer f.Close()
		in = f
	}
	body, err := io.ReadAll(io.LimitReader(in, 4<<20))
	if err != nil {
		return nil, exit(exitData, err)
	}
	doc, err := imds.DecodeDocument(body)
	if err != nil {
		return nil, exit(exitData, fmt.Errorf("%s: %w", document, err))
	}
	for _, problem := range doc.Problems {
		fmt.Fprintf(p.err, "forewarn: %s: %s\n", document, wording.Printable(problem))
	}
	var samples []cloudevent.Sample
	for _, c := range imds.Diff(nil, doc) {
		s := cloudevent.Sample{Name: c.Event.ID, Change: c}
		switch kind := imds.ChangeKind(change); kind {
		case "":
		case imds.Vanished:
			s.Change.Kind, s.End.Outcome = kind, cloudevent.OutcomeUnknown
		case imds.Scheduled, imds.Started, imds.Updated:
			s.Change.Kind = kind
		default:
			return nil, exit(exitUsage, fmt.Errorf("--change %s: expected one of scheduled, updated, started, vanished", change))
		}
		samples = append(samples, s)
	}
	if len(samples) == 0 {
		fmt.Fprintln(p.err, "forewarn: the document has no events")
	}
	return samples, nil
}

func (p *program) render(routes []bridge.Route, samples []cloudevent.Sample, o imds.Observer) error {
	all := []rendering{}
	now := time.Now()
	for _, s := range samples {
		ce, err := s.CloudEvent(o, now)
		if err != nil {
			return err
		}
		for _, r := range routes {
			shown, ok := r.Sink.(delivery.Renderer)
			if !ok {
				return fmt.Errorf("sink %s: cannot render messages of kind %s", r.Name, r.Kind)
			}
			text, err := shown.Render(delivery.Delivery{Event: ce, Attempt: 1})
			if err != nil {
				return fmt.Errorf("sink %s: %w", r.Name, err)
			}
			filtered, err := filterResult(r.Filter, s, o, now)
			if err != nil {
				return err
			}
			key, _ := strings.CutPrefix(filtered, "no: ")
			if key == filtered {
				key = ""
			}
			all = append(all, rendering{r.Name, ce.ID(), text, key})
		}
	}
	if p.output == "json" {
		return wording.PrintJSON(p.out, all)
	}
	for i, r := range all {
		if r.FilteredBy != "" {
			fmt.Fprintf(p.err, "forewarn: %s would not get %s, because of %s\n", r.Sink, r.ID, r.FilteredBy)
		}
		if len(all) > 1 {
			if i > 0 {
				fmt.Fprintln(p.out)
			}
			fmt.Fprintf(p.out, "== %s: %s\n", r.Sink, r.ID)
		}
		if _, err := io.WriteString(p.out, r.Text); err != nil {
			return err
		}
	}
	return nil
}
