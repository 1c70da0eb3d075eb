// Modpath gives the module another path, for publishing it: in go.mod, in the imports of every Go
// file, in the linter's configuration, and in the import lines and commands that the documents
// show. `make module PATH=example.org/you/ibverbx` runs it.
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
	if required(gomod, path) {
		return fmt.Errorf("%q is the path of a module that go.mod requires", path)
	}
	changed, err := changes(root, newRewriter(old, path))
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
	// go.mod is the last file: a run that was interrupted can be repeated.
	gomod = bytes.Replace(gomod, []byte("module "+old), []byte("module "+path), 1)
	if err := os.WriteFile(filepath.Join(root, "go.mod"), gomod, 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "The module's path was %s and is %s. "+
		"Changed: go.mod, %d .go, %d .md, %d .yml.\n",
		old, path, kinds[".go"], kinds[".md"], kinds[".yml"])
	return err
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

// changes returns all files that change but go.mod.
func changes(root string, w *rewriter) ([]file, error) {
	var changed []file
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			if path != root && (strings.HasPrefix(d.Name(), ".") || err == nil) { // a module of its own
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
