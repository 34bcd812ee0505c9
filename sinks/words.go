package sinks

import (
	"regexp"
	"strings"
	"sync"
	"unicode"
)

// onceNeeded returns a function that compiles a pattern when it is first called. A pattern with counts such as {1,127}
// takes up to 140 kB and a third of a millisecond, which most programs never need.
func onceNeeded(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// words matches a word or a short number, such as hooks, Bearer, GET, v2 and 38. Keys and tokens are longer, or mix
// letters and digits.
var words = onceNeeded(`^([A-Za-z]?[a-z]{0,11}|[A-Z]{1,12}|v?[0-9]{1,3})$`)

// isWord reports whether a part of an address, a header or a setting is a word, and no secret.
func isWord(text string) bool { return words().MatchString(text) }

// isWords reports whether a text is made of words.
func isWords(text string) bool {
	separates := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	for word := range strings.FieldsFuncSeq(text, separates) {
		if !isWord(word) {
			return false
		}
	}
	return true
}

const (
	maxWord      = 12 // letters of a word
	maxLongWord  = 16 // letters of one that has none of the rare ones
	minPathWord  = 3  // letters of each of several words
	maxPathWords = 24 // letters of several words together
)

// pathWords matches one to three words in camelCase, in PascalCase, or joined by - or _.
var pathWords = onceNeeded(`^[A-Za-z][a-z]+(([A-Z][a-z]+){0,2}|([-_][A-Za-z][a-z]+){0,2})$`)

// pathWord matches each of them.
var pathWord = regexp.MustCompile(`[A-Za-z][a-z]+`)

// isPathWord reports whether a part of a path is a word, or some words that are written as one, such as notifications,
// resourceGroups and ops-alerts. What may as well be random is none.
func isPathWord(part string) bool {
	if isWord(part) {
		return true
	}
	if !pathWords().MatchString(part) {
		return false
	}
	all := pathWord.FindAllString(part, -1)
	for _, word := range all {
		long := len(word) > maxWord && (len(word) > maxLongWord || strings.ContainsAny(word, "jqxzJQXZ"))
		if long || len(all) > 1 && len(word) < minPathWord {
			return false
		}
	}
	letters := unmarked(part)
	return len(letters) <= maxPathWords && isSpoken(letters)
}

// isSpoken reports whether letters may be words rather than random: with no more than four consonants in a row, and with
// the usual share of vowels if they are many.
func isSpoken(letters string) bool {
	vowels, consonants := 0, 0 // consonants in a row
	for _, letter := range strings.ToLower(letters) {
		consonants++
		if strings.ContainsRune("aeiou", letter) {
			vowels, consonants = vowels+1, 0
		}
		if consonants > 4 {
			return false
		}
	}
	return len(letters) <= maxWord || vowels*10 >= len(letters)*3
}

// versions matches a date, a time or both, as in signed URLs, the version of an API that is a date, and other versions of
// at most three digits, such as 1.0.
var versions = func() func() *regexp.Regexp {
	const (
		year, month, day = `(19|20)[0-9]{2}`, `(0[1-9]|1[0-2])`, `(0[1-9]|[12][0-9]|3[01])`
		hour, sixty      = `([01][0-9]|2[0-4])`, `[0-5][0-9]`
		date             = year + "-" + month + "-" + day
		clock            = hour + ":" + sixty + "(:" + sixty + `(\.[0-9]{1,7})?)?(Z|[+ -]` + hour + ":?" + sixty + ")?"
		both             = date + "[T +]" + clock + "|" + year + month + day + "T" + hour + sixty + sixty + "Z"
	)
	return onceNeeded("^(" + date + "(-preview)?|" + clock + "|" + both + `|v?[0-9](\.?[0-9]){0,2})$`)
}()

// isVersion reports whether a part of a URL is a date, a time or the number of a version, and no secret.
func isVersion(text string) bool { return versions().MatchString(text) }
