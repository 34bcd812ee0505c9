package sinks

import (
	"maps"
	"slices"
	"sync"
)

// maxKnown is the size of the secrets that are remembered of one sink, in bytes: those in use, and some before them.
const maxKnown = 16 << 10

// KnownSecrets are the secrets of all the sinks that share them: those in use, and the last ones before. One gateway
// may serve two sinks, and an answer to one of them repeat the secret of the other, or one that was replaced. The zero
// value is ready to use. It is safe for concurrent use. A nil KnownSecrets remembers nothing.
//
// It remembers no secret of fewer than maxRow characters, which would hide the answers to all sinks.
type KnownSecrets struct {
	mu    sync.Mutex
	of    map[string][]knownSecret // by sink; the one that was used last at the end
	rows  map[string]bool          // of all of them, never changed; nil once there are others
	words []string                 // the letters of those in words, never changed
}

// A knownSecret is folded.
type knownSecret struct {
	text    string
	inWords bool // it counts only as a whole
}

// add adds a secret that a sink uses, or notes that it still does.
func (k *KnownSecrets) add(sink, secret string) { k.note(sink, knownSecret{text: secret}) }

// addWords adds the letters and digits of a secret that is made of words.
func (k *KnownSecrets) addWords(sink, letters string) { k.note(sink, knownSecret{letters, true}) }

// note remembers a secret as the one that the sink used last. It forgets the ones that the sink used longest ago once
// there are too many.
func (k *KnownSecrets) note(sink string, secret knownSecret) {
	if k == nil || len(secret.text) < maxRow {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.of[sink]
	i := slices.Index(all, secret)
	if i >= 0 {
		all = slices.Delete(all, i, i+1)
	} else {
		k.rows = nil
	}
	all = append(all, secret)
	for size(all) > maxKnown {
		all, k.rows = all[1:], nil
	}
	if k.of == nil {
		k.of = make(map[string][]knownSecret)
	}
	k.of[sink] = all
}

// all returns the rows of maxRow characters that no text may hold, and the secrets in words, of which it may hold no
// whole one.
func (k *KnownSecrets) all() (rows map[string]bool, words []string) {
	if k == nil {
		return nil, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rows == nil {
		k.rows, k.words = make(map[string]bool), nil
		for _, secrets := range k.of {
			for _, secret := range secrets {
				if secret.inWords {
					k.words = append(k.words, secret.text)
				} else {
					addRows(k.rows, secret.text, maxRow)
				}
			}
		}
	}
	return k.rows, k.words
}

// SecretValues are values of settings, for the test whether an error about other keys repeats one of them. The zero value
// has none.
type SecretValues struct{ redact redactor }

// Add adds a value. Words and texts of up to three characters are in many errors: of those it adds none, and none that
// are parts of an address.
func (s *SecretValues) Add(value string) {
	s.redact.hideSetting(value)
	for n, rows := range s.redact.rows[:maxRow] {
		maps.DeleteFunc(rows, func(row string, _ bool) bool { return n < 4 || isWord(row) })
	}
}

// In reports whether a text repeats one of the values, as redactor.repeats does.
func (s *SecretValues) In(text string) bool { return s.redact.repeats(text) }

// size returns the number of bytes of secrets.
func size(secrets []knownSecret) (n int) {
	for _, secret := range secrets {
		n += len(secret.text)
	}
	return n
}
