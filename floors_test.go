package ibverbx_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// floors says on which floor each file of the package stands, from the lowest up. A file uses what
// its own floor declares and the floors below.
var floors = []struct{ name, files string }{
	{"values", "doc errors config connconfig wr mr card stats events failure_error domain register"},
	{"rails", "check pieces batch line rail railset"},
	{"directions", "hold request sender dispatch resend receiver failure_describe"},
	{"recovery", "portwatch failover failback passthrough passthrough_drain"},
	{"face", "guard virtualqp arrive progress failure connect close virtualcq snapshot cqpoll cqwait " +
		"original open"},
}

// upward are the files that may use a file of a higher floor, with the reason.
var upward = map[string]string{
	"rail virtualqp":           "a completion is routed to a rail, which says whose it is: a single load",
	"passthrough virtualcq":    "the virtual CQ lends a single queue pair the room to translate requests",
	"passthrough cqpoll":       "what it has refused for now is tried again by the next poll",
	"passthrough_drain cqpoll": "it asks the NIC when all is flushed, and polls for the answer",
}

// TestFloors checks that no file uses a higher floor than its own.
func TestFloors(t *testing.T) {
	floor, names := map[string]int{}, map[int]string{}
	for i, f := range floors {
		names[i] = f.name
		for _, file := range strings.Fields(f.files) {
			floor[file] = i
		}
	}
	fset := token.NewFileSet()
	files := parseRoot(t, fset)
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", exports(t))}
	pkg, err := conf.Check(module, fset, files, &info)
	if err != nil {
		t.Fatal(err)
	}
	file := func(pos token.Pos) string {
		return strings.TrimSuffix(filepath.Base(fset.Position(pos).Filename), ".go")
	}
	for _, f := range files {
		if _, ok := floor[file(f.Pos())]; !ok {
			t.Errorf("%s.go stands on no floor: add it to the table", file(f.Pos()))
		}
	}
	used := map[string]bool{}
	for id, obj := range info.Uses {
		from, to := file(id.Pos()), file(obj.Pos())
		if obj.Pkg() != pkg || floor[to] <= floor[from] {
			continue
		}
		tie := from + " " + to
		if used[tie] = true; upward[tie] == "" {
			t.Errorf("%v: %s (floor %s) uses %s of %s.go (floor %s)", fset.Position(id.Pos()), from+".go",
				names[floor[from]], obj.Name(), to, names[floor[to]])
		}
	}
	for tie := range upward {
		if !used[tie] {
			t.Errorf("%q is no exception any more: take it off the list", tie)
		}
	}
	if len(upward) > 4 {
		t.Errorf("%d exceptions, want 4 at most", len(upward))
	}
}

// parseRoot parses the files of the package.
func parseRoot(t *testing.T, fset *token.FileSet) (files []*ast.File) {
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// exports returns where the compiler has left what the imported packages export.
func exports(t *testing.T) importer.Lookup {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the go command, which knows the imports, is not here")
	}
	out, err := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p struct{ ImportPath, Export string }
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		paths[p.ImportPath] = p.Export
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(paths[path]) }
}
