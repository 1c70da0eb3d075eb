package units

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Rate is the speed of a link, or of what is sent to it, in bytes a second; 0 is unlimited. It
// reads 25Gbit, 100Gb/s, 400G, 3GB/s.
type Rate uint64

// slowest is 1 Mbit/s in bytes: a slower link means that a unit was left out.
const slowest = 125_000

// fastest is beyond every link, and small enough to count with.
const fastest = 1e15

// ParseRate reads a rate. Small b, and no unit behind the prefix, mean bits; capital B means bytes.
func ParseRate(s string) (Rate, error) {
	wrong := fmt.Errorf("speed %q: want bits a second such as 25Gbit, 100G or 400Mbit, or bytes such as "+
		"3GB/s", s)
	number, unit := split(s)
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || n < 0 {
		return 0, wrong
	}
	scale := 1.0
	if unit != "" {
		switch unit[0] {
		case 'k', 'K':
			scale = 1e3
		case 'm', 'M':
			scale = 1e6
		case 'g', 'G':
			scale = 1e9
		case 't', 'T':
			scale = 1e12
		}
		if scale != 1 {
			unit = unit[1:]
		}
	}
	switch strings.TrimSuffix(unit, "/s") {
	case "", "b", "bit", "bps", "bits":
		n /= 8
	case "B", "Bps":
	default:
		return 0, wrong
	}
	bytes := n * scale
	if bytes > fastest {
		return 0, wrong
	}
	if bytes != 0 && bytes < slowest {
		return 0, fmt.Errorf("speed %q is %v: the slowest has 1 Mbit/s; give a "+
			"unit, as in 10Gbit", s, Rate(bytes))
	}
	return Rate(bytes), nil
}

// UnmarshalText reads a rate from a flag.
func (r *Rate) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRate(string(text))
	return err
}

// UnmarshalJSON reads a number of bytes a second, as which JSON has a rate, or what a flag reads.
func (r *Rate) UnmarshalJSON(text []byte) (err error) {
	if n, wrong := strconv.ParseUint(string(text), 10, 64); wrong == nil && n <= fastest &&
		(n == 0 || n >= slowest) {
		*r = Rate(n)
		return nil
	}
	var s string
	if err = json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("speed %.20q: want a number of bytes a second", text)
	}
	return r.UnmarshalText([]byte(s))
}

// String writes the rate in bits a second: "25 Gbit/s".
func (r Rate) String() string {
	bits := float64(r) * 8
	switch {
	case r == 0:
		return "unlimited"
	case bits >= 1e9:
		return strconv.FormatFloat(bits/1e9, 'g', 4, 64) + " Gbit/s"
	case bits >= 1e6:
		return strconv.FormatFloat(bits/1e6, 'g', 4, 64) + " Mbit/s"
	}
	return strconv.FormatFloat(bits/1e3, 'g', 4, 64) + " kbit/s"
}

// Span is a length of time that reads 5s, 20ms, 1m30s, and a bare number as seconds.
type Span time.Duration

// ParseSpan reads a length of time.
func ParseSpan(s string) (Span, error) {
	if seconds, err := strconv.ParseFloat(s, 64); err == nil && seconds >= 0 && seconds < 1e9 {
		return Span(seconds * float64(time.Second)), nil
	}
	d, err := time.ParseDuration(s)
	if err == nil && d < 0 {
		return 0, fmt.Errorf("time %q: must not be negative", s)
	}
	if err != nil {
		return 0, fmt.Errorf("time %q: want a number with a unit such as 20ms, 5us or 3s, or seconds", s)
	}
	return Span(d), nil
}

// UnmarshalText reads a length of time from a flag.
func (s *Span) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSpan(string(text))
	return err
}
