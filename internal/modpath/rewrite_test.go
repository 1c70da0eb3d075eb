package main

import (
	"strings"
	"testing"
)

func TestPathsOfModules(t *testing.T) {
	for _, path := range []string{"example.org/you/ibverbx", "github.com/A-b/c_d.e~f", "x.y",
		"example.org/v1x"} {
		if err := checkPath(path); err != nil {
			t.Error(err)
		}
	}
	for _, path := range []string{
		"", "ibverbx", "you/ibverbx", "example.org/", "/example.org", "example.org//x", "Example.org/x",
		"https://example.org/x",
		"example.org/a b", "example.org/.git", "example.org/x.", "example.org/x/v2", ".org/x", "a..b/x",
		"example.org/$(x)", "/usr/bin:/bin", "example.org/ü", "example.org/you/con", "example.org/NUL.go/x",
		"example.org/x~1", "example.org/~x", "example.org/vendor/x", "example.org/internal/x",
		"example.org/testdata", "gopkg.in/ibverbx",
	} {
		if checkPath(path) == nil {
			t.Errorf("%q passes for a module path", path)
		}
	}
}

func TestPathsThatGoModRequires(t *testing.T) {
	gomod := []byte("module x\n\nrequire (\n\tgithub.com/a/b v1.2.3\n\tgolang.org/x/sys v0.1.0 // " +
		"indirect\n)\n" +
		"\nrequire example.org/one v0.0.1\n")
	for path, want := range map[string]bool{
		"github.com/a/b": true, "github.com/a": true, "golang.org/x/sys/unix": true, "example.org/one": true,
		"github.com/a/bc": false, "golang.org/x": true, "example.org/two": false,
	} {
		if got := required(gomod, path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

// The go.mod of a module below this one names both.
func TestModulesBelowChange(t *testing.T) {
	const gomod = `module old/job/etcd

go 1.26.0

require (
	example.com/old v1.0.0
	old v0.0.0-00010101000000-000000000000
	older v1.0.0 // old
)

require old/other v0.0.0

replace old => ../.. // old
`
	want := strings.NewReplacer("module old/", "module example.org/n/", "\told v0", "\texample.org/n v0",
		"require old/", "require example.org/n/", "replace old ", "replace example.org/n ").Replace(gomod)
	w := newRewriter("old", "example.org/n")
	if got := string(w.gomod([]byte(gomod))); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := string(w.gomod([]byte(want))); got != want {
		t.Errorf("and again\n%s\nwant\n%s", got, want)
	}
	if got := string(newRewriter("example.org/n", "old").gomod([]byte(want))); got != gomod {
		t.Errorf("and back\n%s\nwant\n%s", got, gomod)
	}
}

// Imports change, wherever they stand; other strings and words stay.
func TestSourcesChangeWhereTheyMeanTheModule(t *testing.T) {
	const src = `// Package x does it.
//
//	import "old/verbs"
//	import v "old/verbs"
//
// It is called "old" here, and old/verbs there.
package x

import "old"

import (
	"fmt"
	"older/x"
	_ "old/a" // blank
	v "old/verbs"
	"x/old"
)

var _, _ = "old", ` + "`import \"old\"\n\t\"old/b\"\n\"old\",`" + `

func f() { print("old/verbs", fmt.Sprint(` + "\n\"old\"" + `)) }
`
	const want = `// Package x does it.
//
//	import "example.org/n/verbs"
//	import v "example.org/n/verbs"
//
// It is called "old" here, and old/verbs there.
package x

import "example.org/n"

import (
	_ "example.org/n/a" // blank
	v "example.org/n/verbs"
	"fmt"
	"older/x"
	"x/old"
)

var _, _ = "old", ` + "`import \"example.org/n\"\n\t\"example.org/n/b\"\n\"old\",`" + `

func f() {
	print("old/verbs", fmt.Sprint(
		"old"))
}
`
	there, back := newRewriter("old", "example.org/n"), newRewriter("example.org/n", "old")
	got := string(there.source([]byte(src)))
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	again := string(back.source([]byte(got)))
	if again = string(there.source([]byte(again))); again != want {
		t.Errorf("renamed three times:\n%s", again)
	}
	if broken := "package x import \"old"; string(there.source([]byte(broken))) != broken {
		t.Error("a file that is no Go has changed")
	}
}

func TestDocumentsAndConfigurationsChange(t *testing.T) {
	document := strings.ReplaceAll(`The package "old" and the command old.

@@@go
import (
	"old"
	"old/verbs"
)
@@@

@@@
git clone somewhere old
go mod edit -require=old@v0.0.0 -replace=old=../old
require old v0.0.0
go run ./cmd/old perf
old perf
@@@

require old
`, "@@@", "```")
	want := strings.NewReplacer(
		"\t\"old", "\t\"example.org/n",
		"-require=old@v0.0.0 -replace=old=../old",
		"-require=example.org/n@v0.0.0 -replace=example.org/n=../old",
		"require old v0.0.0", "require example.org/n v0.0.0").Replace(document)
	w := newRewriter("old", "example.org/n")
	if got := string(w.document([]byte(document))); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := string(newRewriter("example.org/n", "old").document([]byte(want))); got != document {
		t.Errorf("and back\n%s\nwant\n%s", got, document)
	}
	const config, wanted = `["$gostd", "old/verbs", "old$", "older"] # old`,
		`["$gostd", "example.org/n/verbs", "example.org/n$", "older"] # old`
	if got := string(w.config([]byte(config))); got != wanted {
		t.Errorf("got\n%s\nwant\n%s", got, wanted)
	}
}
