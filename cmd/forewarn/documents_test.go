package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"forewarn/sinks"
)

// manuals are all documents that operators read, from the top of the repository.
var manuals = []string{
	"README.md", "cmd/forewarn/README.md", "cmd/forewarn/relay.md", "sinks/README.md", "sinks/services/README.md",
	"templates/README.md", "bridge/README.md", "examples/README.md", "examples/ansible/README.md",
	"examples/azure/README.md", "examples/fleet/README.md", "examples/untried/README.md",
}

// manualText is the text of one of them.
func manualText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const root = "../.."

// Every kind of sink has a section with the table of its keys, which help sinks KIND prints too.
func TestEveryKindHasItsSection(t *testing.T) {
	for kind := range sinks.Kinds() {
		section := sectionOf(sinksDocument.text(), kind)
		if !strings.Contains(section, "| key | default |") && !strings.Contains(section, "<!-- table: keys of "+kind+" -->") {
			t.Errorf("the documents about sinks have no section %s with the table of its keys", kind)
		}
	}
}

// README and CONTRIBUTING are one page each.
func TestREADMEIsOnePage(t *testing.T) {
	for _, name := range []string{"README.md", "CONTRIBUTING.md"} {
		if n := strings.Count(manualText(t, name), "\n"); n > 120 {
			t.Errorf("%s has %d lines, want at most 120", name, n)
		}
	}
}

// help prints the documents, readable in a terminal of 100 columns.
func TestHelpPrintsTheDocuments(t *testing.T) {
	names := [][]string{{"sinks", "slack"}, {"sinks", "file"}}
	for _, topic := range topics {
		for _, section := range topic.sections {
			if sectionOf(topic.document.text(), section) == "" {
				t.Errorf("help %s is made of a section %q, which is not there", topic.name, section)
			}
		}
		names = append(names, []string{topic.name})
	}
	for _, name := range names {
		out, err := forewarn(t, append([]string{"help"}, name...)...).Output()
		if err != nil || len(out) < 300 {
			t.Errorf("help %s: %v, %d bytes", strings.Join(name, " "), err, len(out))
		}
		for line := range strings.Lines(string(out)) {
			long := utf8.RuneCountInString(strings.TrimRight(line, "\n")) > widestHelp
			if code := strings.HasPrefix(line, "    "); long && !code || strings.Contains(line, "<!--") || strings.Contains(line,
				"**") {
				t.Errorf("help %s: %q", strings.Join(name, " "), line)
			}
		}
	}
	if _, err := forewarn(t, "help", "sinks", "fax").Output(); exitCodeOf(err) != exitUsage {
		t.Errorf("help about a sink that there is none of: %v, want exit %d", err, exitUsage)
	}
}

// In help, a link that leads to an example or to another topic says so. Other links into the repository are of no use
// in a terminal and left out.
func TestLinksInHelpSayWhereToReadOn(t *testing.T) {
	for doc, want := range map[string]string{
		"See [the keys](../cmd/forewarn/README.md#settings).":  "See the keys (forewarn help settings).",
		"One sink ([more](../sinks/README.md#nats)).":          "One sink (more: forewarn help sinks nats).",
		"[Your own](../sinks/README.md#a-service-of-your-own)": "Your own (forewarn help sinks)",
		"[`ntfy`](../sinks/services/README.md#ntfy)":           "ntfy",
		"A unit, [examples/systemd](../examples/systemd).":     "A unit, examples/systemd.",
		"See [the code](doc.go) ([it](doc.go)).":               "See the code (it).",
		"**Bold**, `code`, [a](https://example.com/).":         "Bold, code, a (https://example.com/).",
	} {
		if got := plain(doc); got != want {
			t.Errorf("%s: got %q, want %q", doc, got, want)
		}
	}
	for _, topic := range slices.Concat(topics, kindTopics()) {
		if text := terminalText(topic.blocks(), widestHelp); strings.Contains(text, "README") {
			t.Errorf("help %s names a README", topic.name)
		}
	}
}

// The help of each command fits into 100 columns.
func TestHelpOfCommandsFitsIntoATerminal(t *testing.T) {
	var help strings.Builder
	root := (&program{environment: environment{out: io.Discard, getenv: func(string) string { return "" }}}).root()
	root.SetOut(&help)
	eachCommand(root, func(c *cobra.Command) {
		if c.Parent().Name() == "completion" {
			return // cobra's own words
		}
		help.Reset()
		if err := c.Help(); err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(help.String()) {
			if utf8.RuneCountInString(line) > widestHelp+len("\n") {
				t.Errorf("%s: %q", c.CommandPath(), line)
			}
		}
	})
}

func exitCodeOf(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}

// help prints every key of the settings.
func TestHelpHasEveryKey(t *testing.T) {
	text := ""
	for _, name := range []string{"settings", "sinks", "approval"} {
		out, err := forewarn(t, "help", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		text += string(out)
	}
	eachKey(schemaJSON(t), "", func(path string, _ map[string]any) {
		name := path[strings.LastIndexByte(path, '.')+1:]
		plain := plainKey(name)
		if !strings.Contains(text, name) && !strings.Contains(text, plain) {
			t.Errorf("help names no key %s", path)
		}
	})
}

var (
	fenced = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")
	linkTo = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// Each link in the documents has an existing target: a file of the repository and a heading in it.
func TestLinksAreValid(t *testing.T) {
	for _, name := range allDocuments(t) {
		for _, m := range linkTo.FindAllStringSubmatch(manualText(t, name), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, heading, _ := strings.Cut(m[1], "#")
			target := name
			if file != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(name), file))
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			} else if heading != "" && !slices.Contains(anchors(manualText(t, target)), heading) {
				t.Errorf("%s links to %s, and there is no such heading; there are %q", name, m[1], anchors(manualText(t, target)))
			}
		}
	}
}

// anchors are those of all headings of a document.
func anchors(doc string) (all []string) {
	for _, b := range blocksOf(doc) {
		if b.kind == headingBlock {
			all = append(all, anchor(strings.TrimLeft(b.lines[0], "# ")))
		}
	}
	return all
}

// codeIn are the lines of a document's blocks of commands, and its code spans.
func codeIn(text string) (lines []string) {
	for _, block := range fenced.FindAllStringSubmatch(text, -1) {
		if block[1] == "" || block[1] == "console" {
			lines = append(lines, strings.Split(block[2], "\n")...)
		}
	}
	for _, span := range codeSpan.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		lines = append(lines, span[1])
	}
	return lines
}

// Each command in the documents exists, with its flags.
func TestEveryCommandInTheDocumentsExists(t *testing.T) {
	commands := regexp.MustCompile(`(?m)^(?:sudo )?(?:\./|\\)?forewarn (.*)$`)
	n := 0
	for _, name := range manuals {
		for _, m := range commands.FindAllStringSubmatch(strings.Join(codeIn(manualText(t, name)), "\n"), -1) {
			line, _, _ := strings.Cut(m[1], " #")
			line, _, _ = strings.Cut(line, " >")
			line, _, _ = strings.Cut(line, " 2>")
			args := strings.Fields(strings.TrimSuffix(line, "&"))
			root := (&program{environment: environment{getenv: func(string) string { return "" }}}).root()
			c, rest, err := root.Find(args)
			if err == nil && c == root {
				err = errors.New("no such command")
			}
			if err == nil {
				c.InitDefaultHelpFlag()
				err = c.ParseFlags(rest)
			}
			if n++; err != nil {
				t.Errorf("%s: forewarn %s: %v", name, m[1], err)
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d commands were found", n)
	}
}

// Each message in the tables of failures, of a VM's forewarn and of a relay, is in the source.
func TestDocumentedMessagesAreInTheSource(t *testing.T) {
	var source strings.Builder
	eachFile(t, ".go", func(name string) {
		if !strings.HasSuffix(name, "_test.go") {
			source.WriteString(manualText(t, name))
		}
	})
	rows := 0
	failures := sectionOf(ownManual, "What failures look like") + sectionOf(relayManual, "When a relay fails")
	for _, line := range strings.Split(failures, "\n") {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, m := range codeSpan.FindAllStringSubmatch(first, -1) {
			if rows++; !strings.Contains(source.String(), m[1]) {
				t.Errorf("nothing says %q", m[1])
			}
		}
	}
	if rows < 20 {
		t.Errorf("the tables of failures have %d messages", rows)
	}
}

// A signing secret made as the documents describe is accepted.
func TestDocumentedSigningSecretIsAccepted(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("sh is not installed, and the line needs it")
	}
	line := regexp.MustCompile(`(?m)^printf 'whsec_.*$`).FindString(sinks.Manual)
	out, err := exec.Command("sh", "-c", line).Output()
	if err != nil {
		t.Fatal(err)
	}
	loadSample(t, "a signing webhook", "sinks: [{name: a, webhook: {url: 'https://h', signing_secrets: ['"+strings.TrimSpace(string(out))+"']}}]", "")
}

// The page that says where new things go names files and words of the code that are there.
func TestHowToChangeItNamesWhatIsThere(t *testing.T) {
	var files []string
	eachFile(t, "", func(name string) { files = append(files, name) })
	_, source := goFiles(t)
	text := manualText(t, "bridge/changing.md")
	n := 0
	for _, m := range codeSpan.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		name := strings.TrimPrefix(m[1], "-")
		switch {
		case strings.ContainsAny(name, " …:<") || strings.Contains(name, "NAME"):
			continue // a command, a subject, or for the reader to fill in
		case strings.Contains(name, "/") || regexp.MustCompile(`\.[a-z]+$`).MatchString(name) && !strings.HasSuffix(name, ".head"):
			n++
			if !slices.ContainsFunc(files, func(f string) bool {
				return strings.HasSuffix("/"+f, "/"+name) || strings.Contains("/"+f, "/"+strings.TrimSuffix(name, "/")+"/")
			}) {
				t.Errorf("there is no file %s", name)
			}
		default:
			n++
			if word := name[strings.LastIndexByte(name, '.')+1:]; !strings.Contains(source, word) {
				t.Errorf("the code has no %s", name)
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d names were found", n)
	}
}
