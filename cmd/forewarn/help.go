package main

import (
	_ "embed"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"forewarn/bridge"
	"forewarn/examples"
	"forewarn/sinks"
	"forewarn/templates"
)

// ownManual is the document about this command.
//
//go:embed README.md
var ownManual string

// relayManual is the document about relays.
//
//go:embed relay.md
var relayManual string

// A document is one of the project's documents.
type document struct {
	dir   string   // below the top of the repository
	files []string // the texts that it consists of
}

// text returns the whole document.
func (d document) text() string { return strings.Join(d.files, "\n") }

var (
	ownDocument       = document{"cmd/forewarn", []string{ownManual}}
	relayDocument     = document{"cmd/forewarn", []string{relayManual}}
	sinksDocument     = document{"sinks", []string{sinks.Manual, sinks.ServicesManual}}
	templatesDocument = document{"templates", []string{templates.Manual}}
	examplesDocument  = document{"examples", []string{examples.Manual}}
	bridgeDocument    = document{"bridge", []string{bridge.Manual}}
)

// A topic is a part of a document that "forewarn help" prints.
type topic struct {
	name, short string
	document    document
	sections    []string // headings; nil for the whole document
}

// topics lists the topics of help besides the commands. The man page forewarn.yaml(5) consists of the first five.
var topics = []topic{
	{"settings", "The settings file: every key and its default", ownDocument, []string{"Settings"}},
	{"sinks", "Every kind of destination and its keys (one kind: help sinks slack)", sinksDocument, nil},
	{"templates", "How to write templates; their fields and functions", templatesDocument, nil},
	{"approval", "Approve events by hand or by rule; runbooks", examplesDocument, []string{"Approval", "Runbooks"}},
	{"cloudevents", "The CloudEvents: attributes, types, outcomes", bridgeDocument, []string{"CloudEvents"}},
	{"operations", "What failures look like and what to do; metrics, the page", ownDocument,
		[]string{"Operations", "Metrics", "The page"}},
	{"install", "Install, upgrade and remove it; packages, the unit, its rights", ownDocument,
		[]string{"Install", "Backup, move, upgrade"}},
	{"fields", "The fields of templates and when, and the functions", templatesDocument, []string{"Fields", "Functions"}},
	{"fleets", "Roll out to many VMs: cloud-init, Ansible, an image, Kubernetes", examplesDocument, []string{"Fleets"}},
	{"relays", "Notify once for many VMs, over NATS JetStream", relayDocument, []string{"Relay"}},
	{"windows", "Run forewarn as a Windows service", examplesDocument, []string{"Windows"}},
	{"promises", "What forewarn promises, and what it can't", bridgeDocument, []string{"Promises"}},
}

// kindTopics returns a topic for each kind of sink, such as "sinks slack".
func kindTopics() (all []topic) {
	for _, kind := range slices.Sorted(maps.Keys(sinks.Kinds())) {
		all = append(all, topic{"sinks " + kind, "The sink " + kind + " and its keys", sinksDocument, []string{kind}})
	}
	return all
}

// markdown returns the topic as it stands in its document.
func (t topic) markdown() string {
	if t.sections == nil {
		return t.document.text()
	}
	var all string
	for _, s := range t.sections {
		all += sectionOf(t.document.text(), s)
	}
	return all
}

// blocks returns the topic as blocks.
func (t topic) blocks() []block {
	blocks := blocksOf(t.markdown())
	if strings.Contains(t.markdown(), "examples/") || t.document.dir == "examples" {
		blocks = append(blocks, block{paragraphBlock, []string{"Files below examples/ are in the repository; " +
			"the packages install them in /usr/share/doc/forewarn/examples."}})
	}
	return blocks
}

// readOn says where the target of a link is to be read in place of the repository: "" if nowhere.
func readOn(target string) string {
	file, heading, _ := strings.Cut(target, "#")
	_, example, isExample := strings.Cut(file, "examples/")
	switch {
	case strings.Contains(target, "://"):
		return target
	case isExample && example != "README.md":
		return "examples/" + example
	case heading == "":
		return ""
	}
	for _, t := range slices.Concat(topics, kindTopics()) {
		if slices.ContainsFunc(t.sections, func(s string) bool { return anchor(s) == heading }) {
			return "forewarn help " + t.name
		}
	}
	for _, t := range topics {
		if t.sections == nil && strings.HasSuffix(file, t.document.dir+"/README.md") {
			return "forewarn help " + t.name
		}
	}
	return ""
}

// helpTopics returns a command for each topic. It does nothing but print its topic as help.
func (p *program) helpTopics() []*cobra.Command {
	var all []*cobra.Command
	for _, t := range topics {
		c := p.helpTopic(t)
		if t.name == "sinks" {
			for _, kind := range kindTopics() {
				c.AddCommand(p.helpTopic(kind))
			}
		}
		all = append(all, c)
	}
	return all
}

func (p *program) helpTopic(t topic) *cobra.Command {
	c := &cobra.Command{Use: t.name[strings.LastIndexByte(t.name, ' ')+1:], Short: t.short}
	c.SetHelpFunc(func(*cobra.Command, []string) { p.page(terminalText(t.blocks(), p.helpWidth())) })
	return c
}

// widestHelp is the greatest width of help texts in columns.
const widestHelp = 100

// helpWidth is the width of help texts in columns: that of the terminal, and at most widestHelp.
func (p *program) helpWidth() int {
	width := widestHelp
	if columns, err := strconv.Atoi(p.getenv("COLUMNS")); err == nil && columns > 0 {
		width = columns
	} else if t, ok := p.out.(*terminal); ok {
		if columns, _, err := term.GetSize(int(t.file.Fd())); err == nil && columns > 0 {
			width = columns
		}
	}
	return min(max(width, 40), widestHelp)
}

// page prints a long text, on a terminal through the pager.
func (p *program) page(text string) {
	if t, ok := p.out.(*terminal); ok {
		err := p.pager(t, text)
		if err == nil {
			return
		}
	}
	_, _ = io.WriteString(p.out, text) // help has no other place to say that nobody reads it
}

// pager shows a text with $PAGER, by default less, or more where there is none. It returns an error if no pager starts.
func (p *program) pager(t *terminal, text string) error {
	command := strings.Fields(p.getenv("PAGER"))
	if len(command) == 0 {
		command = []string{"less", "-FRX"} // as git has it: what fits on the screen is just printed
		if _, err := exec.LookPath("less"); err != nil {
			command = []string{"more"}
		}
	}
	c := exec.Command(command[0], command[1:]...)
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(text), t.file, t.file
	interrupts := make(chan os.Signal, 1) // Ctrl-C is for the pager
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	if err := c.Start(); err != nil {
		return err
	}
	_ = c.Wait() // a reader that quits early leaves an error here
	return nil
}

// exitCodes explains each exit code. The README's table is generated from it.
var exitCodes = []struct {
	code    int
	meaning string
}{
	{exitOK, "success"},
	{exitFailed, "failure"},
	{exitUsage, "the command line is wrong"},
	{exitData, "the input data is wrong"},
	{exitUnavailable, "something can't be reached: the endpoint, a sink, the running forewarn, a port"},
	{exitTryAgain, "try again: another forewarn holds the outbox, or an approval had no effect in time"},
	{exitSettings, "the settings are wrong"},
}
