package sinks

import "golang.org/x/sys/windows"

// connectionRefused is the system's error when nothing listens at an address.
const connectionRefused = windows.WSAECONNREFUSED
