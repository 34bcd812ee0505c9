package manual_test

import (
	"testing"

	"forewarn/cmd/forewarn/internal/manual"
)

const document = `# Title

A paragraph with **bold** words, ` + "`code`" + ` and a [link](#below)
that goes on; [another](https://example.com/) leads elsewhere.
<!-- not shown -->

## Keys

| key | default | what it is |
| --- | --- | --- |
| ` + "`a`" + ` | ` + "`x\\|y`" + ` | a sentence that is long enough to be wrapped within its own column, because the line ends before it does |

- one
- two, which
  goes on

` + "```yaml\n# no heading\nkey: value\n```" + `

## Next
1. first
`

// A document is printed without its marks, in lines of at most 100 columns; code stays as it is.
func TestTextIsReadableInATerminal(t *testing.T) {
	want := `TITLE

  A paragraph with bold words, code and a link that goes on; another (https://example.com/) leads
  elsewhere.

KEYS

  key  default  what it is
  ---  -------  ------------------------------------------------------------------------------------
  a    x|y      a sentence that is long enough to be wrapped within its own column, because the line
                ends before it does

  - one
  - two, which goes on

    # no heading
    key: value

NEXT

  1. first
`
	if got := manual.Text(manual.Parse(document, nil), 100); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A table whose names leave too little room for its last column has that column below them.
func TestWideNamesLeaveRoomForWhatTheyMean(t *testing.T) {
	const name = "a_name_of_more_than_seventy_columns_that_nobody_can_break_between_its_words"
	doc := "| metric | type | what it is |\n| --- | --- | --- |\n" +
		"| " + name + " | gauge | What it means, in so many words that they are never squeezed into a dozen columns, but have the line below. |\n" +
		"| b | counter | Short. |\n"
	got := manual.Text(manual.Parse(doc, nil), 100)
	want := `  metric                                                                       type
  ---------------------------------------------------------------------------  -------
  ` + name + `  gauge
      What it means, in so many words that they are never squeezed into a dozen columns, but have
      the line below.
  b                                                                            counter
      Short.
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A section ends before the next heading of its level; a line of code that looks like one ends nothing.
func TestSectionIsAllBelowItsHeading(t *testing.T) {
	got := manual.Section(document, "Keys")
	if first, last := got[:7], got[len(got)-5:]; first != "## Keys" || last != "```\n\n" {
		t.Errorf("the section begins with %q and ends with %q", first, last)
	}
	if got := manual.Section(document, "None"); got != "" {
		t.Errorf("a heading that is not there has the section %q", got)
	}
}

// A link into the repository is of no use in a terminal: behind its text stands where to read on, if that is anywhere.
func TestLinksSayWhereToReadOn(t *testing.T) {
	links := func(text, target string) string {
		return map[string]string{"../b/README.md#keys": "forewarn help keys"}[target]
	}
	for doc, want := range map[string]string{
		"See [the keys](../b/README.md#keys).":   "  See the keys (forewarn help keys).\n",
		"One key ([more](../b/README.md#keys)).": "  One key (more: forewarn help keys).\n",
		"See [the code](doc.go) ([it](doc.go)).": "  See the code (it).\n",
	} {
		if got := manual.Text(manual.Parse(doc, links), 100); got != want {
			t.Errorf("%s: got %q, want %q", doc, got, want)
		}
	}
}

// A table without a head keeps all its rows.
func TestTableWithoutHeadKeepsItsFirstRow(t *testing.T) {
	blocks := manual.Parse("| | |\n| --- | --- |\n| a | first |\n| b | second |\n", nil)
	if got, want := manual.Text(blocks, 100), "  a  first\n  b  second\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A narrow terminal gets narrow text.
func TestTextIsAsNarrowAsTheTerminal(t *testing.T) {
	got := manual.Text(manual.Parse(document, nil), 40)
	want := `TITLE

  A paragraph with bold words, code and
  a link that goes on; another
  (https://example.com/) leads
  elsewhere.

KEYS

  key  default
  ---  -------
  a    x|y
      a sentence that is long enough to
      be wrapped within its own column,
      because the line ends before it
      does

  - one
  - two, which goes on

    # no heading
    key: value

NEXT

  1. first
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
