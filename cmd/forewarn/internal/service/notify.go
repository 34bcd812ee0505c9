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

// stateEvery is how often the service manager is told in words how it goes.
const stateEvery = 10 * time.Second

// A Notifier tells the service manager, systemd as a rule, what the bridge is about: that it is ready, reloads, stops,
// and, on each turn of the poll loop, that it lives. Without a manager that wants to know, it is silent.
type Notifier struct {
	Bridge  *bridge.Bridge // set before anything else happens
	log     *slog.Logger
	silent  bool
	watched bool // the manager restarts what gives no sign of life

	mu    sync.Mutex // one message after the other
	said  string     // the words
	asked time.Time  // when they were last looked for
	over  bool       // Stopping was said
	lost  bool       // a message could not be sent, which was logged
}

// NewNotifier is silent unless the environment names the socket of a manager.
func NewNotifier(getenv func(string) string, log *slog.Logger) *Notifier {
	n := &Notifier{log: log, silent: getenv("NOTIFY_SOCKET") == ""}
	if n.silent {
		return n
	}
	patience, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the watchdog of the service manager is not understood, so it is not fed", "err", err)
	}
	n.watched = patience > 0
	if n.watched && patience <= bridge.LongestTurn {
		log.Warn("the watchdog of the service manager is less patient than the endpoint may be slow, and may end forewarn for no reason",
			"WatchdogSec", patience, "want", "more than "+bridge.LongestTurn.String())
	}
	return n
}

// Turned is called by the poll loop each time it comes round. A watchdog is fed by nothing else, so that it bites when
// the loop hangs; and not while another loop does.
func (n *Notifier) Turned() {
	if n.silent {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over {
		return
	}
	if n.watched && n.Bridge.Alive() == nil {
		n.send(daemon.SdNotifyWatchdog)
	}
	if time.Since(n.asked) >= stateEvery {
		if before := n.said; n.words() != before {
			n.send("STATUS=" + n.said)
		}
	}
}

// Ready says that the program runs: the outbox is open and somebody listens. That Azure answers is not part of it,
// because the first answer may take two minutes, and a restart would not make it faster.
func (n *Notifier) Ready() { n.tell(daemon.SdNotifyReady) }

// Reloading says that settings are read; Ready ends it.
func (n *Notifier) Reloading() {
	n.tell(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, monotonic().Microseconds()))
}

// Stopping says that the program is about to end. Nothing is said after that.
func (n *Notifier) Stopping() {
	n.tell(daemon.SdNotifyStopping)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.over = true
}

// tell says what happens, and how it goes.
func (n *Notifier) tell(what string) {
	if n.silent {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.over {
		n.send(what + "\nSTATUS=" + n.words())
	}
}

// words say in a line how it goes. mu is held.
func (n *Notifier) words() string {
	n.asked = time.Now()
	n.said = wording.StatusLine(n.Bridge.Status())
	return n.said
}

// send sends a message. mu is held.
func (n *Notifier) send(message string) {
	if _, err := daemon.SdNotify(false, message); err != nil && !n.lost {
		n.lost = true
		n.log.Warn("the service manager cannot be told how it goes", "err", err)
	}
}
