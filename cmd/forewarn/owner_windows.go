package main

import "io/fs"

// stateOwner finds none: on Windows access lists decide, not owners.
func stateOwner(string) (o owner, found bool, err error) { return o, false, nil }

func ownerOf(fs.FileInfo) owner { return owner{} }

func isUser(int) bool { return false }

func (owner) become() error { return nil }
