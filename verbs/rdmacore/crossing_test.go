//go:build linux && (amd64 || arm64) && !purego

package rdmacore_test

import (
	"testing"

	"ibverbx/verbs/rdmacore"
)

// TestCrossingKeepsFrame: what C's functions write into their frames does not reach what the
// crossing has to restore.
func TestCrossingKeepsFrame(t *testing.T) {
	if s := openStandin(t, standinConfig{}); s.keepsFrame(rdmacore.CrossAddr()) != 1 {
		t.Error("a crossing changed its caller's frame pointer, or lost the result")
	}
}
