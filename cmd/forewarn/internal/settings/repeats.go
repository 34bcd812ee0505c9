package settings

import (
	"regexp"
	"slices"
	"strings"

	"forewarn/sinks"
)

// hideSecrets takes the text out of each problem that repeats a secret of the files, such as one that was pasted under two
// keys. It leaves the place, the key, and what was expected. What the program says itself repeats none.
func (l Loader) hideSecrets(problems Problems, docs []*document) {
	if len(problems) == 0 {
		return
	}
	s := l.secretsOf(docs)
	keys := regexp.MustCompile(`^[a-z_]+(\.[a-z0-9_]+)*: `) // known ones
	for _, p := range problems {
		key := keys.FindString(p.Message)
		what, want, expected := strings.Cut(strings.TrimPrefix(p.Message, key), "; expected ")
		quoted := p.quoted
		if quoted == nil {
			quoted = []string{what, want}
		}
		if !slices.ContainsFunc(quoted, func(text string) bool { return !strings.Contains(key, text) && s.in(text) }) {
			continue
		}
		p.Message = key + "it repeats a secret, so it isn't shown"
		if expected && !s.in(want) {
			p.Message += "; expected " + want
		}
	}
}

// Showable returns notes about the settings, without the text of each that repeats a secret of the files. A secret that is
// as short as a word may be one of a note's own.
func (s *Settings) Showable(notes []string) (shown []string) {
	if s.secrets == nil || len(notes) == 0 {
		return notes
	}
	secrets := s.secrets()
	for _, note := range notes {
		if secrets.long.In(note) {
			of, _, _ := strings.Cut(note, ": ")
			note = "a note repeats a secret, so it isn't shown"
			if !secrets.long.In(of) {
				note = of + ": " + note
			}
		}
		shown = append(shown, note)
	}
	return shown
}

// secretsOf returns the secrets of files.
func (l Loader) secretsOf(docs []*document) *secretValues {
	s := &secretValues{loader: l, seen: make(map[*node]bool), checked: make(map[string]bool)}
	for _, doc := range docs {
		s.add("", "", doc.root)
	}
	return s
}

const short = 8 // characters from which a part of a secret repeats it; of a shorter one it takes a whole word

// secretValues are the values of the secret keys of files. Without kinds of sinks it opens no file that holds one.
type secretValues struct {
	loader  Loader
	long    sinks.SecretValues
	brief   []string // the short ones
	seen    map[*node]bool
	checked map[string]bool // what in returned: the parts of many messages are the same, and each takes milliseconds
}

// in reports whether a message repeats a secret.
func (s *secretValues) in(message string) bool {
	repeated, known := s.checked[message]
	if !known {
		repeated = s.long.In(message) ||
			slices.ContainsFunc(s.brief, func(text string) bool { return repeats(message, text) })
		s.checked[message] = repeated
	}
	return repeated
}

// add adds the secrets in n. key and name are as in sinks.MayBeSecret. What was not decoded may be a secret if it looks
// like one: a long text without spaces that is not made of words.
func (s *secretValues) add(key, name string, n *node) {
	if s.seen[n] { // aliases share nodes
		return
	}
	s.seen[n] = true
	for _, item := range n.items {
		s.add(key, name, item)
	}
	for _, e := range n.entries {
		if n.anyKeys {
			s.add(key, e.key, e.value)
		} else {
			s.add(e.key, "", e.value)
		}
	}
	words := !sinks.MayBeSecret("env", "", n.text)
	known := n.secret && sinks.MayBeSecret(key, name, n.text) && (!words || name == "") // a header of words is none
	undecoded := !n.secret && !n.open && len(n.text) >= short && !strings.ContainsAny(n.text, " \n")
	switch {
	case known, undecoded && !words:
		s.addText(n.text)
	case s.loader.Kinds != nil:
		s.addText(n.holds.Current(s.loader.Host))
	}
}

func (s *secretValues) addText(text string) {
	s.long.Add(text)
	if len(text) < short {
		s.brief = append(s.brief, text)
	}
}
