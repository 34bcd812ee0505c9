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
// It is told nothing that is made of words, such as a user's name, and remembers no secret of fewer than maxRow
// characters: these must not hide the answers to all sinks.
type KnownSecrets struct {
	mu   sync.Mutex
	of   map[string][]string // by sink; the one that was used last at the end
	rows map[string]bool     // of all of them, never changed; nil once there are others
}

// add adds a secret that a sink uses, or notes that it still does. It forgets the ones that the sink used longest ago
// once there are too many.
func (k *KnownSecrets) add(sink, secret string) {
	if k == nil || len(secret) < maxRow {
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
		k.of = make(map[string][]string)
	}
	k.of[sink] = all
}

// all returns the rows of maxRow characters that no text may hold.
func (k *KnownSecrets) all() map[string]bool {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rows == nil {
		k.rows = make(map[string]bool)
		for _, secrets := range k.of {
			for _, secret := range secrets {
				addRows(k.rows, secret, maxRow)
			}
		}
	}
	return k.rows
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

// size returns the number of bytes of texts.
func size(texts []string) (n int) {
	for _, text := range texts {
		n += len(text)
	}
	return n
}
