package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The man pages are made when a package is built, by the tests below, so that nothing of them is in the binary. cobra's
// own generator would take two more modules, and make a page of each subcommand.
var manDir = flag.String("man", "", "write the man pages to this directory")

// manNow and manVersion are what a page says of itself; empty, it says nothing.
var (
	manNow     = flag.String("man-date", "", "date on the man page")
	manVersion = flag.String("man-version", "", "version on the man page")
)

// The man page has every command and flag, the examples, and whatever else an operator looks up there, and mandoc and
// groff can read it.
func TestManPageTellsEveryCommandAndFlag(t *testing.T) {
	root := (&program{environment: environment{getenv: func(string) string { return "" }}}).root()
	page := manPage(root, *manNow, *manVersion)
	writeManPage(t, "forewarn.1", page)
	has := func(text string) {
		t.Helper()
		if !strings.Contains(page, text) {
			t.Errorf("the man page has no %q", text)
		}
	}
	for _, section := range []string{"NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "COMMANDS", "SIGNALS", "EXIT STATUS",
		"ENVIRONMENT", "FILES", "OPERATIONS", "METRICS", "HELP TOPICS", "SEE ALSO"} {
		has("\n.SH " + roff(section) + "\n")
	}
	told := 0
	eachCommand(root, func(c *cobra.Command) {
		told++
		has("\n.SS " + roff(strings.TrimPrefix(c.CommandPath(), "forewarn ")) + "\n")
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { has(roff("--" + f.Name)) })
		for line := range strings.Lines(c.Example) {
			has(roff(strings.TrimSpace(line)))
		}
	})
	if told < 15 {
		t.Errorf("%d commands were found, which cannot be all", told)
	}
	for _, code := range []int{exitOK, exitFailed, exitUsage, exitData, exitUnavailable, exitTryAgain, exitSettings} {
		has(fmt.Sprintf("\n.TP\n.B %d\n", code))
	}
	lintManPage(t, page)
}

// The man page of the settings file has every key, and every heading of the documents about it.
func TestManPageTellsEveryKey(t *testing.T) {
	page := settingsPage(*manNow, *manVersion)
	writeManPage(t, "forewarn.yaml.5", page)
	eachKey(schemaJSON(t), "", func(path string, _ map[string]any) {
		name := path[strings.LastIndexByte(path, '.')+1:]
		plain := plainKey(name)
		if !strings.Contains(page, roff(name)) && !strings.Contains(page, roff(plain)) {
			t.Errorf("the man page has no key %s", path)
		}
	})
	for _, heading := range []string{".SH SETTINGS", ".SH SINKS", ".SS slack", ".SH TEMPLATES", ".SH APPROVAL",
		".SH CLOUDEVENTS"} {
		if !strings.Contains(page, "\n"+heading+"\n") {
			t.Errorf("the man page has no %s", heading)
		}
	}
	lintManPage(t, page)
}

// A man page has every row of each table in its documents, the first one included.
func TestManPagesTellEveryRowOfATable(t *testing.T) {
	root := (&program{environment: environment{getenv: func(string) string { return "" }}}).root()
	pages := map[string]string{"operations": manPage(root, "", "")}
	for _, name := range settingsTopics {
		pages[name] = settingsPage("", "")
	}
	for name, page := range pages {
		rows, lines := 0, 0
		text := fenced.ReplaceAllString(topicNamed(name).markdown(), "")
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "|") {
				lines++
			}
			if strings.HasPrefix(line, "| ---") {
				lines -= 2 // this line, and the head above it
			}
		}
		for _, block := range topicNamed(name).blocks() {
			if block.kind != tableBlock {
				continue
			}
			for _, row := range block.rows()[1:] {
				rows++
				for _, cell := range row {
					if !strings.Contains(page, roff(cell)) {
						t.Errorf("%s: the man page lacks %q of the row %q", name, cell, row[0])
					}
				}
			}
		}
		if rows != lines || rows == 0 {
			t.Errorf("%s: %d rows are in the man page, and %d in the document", name, rows, lines)
		}
	}
}

// writeManPage keeps a page where -man says, for a package.
func writeManPage(t *testing.T, name, page string) {
	t.Helper()
	if *manDir == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(*manDir, name), []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}

// lintManPage looks for mistakes in the language of a page. What every mandoc warns of is looked for here. The tools that
// are installed fail the test only by what they call an error, because each of their versions warns of something else;
// and none is asked when a package is built.
func lintManPage(t *testing.T, page string) {
	t.Helper()
	for _, skipped := range regexp.MustCompile(`(?m)^\.S[HS] .*\n\.PP$|^\.PP\n\.(PP|SH|SS|TP|IP)\b.*$`).FindAllString(page, -1) {
		t.Errorf("a paragraph begins where one has begun or where nothing follows: %q", skipped)
	}
	if t.Failed() || *manDir != "" {
		return
	}
	file := filepath.Join(t.TempDir(), "page")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, lint := range [][]string{{"mandoc", "-T", "lint", "-W", "error", file}, {"groff", "-man", "-z", file}} {
		if _, err := exec.LookPath(lint[0]); err != nil {
			t.Logf("%s is not installed, so it doesn't read the page", lint[0])
			continue
		}
		if out, err := exec.Command(lint[0], lint[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", lint[0], err, out)
		}
	}
}

// Text that starts with a dot or quote, or contains a backslash, is not read as roff.
func TestManPageEscapesRoff(t *testing.T) {
	for text, want := range map[string]string{
		".SH evil":    `\&.SH evil`,
		"'quoted'":    `\&'quoted'`,
		`C:\forewarn`: `C:\eforewarn`,
		"--dry-run":   `\-\-dry\-run`,
		"a\n.b\n":     "a\n\\&.b\n",
		"5 · 6":       `5 \[u00B7] 6`,
	} {
		if got := roff(text); got != want {
			t.Errorf("roff(%q) = %q, want %q", text, got, want)
		}
	}
}

// The completions of every shell have the commands.
func TestCompletionsKnowTheCommands(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		out, err := forewarn(t, "completion", shell).Output()
		if err != nil || !strings.Contains(string(out), "__complete") {
			t.Errorf("completion %s: %v, %d bytes, want a script that asks forewarn __complete", shell, err, len(out))
		}
	}
	out, err := forewarn(t, "__complete", "").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"run\t", "check\t", "status\t", "approve\t", "outbox\t"} {
		if !strings.Contains("\n"+string(out), "\n"+want) {
			t.Errorf("completing nothing offers no %s:\n%s", strings.TrimSpace(want), out)
		}
	}
}

// eachCommand visits the commands below root that help shows, in its order.
func eachCommand(root *cobra.Command, visit func(*cobra.Command)) {
	for _, c := range root.Commands() {
		if c.Hidden || c.Name() == "help" {
			continue
		}
		visit(c)
		eachCommand(c, visit)
	}
}

// manPage is the page forewarn(1) in the language of man.
func manPage(root *cobra.Command, date, version string) string {
	var b strings.Builder
	section := func(name string) { fmt.Fprintf(&b, ".SH %s\n", roff(name)) }
	item := func(term, text string) { fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(term), roff(text)) }
	flags := func(set *pflag.FlagSet) {
		set.VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" {
				return
			}
			name, text := pflag.UnquoteUsage(f)
			term := strings.TrimRight("--"+f.Name+" "+name, " ")
			if f.Shorthand != "" {
				term = "-" + f.Shorthand + ", " + term
			}
			if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" {
				text += fmt.Sprintf(" (default %s)", f.DefValue)
			}
			item(term, text)
		})
	}

	fmt.Fprintf(&b, ".TH FOREWARN 1 \"%s\" \"%s\" \"\"\n", date, strings.TrimSpace("forewarn "+version))
	section("NAME")
	fmt.Fprintf(&b, "forewarn \\- %s\n", roff(strings.ToLower(root.Short[:1])+root.Short[1:]))
	section("SYNOPSIS")
	fmt.Fprintf(&b, ".B forewarn\n.I command\n.RI [ options ]\n")
	section("DESCRIPTION")
	b.WriteString(roff(paragraphs(root.Long)) + "\n")
	section("OPTIONS")
	flags(root.PersistentFlags())
	section("COMMANDS")
	eachCommand(root, func(c *cobra.Command) {
		fmt.Fprintf(&b, ".SS %s\n.B %s\n.PP\n", roff(strings.TrimPrefix(c.CommandPath(), "forewarn ")), roff(c.UseLine()))
		text := c.Long
		if text == "" {
			text = c.Short + "."
		}
		b.WriteString(roff(paragraphs(text)) + "\n")
		flags(c.LocalNonPersistentFlags())
		if c.Example != "" {
			b.WriteString(".PP\n.EX\n" + roff(c.Example) + "\n.EE\n")
		}
	})
	section("SIGNALS")
	item("SIGTERM, SIGINT", "End run: it finishes what is under way, within 5 seconds, and keeps the rest.")
	item("SIGHUP", "Read the settings again. If they are wrong, the old ones stay in force.")
	section("EXIT STATUS")
	for _, e := range exitCodes {
		item(fmt.Sprint(e.code), strings.ToUpper(e.meaning[:1])+e.meaning[1:]+".")
	}
	section("ENVIRONMENT")
	item("HTTP_PROXY, HTTPS_PROXY, NO_PROXY",
		"The proxy of sinks that name none. The endpoint is never asked through one.")
	item("XDG_STATE_HOME", "Where the state is, in forewarn, for a user other than root.")
	item("RUNTIME_DIRECTORY", "Where the control socket is if it cannot be in the state directory.")
	section("FILES")
	item("/etc/forewarn/forewarn.yaml", "The settings. Without them, changes that hit this VM go to standard output.")
	item("/var/lib/forewarn", "The state: the outbox, and the control socket.")
	item("/usr/share/doc/forewarn/examples", "Settings, runbooks, units, alert rules and dashboards to copy.")
	b.WriteString(manBlocks(topicNamed("operations")))
	section("HELP TOPICS")
	for _, t := range topics {
		item("forewarn help "+t.name, t.short+".")
	}
	item("forewarn help KEY", "Any key of the settings, field, function, metric or message of the log.")
	section("SEE ALSO")
	b.WriteString(".BR forewarn.yaml (5),\n.BR systemctl (1),\n.BR journalctl (1)\n")
	return b.String()
}

// settingsPage is the page forewarn.yaml(5), made of the documents.
func settingsPage(date, version string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH FOREWARN.YAML 5 \"%s\" \"%s\" \"\"\n", date, strings.TrimSpace("forewarn "+version))
	b.WriteString(".SH NAME\nforewarn.yaml \\- settings of forewarn\n")
	for _, name := range settingsTopics {
		b.WriteString(manBlocks(topicNamed(name)))
	}
	b.WriteString(".SH SEE ALSO\n.BR forewarn (1)\n")
	return b.String()
}

// settingsTopics are the topics of help that make the page of the settings.
var settingsTopics = []string{"settings", "sinks", "templates", "approval", "cloudevents"}

func topicNamed(name string) topic {
	return topics[slices.IndexFunc(topics, func(t topic) bool { return t.name == name })]
}

// manBlocks is a topic of help in the language of man.
func manBlocks(t topic) string {
	var b strings.Builder
	headed := false
	begin := func() string {
		if headed { // the heading has begun it
			return ""
		}
		return ".PP\n"
	}
	for _, block := range t.blocks() {
		text := strings.Join(block.lines, " ")
		switch block.kind {
		case headingBlock:
			level := headingLevel(text)
			command, text := ".SS", plain(text[level:])
			if level == 1 || t.sections != nil && level == 2 {
				command, text = ".SH", strings.ToUpper(text)
			}
			fmt.Fprintf(&b, "%s %s\n", command, roff(text))
		case paragraphBlock:
			b.WriteString(begin() + roff(plain(text)) + "\n")
		case itemBlock:
			mark := itemMark.FindString(text)
			fmt.Fprintf(&b, ".IP %s 4\n%s\n", roff(strings.TrimSpace(mark)), roff(plain(text[len(mark):])))
		case codeBlock:
			b.WriteString(begin() + ".EX\n" + roff(strings.Join(block.lines, "\n")) + "\n.EE\n")
		case tableBlock:
			rows := block.rows()
			for _, row := range rows[1:] {
				fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(row[0]), roff(explanation(rows[0], row)))
			}
		}
		headed = block.kind == headingBlock
	}
	return b.String()
}

// paragraphs puts the command for a new one between the paragraphs of a text, in a form that roff lets through.
func paragraphs(text string) string {
	return regexp.MustCompile(`\n\n+`).ReplaceAllString(strings.TrimSpace(text), "\n"+newParagraph+"\n")
}

// newParagraph stands for a command in text that roff makes harmless.
const newParagraph = "\x01"

// roff is text for a man page: nothing in it is a command, and all of it is ASCII, whatever the locale.
func roff(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\\':
			b.WriteString(`\e`)
		case r == '-':
			b.WriteString(`\-`)
		case r > '~':
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	text = b.String()
	text = regexp.MustCompile(`(?m)^([.'])`).ReplaceAllString(text, `\&$1`)
	return strings.ReplaceAll(text, newParagraph, ".PP")
}
