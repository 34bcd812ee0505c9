package main

import "regexp"

// programsHere gives the programs of settings for another system a path of Windows.
func programsHere(settings string) string {
	return regexp.MustCompile(`("?command"?: *\[['"]?)/|(dir: (?:&\w+ )?)/`).ReplaceAllString(settings, "${1}${2}C:/")
}

// tellsSecrets is the command of an exec sink that prints its variables T and U, and fails.
const tellsSecrets = `['C:/windows/system32/cmd.exe', /c, 'echo %T% %U%& exit 1']`
