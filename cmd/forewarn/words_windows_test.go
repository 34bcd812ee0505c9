package main

import (
	"regexp"

	"golang.org/x/sys/windows"
)

// What the system says.
const (
	statCall          = "GetFileAttributesEx"
	noSuchFile        = windows.ERROR_FILE_NOT_FOUND
	noSuchPath        = windows.ERROR_PATH_NOT_FOUND
	connectionRefused = windows.WSAECONNREFUSED
	addressTaken      = windows.WSAEADDRINUSE
)

// programsHere gives the programs of settings for another system a path of Windows.
func programsHere(settings string) string {
	return regexp.MustCompile(`("?command"?: *\[['"]?)/|(dir: (?:&\w+ )?)/`).ReplaceAllString(settings, "${1}${2}C:/")
}

// tellsSecrets is the command of an exec sink that prints its variables T and U, and fails.
const tellsSecrets = `['C:/windows/system32/cmd.exe', /c, 'echo %T% %U%& exit 1']`
