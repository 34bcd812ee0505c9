package settings

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"forewarn/bridge"
)

// ruleSettings is one item of approve. Without any, approval is off.
type ruleSettings struct {
	Name   string        `yaml:"name" doc:"what messages call the rule, such as drain first (default: its number)"`
	Only   bridge.Match  `yaml:"only" doc:"which events, by vms (self or leader), types (required) and sources"`
	Except bridge.Match  `yaml:"except" doc:"which events not; as in only"`
	When   string        `yaml:"when" doc:"an expression that must be true"`
	After  []string      `yaml:"after" doc:"sinks that must have accepted the event's latest change"`
	Wait   time.Duration `yaml:"wait" default:"0s" doc:"time to wait after the last of them has accepted it"`
	Others bool          `yaml:"others" default:"false" doc:"also approve events that name other VMs"`
}

// rules reads the rules of approve, which may name the sinks of s.
func (l Loader) rules(docs []*document, s *Settings) (rules []bridge.Rule) {
	for _, doc := range docs {
		list, given := doc.root.find("approve")
		if !given {
			continue
		}
		if s.Relay != nil {
			doc.report(doc.errorAt(list.pos, "approve: %s", relayRules))
			continue
		}
		for _, n := range list.value.list() {
			if n.kind != aTable {
				doc.report(doc.kindError(n, "a rule of approve", aTable))
				continue
			}
			r := rule(doc, n, s.Names)
			if e, ok := n.find("name"); ok {
				doc.report(checkRuleName(doc, e.value, r.Name, rules))
			}
			rules = append(rules, r)
		}
	}
	return rules
}

// maxRuleName is the number of characters of a rule's name, which stands in the middle of sentences.
const maxRuleName = 60

// checkRuleName checks the name of a rule, which must differ from those of the rules before it.
func checkRuleName(doc *document, at *node, name string, before []bridge.Rule) error {
	if strings.TrimSpace(name) == "" || len([]rune(name)) > maxRuleName || strings.ContainsFunc(name, unprintable) {
		return doc.valueError(at, "name", fmt.Sprintf("a short name on one line, at most %d characters", maxRuleName))
	}
	if i := slices.IndexFunc(before, func(r bridge.Rule) bool { return r.Name == name }); i >= 0 {
		return doc.errorAt(at.pos, "name: taken by rule %d; expected a unique name", i+1)
	}
	return nil
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// rule reads one rule and reports its problems. names are the names of all sinks.
func rule(doc *document, n *node, names []string) bridge.Rule {
	var in ruleSettings
	doc.report(doc.decode(n, &in, ""))
	if e, _ := n.find("only.types"); len(in.Only.Types) == 0 && (e.value == n || doc.isClean(e)) {
		doc.report(doc.errorAt(e.pos, "only.types: a rule approves only the types it names; "+
			"expected a list such as [Reboot, Redeploy]"))
	}
	if e, ok := n.find("after"); ok {
		for i, name := range in.After {
			at := e.value
			if items := e.value.list(); i < len(items) {
				at = items[i]
			}
			if !slices.Contains(names, name) {
				doc.report(doc.valueError(at, "after", aSink(name, names)))
			}
		}
	}
	r := bridge.Rule{Name: in.Name, Only: in.Only, Except: in.Except, After: in.After, Wait: in.Wait, Others: in.Others}
	if when, ok := n.find("when"); ok {
		var err error
		r.When, err = parseWhen(doc, when.value)
		doc.report(err)
	}
	return r
}
