package sinks

import _ "embed"

// Manual is this package's document, README.md, which forewarn help prints.
//
//go:embed README.md
var Manual string

// ServicesManual is the document about the services, which forewarn help prints after Manual.
//
//go:embed services/README.md
var ServicesManual string
