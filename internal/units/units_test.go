package units

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want Size
		err  string
	}{
		{in: "4096", want: 4096},
		{in: "64K", want: 64 << 10},
		{in: "64k", want: 64 << 10},
		{in: "1M", want: 1 << 20},
		{in: "1MiB", want: 1 << 20},
		{in: "2 GiB", want: 2 << 30},
		{in: "8B", want: 8},
		{in: "0", want: 0},
		{in: "64KB", err: "write 64K"},
		{in: "1.5M", err: "whole number"},
		{in: "", err: "want a whole number"},
		{in: "M", err: "want a"},
		{in: "-1", err: "want a"},
		{in: "12X", err: "want a whole number"},
		{in: "99999999999G", err: "too large"},
	} {
		got, err := ParseSize(tt.in)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("ParseSize(%q): error %v, want one with %q", tt.in, err, tt.err)
			}
			continue
		}
		if err != nil || got != tt.want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", tt.in, got, err, tt.want)
		}
	}
}

func TestParseRange(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want Range
		err  string
	}{
		{in: "4K..16K", want: Range{4096, 8192, 16384}},
		{in: "4K..64K/4", want: Range{4096, 16384, 65536}},
		{in: "1K..5K", want: Range{1024, 2048, 4096, 5120}},
		{in: "8,4K..8K", want: Range{8, 4096, 8192}},
		{in: "4K..4K", want: Range{4096}},
		{in: "16K..4K", err: "small to large"},
		{in: "0..4K", err: "small to large"},
		{in: "4K..8K/1", err: "factor of at least 2"},
		{in: "4K..", err: "want a"},
	} {
		got, err := ParseRange(tt.in)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("ParseRange(%q): error %v, want one with %q", tt.in, err, tt.err)
			}
			continue
		}
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("ParseRange(%q) = %v, %v, want %v", tt.in, got, err, tt.want)
		}
	}
}

func TestParseRate(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want Rate
		str  string
	}{
		{"25Gbit", 3_125_000_000, "25 Gbit/s"},
		{"999.94Gbit", 124_992_500_000, "999.9 Gbit/s"},
		{"999.96Gbit", 124_995_000_000, "1 Tbit/s"},
		{"100Gb/s", 12_500_000_000, "100 Gbit/s"},
		{"400G", 50_000_000_000, "400 Gbit/s"},
		{"2.5Gbps", 312_500_000, "2.5 Gbit/s"},
		{"3GB/s", 3_000_000_000, "24 Gbit/s"},
		{"100Mbit", 12_500_000, "100 Mbit/s"},
		{"0", 0, "unlimited"},
	} {
		got, err := parseRate(tt.in)
		if err != nil || got != tt.want || got.String() != tt.str {
			t.Errorf("rate %q = %d (%v), %v, want %d (%s)", tt.in, got, got, err, tt.want, tt.str)
		}
	}
	for _, in := range []string{"", "fast", "25Gfoo", "-1G", "1e99G"} {
		if got, err := parseRate(in); err == nil {
			t.Errorf("rate %q = %d, want an error", in, got)
		}
	}
}

func TestSizeString(t *testing.T) {
	for in, want := range map[Size]string{0: "0 B", 100: "100 B", 4096: "4 KiB", 1536: "1536 B",
		1 << 20: "1 MiB", 3 << 30: "3 GiB"} {
		if got := in.String(); got != want {
			t.Errorf("Size(%d) = %q, want %q", uint64(in), got, want)
		}
	}
}

func TestParseSeconds(t *testing.T) {
	for in, want := range map[string]time.Duration{"5": 5 * time.Second, "0.5": time.Second / 2,
		"20ms": 20 * time.Millisecond, "1m30s": 90 * time.Second} {
		if got, err := parseSeconds(in); err != nil || time.Duration(got) != want {
			t.Errorf("seconds %q = %v, %v, want %v", in, time.Duration(got), err, want)
		}
	}
	for _, in := range []string{"", "soon", "-1", "-5s", "5 parsecs"} {
		if got, err := parseSeconds(in); err == nil {
			t.Errorf("seconds %q = %v, want an error", in, time.Duration(got))
		}
	}
}

func parseRate(text string) (r Rate, err error) {
	err = r.UnmarshalText([]byte(text))
	return r, err
}

func parseSeconds(text string) (s Seconds, err error) {
	err = s.UnmarshalText([]byte(text))
	return s, err
}
