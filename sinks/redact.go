package sinks

import (
	"encoding/base64"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxShown = 512 // bytes of a text from outside that are shown at most
	maxRow   = 8   // characters of a secret in a row from which a text repeats it
)

// notShown stands in place of an answer that repeats a secret, and outputNotShown in place of a command's output.
const (
	notShown       = "the answer repeats a secret, so it isn't shown"
	outputNotShown = "the output repeats a secret, so it isn't shown"
)

// A redactor keeps secrets from being shown by texts from outside, such as network errors, destinations' answers and
// the output of commands, which may repeat what they were sent. Everything from outside passes its line or its lines
// before anybody sees it. The zero value knows no secret. It is for one goroutine at a time.
type redactor struct {
	secrets []string
	hosts   []string             // names that are shown, so that no part of them is a secret
	rows    *[maxRow + 1]rowsSet // what a text must not hold, by length; nil until it is needed
}

type rowsSet = map[string]struct{}

// line returns a text from outside in the form that may be shown: one line of printable characters, at most n bytes
// long. A text that repeats a secret isn't shown at all. It is cut before it is searched, so the work is bounded, and of
// a secret that the cut divides fewer than maxRow characters are left.
func (r *redactor) line(text string, n int) string {
	return r.unlessRepeats(printable(cut(text, n)), notShown)
}

// id returns an id from outside as line does; none if it repeats a secret.
func (r *redactor) id(text string) string {
	return r.unlessRepeats(printable(cut(text, 128)), "")
}

// lines is line for a command's output that is cut already. It leaves out empty lines.
func (r *redactor) lines(text string) string {
	var all []string
	for line := range strings.Lines(text) {
		line = printable(line)
		if line != "" {
			all = append(all, line)
		}
	}
	return r.unlessRepeats(strings.Join(all, "\n"), outputNotShown)
}

// unlessRepeats returns a text, or otherwise if it repeats a secret.
func (r *redactor) unlessRepeats(text, otherwise string) string {
	if r.repeats(text) {
		return otherwise
	}
	return text
}

// repeats reports whether a text holds maxRow characters of a secret in a row, or all of a shorter one, however they are
// written; see readings. Case and white space make no difference.
func (r *redactor) repeats(text string) bool {
	if len(r.secrets) == 0 || text == "" {
		return false
	}
	all, complete := readings(text)
	if !complete {
		return true
	}
	if r.rows == nil {
		r.rows = r.findRows()
	}
	for _, reading := range all {
		reading = fold(reading)
		for n, rows := range r.rows {
			if len(rows) > 0 && holdsRow(reading, n, rows) {
				return true
			}
		}
	}
	return false
}

// findRows returns what a text must not hold. A row that a host's name holds too is shown with it, so it is no secret.
func (r *redactor) findRows() *[maxRow + 1]rowsSet {
	var all [maxRow + 1]rowsSet
	for _, secret := range r.secrets {
		secret = fold(secret)
		n := min(len(secret), maxRow)
		if n == 0 {
			continue
		}
		if all[n] == nil {
			all[n] = make(rowsSet)
		}
		for i := range len(secret) - n + 1 {
			if row := secret[i : i+n]; n < maxRow || !r.isInHost(row) {
				all[n][row] = struct{}{}
			}
		}
	}
	return &all
}

func (r *redactor) isInHost(row string) bool {
	for _, host := range r.hosts {
		if strings.Contains(fold(host), row) {
			return true
		}
	}
	return false
}

// holdsRow reports whether a text holds one of the rows, which are n bytes long.
func holdsRow(text string, n int, rows rowsSet) bool {
	for i := range len(text) - n + 1 {
		if _, ok := rows[text[i:i+n]]; ok {
			return true
		}
	}
	return false
}

// fold returns the characters of a text that are compared: those that can be seen, in lower case.
func fold(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) || r == utf8.RuneError {
			return -1
		}
		return unicode.ToLower(r)
	}, text)
}

// hide adds secrets. Of one with few characters the redactor finds all in nearly every text, so that it shows nearly
// none.
func (r *redactor) hide(secrets ...string) {
	r.secrets, r.rows = append(r.secrets, secrets...), nil
}

// hideParts adds parts of a secret, except words, of which it could not be a secret that they are there.
func (r *redactor) hideParts(parts ...string) {
	for _, p := range parts {
		if !isWord(p) {
			r.hide(p)
		}
	}
}

// hideURL adds what may be secret in a URL: user, path, query and fragment. Its host is shown.
func (r *redactor) hideURL(u *url.URL) {
	r.hosts = append(r.hosts, u.Hostname())
	r.hideParts(u.Fragment)
	for part := range strings.FieldsFuncSeq(u.RequestURI(), func(r rune) bool { return strings.ContainsRune("/?&;=", r) }) {
		if plain, err := url.QueryUnescape(strings.ReplaceAll(part, "+", "%2B")); err == nil {
			part = plain
		}
		r.hideParts(part)
	}
	if u.User != nil {
		password, _ := u.User.Password()
		r.hideBasic(u.User.Username(), password)
	}
}

// hideHeader adds the value of a header and its parts, such as each cookie and the token after Bearer.
func (r *redactor) hideHeader(value string) {
	r.hide(value)
	r.hideParts(strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(" \t,;=", r) })...)
	scheme, code, _ := strings.Cut(value, " ")
	r.hide(code)
	if strings.EqualFold(scheme, "basic") {
		plain, _ := base64.StdEncoding.DecodeString(code)
		username, password, _ := strings.Cut(string(plain), ":")
		r.hideBasic(username, password)
	}
}

// hideBasic adds a user name and a password.
func (r *redactor) hideBasic(username, password string) {
	r.hideParts(username)
	r.hide(password)
}

// words matches a word or a short number, such as hooks, Bearer, GET, v2 and 38. Keys and tokens are longer, or mix
// letters and digits.
var words = regexp.MustCompile(`^([A-Za-z]?[a-z]{0,11}|[A-Z]{1,12}|v?[0-9]{1,3})$`)

// isWord reports whether a part of an address, a header or a setting is a word, and no secret.
func isWord(text string) bool { return words.MatchString(text) }

// isWords reports whether a text is made of words.
func isWords(text string) bool {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		if !isWord(word) {
			return false
		}
	}
	return true
}

// printable returns a text as one line of printable characters.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsPrint(r) && r != utf8.RuneError:
			return r
		}
		return -1
	}, text)
	return strings.Join(strings.Fields(text), " ")
}

// cut returns the beginning of a text, at most n bytes with the … that says so.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	n -= len("…")
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}
