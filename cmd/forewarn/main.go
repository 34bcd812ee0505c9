// Forewarn tells people and systems what Azure is about to do to a virtual machine. It polls the VM's Scheduled Events
// document, turns each change into a CloudEvent, and delivers that CloudEvent to every configured destination.
//
// This package is the command. It has one file per subcommand, and run.go wires the other packages together. Only this
// package reads the environment, starts servers and exits.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // minimal images have no time zone files

	"github.com/spf13/cobra"

	"forewarn/bridge/delivery"
	"forewarn/cmd/forewarn/internal/control"
	"forewarn/cmd/forewarn/internal/service"
	"forewarn/cmd/forewarn/internal/settings"
	"forewarn/cmd/forewarn/internal/wording"
	"forewarn/sinks"
)

// Exit codes. From exitData on they are those of BSD's sysexits.h.
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
	os.Exit(run(context.Background(), processEnvironment()))
}

// environment is everything that the program takes from outside, so that tests can replace it.
type environment struct {
	name     string // of the command, as whoever started it wrote it; "" is forewarn
	args     []string
	out      io.Writer
	err      io.Writer
	getenv   func(string) string
	defaults settings.Defaults
	become   func(owner) error   // switches this process to another user for good; nil in tests, which share a process
	events   service.EventWriter // the Windows Event Log, which replaces err for log lines; nil for none
	dial     sinks.Dialer        // reaches destinations; nil for the network
	// service returns the command that starts the installed service whose settings are at a path; without --config they
	// are at byDefault. It returns "" if there is none.
	service func(path, byDefault string) string
}

// processEnvironment returns the environment of this process.
func processEnvironment() environment {
	return environment{
		name: commandName(os.Args[0]), args: os.Args[1:], out: output(os.Stdout), err: output(os.Stderr), getenv: os.Getenv,
		defaults: settings.SystemDefaults(runtime.GOOS, os.Geteuid(), os.Getenv), become: owner.become,
		service: service.StartCommand,
	}
}

// commandName returns what to type to start the program again. Go runs a program from a directory of its own.
func commandName(arg0 string) string {
	if strings.Contains(arg0, "go-build") {
		return "go run ./cmd/forewarn"
	}
	return arg0
}

// An exitError is an error with its exit code.
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

// exitCode returns the exit code for err.
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
func run(ctx context.Context, w environment) int {
	stdlog.SetOutput(io.Discard) // net/http logs unexpected answers there, and those may repeat secrets
	p := &program{environment: w}
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
	default: // cobra refused the command line before any command ran
		e = &exitError{exitUsage, err}
	}
	for line := range strings.Lines(e.Error()) { // a settings file can have several problems
		fmt.Fprintf(w.err, "forewarn: %s\n", strings.TrimRight(line, "\n"))
	}
	return e.code
}

// A program is one run of the command, with the flags that all subcommands share.
type program struct {
	environment
	started   bool // cobra accepted the flags and arguments
	config    string
	output    string
	logFormat string
	logLevel  string
	turns     sinks.SlackTurns   // shared across reloads
	known     sinks.KnownSecrets // shared across reloads, so that an old secret stays hidden
	vault     sinks.Vault        // shared across reloads, so that a secret stays in memory
	secrets   secretKeeper
	sinkOut   io.Writer // where a sink that writes to standard output writes; nil for there
	asText    bool      // such a sink writes text for a person in place of CloudEvents

	ownerChecked bool   // dropRoot has run
	actsAs       *owner // the user that root switched to; nil for none
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "forewarn",
		Short: "Tells people and systems what Azure is about to do to this virtual machine",
		Long: `forewarn polls the VM's Azure Scheduled Events, turns each change into a CloudEvent, and delivers it to
every configured destination: at least once, in order, across crashes and outages.`,
		Example: `  forewarn demo                       see what it does, on any machine
  forewarn check                      check the settings file
  forewarn run                        watch this VM
  forewarn status                     ask the running forewarn how it is doing`,
		Version:      programVersion(),
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			p.started = true
			formats := []string{"", "text", "json"}
			if c.Name() == "history" {
				formats = append(formats, "csv")
			}
			return p.checkFlags(formats)
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&p.config, "config", "", "settings file (default: "+settings.DefaultPath(runtime.GOOS, p.getenv)+")")
	f.StringVar(&p.logFormat, "log-format", "text", "log format on standard error: text or json")
	f.StringVar(&p.logLevel, "log-level", "info", "lowest level to log: debug, info, warn or error")
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Watch:", []*cobra.Command{p.runCommand(), p.relayCommand(), p.statusCommand(), p.tailCommand(), p.historyCommand()}},
		{"Act:", []*cobra.Command{p.approveCommand(), p.muteCommand(), p.unmuteCommand(), p.outboxCommand(), p.replayCommand()}},
		{"Set up:", []*cobra.Command{p.checkCommand(), p.sendCommand(), p.renderCommand(), p.schemaCommand(),
			p.serviceCommand(), p.reloadCommand()}},
		{"Try:", []*cobra.Command{p.demoCommand(), p.emulateCommand(), p.eventsCommand(), p.discoverCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	root.AddCommand(p.versionCommand())
	root.AddCommand(p.helpTopics()...)
	root.SetVersionTemplate(versionText())
	p.strictUsage(root)
	addCompletions(root, p)
	return root
}

// outputFlag adds the flag -o to a command.
func (p *program) outputFlag(c *cobra.Command) *cobra.Command {
	c.Flags().StringVarP(&p.output, "output", "o", "text", "output format: text or json")
	return c
}

// chooseText lets the sinks of a command that write to standard output write text for a person: on a terminal, unless -o
// json asks for CloudEvents, and elsewhere with -o text.
func (p *program) chooseText(c *cobra.Command) {
	_, person := p.out.(*terminal)
	p.asText = p.output == "text" && (person || c.Flags().Changed("output"))
}

// checkFlags refuses unknown values of the shared flags; formats are the output formats of the command.
func (p *program) checkFlags(formats []string) error {
	for _, f := range []struct {
		name, value string
		allowed     []string
	}{
		{"--output", p.output, formats},
		{"--log-format", p.logFormat, []string{"text", "json"}},
		{"--log-level", p.logLevel, []string{"debug", "info", "warn", "error"}},
	} {
		if !slices.Contains(f.allowed, f.value) {
			expected := strings.TrimPrefix(strings.Join(f.allowed, ", "), ", ")
			return exit(exitUsage, fmt.Errorf("%s %s: expected one of %s", f.name, f.value, expected))
		}
	}
	return nil
}

// log returns the logger that the flags ask for.
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
	o.ReplaceAttr = wording.LogValue
	return slog.New(slog.NewTextHandler(p.err, o))
}

// loader returns a loader of settings for this process.
func (p *program) loader(log *slog.Logger) settings.Loader {
	host, _ := os.Hostname()
	var show sinks.Console
	if p.asText {
		show = func(zone *time.Location) (delivery.Sink, error) { return newConsole(p.out, p.getenv, zone) }
	}
	return settings.Loader{
		Kinds: sinks.Kinds(), Defaults: p.defaults,
		Host: sinks.Host{
			Hostname: host, Getenv: p.getenv, Stdout: cmp.Or(p.sinkOut, p.out), Proxy: http.ProxyFromEnvironment, Log: log,
			Agent: "forewarn/" + programVersion(), Console: show, Dial: p.dial, SlackTurns: &p.turns,
			Known: &p.known, Vault: &p.vault,
		},
	}
}

// settings loads the settings file; an error means exit 78. Root switches to the owner of the state directory first, so
// that the sinks open with that user's rights.
func (p *program) settings(log *slog.Logger) (*settings.Settings, error) {
	if os.Geteuid() == 0 {
		if s, err := p.bareSettingsAsRoot(); err == nil { // Load reports the error below
			if err := p.dropRoot(string(s.State)); err != nil {
				return nil, err
			}
		}
	}
	s, err := p.loader(log).Load(p.config)
	if err != nil && p.actsAs != nil {
		err = fmt.Errorf("checked as user %s: %w", strings.TrimPrefix(p.actsAs.String(), "user "), err)
	}
	return s, exit(exitSettings, err)
}

// bareSettings loads the settings without their sinks, for commands that ask the running forewarn: they need not be
// able to read the secrets. Root switches to the owner of the state directory.
func (p *program) bareSettings() (*settings.Settings, error) {
	s, err := p.bareSettingsAsRoot()
	if err == nil {
		err = p.dropRoot(string(s.State))
	}
	return s, err
}

// bareSettingsAsRoot is bareSettings for a command that needs the rights of root. Such a command must not open files of
// another user.
func (p *program) bareSettingsAsRoot() (*settings.Settings, error) {
	l := p.loader(p.log())
	l.Kinds = nil
	s, err := l.Load(p.config)
	return s, exit(exitSettings, err)
}

// programVersion returns the release, or "devel" with the commit of the build. What go install builds has no commit but
// the version of the module.
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
	if v := info.Main.Version; strings.HasPrefix(v, "v") {
		return v
	}
	return "devel"
}

func (p *program) versionCommand() *cobra.Command {
	return p.outputFlag(&cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Example: "  forewarn version -o json",
		RunE: func(*cobra.Command, []string) error {
			if p.output == "json" {
				return wording.PrintJSON(p.out, map[string]string{
					"version": programVersion(), "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
				})
			}
			_, err := io.WriteString(p.out, versionText())
			return err
		},
	})
}

func versionText() string {
	return fmt.Sprintf("forewarn %s %s %s/%s\n", programVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
