package units

import (
	"fmt"
	"strconv"
	"time"
)

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
