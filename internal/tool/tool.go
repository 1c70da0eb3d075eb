// Package tool finds the programs that some tests need besides Go.
package tool

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Find returns the path of the first of some programs that is installed. If none is, it skips the
// test with the hint, which says what to install; if IBVERBX_REQUIRE in the environment contains
// the word, it fails the test instead.
func Find(tb testing.TB, word, hint string, names ...string) string {
	tb.Helper()
	// Servers are in sbin, which not everybody has in PATH.
	for _, name := range names {
		for _, path := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
			if found, err := exec.LookPath(path); err == nil {
				return found
			}
		}
	}
	Missing(tb, word, "no "+strings.Join(names, ", nor ")+": "+hint)
	return ""
}

// Missing skips a test, and says why; if IBVERBX_REQUIRE contains the word, it fails the test
// instead.
func Missing(tb testing.TB, word, why string) {
	tb.Helper()
	if slices.Contains(strings.FieldsFunc(os.Getenv("IBVERBX_REQUIRE"),
		func(r rune) bool { return r == ',' || r == ' ' }), word) {
		tb.Fatal(why)
	}
	tb.Skip(why)
}
