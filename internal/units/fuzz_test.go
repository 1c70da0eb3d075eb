package units

import (
	"encoding/json"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// bounded says that a refusal repeats a text no longer than it is, escaped at the worst, and tells
// what would work.
func bounded(t *testing.T, text string, err error) {
	t.Helper()
	if said := err.Error(); !strings.Contains(said, "want") && !strings.Contains(said, ":") ||
		len(said) > 300+12*len(text) {
		t.Fatalf("%q: %d bytes of refusal: %.300q", text, len(said), said)
	}
}

// wellFormed is what a size looks like.
var wellFormed = regexp.MustCompile(`(?i)^\s*([0-9]+)\s*(b|([kmgt])(?:i|ib)?)?\s*$`)

// sizeOf is the size that a text says, counted without bounds; nil where it says none.
func sizeOf(text string) *big.Int {
	parts := wellFormed.FindStringSubmatch(text)
	if parts == nil {
		return nil
	}
	n, _ := new(big.Int).SetString(parts[1], 10)
	return n.Lsh(n, uint(10*(strings.Index("kmgt", strings.ToLower(parts[3]))+1))*uint(min(len(parts[3]), 1)))
}

// FuzzParseSize reads sizes. They are what an unbounded count makes of the text, and what is
// printed reads as the same.
func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"4096", "64K", "1MiB", "2 GiB", "8b", "64kb", "9223372036854775807",
		"8589934592G", "3t", "1.5M", "-1", "", "K"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		z, err := ParseSize(text)
		want := sizeOf(text)
		if fits := want != nil && want.Cmp(big.NewInt(math.MaxInt64)) <= 0; fits != (err == nil) {
			t.Fatalf("%q is %v, and it is read as %d, %v", text, want, uint64(z), err)
		}
		if err != nil {
			bounded(t, text, err)
			return
		}
		if want.Uint64() != uint64(z) {
			t.Fatalf("%q is %v, and it is read as %d", text, want, uint64(z))
		}
		if again, err := ParseSize(z.String()); err != nil || again != z {
			t.Fatalf("%q is printed as %q, which reads as %d, %v", text, z, uint64(again), err)
		}
	})
}

// FuzzParseRange reads lists of sizes. A list is never much longer than its text, its ranges rise,
// and written as a list it reads as the same.
func FuzzParseRange(f *testing.F) {
	for _, s := range []string{
		"4K..16M/4", "8,64,512,4K,32K,256K", "1..9223372036854775807", "1K..5K", "4K..4K", "16K..4K", "0..4K",
		"4K..8K/1", "1..2..4",
		"4K..8K/65535", ",", "1..8/2/2",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseRange(text)
		if err != nil {
			bounded(t, text, err)
			return
		}
		if parts := strings.Count(text, ",") + 1; len(list) < parts || len(list) > 64*parts {
			t.Fatalf("%q has %d sizes", text, len(list))
		}
		if !strings.Contains(text, ",") && !slices.IsSorted(list) {
			t.Fatalf("%q does not rise: %v", text, list)
		}
		var words []string
		for _, z := range list {
			words = append(words, z.String())
		}
		if again, err := ParseRange(strings.Join(words, ",")); err != nil || !slices.Equal(again, list) {
			t.Fatalf("%q is %v, which reads as %v, %v", text, list, again, err)
		}
	})
}

// FuzzParseRate reads speeds. What is printed has four digits, and reads as the same within these;
// JSON has them all.
func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"25Gbit", "100Gb/s", "400G", "2.5Gbps", "3GB/s", "0", "1e15B", "1Mbit", "-1G",
		"1e99G", "0x10p3K", "-0",
		"NaN", "1e-400", "kbit"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRate(text)
		var fromJSON Rate
		if err != nil {
			if r != 0 {
				t.Fatalf("%q is refused, and is %d", text, r)
			}
			bounded(t, text, err)
			return
		}
		if number, err := json.Marshal(r); err != nil || json.Unmarshal(number, &fromJSON) != nil ||
			fromJSON != r {
			t.Fatalf("%q is %d, and in JSON %s, which is %d, %v", text, r, number, fromJSON, err)
		}
		if r == 0 {
			return // unlimited, which is said by leaving it out
		}
		if r < slowest || r > 1e15 {
			t.Fatalf("%q is %d bytes a second", text, r)
		}
		again, err := parseRate(r.String())
		if err != nil || math.Abs(float64(again)-float64(r)) > float64(r)/1000 {
			t.Fatalf("%q is %d, printed as %q, which reads as %d, %v", text, r, r, again, err)
		}
	})
}

// FuzzParseSeconds reads lengths of time. None is negative,
// and what Go prints of one reads as the same.
func FuzzParseSeconds(f *testing.F) {
	for _, s := range []string{"5", "0.5", "20ms", "1m30s", "1e8", "1e9", "0x1p-3", "-0", "-5s", "NaN",
		"+Inf", "9223372036854775807ns",
		"1e-10", "5 parsecs"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSeconds(text)
		if err != nil {
			if s != 0 {
				t.Fatalf("%q is refused, and is %v", text, time.Duration(s))
			}
			bounded(t, text, err)
			return
		}
		if s < 0 {
			t.Fatalf("%q is %v", text, time.Duration(s))
		}
		if again, err := parseSeconds(time.Duration(s).String()); err != nil || again != s {
			t.Fatalf("%q is %v, which reads as %v, %v", text, time.Duration(s), time.Duration(again), err)
		}
	})
}
