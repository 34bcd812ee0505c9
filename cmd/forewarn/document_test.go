package main

import "testing"

const sampleDocument = `# Title

A paragraph with **bold** words, ` + "`code`" + ` and more than fits on one line
of a terminal; [another](https://example.com/) leads elsewhere.
<!-- not shown -->

## Keys

| key | default | what it is |
| --- | --- | --- |
| ` + "`a`" + ` | ` + "`x\\|y`" + ` | a sentence that is long enough to be wrapped below its own beginning |
| ` + "`a_name_that_leaves_no_room_for_more`" + ` |  | below it |

- one
- two, which
  goes on

` + "```yaml\n# no heading\nkey: value\n```" + `

## Next
1. first
`

// A document is readable in a terminal: without its marks, in lines as wide as the terminal; code stays as it is.
func TestDocumentsAreReadableInATerminal(t *testing.T) {
	want := `TITLE

  A paragraph with bold words, code and more
  than fits on one line of a terminal; another
  (https://example.com/) leads elsewhere.

KEYS

  a  a sentence that is long enough to be
     wrapped below its own beginning (default:
     x|y)
  a_name_that_leaves_no_room_for_more
      below it

  - one
  - two, which goes on

    # no heading
    key: value

NEXT

  1. first
`
	if got := terminalText(blocksOf(sampleDocument), 46); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A section ends before the next heading of its level; a line of code that looks like one ends nothing.
func TestSectionIsAllBelowItsHeading(t *testing.T) {
	got := sectionOf(sampleDocument, "Keys")
	if first, last := got[:7], got[len(got)-5:]; first != "## Keys" || last != "```\n\n" {
		t.Errorf("the section begins with %q and ends with %q", first, last)
	}
	if got := sectionOf(sampleDocument, "None"); got != "" {
		t.Errorf("a heading that is not there has the section %q", got)
	}
}
