package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"ibverbx/test/internal/hunt"
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

// load reads and checks packages, named by their directories.
func load(root string, dirs []string) (files []*source, err error) {
	args := []string{"-export", "-deps"}
	for _, d := range dirs {
		args = append(args, "./"+filepath.ToSlash(d))
	}
	all, err := hunt.List(root, args...)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	imports := hunt.Importer(fset, all)
	for _, p := range module(all).sorted() {
		if !slices.Contains(dirs, p.Rel) {
			continue
		}
		more, err := check(fset, imports, p)
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	return files, nil
}

// check reads the files of a package and finds the types of its expressions.
func check(fset *token.FileSet, imports types.Importer, p *hunt.Package) (files []*source, err error) {
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
		files = append(files, &source{dir: p.Rel, path: path, text: string(text), fset: fset,
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
