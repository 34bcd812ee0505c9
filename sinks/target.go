package sinks

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"forewarn/templates"
)

// A target is the URL that a webhook sends to. Behind its host it may be a template.
type target struct {
	*url.URL                     // without what a template puts in
	rest     *templates.Template // makes all behind the host; nil if the URL is no template
}

// A madeHeader is a header that a template makes.
type madeHeader struct {
	source
	template *templates.Template
}

// parseTarget parses the URL of a webhook, which must be https if secure is true. No error shows the URL.
func parseTarget(text string, secure bool) (t target, err error) {
	const otherwise = "is not a URL; expected one such as https://example.com/hook"
	fixed := text
	if isTemplate(text) {
		fixed = strings.TrimSpace(withoutActions(text))
	}
	t.URL, err = parseURL(fixed, otherwise, secure, "http", "https")
	if err != nil || !isTemplate(text) {
		return t, err
	}
	scheme, rest, _ := strings.Cut(strings.TrimSpace(text), "://")
	end := strings.IndexAny(rest, "/?{")
	if isTemplate(scheme) || rest[end] == '{' {
		return t, says("its host is a template; expected a host, and templates only in what follows")
	}
	t.rest, err = templates.ParseURL("url", rest[end:])
	if err != nil { // which may quote the URL
		err = errTemplate
	}
	return t, err
}

// of returns the URL for a message with these fields.
func (t target) of(fields map[string]any) (*url.URL, error) {
	if t.rest == nil {
		return t.URL, nil
	}
	rest, err := execute(t.rest, fields)
	if err != nil {
		return nil, errFails
	}
	u, err := url.Parse(t.Scheme + "://" + t.Host + rest)
	if err != nil {
		return nil, says("its template makes no URL")
	}
	return u, nil
}

// hasTemplates reports whether the URL or a header is a template.
func (a access) hasTemplates() bool { return a.url.rest != nil || len(a.made) > 0 }

// makes reports whether a template makes the header of that name.
func (a access) makes(name string) bool {
	return slices.ContainsFunc(a.made, func(h madeHeader) bool { return http.CanonicalHeaderKey(h.name) == name })
}

// request returns the URL for a message with these fields, and sets the headers that templates make. A header that comes
// out empty is left out. What no header can hold, such as a line break, becomes a space.
func (a access) request(fields map[string]any, header http.Header) (*url.URL, error) {
	for _, h := range a.made {
		value, err := execute(h.template, fields)
		if err != nil {
			return nil, h.wrong(errFails)
		}
		value = templates.Line(value)
		if value != "" {
			header.Set(h.name, value)
		}
	}
	to, err := a.url.of(fields)
	if err != nil {
		return nil, a.from.wrong(err)
	}
	return to, nil
}

// actions matches what is between {{ and }} of a template, constants their texts in quotes.
var (
	actions       = regexp.MustCompile(`(?s)\{\{.*?\}\}`)
	constantTexts = regexp.MustCompile("\"([^\"]*)\"|`([^`]*)`")
)

// These errors don't quote the template, which may hold a secret.
var (
	errTemplate = says("is no template that can be read; forewarn help templates describes them")
	errFails    = says("its template fails; forewarn help templates describes them")
)

// isTemplate reports whether a text of the settings is a template.
func isTemplate(text string) bool { return strings.Contains(text, "{{") }

// isTemplate reports whether a value stands in the settings themselves and is a template. What a file or a variable
// holds is taken as it is.
func (s source) isTemplate() bool { return isTemplate(s.Text.plain()) }

// withoutActions returns what a template says itself.
func withoutActions(text string) string { return actions.ReplaceAllString(text, "") }

// constants returns the texts in quotes that the actions of a template hold.
func constants(text string) (all []string) {
	for _, action := range actions.FindAllString(text, -1) {
		for _, m := range constantTexts.FindAllStringSubmatch(action, -1) {
			all = append(all, m[1]+m[2])
		}
	}
	return all
}
