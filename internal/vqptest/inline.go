package vqptest

import (
	"debug/elf"
	"debug/gosym"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"testing"

	"ibverbx/internal/guard"
)

// MustInline fails the test for functions that somebody calls in the running binary. One whose
// every call is inlined has no code of its own there. kept is a function that has, so that a table
// of functions that cannot be read does not pass. All names begin with "ibverbx". Exported methods
// do not serve: reflection keeps them.
func MustInline(tb testing.TB, kept string, inlined ...string) {
	tb.Helper()
	if guard.Checked || testing.CoverMode() != "" || builtWith("-gcflags") {
		tb.Skip("the compiler inlines less in this build")
	}
	path, err := os.Executable()
	if err != nil {
		tb.Skip(err)
	}
	binary, err := elf.Open(path)
	if err != nil {
		tb.Skip(err) // another system's
	}
	defer func() { _ = binary.Close() }()
	text, lines := binary.Section(".text"), binary.Section(".gopclntab")
	if text == nil || lines == nil {
		tb.Skip("no table of functions in a section of its own")
	}
	data, err := lines.Data()
	if err != nil {
		tb.Fatal(err)
	}
	table, err := gosym.NewTable(nil, gosym.NewLineTable(data, text.Addr))
	if err != nil {
		tb.Fatal(err)
	}
	// Names begin with the module's path, which may be another one.
	module := strings.TrimSuffix(reflect.TypeFor[guard.NoCopy]().PkgPath(), "/internal/guard")
	find := func(name string) *gosym.Func {
		return table.LookupFunc(module + strings.TrimPrefix(name, "ibverbx"))
	}
	if find(kept) == nil {
		tb.Fatalf("%s is not in the binary's table of functions", kept)
	}
	for _, name := range inlined {
		if find(name) != nil {
			tb.Errorf("%s is not inlined everywhere: see go build -gcflags=-m=2", name)
		}
	}
}

// builtWith reports whether the binary was built with a flag of go build.
func builtWith(flag string) bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return false
	}
	for _, s := range info.Settings {
		if s.Key == flag {
			return true
		}
	}
	return false
}
