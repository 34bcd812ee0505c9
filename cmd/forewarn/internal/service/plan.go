package service

import (
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf16"
)

// serviceName is that of the service, and of its source in the Event Log.
const serviceName = "forewarn"

// A plan is the service as Windows is to have it.
type plan struct {
	Name, Display, Description string

	// Account is a virtual one, which nobody can log on with and which may read only what was given to it. It counts when
	// the service is made; one that somebody sets later stays.
	Account string

	Command     string          // program and arguments, quoted
	Restarts    []time.Duration // waits before a service that failed starts again; the last is repeated
	ResetAfter  time.Duration   // without a failure, after which the first wait counts again
	Preshutdown time.Duration   // how long a shutdown of Windows waits for it
}

// newPlan is the service that runs the program exe with the arguments. It starts with Windows, not some minutes
// later as "delayed" services do: an event may be announced by then.
func newPlan(exe string, args []string) plan {
	return plan{
		Name: serviceName, Display: "forewarn",
		Description: "Tells people and systems what Azure is about to do to this virtual machine.",
		Account:     `NT SERVICE\` + serviceName,
		Command:     commandLine(append([]string{exe}, args...)),
		Restarts:    []time.Duration{5 * time.Second, 30 * time.Second, 60 * time.Second},
		ResetAfter:  24 * time.Hour,
		Preshutdown: stopLimit + 10*time.Second,
	}
}

// arguments are those of the run that is to be a service. Flags that have their default are left out.
func arguments(config, logFormat, logLevel string) []string {
	args := []string{"run", "--config", config}
	if logFormat != "text" {
		args = append(args, "--log-format", logFormat)
	}
	if logLevel != "info" {
		args = append(args, "--log-level", logLevel)
	}
	return args
}

// commandLine is what Windows splits into args again. The program is always quoted: of C:\Program Files\x.exe without
// quotes, Windows would try C:\Program.exe first.
func commandLine(args []string) string {
	quoted := make([]string, len(args))
	for i, arg := range args {
		if quoted[i] = arg; i == 0 || arg == "" || strings.ContainsAny(arg, " \t\"") {
			quoted[i] = quoteArgument(arg)
		}
	}
	return strings.Join(quoted, " ")
}

// quoteArgument quotes in Windows' way: backslashes count only in front of a quote, the closing one included.
func quoteArgument(arg string) string {
	var b strings.Builder
	b.WriteByte('"')
	slashes := 0
	for _, r := range arg {
		switch r {
		case '\\':
			slashes++
		case '"':
			b.WriteString(strings.Repeat(`\`, slashes+1)) // beside those that stand there already
			slashes = 0
		default:
			slashes = 0
		}
		b.WriteRune(r)
	}
	b.WriteString(strings.Repeat(`\`, slashes))
	b.WriteByte('"')
	return b.String()
}

// serviceSID identifies a service to access lists, under whatever account it runs. Windows derives it from the name, so
// that rights can be given before the service exists.
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

// modifyRights are to read, write and delete, but not to change the access list itself or the owner.
const modifyRights = "0x1301bf"

const (
	sidSystem         = "S-1-5-18"
	sidAdministrators = "S-1-5-32-544"
)

// directoryAccess is the access list of a directory that only Windows, administrators, the service and, if it is named,
// one user may enter. Nothing is inherited from above: what %ProgramData% gives to everybody ends here. Without a user
// it is the administrators', so that nobody who made it before keeps the right to change the list.
func directoryAccess(user string) string {
	service := serviceSID(serviceName)
	list := fmt.Sprintf("D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;%s;;;%s)", modifyRights, service)
	switch user {
	case "":
		return "O:BA" + list
	case service:
		return list
	}
	return list + fmt.Sprintf("(A;OICI;FA;;;%s)", user)
}

// A place is what there is at a path, as far as it matters for what the service reads and writes.
type place struct {
	Type      placeType
	Owner     string // SID
	OwnerName string
}

type placeType string

const (
	nothingThere placeType = ""
	aDirectory   placeType = "a directory" // a real one
	aFile        placeType = "a file"      // a real one
	aLink        placeType = "a link"      // or anything else
)

// checkPlace refuses what anybody may have prepared: in %ProgramData% every user may make a directory, and in one that
// was made without care a settings file that runs a command.
func checkPlace(path string, p place, want placeType) error {
	switch {
	case p.Type == nothingThere:
		return nil
	case p.Type != want:
		return fmt.Errorf("%s is %s, expected %s; move it out of the way", path, p.Type, want)
	case p.Owner == sidSystem, p.Owner == sidAdministrators, p.Owner == serviceSID(serviceName):
		return nil
	}
	return fmt.Errorf("%s belongs to %s, who need not be an administrator and decides what the service finds there; look at it, "+
		`then give it to the administrators: icacls "%s" /setowner *%s /T`, path, p.OwnerName, path, sidAdministrators)
}

// below says whether a path of Windows leads into the directory.
func below(path, dir string) bool {
	dir = strings.TrimRight(dir, `\`)
	return dir != "" && len(path) > len(dir) && strings.EqualFold(path[:len(dir)], dir) && path[len(dir)] == '\\'
}

// checkExecutable refuses a program in a place where the service cannot start it, or where its user may exchange it.
func checkExecutable(exe, profile string) error {
	const remedy = `; copy it to C:\Program Files\forewarn, and install it from there`
	switch {
	case strings.HasPrefix(exe, `\\`) && !strings.HasPrefix(exe, `\\?\`):
		return fmt.Errorf("%s is on a share, which a service may not reach when Windows starts%s", exe, remedy)
	case below(exe, profile):
		return errors.New(exe + " is in a user's own directory, which the service cannot read" + remedy)
	}
	return nil
}
