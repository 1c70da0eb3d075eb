package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes that reads 4096, 64K, 1M, 1MiB, 2G.
type Size uint64

// ParseSize reads a size.
func ParseSize(s string) (Size, error) {
	digits, unit := split(s)
	shift := 0
	switch strings.ToLower(unit) {
	case "", "b":
	case "k", "ki", "kib":
		shift = 10
	case "m", "mi", "mib":
		shift = 20
	case "g", "gi", "gib":
		shift = 30
	case "kb", "mb", "gb":
		return 0, fmt.Errorf("size %q: %s may mean a power of ten or of two: write %s%c (1024-based) or "+
			"the number of bytes", s, unit, digits, unit[0]&^0x20)
	default:
		return 0, fmt.Errorf("size %q: want a number with K, M or G, such as 4096, 64K, 1M or 1MiB", s)
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("size %q: want a whole number with K, M or G, such as 4096, 64K, 1M or 1MiB", s)
	}
	if n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("size %q: too large", s)
	}
	return Size(n << shift), nil
}

// split parts a number from its unit.
func split(s string) (number, unit string) {
	s = strings.TrimSpace(s)
	i := strings.LastIndexAny(s, "0123456789.") + 1
	return s[:i], strings.TrimSpace(s[i:])
}

// UnmarshalText reads a size from a flag.
func (z *Size) UnmarshalText(text []byte) (err error) {
	*z, err = ParseSize(string(text))
	return err
}

// UnmarshalJSON reads a number of bytes, as which JSON has a size.
func (z *Size) UnmarshalJSON(text []byte) error {
	n, err := strconv.ParseUint(string(text), 10, 63)
	if err != nil {
		return fmt.Errorf("size %.20q: want a whole number of bytes", text)
	}
	*z = Size(n)
	return nil
}

// String writes the size with the largest unit that leaves a whole number: "64 KiB", "100 B".
func (z Size) String() string {
	switch {
	case z != 0 && z&(1<<30-1) == 0:
		return strconv.FormatUint(uint64(z>>30), 10) + " GiB"
	case z != 0 && z&(1<<20-1) == 0:
		return strconv.FormatUint(uint64(z>>20), 10) + " MiB"
	case z != 0 && z&(1<<10-1) == 0:
		return strconv.FormatUint(uint64(z>>10), 10) + " KiB"
	}
	return strconv.FormatUint(uint64(z), 10) + " B"
}

// Range is a list of sizes: "4K..16M", in steps of two ("4K..16M/4" for steps of four),
// or "4K,64K,1M".
type Range []Size

// UnmarshalText reads a list of sizes from a flag.
func (r *Range) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRange(string(text))
	return err
}

// ParseRange reads a list of sizes. A last step that overshoots is cut to the upper end.
func ParseRange(s string) (Range, error) {
	var list Range
	for _, part := range strings.Split(s, ",") {
		low, high, isRange := strings.Cut(part, "..")
		if !isRange {
			z, err := ParseSize(part)
			if err != nil {
				return nil, err
			}
			list = append(list, z)
			continue
		}
		steps, err := parseSteps(part, low, high)
		if err != nil {
			return nil, err
		}
		list = append(list, steps...)
	}
	return list, nil
}

func parseSteps(part, low, high string) (Range, error) {
	factor := uint64(2)
	high, by, hasFactor := strings.Cut(high, "/")
	if hasFactor {
		f, err := strconv.ParseUint(by, 10, 16)
		if err != nil || f < 2 {
			return nil, fmt.Errorf("sizes %q: the step behind the slash is a factor of at least 2, as in "+
				"4K..16M/4", part)
		}
		factor = f
	}
	from, err := ParseSize(low)
	if err != nil {
		return nil, err
	}
	to, err := ParseSize(high)
	if err != nil {
		return nil, err
	}
	if from == 0 || from > to {
		return nil, fmt.Errorf("sizes %q: want a range from small to large, such as 4K..16M", part)
	}
	var list Range
	for z := from; z < to; z *= Size(factor) {
		list = append(list, z)
		if z > math.MaxInt64/Size(factor) {
			break
		}
	}
	return append(list, to), nil
}
