package sinks

import (
	"errors"
	"strings"
	"testing"

	"forewarn/templates"
)

// A name that is never there is refused when the settings are read, wherever in a template it stands: in a branch that
// no sample comes to, below data, in a group, behind a variable, in a define. The error says which names there are.
func TestUnknownNamesInTemplatesAreRefused(t *testing.T) {
	const hook = "url: https://a.example\ncontent_type: text/plain\nbody_text: "
	for _, tt := range []struct{ template, unknown, known string }{
		{`{{.azeventtyp}}`, "azeventtyp", "azeventtype"},
		{`{{if eq .change "no sample has this"}}{{.hange}}{{end}}`, "hange", "change"},
		{`{{.data.outcom}}`, "outcom", "outcome"},
		{`{{.data.event.Desription}}`, "Desription", "Description"},
		{`{{with .data}}{{with .observer}}{{.nam}}{{end}}{{end}}`, "nam", "name"},
		{`{{dig "event" "Desription" "" .data}}`, "Desription", "Description"},
		{`{{.data | dig "previos" ""}}`, "previos", "previous"},
		{`{{index . "azeventtyp"}}`, "azeventtyp", "azeventtype"},
		{`{{index .data "evnt" "EventId"}}`, "evnt", "event"},
		{`{{(index .group 0).subjec}}`, "subjec", "subject"},
		{`{{range .group}}{{.azself}}{{.group}}{{end}}`, "group", "id"},
		{`{{range $i, $one := .group}}{{$i}}{{$one.subjec}}{{end}}`, "subjec", "subject"},
		{`{{range .missed}}{{$.now}}{{.tim}}{{end}}`, "tim", "time"},
		{`{{with .fallbackFor}}{{.sink}}{{.eror}}{{end}}`, "eror", "error"},
		{`{{$d := .data}}{{$d.longestpause}}`, "longestpause", "longestPause"},
		{`{{$x := .data}}{{if .azself}}{{$x = .data}}{{end}}{{$x.bak}}`, "bak", "back"},
		{`{{(slack .).severty}}`, "severty", "severity"},
		{`{{(slack .data).begin}}`, "begin", "gap"},
		{`{{(first .data.deliveries).reasn}}`, "reasn", "reason"},
		{`{{define "x"}}{{.sorce}}{{end}}{{template "x" .}}`, "sorce", "source"},
		{`{{define "x"}}{{.sorce}}{{end}}{{include "x" . | upper}}`, "sorce", "source"},
		{`{{define "who"}}{{.observr}}{{end}}{{template "headline" .}}`, "observr", "observer"}, // which a word uses
		{`{{range facts .}}{{.label}}{{end}}`, "label", "Label"},
		{`{{(first (links .)).Url}}`, "Url", "URL"},
	} {
		_, err := open("webhook", hook+"|\n  "+tt.template, testHost(t))
		var unknown *templates.UnknownName
		if !errors.As(err, &unknown) || unknown.Name != tt.unknown ||
			!strings.Contains(strings.Join(unknown.Known, " "), tt.known) || unknown.Line != 1 {
			t.Errorf("%s gives %v, want %s unknown and %s among those that are known", tt.template, err, tt.unknown, tt.known)
		}
	}
	for kind, settings := range map[string]string{
		"slack": "{token: a, channel: C1, text: '{{.azeventtyp}}'}",
		"email": "{host: a.example, from: a@example.com, to: [b@example.com], html: '<b>{{.azeventtyp}}</b>'}",
		"nats":  "{url: tls://a.example, once: false, subject: 'a.{{.resourcegrup}}'}",
		"nats ": "{url: tls://a.example, once: false, subject: 'a.{{.now}}'}", // which a message has, and a subject has not
		"email ": "{host: a.example, from: a@example.com, to: [b@example.com], subject_file: " +
			writeFile(t, "subject", "{{.azeventtyp}}") + "}",
	} {
		_, err := open(strings.TrimSpace(kind), settings, testHost(t))
		if unknown := (*templates.UnknownName)(nil); !errors.As(err, &unknown) {
			t.Errorf("%s %s gives %v, want an unknown name", kind, settings, err)
		}
	}
}

// What may be there is taken, also where nothing says what it is.
func TestKnownNamesInTemplatesAreTaken(t *testing.T) {
	shape := webhookSettings{service: new(Service), own: sources{{name: "key"}}}.shape()
	for _, template := range []string{
		`{{index . "azeventtype"}}{{index .data "event" "Description"}}{{index . .change}}{{"id" | index .}}`,
		`{{.azeventtype}}{{.data.event.Description}}{{.data.observer.zone}}{{range .group}}{{.now}}{{range .missed}}` +
			`{{.time}}{{end}}{{end}}`,
		`{{index .data.event "NewField"}}{{range $name, $v := .data}}{{$name}}{{end}}`,
		`{{$m := dict "a" 1}}{{$m.a}}{{$m.b}}{{with $m}}{{.c}}{{end}}`,
		`{{template "headline" .}}{{include "why" (slack .)}}{{.setting.key}}`,
		`{{define "row"}}{{.label}}: {{.value}}{{end}}{{template "row" dict "label" "x" "value" .id}}`,
		`{{$x := .data}}{{$x = dict "a" 1}}{{$x.a}}`,
		`{{range .resources}}{{.}}{{end}}{{.cloudevent | json}}`,
	} {
		if err := templates.CheckNames(template, shape); err != nil {
			t.Errorf("%s is refused: %v", template, err)
		}
	}
}

// The names in our own texts are all known.
func TestOwnTextsHaveKnownNames(t *testing.T) {
	if err := templates.CheckNames(templates.Console, messageShape(nil)); err != nil {
		t.Errorf("the console: %v", err)
	}
}
