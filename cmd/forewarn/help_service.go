package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"forewarn/sinks"
)

// ownService returns a service that the settings declare; nil if there is none of that name, or it can't be read.
func (p *program) ownService(name string) *sinks.Service {
	s, err := p.bareSettings()
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(s.Services, func(f sinks.Path) bool { return sinks.ServiceName(string(f)) == name })
	if i < 0 {
		return nil
	}
	text, err := os.ReadFile(string(s.Services[i]))
	if err != nil {
		return nil
	}
	own, err := sinks.ParseService(name, text)
	if err != nil {
		return nil
	}
	return own
}

// ownKeyTable has a row for the address and each key of a service of the settings.
func ownKeyTable(s *sinks.Service) string {
	rows := [][]string{{"`url`", s.URL, cmp.Or(s.URLDoc, "address") + " (secret)"}}
	for _, k := range s.Keys {
		what := k.Doc
		if k.Secret {
			what += " (secret)"
		}
		rows = append(rows, []string{"`" + k.Name + "`", k.Default, what})
	}
	return markdownTable([]string{"key", "default", "what it is"}, rows)
}

// serviceSection is what the documents say of a service, with the table of its keys.
func serviceSection(s *sinks.Service, keys string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n### %s\n", s.Name)
	if s.About != "" {
		b.WriteString("\n" + strings.ToUpper(s.About[:1]) + s.About[1:])
		if s.Rules != "" {
			fmt.Fprintf(&b, " ([documentation of %s](%s))", cmp.Or(s.Title, s.Name), s.Rules)
		}
		b.WriteString(".\n")
	}
	if s.Example != "" {
		b.WriteString("\n" + yamlBlock(s.Example))
	}
	if s.Notes != "" {
		b.WriteString("\n" + s.Notes)
	}
	fmt.Fprintf(&b, "\n%s\nMore keys, as in [webhook](../README.md#webhook): `%s`.\n",
		cmp.Or(s.Answers, "Any 2xx is accepted."), strings.Join(s.MoreKeys(), "`, `"))
	return strings.TrimSuffix(b.String()+keys, "\n")
}

// yamlBlock shows entries of sinks.
func yamlBlock(entries string) string {
	var b strings.Builder
	b.WriteString("```yaml\nsinks:\n")
	for line := range strings.Lines(entries) {
		b.WriteString("  " + line)
	}
	return b.String() + "```\n"
}

// markdownTable makes a table; bars in its cells are text.
func markdownTable(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) {
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", `\|`)
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	b.WriteString("\n")
	line(head)
	b.WriteString("|" + strings.Repeat(" --- |", len(head)) + "\n")
	for _, r := range rows {
		line(r)
	}
	b.WriteString("\n")
	return b.String()
}
