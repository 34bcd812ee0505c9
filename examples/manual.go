// Package examples holds what an operator copies. Its only Go is the document about it.
package examples

import _ "embed"

// Manual is README.md, which forewarn help prints.
//
//go:embed README.md
var Manual string
