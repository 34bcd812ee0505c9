package service

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"forewarn/bridge"
	"forewarn/cmd/forewarn/internal/wording"
)

// statusEvery is the interval at which the status line is updated.
const statusEvery = 10 * time.Second

// A Notifier sends sd_notify messages to the service manager: ready, reloading, stopping, a status line, and the
// watchdog keep-alive on each turn of the poll loop. Without a service manager it does nothing. It is safe for
// concurrent use.
type Notifier struct {
	Bridge  Watched // set before the first call
	log     *slog.Logger
	silent  bool
	watched bool // the watchdog is on

	mu       sync.Mutex // guards the fields below; one message at a time
	status   string     // the last status line
	checked  time.Time  // when status was last made
	stopping bool       // after Stopping
	failed   bool       // a send failed, and was logged
}

// Watched is what a Notifier tells of: a bridge or a relay.
type Watched interface {
	Status() bridge.Status
	Alive() error
}

// NewNotifier returns a Notifier for the socket that the environment variable NOTIFY_SOCKET names.
func NewNotifier(getenv func(string) string, log *slog.Logger) *Notifier {
	n := &Notifier{log: log, silent: getenv("NOTIFY_SOCKET") == ""}
	if n.silent {
		return n
	}
	timeout, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("cannot read the watchdog timeout: the watchdog is not fed", "err", err)
	}
	n.watched = timeout > 0
	if n.watched && timeout <= bridge.LongestTurn {
		log.Warn("WatchdogSec is too short: a slow endpoint will make systemd restart forewarn",
			"WatchdogSec", timeout, "want", "more than "+bridge.LongestTurn.String())
	}
	return n
}

// Turned must be called on each turn of the poll loop. Nothing else feeds the watchdog, so it fires when the loop
// hangs. It is not fed either while another goroutine of the bridge hangs; see Bridge.Alive.
func (n *Notifier) Turned() {
	if n.silent {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopping {
		return
	}
	if n.watched && n.Bridge.Alive() == nil {
		n.send(daemon.SdNotifyWatchdog)
	}
	if time.Since(n.checked) >= statusEvery {
		if before := n.status; n.statusLine() != before {
			n.send("STATUS=" + n.status)
		}
	}
}

// Ready reports that the program is up: the outbox is open and the control socket listens. It does not wait for Azure,
// whose first answer can take two minutes; a restart would not make it faster.
func (n *Notifier) Ready() { n.notify(daemon.SdNotifyReady) }

// Reloading reports that the settings are being reloaded, until Ready.
func (n *Notifier) Reloading() {
	n.notify(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, monotonic().Microseconds()))
}

// Stopping reports that the program is about to end. Later calls of any method do nothing.
func (n *Notifier) Stopping() {
	n.notify(daemon.SdNotifyStopping)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopping = true
}

// notify sends a message and the status line.
func (n *Notifier) notify(what string) {
	if n.silent {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.stopping {
		n.send(what + "\nSTATUS=" + n.statusLine())
	}
}

// maxStatusLine bounds the status line, in characters: systemd ignores a message of more than 4,096 bytes as a whole.
const maxStatusLine = 1000

// statusLine returns the current status line. The caller holds mu.
func (n *Notifier) statusLine() string {
	n.checked = time.Now()
	n.status = wording.Cut(wording.StatusLine(n.Bridge.Status()), maxStatusLine)
	return n.status
}

// send sends a message. The caller holds mu.
func (n *Notifier) send(message string) {
	if _, err := daemon.SdNotify(false, message); err != nil && !n.failed {
		n.failed = true
		n.log.Warn("cannot notify the service manager", "err", err)
	}
}
