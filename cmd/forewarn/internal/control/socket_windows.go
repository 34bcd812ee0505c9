package control

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/windows"

	"forewarn/cmd/forewarn/internal/service"
)

// pipes is the prefix of the named pipes of this machine; \\server\pipe\ would be those of another.
const pipes = `\\.\pipe\`

// standardSockets returns the pipe of the state directory: \\.\pipe\forewarn for the default one, else a name with a
// hash of the path, the same for every spelling of it. A relay's begins with forewarn-relay.
func (l Location) standardSockets() []string {
	path := pipes + "forewarn"
	if l.Relay {
		path += "-relay"
	}
	if own := spelledOut(l.State); own != spelledOut(l.DefaultState) {
		path += fmt.Sprintf("-%.6x", sha256.Sum256([]byte(own)))
	}
	return []string{path}
}

// unitSockets returns none: the service has the pipe that commands look for.
func (l Location) unitSockets() []string { return nil }

// spelledOut returns an absolute path in lower case, with backslashes.
func spelledOut(path string) string {
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	return strings.ToLower(filepath.Clean(path))
}

// listen makes a named pipe that only administrators, Windows and the account of this forewarn can open, and only from
// this machine. It is an error if another program has a pipe of that name.
func listen(path string, _ *slog.Logger) (net.Listener, error) {
	if err := checkPipe(path); err != nil {
		return nil, err
	}
	own, err := ownSID()
	if err != nil {
		return nil, fmt.Errorf("account of this process: %w", err)
	}
	d, err := windows.SecurityDescriptorFromString(pipeAccess(own))
	if err != nil {
		return nil, err
	}
	l, err := listenPipe(path, d)
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_ALREADY_EXISTS) ||
		errors.Is(err, windows.ERROR_PIPE_BUSY) {
		return nil, fmt.Errorf("%s: another program has a pipe of this name", path)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// pipeAccess returns the security descriptor of a pipe: own is its owner, and only own, Windows and administrators may
// open it.
func pipeAccess(own string) string {
	return fmt.Sprintf("O:%sD:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;FA;;;%[1]s)", own)
}

// dialLimit bounds the wait for a pipe that is busy.
const dialLimit = 5 * time.Second

// dial connects to the pipe of the running forewarn. It sends nothing to a pipe that somebody else made.
func dial(ctx context.Context, path string) (net.Conn, error) {
	if err := checkPipe(path); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: err} // no forewarn listens there either
	}
	ctx, cancel := context.WithTimeoutCause(ctx, dialLimit, fmt.Errorf("busy for %v", dialLimit))
	defer cancel()
	c, err := dialPipe(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := checkOwner(c.handle, path); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// checkPipe refuses a path that is not a named pipe of this machine.
func checkPipe(path string) error {
	name := strings.TrimPrefix(path, pipes)
	if name == path || name == "" || strings.Contains(name, `\`) {
		return fmt.Errorf("%s: expected a named pipe, such as %sforewarn-2", path, pipes)
	}
	return nil
}

// checkOwner refuses a pipe whose owner could not have started the forewarn that is to be asked.
func checkOwner(pipe windows.Handle, path string) error {
	d, err := windows.GetSecurityInfo(pipe, windows.SE_KERNEL_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return fmt.Errorf("owner of %s: %w", path, err)
	}
	owner, _, err := d.Owner()
	if err != nil {
		return fmt.Errorf("owner of %s: %w", path, err)
	}
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return fmt.Errorf("user of this process: %w", err)
	}
	if mayServe(owner.String(), user.User.Sid.String()) {
		return nil
	}
	name := owner.String()
	if account, domain, _, err := owner.LookupAccount(""); err == nil {
		name = domain + `\` + account
	}
	return &untrustedError{path, "this pipe belongs to " + name +
		", who is not an administrator, the service or you; nothing was sent"}
}

// mayServe reports whether user may trust a pipe that belongs to owner.
func mayServe(owner, user string) bool {
	return slices.Contains([]string{service.SIDSystem, service.SIDAdministrators, service.SID(), user}, owner)
}

// ownSID returns the owner for what this process makes: the service, else the group of administrators, else this user;
// the first that Windows lets this process name as an owner.
func ownSID() (string, error) {
	token := windows.GetCurrentProcessToken()
	groups, err := token.GetTokenGroups()
	if err != nil {
		return "", err
	}
	const mayOwn = windows.SE_GROUP_ENABLED | windows.SE_GROUP_OWNER
	for _, want := range []string{service.SID(), service.SIDAdministrators} {
		for _, g := range groups.AllGroups() {
			if g.Attributes&mayOwn == mayOwn && g.Sid.String() == want {
				return want, nil
			}
		}
	}
	user, err := token.GetTokenUser()
	if err != nil {
		return "", err
	}
	return user.User.Sid.String(), nil
}
