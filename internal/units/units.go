// Package units reads and writes the quantities of the command line: sizes in bytes and lists of
// them, rates of links, and lengths of time.
//
// Sizes count in powers of two, as is usual for RDMA benchmarks: 64K is 65536. Rates of links count
// in powers of ten, as vendors do: 25Gbit is 25,000,000,000 bits a second. JSON has sizes in bytes,
// rates in bytes a second, and lengths of time in seconds.
package units

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes that reads 4096, 64K, 1M, 1MiB, 2G.
type Size uint64

// sizeForm is a number, a prefix and a unit.
var sizeForm = regexp.MustCompile(`^(?i)\s*([0-9]+)\s*(?:b|([kmgt])(ib?|b)?)?\s*$`)

// ParseSize reads a size.
func ParseSize(s string) (Size, error) {
	parts := sizeForm.FindStringSubmatch(s)
	if parts == nil {
		return 0, fmt.Errorf("size %q: want a whole number with K, M, G or T, such as 4096, 64K, 1M "+
			"or 1MiB", s)
	}
	digits, prefix := parts[1], strings.ToUpper(parts[2])
	if strings.EqualFold(parts[3], "b") {
		return 0, fmt.Errorf("size %q: %sB may mean a power of ten or of two: write %s%s (1024-based) or "+
			"the number of bytes", s, prefix, digits, prefix)
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	shift := 10 * strings.Index(" KMGT", prefix)
	if prefix == "" {
		shift = 0
	}
	if err != nil || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("size %q: too large", s)
	}
	return Size(n << shift), nil
}

// UnmarshalText reads a size from a flag.
func (z *Size) UnmarshalText(text []byte) (err error) {
	*z, err = ParseSize(string(text))
	return err
}

// UnmarshalJSON reads a number of bytes.
func (z *Size) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, (*uint64)(z)) }

// String writes the size with the largest unit that leaves a whole number: "64 KiB", "100 B".
func (z Size) String() string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		if shift := 30 - 10*i; z != 0 && z>>shift<<shift == z {
			return fmt.Sprintf("%d %s", uint64(z>>shift), unit)
		}
	}
	return fmt.Sprintf("%d B", uint64(z))
}

// Range is a list of sizes: "4K..16M" or "4K:16M", in steps of two ("4K..16M/4" for steps of four),
// or "4K,64K,1M".
type Range []Size

// UnmarshalText reads a list of sizes from a flag.
func (r *Range) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRange(string(text))
	return err
}

// UnmarshalJSON reads a list of numbers of bytes.
func (r *Range) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, (*[]Size)(r)) }

// ParseRange reads a list of sizes. A last step that overshoots is cut to the upper end.
func ParseRange(s string) (list Range, err error) {
	for part := range strings.SplitSeq(s, ",") {
		low, high, isRange := strings.Cut(strings.Replace(part, ":", "..", 1), "..")
		high, by, hasFactor := strings.Cut(high, "/")
		factor := uint64(2)
		if hasFactor {
			if factor, err = strconv.ParseUint(by, 10, 16); err != nil || factor < 2 {
				return nil, fmt.Errorf("sizes %q: the step behind the slash is a factor of at least 2, as "+
					"in 4K..16M/4", part)
			}
		}
		z, err := ParseSize(low)
		if err != nil {
			return nil, err
		}
		to := z
		if isRange {
			if to, err = ParseSize(high); err != nil {
				return nil, err
			}
			if z == 0 || z > to {
				return nil, fmt.Errorf("sizes %q: want a range from small to large, such as 4K..16M", part)
			}
		}
		for ; z < to; z *= Size(factor) {
			list = append(list, z)
			if z > math.MaxInt64/Size(factor) {
				break
			}
		}
		list = append(list, to)
	}
	return list, nil
}

// Rate is a speed of a link or of its traffic, in bytes a second; 0 is unlimited. It reads 25Gbit,
// 100Gb/s, 400G, 3GB/s.
type Rate uint64

// slowest is 1 Mbit/s in bytes: a slower link means that a unit was left out.
const slowest = 125_000

// fastest is beyond every link, and small enough to count with.
const fastest = 1e15

// rateForm is a number, a prefix, and bits or bytes.
var rateForm = regexp.MustCompile(`^\s*([0-9.]+)\s*([kKmMgGtT]?)(b|bits?|bps|B|Bps)?(?:/s)?\s*$`)

// UnmarshalText reads a rate from a flag. Small b, and no unit behind the prefix, mean bits;
// capital B means bytes.
func (r *Rate) UnmarshalText(text []byte) error {
	s := string(text)
	wrong := fmt.Errorf("speed %q: want bits a second such as 25Gbit, 100G or 400Mbit, or bytes such as "+
		"3GB/s", s)
	parts := rateForm.FindStringSubmatch(s)
	if parts == nil {
		return wrong
	}
	n, err := strconv.ParseFloat(parts[1], 64)
	if prefix := strings.ToUpper(parts[2]); prefix != "" {
		n *= math.Pow(1000, float64(strings.Index(" KMGT", prefix)))
	}
	if !strings.HasPrefix(parts[3], "B") {
		n /= 8
	}
	switch {
	case err != nil || n > fastest:
		return wrong
	case n != 0 && n < slowest:
		return fmt.Errorf("speed %q is %v: the slowest has 1 Mbit/s; give a unit, as in 10Gbit", s,
			Rate(n))
	}
	*r = Rate(n)
	return nil
}

// UnmarshalJSON reads a number of bytes a second.
func (r *Rate) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, (*uint64)(r)) }

// String writes the rate in bits a second: "25 Gbit/s".
func (r Rate) String() string {
	if r == 0 {
		return "unlimited"
	}
	n, prefix := float64(r)*8/1e3, 0
	for ; n >= 999.95 && prefix < 3; prefix++ { // which is written as 1000
		n /= 1e3
	}
	return fmt.Sprintf("%.4g %cbit/s", n, "kMGT"[prefix])
}

// Seconds is a length of time that reads 5s, 20ms, 1m30s, and a bare number as seconds.
type Seconds time.Duration

// UnmarshalText reads a length of time from a flag.
func (s *Seconds) UnmarshalText(text []byte) error {
	if seconds, err := strconv.ParseFloat(string(text), 64); err == nil && seconds >= 0 && seconds < 1e9 {
		*s = Seconds(seconds * float64(time.Second))
		return nil
	}
	d, err := time.ParseDuration(string(text))
	switch {
	case err != nil:
		return fmt.Errorf("time %q: want a number with a unit such as 20ms, 5us or 3s, or seconds", text)
	case d < 0:
		return fmt.Errorf("time %q: must not be negative", text)
	}
	*s = Seconds(d)
	return nil
}

// String writes it like a [time.Duration].
func (s Seconds) String() string { return time.Duration(s).String() }

// MarshalJSON writes seconds.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(s).Seconds()) }

// UnmarshalJSON reads what MarshalJSON writes.
func (s *Seconds) UnmarshalJSON(text []byte) error {
	var seconds float64
	if err := json.Unmarshal(text, &seconds); err != nil {
		return err
	}
	if math.Abs(seconds) > math.MaxInt64/2/float64(time.Second) {
		return fmt.Errorf("%g seconds: too long", seconds)
	}
	*s = Seconds(math.Round(seconds * float64(time.Second)))
	return nil
}
