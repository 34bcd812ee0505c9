package settings

import (
	"fmt"
	"path/filepath"
	"strings"

	"forewarn/sinks"
)

// maxFiles bounds the files that include names.
const maxFiles = 1000

// A File is one of those that settings were read from.
type File struct {
	Path   string
	Inline []string // keys of secrets written into it, such as hook.bearer
}

// include reads the files that include names, in the order of its patterns, those of one pattern in the order of their
// names. Each has sinks and rules. What is wrong with include is reported to main, and what is wrong with a file in its
// own document.
func (l Loader) include(main *document, patterns []sinks.Path) (docs []*document) {
	at := func(i int) pos {
		e, _ := main.root.find(fmt.Sprintf("include.%d", i))
		return e.pos
	}
	seen := map[string]bool{}
	for i, pattern := range patterns {
		paths, err := filepath.Glob(string(pattern))
		if err != nil || len(paths) == 0 && !strings.ContainsAny(string(pattern), "*?[") {
			main.report(main.errorAt(at(i), "include: no such file; expected one, or a pattern such as conf.d/*.yaml"))
			continue
		}
		for _, path := range paths {
			if seen[path] {
				continue
			}
			seen[path] = true
			if len(seen) > maxFiles {
				main.report(main.errorAt(at(i), "include: more than %d files; expected a narrower pattern", maxFiles))
				return docs
			}
			docs = append(docs, l.included(path))
		}
	}
	return docs
}

// included reads an included file. If it can't be read, its document has nothing but problems.
func (l Loader) included(path string) *document {
	doc := l.readDocument(path)
	if len(doc.problems) == 0 {
		doc.report(doc.decode(doc.root, &struct{}{}, "", "sinks", "approve"))
	}
	return doc
}

// readDocument reads a file. If it can't be read, its document has nothing but problems.
func (l Loader) readDocument(path string) *document {
	nothing := &document{path: path, root: new(node)}
	_, data, err := l.read(path)
	if err != nil {
		nothing.report(nothing.errorAt(pos{}, "%s", strings.TrimPrefix(err.Error(), "settings: ")))
		return nothing
	}
	doc, err := parseDocument(path, data)
	if err != nil {
		nothing.report(err)
		return nothing
	}
	doc.dir = directoryOf(path)
	return doc
}

// errorsOf returns the problems of all documents as an error that repeats no secret, nil if there are none.
func (l Loader) errorsOf(docs []*document) error {
	var all Problems
	for _, doc := range docs {
		all = all.with(doc.err())
	}
	l.hideSecrets(all, docs)
	return all.err()
}

// A place is where something stands.
type place struct {
	doc *document
	pos pos
}

// seenFrom names the place to who reads a document.
func (p place) seenFrom(reader *document) string {
	if p.doc == reader {
		return fmt.Sprintf("line %d", p.pos.line)
	}
	return fmt.Sprintf("line %d of %s", p.pos.line, p.doc.path)
}
