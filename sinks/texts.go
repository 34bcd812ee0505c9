package sinks

import (
	"fmt"
)

// templateText is the text of a template that the settings have under a key or in a file, else the one instead. The key
// is the one to name in an error; given says that the settings have one.
func templateText(key, text, file, instead string) (_, _ string, given bool, err error) {
	switch {
	case text != "" && file != "":
		return "", "", true, &KeyError{key + "_file", fmt.Errorf("%s is given too; expected only one of them", key)}
	case file != "":
		key += "_file"
		read, err := readSmall(file)
		if err != nil {
			return "", "", true, &KeyError{key, err}
		}
		return key, string(read), true, nil
	case text != "":
		return key, text, true, nil
	}
	return key, instead, false, nil
}
