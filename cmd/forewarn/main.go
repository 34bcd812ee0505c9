// Forewarn tells people and systems what Azure is about to do to a virtual machine. It polls the VM's Scheduled Events
// document, says each change as a CloudEvent, and gets that CloudEvent to every configured destination.
//
// This package is the command: one file a subcommand, and the only wiring of the other packages. It alone reads the
// environment, starts servers and exits.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	_ "time/tzdata" // a minimal image has no zones

	"github.com/spf13/cobra"

	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/service"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
)

// Exit codes; but for the first three they are those of sysexits.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitData        = 65 // bad input data
	exitUnavailable = 69
	exitTryAgain    = 75
	exitSettings    = 78
)

// version is set by the linker for a release.
var version = ""

func main() {
	os.Exit(run(context.Background(), process()))
}

// world is what the program takes from outside.
type world struct {
	args     []string
	out      io.Writer
	err      io.Writer
	getenv   func(string) string
	defaults settings.Defaults
	become   func(owner) error   // makes this process that of another user, for good; nil when it is not the program's own
	events   service.EventWriter // writes to the Event Log, which takes the place of err for the log; nil for none
	dial     sinks.Dialer        // reaches destinations; nil is the network
}

func process() world {
	return world{
		args: os.Args[1:], out: output(os.Stdout), err: output(os.Stderr), getenv: os.Getenv,
		defaults: settings.SystemDefaults(runtime.GOOS, os.Geteuid(), os.Getenv), become: owner.become,
	}
}

// exitError is an error with the exit code that it means.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func exit(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code, err}
}

// exitCode is the one that err means.
func exitCode(err error) int {
	var (
		e           *exitError
		stopped     *service.StoppedError
		unavailable *control.UnavailableError
	)
	switch {
	case err == nil, errors.As(err, &stopped):
		return exitOK
	case errors.As(err, &e):
		return e.code
	case errors.As(err, &unavailable) && unavailable.Busy:
		return exitTryAgain
	case errors.As(err, &unavailable):
		return exitUnavailable
	}
	return exitFailed
}

// run runs the command and returns its exit code.
func run(ctx context.Context, w world) int {
	p := &program{world: w}
	root := p.root()
	root.SetArgs(w.args)
	root.SetOut(w.out)
	root.SetErr(w.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var e *exitError
	switch {
	case errors.As(err, &e):
	case p.started:
		e = &exitError{exitCode(err), err}
	default: // cobra did not get as far as the command
		e = &exitError{exitUsage, err}
	}
	for line := range strings.Lines(e.Error()) { // settings may be wrong in several places
		fmt.Fprintf(w.err, "forewarn: %s\n", strings.TrimRight(line, "\n"))
	}
	return e.code
}

// program holds the flags that every command has.
type program struct {
	world
	started   bool // the flags and arguments were right
	config    string
	output    string
	logFormat string
	logLevel  string
	turns     sinks.SlackTurns // through every reload

	askedOwner bool   // whose the state is; see giveUpRoot
	actsFor    *owner // who root has become; nil when nobody was
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "forewarn",
		Short: "Tells people and systems what Azure is about to do to this virtual machine",
		Long: `forewarn polls the VM's Azure Scheduled Events, says each change as a CloudEvent, and delivers it to every
configured destination: at least once, in order, across crashes and outages.`,
		Example: `  forewarn demo                       see what it does, on any machine
  forewarn check                      look at the settings before they count
  forewarn run                        watch this VM
  forewarn status                     ask the forewarn that runs`,
		Version:      programVersion(),
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			p.started = true
			forms := []string{"", "text", "json"}
			if c.Name() == "history" {
				forms = append(forms, "csv")
			}
			return p.checkFlags(forms)
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&p.config, "config", "", "settings file (default: "+settings.DefaultPath(runtime.GOOS, p.getenv)+")")
	f.StringVar(&p.logFormat, "log-format", "text", "form of the log on standard error: text or json")
	f.StringVar(&p.logLevel, "log-level", "info", "least level that is logged: debug, info, warn or error")
	root.AddCommand(p.runCommand(), p.demoCommand(), p.emulateCommand(), p.checkCommand(), p.renderCommand(), p.sendCommand(),
		p.eventsCommand(), p.discoverCommand(), p.statusCommand(), p.tailCommand(), p.approveCommand(), p.historyCommand(), p.outboxCommand(),
		p.serviceCommand(), p.schemaCommand(), p.versionCommand())
	root.AddCommand(p.helpTopics()...)
	root.SetVersionTemplate(versionText())
	strict(root)
	complete(root, p)
	return root
}

// outputFlag gives a command the flag -o.
func (p *program) outputFlag(c *cobra.Command) *cobra.Command {
	c.Flags().StringVarP(&p.output, "output", "o", "text", "form of the data on standard output: text or json")
	return c
}

// checkFlags refuses values that a flag does not know; forms are those of the command's output.
func (p *program) checkFlags(forms []string) error {
	for _, f := range []struct {
		name, value string
		allowed     []string
	}{
		{"--output", p.output, forms},
		{"--log-format", p.logFormat, []string{"text", "json"}},
		{"--log-level", p.logLevel, []string{"debug", "info", "warn", "error"}},
	} {
		ok := false
		for _, a := range f.allowed {
			ok = ok || a == f.value
		}
		if !ok {
			return exit(exitUsage, fmt.Errorf("%s %s: expected one of %s", f.name, f.value, strings.TrimPrefix(strings.Join(f.allowed, ", "), ", ")))
		}
	}
	return nil
}

// log is the logger of the flags.
func (p *program) log() *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(p.logLevel)) // checked by checkFlags
	if p.events != nil {
		return slog.New(service.NewEventLog(level, p.logFormat == "json", p.events))
	}
	o := &slog.HandlerOptions{Level: level}
	if p.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(p.err, o))
	}
	return slog.New(slog.NewTextHandler(p.err, o))
}

// loader reads settings as this process can.
func (p *program) loader(log *slog.Logger) settings.Loader {
	host, _ := os.Hostname()
	return settings.Loader{
		Kinds: sinks.Kinds, Defaults: p.defaults,
		Host: sinks.Host{
			Hostname: host, Getenv: p.getenv, Stdout: p.out, Proxy: http.ProxyFromEnvironment, Log: log, Agent: "forewarn/" + programVersion(),
			Dial: p.dial, SlackTurns: &p.turns,
		},
	}
}

// settings loads the settings file; an error means exit 78. Root has become the owner of the state when the sinks open.
func (p *program) settings(log *slog.Logger) (*settings.Settings, error) {
	if os.Geteuid() == 0 {
		if s, err := p.rootPlaces(); err == nil { // what is wrong with them is said below
			if err := p.giveUpRoot(s.State); err != nil {
				return nil, err
			}
		}
	}
	s, err := p.loader(log).Load(p.config)
	if err != nil && p.actsFor != nil {
		err = fmt.Errorf("as %s, whom the state belongs to: %w", p.actsFor, err)
	}
	return s, exit(exitSettings, err)
}

// places loads the settings without their sinks: whoever asks the running forewarn need not be able to read secrets.
// Root becomes the owner of the state.
func (p *program) places() (*settings.Settings, error) {
	s, err := p.rootPlaces()
	if err == nil {
		err = p.giveUpRoot(s.State)
	}
	return s, err
}

// rootPlaces are places for a command that needs the rights of root. It must open nothing of another user.
func (p *program) rootPlaces() (*settings.Settings, error) {
	l := p.loader(p.log())
	l.Kinds = nil
	s, err := l.Load(p.config)
	return s, exit(exitSettings, err)
}

// programVersion is the release, or what the build says of itself.
func programVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return "devel-" + s.Value[:min(12, len(s.Value))]
		}
	}
	return "devel"
}

func (p *program) versionCommand() *cobra.Command {
	return p.outputFlag(&cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Example: "  forewarn version -o json",
		RunE: func(*cobra.Command, []string) error {
			if p.output == "json" {
				return wording.PrintJSON(p.out, map[string]string{"version": programVersion(), "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH})
			}
			_, err := io.WriteString(p.out, versionText())
			return err
		},
	})
}

func versionText() string {
	return fmt.Sprintf("forewarn %s %s %s/%s\n", programVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
