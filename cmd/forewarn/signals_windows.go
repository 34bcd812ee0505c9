package main

import "os"

// hangup is empty: Windows has no such signal, and a service is told by ParamChange. The signals that end a run, Go makes
// of console events: os.Interrupt of Ctrl-C and Ctrl-Break, SIGTERM of closing the window, logging off and shutting down.
// Of the last three, Windows waits about five seconds for the end; what is not settled by then is sent again.
var hangup []os.Signal
