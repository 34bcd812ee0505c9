// Package chain makes a log of CloudEvents tamper-evident. Each line holds a hash of itself and of the line before it:
//
//	{"specversion":"1.0",…,"chainprevious":"<64 hex digits>","chainhash":"<64 hex digits>"}
//
// A line is a CloudEvent in the JSON format, with two extension attributes at its end. chainhash is the SHA-256 of all
// that stands before the last ,"chainhash" of the line. That includes chainprevious, the chainhash of the line before, or
// Start. So no program of ours is needed to check a line:
//
//	sed 's/\(.*\),"chainhash".*/\1/' | tr -d '\n' | sha256sum
//
// The hashes have no key. Whoever may write the file can write a new chain from any line to the end. A hash that was
// stored elsewhere shows that, and also that lines are missing from the end.
package chain

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
)

// Start is the chainprevious of the first line of a chain.
var Start = strings.Repeat("0", hashLength)

const (
	hashLength = 2 * sha256.Size
	beforePrev = `,"chainprevious":"`
	beforeHash = `","chainhash":"`
	end        = `"}`
	tailLength = len(beforePrev) + hashLength + len(beforeHash) + hashLength + len(end)

	maxLine = 4 << 20 // bytes; a CloudEvent of forewarn has far fewer
)

// Append returns a JSON object as the line after the one with the hash previous, without a newline, and its hash.
func Append(object []byte, previous string) (line []byte, hash string) {
	line = append(bytes.TrimSuffix(bytes.TrimSpace(object), []byte("}")), beforePrev+previous+`"`...)
	hash = hashOf(line)
	return append(line, beforeHash[1:]+hash+end...), hash
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// lineHash returns the chainhash of a line without its newline, or "" if the line has none. It checks only the form.
func lineHash(line []byte) string {
	_, hash := attributes(line)
	return hash
}

// attributes returns the chainprevious and the chainhash of a line, or "" if it does not end in both.
func attributes(line []byte) (previous, hash string) {
	text := string(line[max(0, len(line)-tailLength):])
	text, ok1 := strings.CutPrefix(text, beforePrev)
	text, ok2 := strings.CutSuffix(text, end)
	previous, hash, ok3 := strings.Cut(text, beforeHash)
	if !ok1 || !ok2 || !ok3 || !isHash(previous) || !isHash(hash) {
		return "", ""
	}
	return previous, hash
}

func isHash(s string) bool { return len(s) == hashLength && strings.Trim(s, "0123456789abcdef") == "" }

// Last returns the chainhash of the last whole line of a file of size bytes, "" if that line has none, and where the
// line ends. Behind that may be half a line, which a crash left. Without a whole line, whole is 0.
func Last(r io.ReaderAt, size int64) (hash string, whole int64, err error) {
	for window := int64(64 << 10); ; window *= 4 {
		at := max(0, size-window)
		b := make([]byte, size-at)
		if _, err := r.ReadAt(b, at); err != nil && err != io.EOF {
			return "", 0, err
		}
		newline := bytes.LastIndexByte(b, '\n')
		switch {
		case newline >= 0 && (newline >= tailLength || at == 0):
			return lineHash(b[:newline]), at + int64(newline) + 1, nil
		case at == 0:
			return "", 0, nil
		case window > maxLine:
			return "", 0, fmt.Errorf("the last line is longer than %d MiB", maxLine>>20)
		}
	}
}
