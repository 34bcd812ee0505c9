package wording

import (
	"fmt"
	"slices"
	"strings"
)

// Suggestion suggests the known word nearest to word, or lists all of them if none is near.
func Suggestion(word string, known []string) string {
	if near, ok := Nearest(word, known); ok {
		return fmt.Sprintf("did you mean %q?", near)
	}
	switch len(known) {
	case 0:
		return "expected no name here"
	case 1:
		return "expected " + known[0]
	}
	return "expected one of " + strings.Join(known, ", ")
}

// Nearest returns the known word that was probably meant; ok is false if none is near.
func Nearest(word string, known []string) (near string, ok bool) {
	if len(known) == 0 {
		return "", false
	}
	near = slices.MinFunc(known, func(a, b string) int { return Distance(word, a) - Distance(word, b) })
	return near, Distance(word, near) <= min(2, 1+len(word)/5)
}

// Distance counts the letters to insert, drop, change or swap to turn a into b, ignoring case.
func Distance(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	if len(a) > 2*len(b)+2 {
		return len(a) // too far to compute exactly
	}
	d := make([][]int, len(a)+1) // d[i][j] is the distance of a[:i] and b[:j]
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			switch {
			case i == 0 || j == 0:
				d[i][j] = i + j
			case a[i-1] == b[j-1]:
				d[i][j] = d[i-1][j-1]
			default:
				d[i][j] = 1 + min(d[i-1][j], d[i][j-1], d[i-1][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], 1+d[i-2][j-2])
			}
		}
	}
	return d[len(a)][len(b)]
}
