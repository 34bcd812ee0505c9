package main

import "regexp"

// programsHere gives the programs of settings for another system a path of Windows.
func programsHere(settings string) string {
	return regexp.MustCompile(`("?command"?: *\[?['"]?)/|(dir: (?:&\w+ )?)/`).ReplaceAllString(settings, "${1}${2}C:/")
}

// tellsSecrets is the command of an exec sink that prints its variables T and U, and fails. It has no path, because cmd
// may take each slash for the beginning of an option: /cmd.exe would be the command md.
const tellsSecrets = `[cmd.exe, /c, 'echo %T% %U%& exit 1']`
