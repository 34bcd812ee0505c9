package main

import (
	_ "embed"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"forewarn/bridge"
	"forewarn/cmd/forewarn/internal/manual"
	"forewarn/examples"
	"forewarn/sinks"
	"forewarn/templates"
)

// ownManual is the document about this command.
//
//go:embed README.md
var ownManual string

// A document is one of the project's READMEs.
type document struct {
	dir  string // below the top of the repository
	text string
}

var (
	ownDocument       = document{"cmd/forewarn", ownManual}
	sinksDocument     = document{"sinks", sinks.Manual}
	templatesDocument = document{"templates", templates.Manual}
	examplesDocument  = document{"examples", examples.Manual}
	bridgeDocument    = document{"bridge", bridge.Manual}
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
	{"relays", "Notify once for many VMs, over NATS JetStream", ownDocument, []string{"Relay"}},
	{"windows", "Run forewarn as a Windows service", examplesDocument, []string{"Windows"}},
	{"promises", "What forewarn promises, and what it can't", bridgeDocument, []string{"Promises"}},
}

// kindTopics returns a topic for each kind of sink, such as "sinks slack".
func kindTopics() (all []topic) {
	for _, kind := range slices.Sorted(maps.Keys(sinks.Kinds)) {
		all = append(all, topic{"sinks " + kind, "The sink " + kind + " and its keys", sinksDocument, []string{kind}})
	}
	return all
}

// markdown returns the topic as it stands in its document.
func (t topic) markdown() string {
	if t.sections == nil {
		return t.document.text
	}
	var all string
	for _, s := range t.sections {
		all += manual.Section(t.document.text, s)
	}
	return all
}

// blocks returns the topic with links that say where to read on.
func (t topic) blocks() []manual.Block {
	blocks := manual.Parse(t.markdown(), t.linkText)
	if strings.Contains(t.markdown(), "examples/") || t.document.dir == "examples" {
		blocks = append(blocks, manual.Block{Kind: manual.Paragraph, Text: "Files below examples/ are in the repository; " +
			"the packages install them in /usr/share/doc/forewarn/examples."})
	}
	return blocks
}

// linkText says where to read on instead of following a link into the repository: in another topic of help, or in one
// of the examples.
func (t topic) linkText(text, target string) string {
	file, anchor, _ := strings.Cut(target, "#")
	file = path.Join(t.document.dir, file)
	if strings.HasPrefix(file, "examples/") && path.Base(file) != "README.md" {
		if text == file {
			return ""
		}
		return file
	}
	dir := strings.TrimSuffix(file, "/README.md")
	if dir == t.document.dir && t.has(anchor) {
		return ""
	}
	for _, other := range slices.Concat(searchedTopics(), topics) {
		if dir == other.document.dir && other.has(anchor) {
			return "forewarn help " + other.name
		}
	}
	return ""
}

// has reports whether the topic has the heading of an anchor; the empty anchor is the whole document.
func (t topic) has(anchor string) bool {
	return anchor == "" || slices.Contains(manual.Anchors(t.markdown()), anchor)
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
	c.SetHelpFunc(func(*cobra.Command, []string) { fmt.Fprint(p.out, manual.Text(t.blocks(), p.helpWidth())) })
	return c
}

// helpWidth is the width of help texts in columns: that of the terminal, and at most 100.
func (p *program) helpWidth() int {
	width := manual.Width
	if columns, err := strconv.Atoi(p.getenv("COLUMNS")); err == nil && columns > 0 {
		width = columns
	} else if t, ok := p.out.(*terminal); ok {
		if columns, _, err := term.GetSize(int(t.file.Fd())); err == nil && columns > 0 {
			width = columns
		}
	}
	return min(max(width, 40), manual.Width)
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
