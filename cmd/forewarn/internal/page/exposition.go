package page

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A family is a metric with all its series, written in Prometheus' text format, version 0.0.4. It is safe for
// concurrent use.
type family struct {
	name, help, kind string    // the kind is counter, gauge or histogram
	labels           []string  // names, in alphabetical order
	bounds           []float64 // of a histogram's buckets, ascending

	mu     sync.Mutex
	series map[string]*series // by the joined values of the labels
}

// A series is one line of a family, or the lines of one histogram.
type series struct {
	values  []string // of the labels
	value   float64  // of a histogram: the sum
	buckets []uint64 // of a histogram: counts per bucket; the last is for values above all bounds
}

// at returns the series with these label values, and makes it if there is none. The caller holds mu.
func (f *family) at(values []string) *series {
	key := strings.Join(values, "\xff") // a byte that never occurs in UTF-8
	s, ok := f.series[key]
	if !ok {
		if f.series == nil {
			f.series = make(map[string]*series)
		}
		s = &series{values: slices.Clone(values)}
		if f.kind == "histogram" {
			s.buckets = make([]uint64, len(f.bounds)+1)
		}
		f.series[key] = s
	}
	return s
}

// add adds v to a counter.
func (f *family) add(v float64, labels ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at(labels).value += v
}

// set sets a gauge.
func (f *family) set(v float64, labels ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at(labels).value = v
}

// observe counts v in a histogram.
func (f *family) observe(v float64, labels ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.at(labels)
	s.value += v
	bucket, _ := slices.BinarySearch(f.bounds, v)
	s.buckets[bucket]++
}

// expect makes a series with value 0 if there is none.
func (f *family) expect(labels ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at(labels)
}

var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// write writes the family; nothing if it has no series.
func (f *family) write(w *bytes.Buffer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.series) == 0 {
		return
	}
	w.WriteString("# HELP " + f.name + " " + helpEscapes.Replace(f.help) + "\n# TYPE " + f.name + " " + f.kind + "\n")
	sorted := slices.SortedFunc(maps.Values(f.series),
		func(a, b *series) int { return slices.Compare(a.values, b.values) })
	for _, s := range sorted {
		if f.kind != "histogram" {
			f.line(w, "", s.values, "", s.value)
			continue
		}
		count := uint64(0)
		for i, n := range s.buckets {
			count += n
			bound := math.Inf(1)
			if i < len(f.bounds) {
				bound = f.bounds[i]
			}
			f.line(w, "_bucket", s.values, number(bound), float64(count))
		}
		f.line(w, "_sum", s.values, "", s.value)
		f.line(w, "_count", s.values, "", float64(count))
	}
}

// line writes one line; bound is the label le of a bucket, "" for other lines.
func (f *family) line(w *bytes.Buffer, suffix string, values []string, bound string, v float64) {
	w.WriteString(f.name + suffix)
	sep := "{"
	label := func(name, value string) {
		w.WriteString(sep + name + `="` + labelEscapes.Replace(value) + `"`)
		sep = ","
	}
	for i, name := range f.labels {
		label(name, values[i])
	}
	if bound != "" {
		label("le", bound)
	}
	if sep == "," {
		w.WriteString("}")
	}
	w.WriteString(" " + number(v) + "\n")
}

// number formats a number for the text format.
func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// exposition returns the text of all families, sorted by name.
func exposition(families ...[]*family) []byte {
	var w bytes.Buffer
	all := slices.Concat(families...)
	slices.SortFunc(all, func(a, b *family) int { return cmp.Compare(a.name, b.name) })
	for _, f := range all {
		f.write(&w)
	}
	return w.Bytes()
}
