package ibverbx_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ibverbx"
)

// module is the path of this module.
var module = reflect.TypeFor[ibverbx.Config]().PkgPath()

// goPackage is go list's description of a package.
type goPackage struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
}

// goList describes packages of this module, with their imports.
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

// The root package, verbs and the software NICs import only the standard library: no C, no
// sockets.
func TestImportsOfTheCore(t *testing.T) {
	core := []string{module, module + "/verbs", module + "/verbs/soft",
		module + "/verbs/internal/nic", module + "/internal/ring", module + "/internal/dqplb",
		module + "/internal/wrid"}
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

// Package rendezvous connects what has a card, and imports none of what has one: who connects
// virtual queue pairs does not pay for the layers above, or for a provider. Package job stands on
// it, and asks libpmix by way of purego.
func TestImportsOfRendezvous(t *testing.T) {
	packages := goList(t, module+"/rendezvous", module+"/job")
	for _, path := range []string{module + "/rendezvous", module + "/job"} {
		for _, dep := range packages[path].Deps {
			switch {
			case dep == module+"/verbs", dep == module+"/internal/peertext", packages[dep].Standard:
			case path == module+"/job" && (dep == module+"/rendezvous" || dep == path+"/internal/pmix" ||
				strings.HasPrefix(dep, "github.com/ebitengine/purego")):
			default:
				t.Errorf("%s depends on %s", path, dep)
			}
		}
	}
}

// Imports point down the layers: verbs is below everything, providers do not import each other, and
// the root package imports verbs alone.
func TestImportsPointDown(t *testing.T) {
	packages := goList(t, module+"/verbs/...", module)
	ours := func(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }
	for path, p := range packages {
		for _, dep := range p.Deps {
			switch {
			case !ours(path) || !ours(dep):
			case path == module+"/verbs":
				t.Errorf("%s imports %s: it is below all others", path, dep)
			case path == module && dep != module+"/verbs" && !strings.HasPrefix(dep, module+"/internal/"):
				t.Errorf("%s imports %s: it must import no provider", path, dep)
			case strings.HasPrefix(path, module+"/internal/"):
				t.Errorf("%s imports %s: internal packages import nothing else of the module", path, dep)
			case strings.HasPrefix(path, module+"/verbs/") && dep == module:
				t.Errorf("%s imports %s, which is above the providers", path, dep)
			}
		}
	}
}
