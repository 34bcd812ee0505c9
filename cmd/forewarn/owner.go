package main

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"

	"forewarn/cmd/forewarn/internal/wording"
)

// An owner is the user and group that own a file.
type owner struct{ uid, gid int }

// String returns the name of the user, or "user" and its number.
func (o owner) String() string {
	if u, err := user.LookupId(strconv.Itoa(o.uid)); err == nil {
		return u.Username
	}
	return "user " + strconv.Itoa(o.uid)
}

// errStillRoot means that the state directory belongs to another user and root cannot switch to that user.
var errStillRoot = errors.New("root cannot give up its rights here")

// dropRoot switches from root to the owner of the state directory dir, for good. Call it before anything in dir is
// opened: files made later belong to the service, and a symbolic link laid by the service's user leads nowhere that
// this user may not go. Only the first call has an effect.
func (p *program) dropRoot(dir string) error {
	if p.ownerChecked || p.become == nil {
		return nil
	}
	p.ownerChecked = true
	o, found, err := stateOwner(dir)
	if err != nil {
		return fmt.Errorf("owner of the state directory: %w", err)
	}
	if !found {
		return nil
	}
	if err := p.become(o); err != nil {
		return fmt.Errorf("the state directory %s belongs to %s: %w: %w; run forewarn as %s", dir, o, errStillRoot, err, o)
	}
	p.actsAs = &o
	return nil
}

// user names who runs the command, for the record.
func (p *program) user() string {
	name := "somebody"
	if p.actsAs != nil {
		name = "root" // before dropRoot
	} else if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if sudo := p.getenv("SUDO_USER"); sudo != "" && sudo != name {
		name += " (" + sudo + ")"
	}
	return wording.Printable(name)
}
