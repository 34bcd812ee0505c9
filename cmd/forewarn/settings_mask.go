package main

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// What mask looks for.
var (
	anyKey      = lazily(`([\w.-]+)["']?\s*:`)
	beforeValue = lazily(`^[ \t]*([&!]\S*[ \t]+)*`)
	quotedOrIn  = lazily(`"(?:[^"\\]|\\.)*"?|'(?:[^']|'')*'?|[\[{\]}]`)
	flowEnd     = lazily(`(?m)\s*(,\s*["']?[\w.-]+["']?\s*:(\s|$)|[\]}][\]},\s]*(#.*)?$)`)
	content     = lazily(`\S([^\n]*\S)?`)
	headerName  = lazily(`^["']?[\w-]+["']?:\s`)
	urlSecrets  = lazily(`://(\S*@)?[^\s/?#"',\]}]*[/?#]?([^\s"',\]}]*)`)
)

// mask returns text with zeros for every byte that may belong to a secret: the values of secret keys, whatever they
// hold, and of each URL all but scheme and host. It reads the bare text, because what is not even YAML is shown too,
// and in doubt it hides more.
func mask(text string) string {
	out := []byte(text)
	for _, m := range anyKey().FindAllStringSubmatchIndex(text, -1) {
		key := text[m[2]:m[3]]
		if !isSecret(key) {
			continue
		}
		end := secretEnd(text, m[0], m[1])
		column := 0 // of the names of headers, which are shown
		for _, c := range content().FindAllStringIndex(text[m[1]:end], -1) {
			from, to := m[1]+c[0], m[1]+c[1]
			line := strings.LastIndexByte(text[:from], '\n')
			if key == "headers" && line >= m[1] && (column == 0 || column == from-line) {
				column = from - line
				from += len(headerName().FindString(text[from:to]))
			}
			clear(out[from:to])
		}
	}
	for _, m := range urlSecrets().FindAllStringSubmatchIndex(text, -1) {
		clear(out[max(m[2], 0):max(m[3], 0)])
		clear(out[m[4]:m[5]])
	}
	return string(out)
}

// isSecret tells whether the values of a key may be secret; a key that is misspelled may be meant as one.
func isSecret(key string) bool {
	key = strings.ToLower(key)
	last := key[strings.LastIndexAny(key, "_-.")+1:]
	words := []string{"url", "token", "password", "bearer", "secret", "secrets", "headers", "proxy"}
	return key == "env" || slices.ContainsFunc(words, func(s string) bool {
		return strings.HasSuffix(key, s) || distance(last, s) <= len(s)/4
	})
}

// secretEnd is where the value of a secret key ends: what is quoted or in brackets at the closing one, what stands in a
// flow before the next key, everything else after the last line that is indented deeper than the key's. If nothing but a
// wrong indentation can be why there is no value behind the key, what follows counts as the value.
func secretEnd(text string, key, colon int) int {
	end := colon + len(beforeValue().FindString(text[colon:]))
	if end < len(text) && strings.ContainsRune(`"'[{`, rune(text[end])) {
		end += closing(text[end:])
	}
	line := strings.LastIndexByte(text[:key], '\n') + 1
	misplaced := strings.HasPrefix(strings.TrimLeft(text[end:], "|>-+0123456789 \t"), "\n")
	if !misplaced && strings.ContainsAny(text[line:key], "{[") {
		if m := flowEnd().FindStringIndex(text[end:]); m != nil {
			return end + m[0]
		}
		return len(text)
	}
	indent := len(text[line:]) - len(strings.TrimLeft(text[line:], " -"))
	for i, l := range strings.SplitAfter(text[end:], "\n") {
		in := len(l) - len(strings.TrimLeft(l, " \t"))
		if i > 0 && strings.TrimSpace(l) != "" {
			if misplaced && in <= indent {
				indent = in - 1
			}
			misplaced = false
			if in < indent || in == indent && l[in] != '-' {
				break
			}
		}
		end += len(l)
	}
	return end
}

// closing is where the quote or bracket that text begins with is closed, or its end.
func closing(text string) int {
	depth := 0
	for _, m := range quotedOrIn().FindAllStringIndex(text, -1) {
		switch text[m[0]] {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		}
		if depth == 0 {
			return m[1]
		}
	}
	return len(text)
}

// lazily compiles a regular expression at its first use, which for most is an error that is shown.
func lazily(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
