package hunt

import (
	"encoding/json"
	"errors"
	"fmt"
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

// Package is what the go command says of a package.
type Package struct {
	Dir, ImportPath, Export                                                string
	GoFiles, TestGoFiles, XTestGoFiles, Imports, TestImports, XTestImports []string

	Rel string `json:"-"` // its directory, from the root of the module
}

// Tested reports whether the package has tests.
func (p *Package) Tested() bool { return len(p.TestGoFiles)+len(p.XTestGoFiles) != 0 }

// List asks the go command for packages; args are those of go list. They are listed by import path.
func List(root string, args ...string) (map[string]*Package, error) {
	list := exec.Command("go", append([]string{"list", "-json=Dir,ImportPath,Export,GoFiles,TestGoFiles," +
		"XTestGoFiles,Imports,TestImports,XTestImports"}, args...)...)
	var said strings.Builder
	list.Dir, list.Stderr = root, &said
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, &said)
	}
	all := make(map[string]*Package)
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p Package
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		if rel, err := filepath.Rel(root, p.Dir); err == nil {
			p.Rel = filepath.ToSlash(rel)
		}
		all[p.ImportPath] = &p
	}
}

// Importer imports packages that were listed with -export.
func Importer(fset *token.FileSet, all map[string]*Package) types.Importer {
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(all[path].Export)
	})
}

// compiler checks packages in which files were changed, without building anything: what took a
// second for each bug takes some milliseconds.
type compiler struct {
	root     string
	fset     *token.FileSet
	packages map[string]*checked // by directory
}

// checked is a package whose files are parsed, by path, but for those that a bug has changed.
type checked struct {
	*Package
	imports types.Importer
	files   map[string]*ast.File
}

func newCompiler(root string) *compiler {
	return &compiler{root, token.NewFileSet(), make(map[string]*checked)}
}

// check checks the packages of files that replace those at their paths.
func (c *compiler) check(t *testing.T, files map[string]string) {
	t.Helper()
	done := make(map[string]bool)
	for path := range files {
		if dir := filepath.Dir(path); !done[dir] {
			done[dir] = true
			if err := c.checkPackage(dir, files); err != nil {
				t.Error(err)
			}
		}
	}
}

func (c *compiler) checkPackage(dir string, files map[string]string) error {
	p, err := c.load(dir)
	if err != nil {
		return err
	}
	var sources []*ast.File
	for _, name := range p.GoFiles {
		path := filepath.Join(dir, name)
		file := p.files[path]
		if changed, is := files[path]; is {
			if file, err = parser.ParseFile(c.fset, path, changed, parser.SkipObjectResolution); err != nil {
				return err
			}
		}
		sources = append(sources, file)
	}
	config := types.Config{Importer: p.imports}
	_, err = config.Check(p.ImportPath, c.fset, sources, nil)
	return err
}

// load lists and parses the package in a directory, once.
func (c *compiler) load(dir string) (*checked, error) {
	if p := c.packages[dir]; p != nil {
		return p, nil
	}
	all, err := List(c.root, "-export", "-deps", dir)
	if err != nil {
		return nil, err
	}
	p := &checked{imports: Importer(c.fset, all), files: make(map[string]*ast.File)}
	for _, listed := range all {
		if listed.Dir == dir {
			p.Package = listed
		}
	}
	for _, name := range p.GoFiles {
		path := filepath.Join(dir, name)
		if p.files[path], err = parser.ParseFile(c.fset, path, nil, parser.SkipObjectResolution); err != nil {
			return nil, err
		}
	}
	c.packages[dir] = p
	return p, nil
}
