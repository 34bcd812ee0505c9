package sinks

import _ "embed"

// Manual is the text of the documents about sinks, which forewarn help prints: this package's README.md, and that of
// the services.
var Manual = ownManual + "\n" + servicesManual

//go:embed README.md
var ownManual string

//go:embed services/README.md
var servicesManual string
