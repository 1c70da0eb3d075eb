package main

import (
	"maps"
	"slices"
	"strings"

	"ibverbx/test/internal/hunt"
)

// module is the packages of the module, by import path.
type module map[string]*hunt.Package

// sorted returns the packages in the order of their directories.
func (m module) sorted() []*hunt.Package {
	return slices.SortedFunc(maps.Values(m), func(a, b *hunt.Package) int {
		return strings.Compare(a.Rel, b.Rel)
	})
}

// internal reports whether only packages of the module may import that of a directory.
func internal(dir string) bool { return strings.Contains("/"+dir+"/", "/internal/") }

// reach adds to seen the packages of the module that some import paths lead to.
func (m module) reach(seen map[string]bool, paths ...string) {
	for _, path := range paths {
		if p := m[path]; p != nil && !seen[p.Rel] {
			seen[p.Rel] = true
			m.reach(seen, p.Imports...)
		}
	}
}

// product returns the directories of the packages that users import or run, and of those that these
// need. The others are tests, what tests need, and examples.
func (m module) product() []string {
	seen := make(map[string]bool)
	for path, p := range m {
		top, _, _ := strings.Cut(p.Rel, "/")
		if !internal(p.Rel) && top != "test" && top != "examples" {
			m.reach(seen, path)
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// judges returns the tests that would find a mutant of a package, the likeliest first: its own, the
// games that play it, and for an internal package the tests of the packages that import it.
func (m module) judges(dir string) (all []judge) {
	var importers []judge
	for _, p := range m.sorted() {
		imports := func(path string) bool { return m[path] != nil && m[path].Rel == dir }
		switch {
		case !p.Tested() || strings.HasPrefix(p.Rel, "test/"):
		case p.Rel == dir:
			all = append(all, own(dir))
		case slices.ContainsFunc(p.Imports, imports):
			importers = append(importers, own(p.Rel))
		}
	}
	for _, g := range games {
		seen := make(map[string]bool)
		for path, p := range m {
			if p.Rel == g.dir {
				m.reach(seen, path)
				m.reach(seen, p.TestImports...)
				m.reach(seen, p.XTestImports...)
			}
		}
		if seen[dir] {
			all = append(all, g)
		}
	}
	if internal(dir) {
		all = append(all, importers...)
	}
	return all
}
