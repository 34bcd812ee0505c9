package templates

import _ "embed"

// Console is the template of the text that demo prints for a change: the fact on the first line, what it means below.
// Its fields are those of a message.
//
//go:embed console.txt
var Console string
