package main

import (
	"errors"
	"fmt"
	"os"

	"forewarn/bridge/cloudevent/chain"
	"forewarn/cmd/forewarn/internal/wording"
)

// verifyFiles checks that files hold one chain, and prints the report.
func (p *program) verifyFiles(files []string) error {
	if p.output == "csv" {
		return exit(exitUsage, errors.New("-o csv does not go with --verify; expected text or json"))
	}
	var v chain.Verifier
	for _, name := range files {
		intact, err := verifyFile(&v, name)
		if err != nil {
			return exit(exitData, err)
		}
		if !intact {
			break
		}
	}
	r := v.Report()
	if r.Lines == 0 && r.Intact {
		return exit(exitData, errors.New("the files have no lines"))
	}
	if p.output == "json" {
		if err := wording.PrintJSON(p.out, r); err != nil {
			return err
		}
	} else if r.Lines > 0 {
		fmt.Fprint(p.out, reportText(r))
	}
	if !r.Intact {
		return exit(exitFailed, fmt.Errorf("%s:%d: %s", wording.Printable(r.File), r.Line, r.Problem))
	}
	return nil
}

func verifyFile(v *chain.Verifier, name string) (intact bool, err error) {
	f, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return v.Read(name, f)
}

// reportText describes the lines of a report that belong to the chain.
func reportText(r chain.Report) string {
	text := fmt.Sprintf("intact: %s in %s\n", wording.Plural(r.Lines, "line", "lines"),
		wording.Plural(r.Files, "file", "files"))
	if !r.Intact {
		text = fmt.Sprintf("intact before the problem: %s\n", wording.Plural(r.Lines, "line", "lines"))
	}
	if r.From == chain.Start {
		text += "from the start of the chain\n"
	} else {
		text += "from after  " + r.From + ", the end of an older file\n"
	}
	return text + "to the head " + r.Head + "\n"
}
