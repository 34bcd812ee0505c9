// Measure says what forewarn costs, beside a program that does the least (./bare), both measured in the same run, since
// figures of different runs, let alone of different machines, can't be compared:
//
//	go run ./bridge/internal/measure [-json FILE] [-idle 60s] [-changes 200] [-deliveries 1000,10000,50000] [PART...]
//
// The parts are size, idle, start, delay, deliveries, peak and growth; all of them without any. It builds forewarn,
// emulates Azure, and has its own receivers; nothing is installed, and nothing outside of a temporary directory is
// written. It runs on Linux. Leave the machine alone meanwhile. figures.json holds a whole run, written with -json, and
// says when and on what machine it was made.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// A figure is one thing that was measured.
type figure struct {
	Part  string  `json:"part"`
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Bare  float64 `json:"bare,omitempty"` // the same of the bare program, 0 if there is no such thing
}

// A record is what -json writes.
type record struct {
	Taken   taken    `json:"taken"`
	Figures []figure `json:"figures"`
}

// taken is when and where figures were measured.
type taken struct {
	Date   string `json:"date"`
	Go     string `json:"go"`
	Cores  int    `json:"cores"`
	CPU    string `json:"cpu"`
	Kernel string `json:"kernel"`
}

// A bench is a run of the whole.
type bench struct {
	dir        string // for all files
	forewarn   string // path of the program
	bare       string
	idle       time.Duration // how long a program at rest is looked at
	changes    int           // how many delays are measured
	deliveries []int         // how many are pending at once
	figures    []figure
}

func (b *bench) note(part, what string, value float64, unit string, bare float64) {
	b.figures = append(b.figures, figure{part, what, value, unit, bare})
}

// A part is a group of figures.
type part struct {
	name string
	run  func(*bench) error
}

var parts = []part{
	{"size", (*bench).size}, {"idle", (*bench).atRest}, {"start", (*bench).starts}, {"delay", (*bench).delays},
	{"deliveries", (*bench).throughput}, {"peak", (*bench).peak}, {"growth", (*bench).growth},
}

func main() {
	out := flag.String("json", "", "write the figures to this file too")
	idle := flag.Duration("idle", time.Minute, "how long programs at rest are looked at")
	changes := flag.Int("changes", 200, "how many times the delay of a change is measured")
	deliveries := flag.String("deliveries", "1000,10000,50000", "how many deliveries are pending, at most 50000 each")
	flag.Parse()
	b := &bench{idle: *idle, changes: *changes}
	for n := range strings.SplitSeq(*deliveries, ",") {
		count, err := strconv.Atoi(n)
		if err != nil || count < 1 || count > mostPending {
			fmt.Fprintf(os.Stderr, "measure: -deliveries %q: want numbers from 1 to %d\n", n, mostPending)
			os.Exit(2)
		}
		b.deliveries = append(b.deliveries, count)
	}
	if err := run(b, *out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
}

func run(b *bench, out string, wanted []string) (err error) {
	for _, w := range wanted {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == w }) {
			return fmt.Errorf("there is no part %q", w)
		}
	}
	b.dir, err = os.MkdirTemp("", "measure")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	go func() {
		<-interrupted
		_ = os.RemoveAll(b.dir)
		os.Exit(130)
	}()
	b.forewarn, b.bare = filepath.Join(b.dir, "forewarn"), filepath.Join(b.dir, "bare")
	if err := build("./cmd/forewarn", b.forewarn); err != nil {
		return err
	}
	if err := build("./bridge/internal/measure/bare", b.bare); err != nil {
		return err
	}
	for _, p := range parts {
		if len(wanted) > 0 && !slices.Contains(wanted, p.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring %s …\n", p.name)
		if err := p.run(b); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	b.print()
	if out == "" {
		return nil
	}
	here, err := machine()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(record{here, b.figures}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

// machine describes this moment and this machine.
func machine() (taken, error) {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return taken{}, err
	}
	cpus, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return taken{}, err
	}
	t := taken{Date: time.Now().UTC().Format(time.DateOnly), Go: runtime.Version(), Cores: runtime.NumCPU(),
		Kernel: strings.TrimSpace(string(kernel))}
	for line := range strings.Lines(string(cpus)) {
		if key, model, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			t.CPU = strings.TrimSpace(model)
			break
		}
	}
	return t, nil
}

func (b *bench) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "part\twhat\tforewarn\tbare\tunit\t")
	for _, f := range b.figures {
		bare := ""
		if f.Bare != 0 {
			bare = number(f.Bare)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", f.Part, f.What, number(f.Value), bare, f.Unit)
	}
	_ = w.Flush()
}

// number has as many digits as mean something.
func number(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
