package main

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
	"strconv"
	"strings"
)

// source is a file of a package.
type source struct {
	dir    string // of the package, from the root of the module; "." for the root
	path   string
	text   string
	fset   *token.FileSet
	syntax *ast.File
	info   *types.Info
	pkg    *types.Package
}

func (s *source) span(n ast.Node) (from, to int) {
	return s.fset.Position(n.Pos()).Offset, s.fset.Position(n.End()).Offset
}

func (s *source) line(offset int) int { return 1 + strings.Count(s.text[:offset], "\n") }

// typeName is the name of a type in this file. It reports false for one that has no name here.
func (s *source) typeName(t types.Type) (name string, ok bool) {
	ok = true
	name = types.TypeString(t, func(p *types.Package) string {
		if p == s.pkg {
			return ""
		}
		for _, spec := range s.syntax.Imports {
			if path, err := strconv.Unquote(spec.Path.Value); err == nil && path == p.Path() {
				if spec.Name != nil {
					return spec.Name.Name
				}
				return p.Name()
			}
		}
		ok = false
		return ""
	})
	return name, ok && !strings.HasPrefix(name, "untyped ")
}

// calls reports whether an expression calls a function or receives, and so may not be evaluated
// twice.
func (s *source) calls(n ast.Expr) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			tv := s.info.Types[n.Fun]
			found = found || !tv.IsType() && !tv.IsBuiltin()
		case *ast.UnaryExpr:
			found = found || n.Op == token.ARROW
		}
		return !found
	})
	return found
}

// listed is what the go command says of a package.
type listed struct {
	Dir, ImportPath, Name, Export string
	GoFiles                       []string
	DepOnly                       bool
}

// load reads and checks packages, named by their directories.
func load(root string, dirs []string) (files []*source, err error) {
	patterns := make([]string, len(dirs))
	for i, d := range dirs {
		patterns[i] = "./" + filepath.ToSlash(d)
	}
	list := exec.Command("go", append([]string{"list", "-export", "-deps",
		"-json=Dir,ImportPath,Name,Export,GoFiles,DepOnly"}, patterns...)...)
	list.Dir, list.Stderr = root, os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := make(map[string]string)
	var wanted []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			wanted = append(wanted, p)
		}
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	for _, p := range wanted {
		more, err := check(fset, imports, root, p)
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	return files, nil
}

// check reads the files of a package and finds the types of its expressions.
func check(fset *token.FileSet, imports types.Importer, root string, p listed) (files []*source, err error) {
	dir, err := filepath.Rel(root, p.Dir)
	if err != nil {
		return nil, err
	}
	info := &types.Info{Types: make(map[ast.Expr]types.TypeAndValue), Uses: make(map[*ast.Ident]types.Object)}
	var syntax []*ast.File
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(fset, path, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		syntax = append(syntax, f)
		files = append(files, &source{dir: filepath.ToSlash(dir), path: path, text: string(text), fset: fset,
			syntax: f, info: info})
	}
	config := types.Config{Importer: imports}
	pkg, err := config.Check(p.ImportPath, fset, syntax, info)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		f.pkg = pkg
	}
	return files, nil
}
