package templates

// Body is the ready-made body of that name and its content type; ok is false for a name that is none.
func Body(name string) (text, contentType string, ok bool) { return "", "", false }

// BodyNames are the names of the ready-made bodies, sorted.
func BodyNames() []string { return nil }
