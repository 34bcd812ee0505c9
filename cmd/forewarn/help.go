package main

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

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

// A topic is a part of a document that "forewarn help" prints.
type topic struct {
	name, short string
	document    string
	sections    []string // headings; nil for the whole document
}

// topics lists the topics of help besides the commands. The man page forewarn.yaml(5) consists of the first five.
var topics = []topic{
	{"settings", "The settings file: every key and its default", ownManual, []string{"Settings"}},
	{"sinks", "Every kind of destination and its keys (one kind: help sinks slack)", sinks.Manual, nil},
	{"templates", "How to write templates; their fields and functions", templates.Manual, nil},
	{"approval", "Approve events by hand or by rule; runbooks", examples.Manual, []string{"Approval", "Runbooks"}},
	{"cloudevents", "The CloudEvents: attributes, types, outcomes", bridge.Manual, []string{"CloudEvents"}},
	{"operations", "What failures look like and what to do; metrics, the page", ownManual,
		[]string{"Operations", "Metrics", "The page"}},
	{"fields", "The fields of templates and when, and the functions", templates.Manual, []string{"Fields", "Functions"}},
	{"fleets", "Roll out to many VMs: cloud-init, Ansible, an image, Kubernetes", examples.Manual, []string{"Fleets"}},
	{"relays", "Notify once for many VMs, over NATS JetStream", ownManual, []string{"Relay"}},
	{"windows", "Run forewarn as a Windows service", examples.Manual, []string{"Windows"}},
	{"promises", "What forewarn promises, and what it can't", bridge.Manual, []string{"Promises"}},
}

// text returns the topic as Markdown.
func (t topic) text() string {
	if t.sections == nil {
		return t.document
	}
	var all string
	for _, s := range t.sections {
		all += manual.Section(t.document, s)
	}
	return all
}

// helpTopics returns a command for each topic. It does nothing but print its topic as help.
func (p *program) helpTopics() []*cobra.Command {
	var all []*cobra.Command
	for _, t := range topics {
		c := p.helpTopic(t)
		if t.name == "sinks" {
			for _, kind := range slices.Sorted(maps.Keys(sinks.Kinds)) {
				c.AddCommand(p.helpTopic(topic{kind, "The sink " + kind + " and its keys", t.document, []string{kind}}))
			}
		}
		all = append(all, c)
	}
	return all
}

func (p *program) helpTopic(t topic) *cobra.Command {
	c := &cobra.Command{Use: t.name, Short: t.short}
	c.SetHelpFunc(func(*cobra.Command, []string) { fmt.Fprint(p.out, manual.Text(t.text())) })
	return c
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
