package templates

import _ "embed"

// Console is the text that demo shows for a change on a terminal: the fact on the first line, what it means below. It
// sees the fields of a message.
//
//go:embed console.txt
var Console string
