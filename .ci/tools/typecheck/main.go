// Typecheck checks packages, their tests and all that they import, from source and without compiling: as much as a
// build for another system would find, in a fraction of its time. Set GOOS and GOARCH as for a build.
package main

import (
	"fmt"
	"os"

	"golang.org/x/tools/go/packages"
)

func main() {
	const mode = packages.NeedName | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps |
		packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesSizes // without export data: from source
	found, err := packages.Load(&packages.Config{Mode: mode, Tests: true}, os.Args[1:]...)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case len(found) == 0:
		fmt.Fprintln(os.Stderr, "no packages")
		os.Exit(1)
	case packages.PrintErrors(found) > 0:
		os.Exit(1)
	}
	fmt.Printf("%d packages and test packages: types fit\n", len(found))
}
