package service

import (
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf16"
)

// serviceName is the name of the service, and of its source in the Event Log.
const serviceName = "forewarn"

// A plan is the configuration of the service.
type plan struct {
	Name, Display, Description string

	// Account is a virtual account: nobody can log on with it, and it has only the rights granted to it. It is set when
	// the service is created; an administrator may change it later.
	Account string

	Command     []string        // the program and its arguments
	Restarts    []time.Duration // waits before restarts after failures; the last one repeats
	ResetAfter  time.Duration   // time without a failure after which Restarts begins again
	Preshutdown time.Duration   // how long a shutdown of Windows waits for the service
}

// newPlan returns the plan of a service that runs the program exe with the arguments. It starts with Windows, not some
// minutes later as "delayed" services do, so that it misses no event.
func newPlan(exe string, args []string) plan {
	return plan{
		Name: serviceName, Display: "forewarn",
		Description: "Tells people and systems what Azure is about to do to this virtual machine.",
		Account:     `NT SERVICE\` + serviceName,
		Command:     append([]string{exe}, args...),
		Restarts:    []time.Duration{5 * time.Second, 30 * time.Second, 60 * time.Second},
		ResetAfter:  24 * time.Hour,
		Preshutdown: stopLimit + 10*time.Second,
	}
}

// arguments returns the arguments of the service, without flags that have their default.
func arguments(config, logFormat, logLevel string) []string {
	args := []string{"service", "run", "--config", config}
	if logFormat != "text" {
		args = append(args, "--log-format", logFormat)
	}
	if logLevel != "info" {
		args = append(args, "--log-level", logLevel)
	}
	return args
}

// serviceSID returns the SID of a service for access lists, whatever account it runs under. Windows derives it from the
// name, so rights can be granted before the service exists.
func serviceSID(name string) string {
	var units []byte
	for _, u := range utf16.Encode([]rune(strings.ToUpper(name))) {
		units = binary.LittleEndian.AppendUint16(units, u)
	}
	sum := sha1.Sum(units)
	sid := "S-1-5-80"
	for part := sum[:]; len(part) > 0; part = part[4:] {
		sid += fmt.Sprintf("-%d", binary.LittleEndian.Uint32(part))
	}
	return sid
}

// modifyRights allow reading, writing and deleting, but not changing the access list or the owner.
const modifyRights = "0x1301bf"

// The SIDs of Windows itself and of the group of administrators.
const (
	SIDSystem         = "S-1-5-18"
	SIDAdministrators = "S-1-5-32-544"
)

// SID returns the SID of the service for access lists.
func SID() string { return serviceSID(serviceName) }

// directoryAccess returns an access list for Windows itself, administrators, the service and, unless it is "", one
// user. The directory inherits nothing, because %ProgramData% grants rights to everybody. Without a user,
// administrators become the owner, so that a previous owner can no longer change the list.
func directoryAccess(user string) string {
	service := SID()
	list := fmt.Sprintf("D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;%s;;;%s)", modifyRights, service)
	switch user {
	case "":
		return "O:BA" + list
	case service:
		return list
	}
	return list + fmt.Sprintf("(A;OICI;FA;;;%s)", user)
}

// A place describes what exists at a path.
type place struct {
	Type      placeType
	Owner     string // SID
	OwnerName string
	Grants    []grant // its access list
}

// A grant is an entry of an access list.
type grant struct {
	SID, Name string
	Rights    uint32
}

// changeRights are those that let an account change what is at a place, directly or by granting itself more: writing,
// appending, deleting what is in a directory, deleting, changing the access list or the owner, and the generic rights
// that include them.
const changeRights = 0x2 | 0x4 | 0x40 | 0x10000 | 0x40000 | 0x80000 | 0x10000000 | 0x40000000

type placeType string

const (
	absent     placeType = ""
	aDirectory placeType = "a directory"
	aFile      placeType = "a file"
	aLink      placeType = "a link" // or anything else
)

// mayControl reports whether an account may control the service: Windows, administrators, the service itself, and the
// administrator who installs it.
func mayControl(sid, installer string) bool {
	const trustedInstaller = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"
	return slices.Contains([]string{SIDSystem, SIDAdministrators, SID(), trustedInstaller, installer}, sid)
}

// checkPlace refuses what another user may have prepared: every user can create a directory below %ProgramData%, and in
// it a settings file that runs a command.
func checkPlace(path string, p place, want placeType, installer string) error {
	switch {
	case p.Type == absent:
		return nil
	case p.Type != want:
		return fmt.Errorf("%s is %s, expected %s; move it out of the way", path, p.Type, want)
	case mayControl(p.Owner, installer):
		return nil
	}
	return fmt.Errorf("%s belongs to %s, who may not be an administrator but could control the service with it; "+
		`check it, then give it to the administrators: icacls "%s" /setowner *%s /T`,
		path, p.OwnerName, path, SIDAdministrators)
}

// checkGrants refuses what another user can change.
func checkGrants(path string, p place, installer string) error {
	for _, g := range p.Grants {
		if g.Rights&changeRights == 0 || mayControl(g.SID, installer) {
			continue
		}
		inherit, right := "", "R"
		if p.Type == aDirectory {
			inherit, right = "(OI)(CI)", "M"
		}
		return fmt.Errorf("%s can be changed by %s, who could control the service with it; to close it to other users, run: "+
			`icacls "%s" /inheritance:r /grant *%s:%s%s *%s:%[5]sF *%[8]s:%[5]sF`, path, g.Name, path, SID(), inherit, right,
			SIDSystem, SIDAdministrators)
	}
	return nil
}

// isBelow reports whether a Windows path leads into the directory.
func isBelow(path, dir string) bool {
	dir = strings.TrimRight(dir, `\`)
	return dir != "" && len(path) > len(dir) && strings.EqualFold(path[:len(dir)], dir) && path[len(dir)] == '\\'
}

// checkExecutable refuses a program file that the service could not start, or that its user could replace.
func checkExecutable(exe, profile string) error {
	const remedy = `; copy it to C:\Program Files\forewarn, and install from there`
	switch {
	case strings.HasPrefix(exe, `\\`) && !strings.HasPrefix(exe, `\\?\`):
		return fmt.Errorf("%s is on a network share, which may not be available when Windows starts%s", exe, remedy)
	case isBelow(exe, profile):
		return errors.New(exe + " is in a user's home directory, which the service cannot read" + remedy)
	}
	return nil
}
