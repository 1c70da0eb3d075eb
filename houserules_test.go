package ibverbx_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mostFiles is how many files may have methods of one type: whoever looks for a method finds it by
// its theme.
const mostFiles = 10

// exempt lists types whose methods stand in more files, with the number that may not grow.
var exempt = map[string]int{
	"..VirtualQP":       21,
	"verbs/soft.Fabric": 11,
	// the conformance suite has a file for each part of the contract
	"verbs/verbstest.suite": 13,
}

// The methods of a type stand in a few files of the library.
func TestMethodsStandTogether(t *testing.T) {
	files := map[string]map[string]bool{} // by type, as package.Type
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." &&
			(strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"cmd", "test", "testdata"}, d.Name())):
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
	for typ, in := range files {
		if most := max(mostFiles, exempt[typ]); len(in) > most {
			t.Errorf("%s has methods in %d files, more than %d", typ, len(in), most)
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
