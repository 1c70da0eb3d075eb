package verbs_test

import (
	"go/build"
	"slices"
	"testing"
)

// On a platform of 32 bits the package has a file whose only purpose is a compile error that says
// so; on one of 64 bits it has not.
func TestPlatformsOf32BitsAreRefused(t *testing.T) {
	for arch, refused := range map[string]bool{"386": true, "arm": true, "mips": true, "mipsle": true,
		"amd64": false, "arm64": false, "ppc64le": false, "riscv64": false, "s390x": false,
		"loong64": false} {
		platform := build.Default
		platform.GOOS, platform.GOARCH, platform.CgoEnabled = "linux", arch, false
		pkg, err := platform.ImportDir(".", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(pkg.GoFiles, "bits32.go"); got != refused {
			t.Errorf("linux/%s: refused %v, want %v", arch, got, refused)
		}
	}
}
