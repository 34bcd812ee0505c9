package settings

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"

	"forewarn/sinks"
)

var kindName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// services returns the kinds with those that the files declare, and a document for each file. What is wrong with a file
// is reported to its document, and what is wrong with the list to main. A service is tried on samples even if no sink
// is one.
func (l Loader) services(main *document, files []sinks.Path) (kinds map[string]sinks.Kind, docs []*document) {
	kinds = maps.Clone(l.Kinds)
	own := keysOf(fieldsOf(reflect.ValueOf(new(sinkSettings)).Elem()))
	for i, file := range files {
		name := sinks.ServiceName(string(file))
		e, _ := main.root.find(fmt.Sprintf("services.%d", i))
		_, taken := kinds[name]
		switch {
		case taken, slices.Contains(own, name):
			main.report(main.errorAt(e.pos, "services: there is %s already; expected a file with another name", name))
			continue
		case !kindName.MatchString(name):
			main.report(main.errorAt(e.pos, "services: the name of the file is that of the kind; expected lower case letters, "+
				"digits and _, such as ours.yaml"))
			continue
		}
		doc := l.readDocument(string(file))
		service := &sinks.Service{Name: name}
		err := doc.decode(doc.root, service, "")
		doc.report(err)
		if len(doc.problems) == 0 {
			doc.report(doc.openErrors(entry{doc.root.pos, "", doc.root}, service.Check(), true))
		}
		kind := service.Kind()
		if len(doc.problems) > 0 {
			kind.Open = nil // what would be wrong with its sinks follows from that
		}
		kinds[name] = kind
		docs = append(docs, doc)
	}
	return kinds, docs
}
