package ibverbx_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// goPackage is what go list says of a package.
type goPackage struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
}

// goList describes packages of this module, with all that they are made of.
func goList(t *testing.T, patterns ...string) map[string]goPackage {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command, which knows the imports, is not here")
	}
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Standard,Imports,Deps"},
		patterns...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, stderr.String())
	}
	packages := map[string]goPackage{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
	}
}

// The product, its vocabulary and the software NICs stand on the standard library alone: no C, no
// sockets.
func TestImportsOfTheCore(t *testing.T) {
	core := []string{"ibverbx", "ibverbx/verbs", "ibverbx/verbs/soft", "ibverbx/internal/ring"}
	packages := goList(t, core...)
	for _, path := range core {
		p, ok := packages[path]
		if !ok {
			t.Fatalf("go list does not know %s", path)
		}
		for _, dep := range append(slices.Clone(p.Deps), p.Imports...) {
			switch {
			case dep == "C" || dep == "net" || dep == "runtime/cgo":
				t.Errorf("%s depends on %q", path, dep)
			case packages[dep].Standard, slices.Contains(core, dep),
				strings.HasPrefix(dep, "golang.org/x/sys/"):
			default:
				t.Errorf("%s depends on %s, which is neither standard library nor golang.org/x/sys", path,
					dep)
			}
		}
	}
}

// Imports point down the layers: verbs below everything, providers beside each other, the product
// on verbs alone.
func TestImportsPointDown(t *testing.T) {
	packages := goList(t, "ibverbx/verbs/...", "ibverbx")
	ours := func(path string) bool { return path == "ibverbx" || strings.HasPrefix(path, "ibverbx/") }
	for path, p := range packages {
		for _, dep := range p.Deps {
			switch {
			case !ours(path) || !ours(dep):
			case path == "ibverbx/verbs":
				t.Errorf("%s imports %s: it stands below all others", path, dep)
			case path == "ibverbx" && dep != "ibverbx/verbs" && !strings.HasPrefix(dep, "ibverbx/internal/"):
				t.Errorf("%s imports %s: it knows no provider", path, dep)
			case strings.HasPrefix(path, "ibverbx/internal/"):
				t.Errorf("%s imports %s: it knows nothing of queue pairs", path, dep)
			case strings.HasPrefix(path, "ibverbx/verbs/") && dep == "ibverbx":
				t.Errorf("%s imports %s, which stands above the providers", path, dep)
			}
		}
	}
}
