package sim

import (
	"regexp"
	"strings"
	"testing"
)

// hexes are addresses, and numbers that the library draws for itself and that decide nothing.
var hexes = regexp.MustCompile(`0x[0-9a-f]{6,}|wr [0-9]+|PSN:[0-9]+`)

// TestSameSeedSameRun plays worlds twice: a seed is worth nothing if it does not replay.
func TestSameSeedSameRun(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 50
	}
	for seed := range seeds {
		var runs [2][]string
		for i := range runs {
			Game.Play(seed, nil, func(line string) {
				runs[i] = append(runs[i],
					hexes.ReplaceAllString(line, ""))
			})
		}
		if len(runs[0]) != len(runs[1]) {
			t.Fatalf("seed %d: %d and %d lines", seed, len(runs[0]), len(runs[1]))
		}
		for i := range runs[0] {
			if runs[0][i] != runs[1][i] {
				t.Fatalf("seed %d, line %d:\n%s\n\n%s", seed, i,
					strings.Join(runs[0][max(0, i-25):i+1], "\n"),
					strings.Join(runs[1][max(0, i-3):i+1], "\n"))
			}
		}
	}
}
