package hunt

import (
	"bytes"
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
	"testing"
)

// compiler checks packages in which files were changed, without building anything: what took a
// second for each bug takes some milliseconds.
type compiler struct {
	root     string
	fset     *token.FileSet
	packages map[string]*listed // by directory, from the root of the module
	exports  map[string]string  // files with what packages export, by import path
	importer types.Importer
}

// listed is a package as the go command lists it.
type listed struct {
	Dir, ImportPath, Export string
	GoFiles                 []string
	DepOnly                 bool

	parsed map[string]*ast.File // by path; those that no bug has changed
}

func newCompiler(root string) *compiler {
	c := &compiler{root: root, fset: token.NewFileSet(), packages: make(map[string]*listed),
		exports: make(map[string]string)}
	c.importer = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(c.exports[path])
	})
	return c
}

// check checks the packages of files that replace those at their paths.
func (c *compiler) check(t *testing.T, files map[string]string) {
	t.Helper()
	checked := make(map[string]bool)
	for path := range files {
		if dir := filepath.Dir(path); !checked[dir] {
			checked[dir] = true
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
		file := p.parsed[path]
		if changed, is := files[path]; is {
			if file, err = parser.ParseFile(c.fset, path, changed, parser.SkipObjectResolution); err != nil {
				return err
			}
		}
		sources = append(sources, file)
	}
	config := types.Config{Importer: c.importer}
	_, err = config.Check(p.ImportPath, c.fset, sources, nil)
	return err
}

// load lists and parses the package in a directory, once.
func (c *compiler) load(dir string) (*listed, error) {
	if p := c.packages[dir]; p != nil {
		return p, nil
	}
	list := exec.Command("go", "list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles,DepOnly", dir)
	list.Dir = c.root
	var said bytes.Buffer
	list.Stderr = &said
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w: %s", dir, err, said.Bytes())
	}
	for all := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		switch err := all.Decode(&p); {
		case errors.Is(err, io.EOF):
			return c.packages[dir], nil
		case err != nil:
			return nil, fmt.Errorf("go list %s: %w", dir, err)
		case p.DepOnly:
			c.exports[p.ImportPath] = p.Export
		default:
			if err := p.parse(c.fset); err != nil {
				return nil, err
			}
			c.packages[dir] = &p
		}
	}
}

func (p *listed) parse(fset *token.FileSet) (err error) {
	p.parsed = make(map[string]*ast.File)
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		if p.parsed[path], err = parser.ParseFile(fset, path, nil, parser.SkipObjectResolution); err != nil {
			return err
		}
	}
	return nil
}
