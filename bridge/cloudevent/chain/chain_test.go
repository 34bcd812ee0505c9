package chain

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"
)

// chained returns so many lines of a chain after a hash, each with its newline.
func chained(n int, previous string) (lines []string) {
	for i := range n {
		object := fmt.Sprintf(`{"specversion":"1.0","id":"%d","source":"/x","type":"a.b","data":{"text":"line %d"}}`, i, i)
		line, hash := Append([]byte(object), previous)
		lines, previous = append(lines, string(line)+"\n"), hash
	}
	return lines
}

// verified returns the report about files.
func verified(t *testing.T, files ...string) Report {
	t.Helper()
	var v Verifier
	for i, text := range files {
		name := fmt.Sprintf("%c.jsonl", 'a'+i)
		if intact, err := v.Read(name, strings.NewReader(text)); err != nil || intact != v.Report().Intact {
			t.Fatalf("Read %s = %v, %v", name, intact, err)
		} else if !intact {
			break
		}
	}
	return v.Report()
}

// A line is a CloudEvent, and its hash is what the documents say: that of the text before the attribute.
func TestALineIsACloudEventWithItsHash(t *testing.T) {
	line, hash := Append([]byte(`{"specversion":"1.0","id":"1","source":"/x","type":"a.b"}`+"\n"), Start)
	var ce event.Event
	if err := json.Unmarshal(line, &ce); err != nil {
		t.Fatal(err)
	}
	got := ce.Extensions()
	if got["chainprevious"] != Start || got["chainhash"] != hash || lineHash(line) != hash {
		t.Errorf("the attributes are %v, want %s and %s", got, Start, hash)
	}
	text, _, _ := strings.Cut(string(line), `,"chainhash"`)
	if sum := sha256.Sum256([]byte(text)); hex.EncodeToString(sum[:]) != hash {
		t.Errorf("the hash of %s is %x, want %s", text, sum, hash)
	}
	if want := len(`{"specversion":"1.0","id":"1","source":"/x","type":"a.b"}`) + tailLength - len("}"); len(line) != want {
		t.Errorf("the line has %d bytes, want %d", len(line), want)
	}
}

// Every byte of every line counts: whatever is changed, left out or added, the first line concerned is named.
func TestEveryChangeIsNamed(t *testing.T) {
	lines := chained(4, Start)
	whole := strings.Join(lines, "")
	if r := verified(t, whole); !r.Intact || r.Lines != 4 || r.From != Start || !strings.Contains(lines[3], r.Head) {
		t.Fatalf("as it was written: %+v", r)
	}
	named := func(what, text string, line int) {
		t.Helper()
		if r := verified(t, text); r.Intact || r.Line != line || r.File != "a.jsonl" || r.Problem == "" {
			t.Errorf("%s: %+v, want line %d named", what, r, line)
		}
	}
	for i := range len(whole) {
		line := strings.Count(whole[:i], "\n") + 1
		for _, c := range []byte{'\n', ' ', '0', 'f', '"', whole[i] ^ 1, whole[i] ^ 0x20, 0xff} {
			if c != whole[i] {
				named(fmt.Sprintf("byte %d is %q", i, c), whole[:i]+string([]byte{c})+whole[i+1:], line)
			}
		}
		named(fmt.Sprintf("without byte %d", i), whole[:i]+whole[i+1:], line)
		named(fmt.Sprintf("with a byte before %d", i), whole[:i]+"x"+whole[i:], line)
		if i > 0 && whole[i-1] != '\n' {
			named(fmt.Sprintf("cut to %d bytes", i), whole[:i], line)
		}
	}
	for i := range lines {
		if 0 < i && i < len(lines)-1 {
			named(fmt.Sprintf("without line %d", i+1), strings.Join(slices.Delete(slices.Clone(lines), i, i+1), ""), i+1)
		}
		named(fmt.Sprintf("line %d twice", i+1), strings.Join(slices.Insert(slices.Clone(lines), i, lines[i]), ""), i+2)
		for k := range i {
			swapped := slices.Clone(lines)
			swapped[i], swapped[k] = swapped[k], swapped[i]
			at := k + 1
			if k == 0 { // the chain may begin anywhere, so the next line is the first that does not follow
				at = 2
			}
			named(fmt.Sprintf("lines %d and %d swapped", k+1, i+1), strings.Join(swapped, ""), at)
		}
	}
}

// What is gone from the beginning or the end shows in the report: where the chain begins, and its head.
func TestEndsAreReported(t *testing.T) {
	lines := chained(3, Start)
	if r := verified(t, lines[1]+lines[2]); !r.Intact || r.From != lineHash([]byte(strings.TrimSpace(lines[0]))) {
		t.Errorf("without the first line: %+v, want that it begins after it", r)
	}
	if r := verified(t, lines[0]+lines[1]); !r.Intact || r.Head != lineHash([]byte(strings.TrimSpace(lines[1]))) {
		t.Errorf("without the last line: %+v, want another head", r)
	}
}

// Files are one chain in their order. A missing, exchanged or foreign one is named by the line that does not follow.
func TestFilesFollowEachOther(t *testing.T) {
	lines := chained(6, Start)
	a, b, c := lines[0]+lines[1], lines[2]+lines[3], lines[4]+lines[5]
	if r := verified(t, a, "", b, c); !r.Intact || r.Files != 4 || r.Lines != 6 {
		t.Errorf("in order: %+v", r)
	}
	for name, tt := range map[string]struct {
		files []string
		file  string
		says  string
	}{
		"in the wrong order": {[]string{b, a, c}, "b.jsonl", "wrong order; a new chain begins here"},
		"without the second": {[]string{a, c}, "b.jsonl", "does not follow the last line of a.jsonl"},
		"a new chain":        {[]string{a, chained(1, Start)[0]}, "b.jsonl", "a new chain begins here"},
		"without a chain":    {[]string{"{}\n"}, "a.jsonl", "no chainhash"},
		"a foreign one":      {[]string{a, "{}\n"}, "b.jsonl", "no chainhash"},
		"an endless line":    {[]string{a, strings.Repeat("x", maxLine+1)}, "b.jsonl", "longer than 4 MiB"},
	} {
		if r := verified(t, tt.files...); r.Intact || r.File != tt.file || r.Line != 1 || !strings.Contains(r.Problem, tt.says) {
			t.Errorf("%s: %+v, want %s:1 and %q", name, r, tt.file, tt.says)
		}
	}
}

// Last finds the last whole line, however long the lines are and whatever follows.
func TestLastIsThatOfTheLastWholeLine(t *testing.T) {
	long, hash := Append([]byte(`{"text":"`+strings.Repeat("x", 200<<10)+`"}`), Start)
	for name, tt := range map[string]struct {
		text, hash string
		whole      int
	}{
		"nothing":           {"", "", 0},
		"half a line":       {`{"spec`, "", 0},
		"no chain":          {"{}\n", "", 3},
		"a line":            {string(long) + "\n", hash, len(long) + 1},
		"a line and half":   {string(long) + "\n" + string(long), hash, len(long) + 1},
		"a line without it": {string(long) + "\n{}\n", "", len(long) + 4},
	} {
		got, whole, err := Last(strings.NewReader(tt.text), int64(len(tt.text)))
		if err != nil || got != tt.hash || whole != int64(tt.whole) {
			t.Errorf("%s: Last = %q, %d, %v; want %q, %d", name, got, whole, err, tt.hash, tt.whole)
		}
	}
	endless := bytes.NewReader(make([]byte, 17<<20))
	if _, _, err := Last(endless, endless.Size()); err == nil {
		t.Error("a line of 17 MiB was taken")
	}
	if _, _, err := Last(strings.NewReader(""), 5); err != nil { // it became shorter meanwhile
		t.Errorf("Last of a shorter file: %v", err)
	}
}

// An error of reading is an error, not a broken chain.
func TestReadErrorsAreNoProblemOfTheChain(t *testing.T) {
	broken := errors.New("input/output error")
	var v Verifier
	in := io.MultiReader(strings.NewReader(chained(1, Start)[0]), iotest{broken})
	if intact, err := v.Read("a.jsonl", in); !errors.Is(err, broken) || intact || !v.Report().Intact {
		t.Errorf("Read = %v, %v; want the error", intact, err)
	}
}

type iotest struct{ err error }

func (r iotest) Read([]byte) (int, error) { return 0, r.err }

// Whatever a file holds, reading it ends, and what is named is a line of it.
func FuzzVerify(f *testing.F) {
	f.Add(strings.Join(chained(2, Start), ""))
	f.Add("{}\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := verified(t, text)
		if lines := strings.Count(text, "\n") + 1; !r.Intact && (r.Line < 1 || r.Line > lines) || r.Lines > lines {
			t.Errorf("%q: %+v", text, r)
		}
	})
}
