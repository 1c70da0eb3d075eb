// Modpath gives the module another path, for publishing it, and those below it that have a go.mod
// of their own: in each go.mod, in the imports of every Go file, in the linter's configuration, and
// in the import lines and commands that the documents show. `make module
// PATH=example.org/you/ibverbx` runs it.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: modpath example.org/you/ibverbx, in the module's root directory")
		os.Exit(2)
	}
	if err := rename(os.Stdout, ".", os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "modpath:", err)
		os.Exit(1)
	}
}

// rename gives the module in directory root another path.
func rename(out io.Writer, root, path string) error {
	if err := checkPath(path); err != nil {
		return err
	}
	gomod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return err
	}
	old, err := modulePath(gomod)
	if err != nil {
		return err
	}
	if old == path {
		_, err = fmt.Fprintf(out, "The module's path is %s already: nothing to do.\n", path)
		return err
	}
	mods, err := modules(root, old, path)
	if err != nil {
		return err
	}
	for _, m := range mods {
		if required(m.content, path) {
			return fmt.Errorf("%q is the path of a module that %s requires, or one above or below it", path,
				m.path)
		}
	}
	w := newRewriter(old, path)
	changed, err := changes(root, mods, w)
	if err != nil {
		return err
	}
	kinds := map[string]int{}
	for _, f := range changed {
		if err := os.WriteFile(f.path, f.content, f.mode); err != nil {
			return err
		}
		kinds[filepath.Ext(f.path)]++
	}
	// The root's go.mod is the last file: a run that was interrupted can be repeated.
	for _, m := range slices.Backward(mods) {
		if err := os.WriteFile(m.path, w.gomod(m.content), m.mode); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "The module's path was %s and is %s. "+
		"Changed: %d go.mod, %d .go, %d .md, %d .yml.\n",
		old, path, len(mods), kinds[".go"], kinds[".md"], kinds[".yml"])
	return err
}

// modules returns the go.mod of the module in root, and then those of modules below it that have
// its path above their own, under its old name or already under the new one.
func modules(root, old, path string) ([]file, error) {
	var mods []file
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case d.Name() != "go.mod" || !d.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		switch declared, err := modulePath(content); {
		case filepath.Dir(name) == filepath.Clean(root):
			mods = append([]file{{name, content, 0o644}}, mods...)
		case err == nil && (strings.HasPrefix(declared, old+"/") || strings.HasPrefix(declared, path+"/")):
			mods = append(mods, file{name, content, 0o644})
		}
		return nil
	})
	return mods, err
}

// modulePath returns the path that a go.mod declares.
func modulePath(gomod []byte) (string, error) {
	m := regexp.MustCompile(`(?m)^module (\S+)$`).FindSubmatch(gomod)
	if m == nil {
		return "", errors.New("go.mod declares no module")
	}
	return string(m[1]), nil
}

// required reports whether a go.mod requires the module, or one that has its path above or below.
func required(gomod []byte, path string) bool {
	for _, m := range regexp.MustCompile(`(?m)^(?:require )?\s*([^\s/]+\.[^\s]+) v[0-9]`).FindAllSubmatch(
		gomod, -1) {
		dep := string(m[1])
		if dep == path || strings.HasPrefix(dep, path+"/") || strings.HasPrefix(path, dep+"/") {
			return true
		}
	}
	return false
}

// file is a file with the content that it gets.
type file struct {
	path    string
	content []byte
	mode    fs.FileMode
}

// hasModule reports whether a directory has a go.mod.
func hasModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// changes returns all files of some modules that change, but go.mod.
func changes(root string, mods []file, w *rewriter) ([]file, error) {
	var dirs []string
	for _, m := range mods {
		dirs = append(dirs, filepath.Dir(m.path))
	}
	var changed []file
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			foreign := !slices.Contains(dirs, filepath.Clean(path)) && hasModule(path)
			if path != root && (foreign || strings.HasPrefix(d.Name(), ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		rewrite := map[string]func([]byte) []byte{
			".go": w.source, ".md": w.document, ".yml": w.config,
		}[filepath.Ext(path)]
		if rewrite == nil || !d.Type().IsRegular() {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if now := rewrite(content); !bytes.Equal(now, content) {
			changed = append(changed, file{path, now, info.Mode().Perm()})
		}
		return nil
	})
	return changed, err
}
