package main

import "os"

// hangup is empty: Windows has no SIGHUP, and a service reloads on the control ParamChange. Go makes the signals that
// end a run from console events: os.Interrupt from Ctrl-C and Ctrl-Break, SIGTERM from closing the window, logging off
// and shutting down. After those three, Windows kills the process within about five seconds; deliveries that are not
// settled by then are sent again after the next start.
var hangup []os.Signal
