package main

// stateOwner finds none: on Windows access lists decide, not owners.
func stateOwner(string) (o owner, found bool, err error) { return o, false, nil }

func (owner) become() error { return nil }
