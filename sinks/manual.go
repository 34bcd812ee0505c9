package sinks

import _ "embed"

// Manual is the text of this package's README.md, which forewarn help prints.
//
//go:embed README.md
var Manual string
