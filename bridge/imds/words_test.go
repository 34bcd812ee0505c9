package imds

import "testing"

// Text is cut between runes. Of text that has no place for a cut, because it is not UTF-8, nothing is left.
func TestTextIsCutBetweenRunes(t *testing.T) {
	for text, cuts := range map[string][]string{
		"aé€":          {"", "a", "a", "aé", "aé", "aé", "aé€"},
		"\x80\x80\x80": {"", "", ""},
	} {
		for n, want := range cuts {
			if got := CutText(text, n); got != want {
				t.Errorf("%q cut at %d bytes is %q, want %q", text, n, got, want)
			}
		}
	}
}

// What Unicode calls no character, such as U+FDD0 to U+FDEF, is not printed.
func TestNoCharacterIsNotPrinted(t *testing.T) {
	for text, want := range map[string]string{
		"a\ufdcfb": "a\ufdcfb", "a\ufdd0b": "a b", "a\ufdefb": "a b", "a\ufdf0b": "a\ufdf0b",
	} {
		if got := Printable(text, 100); got != want {
			t.Errorf("%+q is printed as %+q, want %+q", text, got, want)
		}
	}
}
