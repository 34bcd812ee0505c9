package main

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"

	"forewarn/cmd/forewarn/internal/wording"
)

// An owner is a user whom files belong to.
type owner struct{ uid, gid int }

// String is the name of the user, or the number of one without a name.
func (o owner) String() string {
	if u, err := user.LookupId(strconv.Itoa(o.uid)); err == nil {
		return u.Username
	}
	return "user " + strconv.Itoa(o.uid)
}

// errStaysRoot says that root works on another user's state and cannot give up its rights.
var errStaysRoot = errors.New("root cannot give up its rights here")

// giveUpRoot makes this process that of the user whom the state in dir belongs to, when root works on another user's.
// Nothing of that user's is opened before: what is made then belongs to the service, and a link that the service's user
// laid leads nowhere where that user may not go. It happens once, for the state directory of the first settings.
func (p *program) giveUpRoot(dir string) error {
	if p.askedOwner || p.become == nil {
		return nil
	}
	p.askedOwner = true
	o, found, err := stateOwner(dir)
	if err != nil {
		return fmt.Errorf("owner of the state directory: %w", err)
	}
	if !found {
		return nil
	}
	if err := p.become(o); err != nil {
		return fmt.Errorf("the state in %s belongs to %s: %w: %w; run forewarn as %s", dir, o, errStaysRoot, err, o)
	}
	p.actsFor = &o
	return nil
}

// user is who asks, for the record.
func (p *program) user() string {
	name := "somebody"
	if p.actsFor != nil {
		name = "root" // who has become another for it
	} else if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if sudo := p.getenv("SUDO_USER"); sudo != "" && sudo != name {
		name += " (" + sudo + ")"
	}
	return wording.Printable(name)
}
