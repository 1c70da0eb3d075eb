//go:build !purego

package crc

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// assembly are the functions of the assembly that this processor runs. hash/crc32 runs what is not
// whole blocks.
func assembly() (ways []way) {
	whole := func(fold func(uint32, []byte) uint32, least int) func(uint32, []byte) uint32 {
		return func(r uint32, p []byte) uint32 {
			if n := len(p) &^ 15; n >= least {
				r, p = fold(r, p[:n]), p[n:]
			}
			return reference(r, p)
		}
	}
	if has512() {
		ways = append(ways, way{"fold512", whole(fold512, least512)})
	}
	if has256() {
		ways = append(ways, way{"fold256", whole(fold256, least256)})
	}
	return ways
}

// What Linux says of the processor decides.
func TestFeatures(t *testing.T) {
	if strings.Contains(os.Getenv("GODEBUG"), "cpu.") {
		t.Skip("GODEBUG turns features off")
	}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Skip(err)
	}
	_, list, ok := strings.Cut(string(text), "\nflags")
	if !ok {
		t.Skip("/proc/cpuinfo tells no flags")
	}
	list, _, _ = strings.Cut(list, "\n")
	flags := strings.Fields(list)
	has := func(flag string) bool { return slices.Contains(flags, flag) }
	multiplies := has("pclmulqdq") && has("vpclmulqdq")
	if want := multiplies && has("avx512f"); has512() != want {
		t.Errorf("has512 is %v, want %v", has512(), want)
	}
	if want := multiplies && has("avx2"); has256() != want {
		t.Errorf("has256 is %v, want %v", has256(), want)
	}
}
