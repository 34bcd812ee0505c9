package settings

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Placeholders are what the project's examples leave for the reader to fill in. Of words in upper case only those count
// that the examples have as the first part of a host: people do write hosts of their own so.
var (
	yourOwn = regexp.MustCompile(`\bYOUR[ _-]?[A-Z]*\b|(?i:\bchange[ _-]?me\b)|` +
		`//(?:APP|ENDPOINT|INSTANCE|NAME|NAMESPACE|TOPIC)\.`)
	exampleHost = regexp.MustCompile(`(?i)\bexample\.(?:com|org|net)\b`)
)

// placeholderNotes names the keys of a section that still have what an example has there. A value is not shown, because
// it may be secret.
func placeholderNotes(section entry) (notes []string) {
	own, hosts := placeholders(section.key, section, yourOwn), placeholders(section.key, section, exampleHost)
	if len(own) > 0 {
		notes = append(notes, fmt.Sprintf("%s: still the placeholder of an example; write your own value",
			strings.Join(own, ", ")))
	}
	if len(hosts) > 0 {
		notes = append(notes, fmt.Sprintf("%s: still an address of an example (example.com); write your own",
			strings.Join(hosts, ", ")))
	}
	return notes
}

// placeholders returns the keys below e with a value that has the placeholder, and their lines. Of a section with
// arbitrary keys it names the section.
func placeholders(path string, e entry, placeholder *regexp.Regexp) (keys []string) {
	add := func(key string) {
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	if placeholder.MatchString(e.value.text) {
		add(fmt.Sprintf("%s in line %d", path, e.value.line))
	}
	for _, item := range e.value.items {
		for _, key := range placeholders(path, entry{pos: item.pos, value: item}, placeholder) {
			add(key)
		}
	}
	for _, below := range e.value.entries {
		name := path + "." + below.key
		if e.value.anyKeys {
			name = path
		}
		for _, key := range placeholders(name, below, placeholder) {
			add(key)
		}
	}
	return keys
}
