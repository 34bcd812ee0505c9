package sinks

import (
	"encoding/base64"
	"encoding/pem"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"forewarn/templates"
)

const (
	maxShown = 512 // bytes of a text from outside that are shown at most
	maxRow   = 8   // characters of a secret in a row from which a text repeats it

	maxEscape = 16 // characters that may stand for the marks between two pieces of a secret

	minLetters = 6 // letters and digits from which a secret is recognised by them alone

	maxShortEnd = 3 // characters of the end of a path that may be in any text, such as v2 or api
)

// notShown stands in place of a text that repeats a secret, also within a sentence.
const notShown = "[this text repeats a secret, so it isn't shown]"

// A redactor keeps secrets from being shown by texts from outside, such as network errors, destinations' answers and
// the output of commands, which may repeat what they were sent. Everything from outside passes its line, its lines or
// its id before anybody sees it. The zero value knows no secret. Once it knows all of them, it is safe for concurrent
// use.
type redactor struct {
	rows  [maxRow + 1]map[string]bool // what a text must not hold, by length
	split [][]string                  // the pieces of secrets that have marks between them, folded
	hosts []string                    // of the settings, in lower case: they are shown; see showHosts
	known *KnownSecrets               // of all sinks; nil for only those that this redactor is told
	sink  string                      // whose secrets it is told
}

// line returns a text from outside in the form that may be shown: one line of printable characters, at most n bytes
// long. A text that repeats a secret isn't shown at all. It is cut before it is searched, so the work is bounded, and
// fewer than maxRow characters are left of a secret that the cut divides.
func (r *redactor) line(text string, n int) string {
	text = cut(text, n)
	return r.unlessRepeats(text, templates.Line(text), notShown)
}

// id returns an id from outside as line does; none if it repeats a secret.
func (r *redactor) id(text string) string {
	text = cut(text, 128)
	return r.unlessRepeats(text, templates.Line(text), "")
}

// lines is line for a command's output that is cut already. It leaves out empty lines.
func (r *redactor) lines(text string) string {
	var all []string
	for line := range strings.Lines(text) {
		line = templates.Line(line)
		if line != "" {
			all = append(all, line)
		}
	}
	return r.unlessRepeats(text, strings.Join(all, "\n"), notShown)
}

// unlessRepeats returns what is shown of a text, or otherwise if that or the text repeats a secret. What is shown has no
// letters that are not in UTF-8.
func (r *redactor) unlessRepeats(text, shown, otherwise string) string {
	if r.repeats(shown) || !utf8.ValidString(text) && r.repeats(text) {
		return otherwise
	}
	return shown
}

// repeats reports whether a text holds maxRow characters of a secret in a row, with marks or without, or all of a shorter
// one, however they are written; see readings. Case, accents and white space make no difference, and of other scripts a
// character counts as several. The hosts of the settings don't count where they stand, unless a secret goes on beyond them.
func (r *redactor) repeats(text string) bool {
	all := r.secrets()
	if all.none() || !all.in(readings(text, nil)) {
		return false
	}
	return all.beyond(r.hosts).in(readings(text, nil)) || all.in(readings(text, r.withoutHosts))
}

// repeatsLong is repeats for an id that is needed: it holds a secret of fewer than maxRow characters by chance.
func (r *redactor) repeatsLong(id string) bool {
	all := r.secrets()
	clear(all.rows[:maxRow])
	return all.in(readings(id, nil))
}

// secrets are those that a text is searched for, folded.
type secrets struct {
	rows  []map[string]bool // what a text must not hold: by length, and then those of maxRow characters that all sinks have
	words []string          // the letters of those in words, of which it must not hold all
	split [][]string        // the pieces of those that have marks between them
	shown map[string]bool   // rows that a text may hold
}

func (r *redactor) secrets() secrets {
	shared, words := r.known.all()
	return secrets{rows: append(r.rows[:], shared), words: words, split: r.split}
}

func (s secrets) none() bool {
	return len(s.words) == 0 && !slices.ContainsFunc(s.rows, func(rows map[string]bool) bool { return len(rows) > 0 })
}

// in reports whether one of the readings of a text holds one of the secrets; true if the readings are not complete.
func (s secrets) in(readings []string, complete bool) bool {
	return !complete || slices.ContainsFunc(readings, func(reading string) bool {
		return slices.ContainsFunc(charactersOf(reading), func(text string) bool {
			folded := fold(text)
			letters := unmarked(folded)
			return s.inRow(folded) || s.inRow(letters) ||
				slices.ContainsFunc(s.split, func(pieces []string) bool { return holdsPieces(folded, pieces) }) ||
				slices.ContainsFunc(s.words, func(secret string) bool { return holdsWords(letters, isCut(folded), secret) })
		})
	})
}

// inRow reports whether a folded text holds one of the rows.
func (s secrets) inRow(text string) bool {
	for n, rows := range s.rows {
		n = min(n, maxRow)
		if len(rows) == 0 {
			continue
		}
		for i := range len(text) - n + 1 {
			if row := text[i : i+n]; rows[row] && !s.shown[row] {
				return true
			}
		}
	}
	return false
}

// holdsWords reports whether the letters of a text hold those of a secret in words. Where the text is cut, maxRow of them
// are enough.
func holdsWords(letters string, cut bool, secret string) bool {
	end := letters[max(0, len(letters)-len(secret)-maxEscape):]
	return strings.Contains(letters, secret) || cut && strings.Contains(end, secret[:maxRow])
}

// holdsPieces reports whether a folded text holds maxRow letters and digits of a secret that has marks between them, in
// their order, with an escape that nobody knows for each mark, such as _x0024_ for $. Pieces of a single letter are in any
// text, so two on average are asked for.
func holdsPieces(text string, pieces []string) bool {
	for first := range pieces {
		for rest, i := text, strings.Index(text, pieces[first]); i >= 0; i = strings.Index(rest, pieces[first]) {
			rest = rest[i+len(pieces[first]):]
			if followed(rest, len(pieces[first]), pieces[first+1:]) {
				return true
			}
		}
	}
	return false
}

// followed reports whether a text goes on with pieces of a secret until they have maxRow letters and digits, of which n
// stood before it in one piece.
func followed(text string, n int, pieces []string) bool {
	for i, piece := range pieces {
		at := strings.Index(text[:min(len(text), maxEscape+len(piece))], piece)
		if at < 0 {
			return false
		}
		n += len(piece)
		if n >= maxRow && n >= 2*(i+2) {
			return true
		}
		text = text[at+len(piece):]
	}
	return false
}

// fold returns the characters of a text that are compared: those that can be seen by themselves, in lower case. A letter
// with an accent counts without, and one that differs only in its form, such as its width, as the usual one.
func fold(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) || unicode.Is(unicode.Mn, r) || r == utf8.RuneError {
			return -1
		}
		return unicode.ToLower(r)
	}, norm.NFKD.String(text))
}

// unmarked returns the letters and digits of a text. Those who quote a text double its marks, or put others between them.
func unmarked(text string) string {
	return strings.Map(func(r rune) rune {
		if isMark(r) {
			return -1
		}
		return r
	}, text)
}

func isMark(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) }

// hide adds secrets, and their letters and digits alone if those are minLetters or more. A secret of one or two
// characters is in nearly every text, so that hardly any is shown.
//
// All sinks get to know them. Words are in many answers, so of a secret in several words they know only the whole, and
// a single word counts for its own sink alone.
func (r *redactor) hide(secrets ...string) {
	for _, secret := range secrets {
		r.hideAs(secret, isWords(secret))
	}
}

// hideAs adds a secret, which is in words or not.
func (r *redactor) hideAs(secret string, inWords bool) {
	words := strings.FieldsFunc(secret, isMark)
	secret = fold(secret)
	letters, pieces := unmarked(secret), strings.FieldsFunc(secret, isMark)
	all := []string{secret}
	if len(letters) >= minLetters && letters != secret {
		all = append(all, letters)
	}
	for _, text := range all {
		r.addFolded(text)
		if !inWords {
			r.known.add(r.sink, text)
		}
	}
	switch {
	case inWords && len(words) > 1:
		r.known.addWords(r.sink, letters)
	case !inWords && len(pieces) > 1:
		r.split = append(r.split, pieces)
	}
}

// addFolded adds a folded secret.
func (r *redactor) addFolded(secret string) {
	n := min(len(secret), maxRow)
	if n == 0 {
		return
	}
	if r.rows[n] == nil {
		r.rows[n] = make(map[string]bool)
	}
	addRows(r.rows[n], secret, n)
}

// addRows adds what a text must not hold of a secret: all rows of n characters. What is in texts of any kind is none in a
// longer secret: the program's own name, as in the user forewarn-web and "stored in stream FOREWARN", and how a URL begins.
func addRows(rows map[string]bool, secret string, n int) {
	for i := range len(secret) - n + 1 {
		row := secret[i : i+n]
		if secret == row || !oneOf(row, "forewarn", "https://") {
			rows[row] = true
		}
	}
}

// hideParts adds parts of a text that may be secrets. Words are none; see isWord.
func (r *redactor) hideParts(parts ...string) {
	for _, p := range parts {
		if !isWord(p) {
			r.hide(p)
		}
	}
}

// schemes matches what an address of the settings begins with.
var schemes = regexp.MustCompile(`^(?i:https?|nats|tls|tcp|udp|socks5h?):/*`)

// hideValue adds a value that may be a secret, unless it is a short word. Of an address it adds what may be secret there.
// Of what only begins as one that is all of the rest: nobody knows where the host ends.
func (r *redactor) hideValue(value string) {
	u, err := url.Parse(value)
	if err == nil && u.Host != "" {
		r.hideURL(u)
		return
	}
	value = schemes.ReplaceAllString(value, "")
	if len(value) >= maxRow || !isWord(value) {
		r.hide(value)
	}
}

// hideSetting adds a value that stands in the settings under a key of the operator's choice. It may be a secret,
// unless it is short and made of words or a number, or the path of something on this machine.
func (r *redactor) hideSetting(value string) {
	short := len(value) < maxRow && (isWords(value) || strings.Trim(value, "0123456789") == "")
	if !short && !isPath(value) && !isPathList(value) {
		r.hideValue(value)
	}
}

// hideSecret adds a value that is secret: all of it or, if it is a URL, what hideURL says of that.
func (r *redactor) hideSecret(value string) {
	u, err := url.Parse(strings.TrimSpace(value))
	if err == nil && u.Scheme != "" && u.Host != "" {
		r.hideURL(u)
		return
	}
	r.hide(value)
}

// hideURL adds what may be secret in a URL: user, values of the query, fragment, what is no word in the path, and the
// end of the path even if it is a word. Dates and versions are none, and the host is shown.
func (r *redactor) hideURL(u *url.URL) {
	r.showHosts(u.Host)
	if u.User != nil {
		password, _ := u.User.Password()
		r.hideUser(u.User.Username())
		r.hide(password)
	}
	path := strings.TrimRight(u.EscapedPath(), "/")
	for _, part := range split(path, "/;=") {
		for _, part := range unescaped(part) {
			if !isPathWord(part) && !isVersion(part) {
				r.hide(part)
			}
		}
	}
	end := path[strings.LastIndexByte(path, '/')+1:]
	if len(end) > maxShortEnd {
		for _, end := range unescaped(end) {
			r.hideAs(end, isWords(end) || isPathWord(end))
		}
	}
	for _, pair := range split(u.RawQuery, "&;") {
		name, value, named := strings.Cut(pair, "=")
		switch {
		case !named:
			value = name
		case !isWords(name) && !isPathWord(name):
			r.hide(unescaped(name)...)
		}
		for _, value := range unescaped(value) {
			if !isVersion(value) {
				r.hideValue(value)
			}
		}
	}
	r.hideValue(u.Fragment)
}

// hideBytes adds a secret that is no text, of which a destination may show the bytes.
func (r *redactor) hideBytes(secret []byte) {
	all := charactersOf(string(secret))
	r.hide(all[len(all)-1])
}

// hidePrivateKeys adds the private keys of a text in PEM form, without the words around them.
func (r *redactor) hidePrivateKeys(text []byte) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			r.hide(unmarked(base64.StdEncoding.EncodeToString(block.Bytes)))
		}
	}
}

// hideKeys adds what looks like a key in a text that need not be secret, such as a body of the settings.
func (r *redactor) hideKeys(text string) { r.hide(templates.Keys(text)...) }

// split returns the parts of a text between separators, without empty ones.
func split(text, separators string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(separators, r) })
}

// unescaped returns what a part of a URL stands for: in a path, and in a form, where + is a space.
func unescaped(part string) []string {
	plain, err := url.PathUnescape(part)
	if err != nil {
		return []string{part}
	}
	form, _ := url.QueryUnescape(part) // has the same errors
	return []string{plain, form}
}

// hideHeader adds the parts of the value of a header that are no words, such as each cookie and the token after Bearer, and
// the whole value if none of them is long. The scheme before a token is none of it, nor is the name of a cookie: "Bearer t"
// is in every answer about a bearer token.
func (r *redactor) hideHeader(value string) {
	long := false
	for _, part := range split(value, " \t,;=") {
		if !isWords(part) && !isPathWord(part) {
			r.hide(part)
			long = long || len(part) >= maxRow
		}
	}
	scheme, code, _ := strings.Cut(value, " ")
	code = strings.TrimSpace(code)
	switch {
	case oneOf(strings.ToLower(scheme), "basic", "bearer", "token"):
		r.hide(code)
	case !long:
		r.hide(value)
	}
	if strings.EqualFold(scheme, "basic") {
		plain, _ := base64.StdEncoding.DecodeString(code)
		username, password, _ := strings.Cut(string(plain), ":")
		r.hideLogin(username, password)
	}
}

// hideLogin adds a password. A user name is shown, because what this user may not do is the likeliest error after a wrong
// password; beside a password of fewer than maxRow characters, or none, it may be the key and is added too.
func (r *redactor) hideLogin(username, password string) {
	if len(password) < maxRow {
		r.hideUser(username)
	}
	r.hide(password)
}

// hideUser adds a user who may be the key of a service, which may be a word. The program's own name is none: it is in its
// own texts, as in a longer secret; see addRows.
func (r *redactor) hideUser(name string) {
	if fold(name) != "forewarn" {
		r.hide(name)
	}
}

// isCut reports whether a folded text ends as cut leaves it.
func isCut(text string) bool { return strings.HasSuffix(text, fold("…")) }

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
