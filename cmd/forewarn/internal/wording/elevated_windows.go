package wording

// TryElevated is the remedy for missing rights.
const TryElevated = "try it in a prompt opened with Run as administrator"
