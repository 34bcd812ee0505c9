package templates

import _ "embed"

// Manual is this package's document, README.md, which forewarn help prints.
//
//go:embed README.md
var Manual string
