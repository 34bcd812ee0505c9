package wording

// TryElevated is what helps whoever may not.
const TryElevated = "try it in a prompt opened with Run as administrator"
