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

// Package is the go command's description of a package.
type Package struct {
	Dir, ImportPath, Export                                                string
	GoFiles, TestGoFiles, XTestGoFiles, Imports, TestImports, XTestImports []string

	Rel   string               `json:"-"` // its directory, from the root of the module
	Files map[string]*ast.File `json:"-"` // by path; only of packages that Load parses
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

// Code is parsed packages. It checks them, and changes to their files, without building anything:
// some milliseconds per change instead of a second.
type Code struct {
	Fset     *token.FileSet
	Packages []*Package // sorted
	imports  types.Importer
}

// Load lists and parses the packages in some directories, from the root of the module.
func Load(root string, dirs []string) (*Code, error) {
	args := []string{"-export", "-deps", "os", "strconv"} // Check's files may import these two
	for _, d := range dirs {
		args = append(args, "./"+d)
	}
	all, err := List(root, args...)
	if err != nil {
		return nil, err
	}
	c := &Code{Fset: token.NewFileSet()}
	c.imports = importer.ForCompiler(c.Fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(all[path].Export)
	})
	for _, path := range slices.Sorted(maps.Keys(all)) {
		p := all[path]
		if !slices.Contains(dirs, p.Rel) {
			continue
		}
		p.Files = make(map[string]*ast.File)
		for _, name := range p.GoFiles {
			path := filepath.Join(p.Dir, name)
			p.Files[path], err = parser.ParseFile(c.Fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
		}
		c.Packages = append(c.Packages, p)
	}
	return c, nil
}

// Types checks a package, and fills info.
func (c *Code) Types(p *Package, info *types.Info) (*types.Package, error) {
	return c.check(p, p.Files, info)
}

// Check checks the packages of files that replace those at their paths, or are added there.
func (c *Code) Check(files map[string]string) error {
	for _, p := range c.Packages {
		sources := maps.Clone(p.Files)
		changed := false
		for path, text := range files {
			if filepath.Dir(path) != p.Dir {
				continue
			}
			file, err := parser.ParseFile(c.Fset, path, text, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			sources[path], changed = file, true
		}
		if changed {
			if _, err := c.check(p, sources, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Code) check(p *Package, files map[string]*ast.File, info *types.Info) (*types.Package, error) {
	config := types.Config{Importer: c.imports}
	return config.Check(p.ImportPath, c.Fset, slices.Collect(maps.Values(files)), info)
}

// Build builds the tests of the package in a directory, with files that replace those at their
// paths; it writes them beside the binary.
func Build(bin, root, dir string, files map[string]string, flags ...string) error {
	tmp := filepath.Dir(bin)
	replace := make(map[string]string)
	for path, content := range files {
		name := filepath.Join(tmp, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			return err
		}
		replace[path] = name
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	overlay := filepath.Join(tmp, "overlay.json")
	if err := errors.Join(err, os.WriteFile(overlay, list, 0o600)); err != nil {
		return err
	}
	c := exec.Command("go", append(append([]string{"test", "-c", "-overlay", overlay, "-o", bin}, flags...),
		"./"+filepath.Clean(dir))...)
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s does not build: %w\n%s", dir, err, out)
	}
	return nil
}
