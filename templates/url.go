package templates

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"text/template/parse"
)

// percentEncoder is the function that ParseURL puts behind each value. No text can name it.
const percentEncoder = "percentEncode"

// encodeValues puts percentEncoder at the end of every pipeline whose value the nodes insert.
func encodeValues(list *parse.ListNode) error {
	if list == nil {
		return nil
	}
	var wrong []error
	branch := func(b *parse.BranchNode) {
		wrong = append(wrong, encodeValues(b.List), encodeValues(b.ElseList))
	}
	for _, n := range list.Nodes {
		switch n := n.(type) {
		case *parse.ActionNode:
			if len(n.Pipe.Decl) == 0 {
				encode := &parse.CommandNode{NodeType: parse.NodeCommand, Args: []parse.Node{parse.NewIdentifier(percentEncoder)}}
				n.Pipe.Cmds = append(n.Pipe.Cmds, encode)
			}
		case *parse.IfNode:
			branch(&n.BranchNode)
		case *parse.RangeNode:
			branch(&n.BranchNode)
		case *parse.WithNode:
			branch(&n.BranchNode)
		case *parse.TemplateNode:
			wrong = append(wrong, fmt.Errorf("expected {{include %q .}} in a URL, not template", n.Name))
		}
	}
	return errors.Join(wrong...)
}

// percentEncode encodes a value for any part of a URL: only letters, digits and -._~: stay as they are.
func percentEncode(v any) string { return asInPath.Replace(url.QueryEscape(text(v))) }

// asInPath makes of a text that is encoded for a query one that is right in a path too. A colon means nothing there, and
// the token of a bot has one.
var asInPath = strings.NewReplacer("+", "%20", "%3A", ":")
