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
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/vqptest"
)

// mostFiles is how many files may have methods of one type: whoever looks for a method finds it by
// its theme.
const mostFiles = 10

// mostMethods is how many methods VirtualQP may have.
const mostMethods = 80

// The methods of a type stand in a few files of the library.
func TestMethodsStandTogether(t *testing.T) {
	files, methods := map[string]map[string]bool{}, map[string]int{} // by type, as package.Type
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." &&
			(strings.HasPrefix(d.Name(), ".") ||
				slices.Contains([]string{"cmd", "test", "testdata"}, d.Name())):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				typ := filepath.ToSlash(filepath.Dir(path)) + "." + receiver(f.Recv.List[0].Type)
				if files[typ] == nil {
					files[typ] = map[string]bool{}
				}
				files[typ][filepath.Base(path)] = true
				methods[typ]++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files["transport.Worker"]) == 0 {
		t.Fatal("no methods of transport.Worker found")
	}
	if methods["..VirtualQP"] > mostMethods {
		t.Errorf("VirtualQP has %d methods, more than %d", methods["..VirtualQP"], mostMethods)
	}
	for typ, in := range files {
		if len(in) > mostFiles {
			t.Errorf("%s has methods in %d files, more than %d", typ, len(in), mostFiles)
		}
	}
}

// receiver returns the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// docPages name functions of the module, with their types or packages, or files of the root.
var docPages = []string{"docs/ARCHITECTURE.md", "docs/FAILOVER.md", fromCpp, "docs/FROM-MPI.md",
	"docs/book/*.md", "*/INTERNALS.md", "*/*/INTERNALS.md"}

// fromCpp has this module's names in the second column of its tables, each as a docName.
const fromCpp = "docs/FROM-CPP.md"

var codeSpan = regexp.MustCompile("`[^`]*`")

// docName is `Type.method`, `package.Name`, `package.Type.method`, or `file.go`.
var docName = regexp.MustCompile("`(?:([a-z][a-z0-9]*)\\.)?([A-Za-z][A-Za-z0-9]*)\\.([A-Za-z][A-Za-z0-9]*)`")

// elsewhere are packages of the standard library, a field, and a part of an attribute of PMIx,
// whose names the pages use.
var elsewhere = map[string]bool{"net": true, "os": true, "runtime": true, "win": true, "get": true}

// What the pages name is there.
func TestDocsNameWhatIsThere(t *testing.T) {
	names := declared(t)
	var pages []string
	for _, pattern := range docPages {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		pages = append(pages, found...)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if cells := strings.Split(line, "|"); page == fromCpp && len(cells) > 3 {
				for _, span := range codeSpan.FindAllString(cells[2], -1) {
					if docName.FindString(span) != span {
						t.Errorf("%s:%d: %s does not name its type or package", page, i+1, span)
					}
				}
			}
			for _, m := range docName.FindAllStringSubmatch(line, -1) {
				pkg, typ, name := m[1], m[2], m[3]
				if name == "go" {
					if !names[typ+".go"] {
						t.Errorf("%s:%d: there is no file %s", page, i+1, m[0])
					}
					continue
				}
				if !elsewhere[typ] && !names[typ+"."+name] || pkg != "" && !names[pkg] {
					t.Errorf("%s:%d: there is no %s", page, i+1, m[0])
				}
			}
		}
	}
}

// declared returns the packages, types and file names of the module, and "package.Name",
// "Type.method" and "Type.field" of each.
func declared(t *testing.T) map[string]bool {
	names := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || path != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg := file.Name.Name
		names[pkg], names[d.Name()] = true, true
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Recv == nil {
					names[pkg+"."+decl.Name.Name] = true
					continue
				}
				names[receiver(decl.Recv.List[0].Type)+"."+decl.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					declareSpec(names, pkg, spec)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// declareSpec adds the names of a type and its fields, or of constants and variables.
func declareSpec(names map[string]bool, pkg string, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, n := range spec.Names {
			names[pkg+"."+n.Name] = true
		}
	case *ast.TypeSpec:
		names[spec.Name.Name], names[pkg+"."+spec.Name.Name] = true, true
		ast.Inspect(spec.Type, func(n ast.Node) bool {
			if field, ok := n.(*ast.Field); ok {
				for _, name := range field.Names {
					names[spec.Name.Name+"."+name.Name] = true
				}
			}
			return true
		})
	}
}

// camelCards are the files whose JSON names are camelCase: the business card has qpNums and
// notifyQpNum from the C++ original.
var camelCards = []string{"card.go"}

// Names in JSON are snake_case, in what goes to a peer as in reports. Only the business card, whose
// names the C++ original began, has them in camelCase.
func TestNamesInJSON(t *testing.T) {
	snake := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	fset, seen := token.NewFileSet(), 0
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			slices.Contains(camelCards, path):
			return nil
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			field, ok := n.(*ast.Field)
			if !ok || field.Tag == nil {
				return true
			}
			tag, ok := reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Lookup("json")
			if name, _, _ := strings.Cut(tag, ","); ok && name != "" && name != "-" {
				if seen++; !snake.MatchString(name) {
					t.Errorf("%v: %q in JSON is not snake_case", fset.Position(field.Pos()), name)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 100 {
		t.Errorf("%d names in JSON found", seen)
	}
}

// Small steps of each post and each completion are inlined: a call costs some ten instructions, of
// the 800 that a write over four queue pairs takes.
func TestHotPathInlines(t *testing.T) {
	vqptest.MustInline(t, "ibverbx.(*sender).report",
		"ibverbx.(*VirtualQP).enter",
		"ibverbx.(*VirtualCQ).enter",
		"ibverbx.(*VirtualCQ).sink",
		"ibverbx.(*VirtualCQ).touch",
		"ibverbx.(*line).canSend",
		"ibverbx.(*line).flushes",
		"ibverbx.(*railSet).pick",
		"ibverbx.(*railSet).takeData",
		"ibverbx.(*railSet).giveData",
		"ibverbx.(*rail).hasRoom",
		"ibverbx.(*rail).onNIC",
		"ibverbx.(*sender).busy",
		"ibverbx.(*sender).resolve",
		"ibverbx.(*sender).advanceDataDone",
		"ibverbx.(*receiver).busy",
		"ibverbx.(*sendReq).complete",
		"ibverbx.(*sendReq).dataComplete",
		"ibverbx.(*sendBatch).add",
		"ibverbx.(*sendBatch).setSGL",
		"ibverbx.(*sendBatch).setInline",
		"ibverbx.(*sendBatch).posted",
		"ibverbx.(*batchPool).giveBack",
		"ibverbx.(*holder).take",
		"ibverbx.(*holder).settle",
		"ibverbx.(*sink).slot",
		"ibverbx.(*sink).releaseOne",
		"ibverbx.(*sink).settle",
		"ibverbx.(*Keys).at",
		"ibverbx.(*Keys).covers",
	)
}

// floors says on which floor each file of the package stands, from the lowest up. A file uses what
// its own floor declares and the floors below.
var floors = []struct{ name, files string }{
	{"values", "doc errors config connconfig wr mr card stats timing events failure_error domain register"},
	{"rails", "check pieces batch line rail railset"},
	{"directions", "hold request observer sender dispatch resend receiver failure_describe"},
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
