package sinks

import (
	"encoding/base64"
	"encoding/hex"
	"html"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	maxLayers   = 4      // of escapes and digits that are undone
	maxDigits   = 2      // of these layers that are digits, which every text can be read as
	maxReadings = 10_000 // of one text; lines of a log that use every escape at once have about 4,500
)

// A reading is a text, and how many layers of digits were undone on the way to it.
type reading struct {
	text   string
	digits int
}

// readings returns what a text may stand for: the text itself, and what is left of it when up to maxLayers ways of
// writing are undone, one after the other and in any order, as of base64 in JSON in HTML. Each way is undone alone,
// since a secret may hold what looks like another one. complete is false if there are too many readings, as of a text
// made to have many. without takes out of each reading what is not searched; nil for nothing.
func readings(text string, without func(string) string) (all []string, complete bool) {
	fewest := make(map[string]int) // digits by which a text was reached
	var layer []reading
	add := func(r reading) {
		if without != nil {
			r.text = without(r.text)
		}
		digits, reached := fewest[r.text]
		if !reached || r.digits < digits {
			fewest[r.text] = r.digits
			layer, all = append(layer, r), append(all, r.text)
		}
	}
	add(reading{text: text})
	for range maxLayers {
		before := layer
		layer = nil
		for _, r := range before {
			for _, undo := range escapes {
				add(reading{undo(r.text), r.digits})
			}
			if r.digits < maxDigits {
				for _, decoded := range decodeDigits(r.text) {
					add(reading{decoded, r.digits + 1})
				}
			}
			if len(all) > maxReadings {
				return all, false
			}
		}
	}
	return all, true
}

// charactersOf returns a text, and what its characters are if it was written in Latin-1 or is UTF-8 that was taken for it.
func charactersOf(text string) []string {
	all := []string{text}
	if !utf8.ValidString(text) {
		var b strings.Builder
		for i, r := range text {
			_, size := utf8.DecodeRuneInString(text[i:])
			if r == utf8.RuneError && size == 1 {
				r = rune(text[i])
			}
			b.WriteRune(r)
		}
		all = append(all, b.String())
	}
	var b strings.Builder
	for _, r := range text {
		if r <= unicode.MaxLatin1 {
			b.WriteByte(byte(r))
		} else {
			b.WriteRune(r)
		}
	}
	if b.String() != text {
		all = append(all, b.String())
	}
	return all
}

// escapes undo one way of escaping each, or join what lines, tags or colours divide. They leave everything else as it is.
var escapes = []func(string) string{
	func(text string) string { return backslashes.ReplaceAllStringFunc(text, undoBackslash) },
	func(text string) string { return percents.ReplaceAllStringFunc(text, undoHex) },
	func(text string) string {
		return percents.ReplaceAllStringFunc(strings.ReplaceAll(text, "+", " "), undoHex)
	},
	func(text string) string { return quotedPrintable.ReplaceAllStringFunc(text, undoHex) },
	html.UnescapeString,
	func(text string) string { return decimals.ReplaceAllStringFunc(text, undoDecimals) },
	func(text string) string { return strings.Join(strings.Fields(tags.ReplaceAllString(text, "")), "") },
}

var (
	// backslashes matches the escapes of JSON, Go, C and JavaScript.
	backslashes = regexp.MustCompile(`(?s)(\\u[0-9a-fA-F]{4})+|\\u\{[0-9a-fA-F]{1,6}\}|\\U[0-9a-fA-F]{8}|` +
		`\\x[0-9a-fA-F]{2}|\\[0-7]{1,3}|\\.`)
	// percents matches the escapes of URLs, with those of JavaScript's escape.
	percents = regexp.MustCompile(`%[0-9a-fA-F]{2}|%u[0-9a-fA-F]{4}`)
	// quotedPrintable matches the escapes of mail, with the = that continues a line.
	quotedPrintable = regexp.MustCompile(`=[0-9a-fA-F]{2}|=\s+`)
	// tags matches the tags of HTML, and what is left of those that colour a terminal's text.
	tags = regexp.MustCompile(`<[^<>]*>|\[[0-9;]*[mK]`)
	// hexPrefix matches a byte as C and Python write it.
	hexPrefix = regexp.MustCompile(`0[xX]([0-9a-fA-F]{2})`)
	// decimals matches a list of bytes, as Go, Node and od write them.
	decimals = regexp.MustCompile(`[0-9]{1,3}([,\s]+[0-9]{1,3})*`)
)

// undoDecimals returns the bytes of a list of numbers; the list if one is no byte.
func undoDecimals(list string) string {
	var b strings.Builder
	for number := range strings.FieldsFuncSeq(list, func(r rune) bool { return r < '0' || r > '9' }) {
		n, err := strconv.ParseUint(number, 10, 8)
		if err != nil {
			return list
		}
		b.WriteByte(byte(n))
	}
	return b.String()
}

// undoBackslash returns what an escape with a backslash, or a row of \uXXXX, stands for.
func undoBackslash(escape string) string {
	switch kind, rest := escape[1], escape[2:]; {
	case strings.HasPrefix(rest, "{"):
		return character(strings.Trim(rest, "{}"), 16)
	case kind == 'u' && rest != "":
		var units []uint16
		for unit := range strings.SplitSeq(rest, `\u`) {
			n, _ := strconv.ParseUint(unit, 16, 16) // the pattern lets only digits through
			units = append(units, uint16(n))
		}
		return string(utf16.Decode(units))
	case kind == 'U' && rest != "":
		return character(rest, 16)
	case kind == 'x' && rest != "":
		return undoHex(escape)
	case '0' <= kind && kind <= '7':
		n, _ := strconv.ParseUint(escape[1:], 8, 16)
		return string([]byte{byte(n)})
	case strings.IndexByte("abfnrtv", kind) >= 0 && len(escape) == 2:
		return " "
	}
	return escape[1:]
}

// undoHex returns what two or four hexadecimal digits at the end of an escape stand for; "" if there are none.
func undoHex(escape string) string {
	digits := strings.TrimLeft(escape, `%=\xu`)
	if len(digits) == 4 {
		return character(digits, 16)
	}
	n, err := strconv.ParseUint(digits, 16, 8)
	if err != nil {
		return ""
	}
	return string([]byte{byte(n)})
}

// character returns the character with a number.
func character(number string, base int) string {
	n, _ := strconv.ParseUint(number, base, 32)
	return string(rune(min(n, unicode.MaxRune+1)))
}

// decodeDigits reads a text as base64 and as hexadecimal digits, from each place where a byte may begin. It skips
// everything else, such as the end of a line, colons and padding.
func decodeDigits(text string) (all []string) {
	const hexDigits = "0123456789abcdefABCDEF"
	const base64Digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+/"
	sextets := only(base64Digits, strings.NewReplacer("-", "+", "_", "/").Replace(text))
	nibbles := only(hexDigits, hexPrefix.ReplaceAllString(text, "$1"))
	for first := range min(4, len(sextets)) {
		decoded, _ := base64.RawStdEncoding.DecodeString(sextets[first:]) // all but a digit too many at the end
		all = append(all, string(decoded))
	}
	for first := range min(2, len(nibbles)) {
		decoded, _ := hex.DecodeString(nibbles[first:])
		all = append(all, string(decoded))
	}
	return all
}

// only returns the digits in a text.
func only(digits, text string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(digits, r) {
			return r
		}
		return -1
	}, text)
}
