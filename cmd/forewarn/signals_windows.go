package main

import "os"

// hangup is empty: Windows has no such signal.
var hangup []os.Signal
