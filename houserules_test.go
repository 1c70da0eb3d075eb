package ibverbx_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
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
	"*/INTERNALS.md", "*/*/INTERNALS.md"}

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
