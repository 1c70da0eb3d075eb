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
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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

// compiler checks packages in which files were changed, without building anything: what took a
// second for each bug takes some milliseconds.
type compiler struct {
	root     string
	fset     *token.FileSet
	packages map[string]*checked // by directory
}

// checked is a package that is parsed, and where it imports others from.
type checked struct {
	path    string
	imports types.Importer
	files   map[string]*ast.File // by path
}

// check checks the packages of files that replace those at their paths.
func (c *compiler) check(files map[string]string) error {
	changed := make(map[string]map[string]*ast.File) // by directory and path
	for path, text := range files {
		file, err := parser.ParseFile(c.fset, path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		if changed[dir] == nil {
			p, err := c.load(dir)
			if err != nil {
				return err
			}
			changed[dir] = maps.Clone(p.files)
		}
		changed[dir][path] = file
	}
	for dir, sources := range changed {
		p := c.packages[dir]
		config := types.Config{Importer: p.imports}
		if _, err := config.Check(p.path, c.fset, slices.Collect(maps.Values(sources)), nil); err != nil {
			return err
		}
	}
	return nil
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
	p := &checked{files: make(map[string]*ast.File)}
	p.imports = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(all[path].Export)
	})
	for _, listed := range all {
		if listed.Dir != dir {
			continue
		}
		p.path = listed.ImportPath
		for _, name := range listed.GoFiles {
			path := filepath.Join(dir, name)
			file, err := parser.ParseFile(c.fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			p.files[path] = file
		}
	}
	c.packages[dir] = p
	return p, nil
}
