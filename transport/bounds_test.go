package transport

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
)

// noLimits is what NICs allow that allow everything.
func noLimits() *deviceLimits {
	most := limit{most: math.MaxInt, device: "soft0"}
	return &deviceLimits{most, most, most, most, most}
}

// Every field of the configuration takes its smallest and its largest value, and nothing beyond.
func TestBoundsOfTheConfiguration(t *testing.T) {
	const maxQPs = ibverbx.MaxRails
	for _, f := range []struct {
		name        string
		least, most int
		product     bool // with another field it is too much
		set         func(c *Config, v int)
	}{
		{"MaxEndpoints", 1, 1 << 20, false, func(c *Config, v int) { c.MaxEndpoints = v }},
		{"BufferSize", 256, 1 << 30, false, func(c *Config, v int) {
			c.BufferSize, c.BounceBuffers, c.AMBuffers = v, 1, 1
		}},
		{"BounceBuffers", 1, 1 << 20, false, func(c *Config, v int) { c.BounceBuffers = v }},
		{"BounceBuffers", 1, 16384, true, func(c *Config, v int) {
			c.BounceBuffers, c.BufferSize = v, 1<<20
		}},
		{"AMBuffers", 1, 4096, false, func(c *Config, v int) { c.AMBuffers = v }},
		// three for the transport's own messages, and two bounce buffers
		{"AMBuffers", 1, 1024 - 5, true, func(c *Config, v int) { c.AMBuffers, c.BufferSize = v, 1<<24 }},
		{"MaxOutstanding", 1, 1 << 16, false, func(c *Config, v int) { c.MaxOutstanding = v }},
		{"QP.MaxSGE", 2, 4096, false, func(c *Config, v int) { c.QP.MaxSGE = v }},
		{"QP.MaxMsgCntPerQP", 35, 1 << 20, false, func(c *Config, v int) { c.QP.MaxMsgCntPerQP = v }},
		{"QP.QPsPerDevice", 1, maxQPs, false, func(c *Config, v int) { c.QP.QPsPerDevice = v }},
	} {
		for v, ok := range map[int]bool{f.least: true, f.most: true, f.least - 1: false, f.most + 1: false,
			-1: false} {
			if v == 0 || v < 0 && (f.product || strings.HasPrefix(f.name, "QP.")) {
				continue // asks for the default, or another bound is met first
			}
			var c Config
			f.set(&c, v)
			c = c.withDefaults(noLimits())
			field, nearest := strings.TrimPrefix(f.name, "QP."), fmt.Sprint(min(max(v, f.least), f.most))
			if f.product {
				nearest = "more than 17179869184 bytes"
			}
			text, least := "", f.least
			if f.name == "MaxEndpoints" {
				least = 0 // as many as fit
			}
			if !f.product && field == f.name {
				text = fmt.Sprintf("transport: config: invalid argument: %s %d: must be %d to %d", field, v,
					least, f.most)
			}
			if err := c.validate(noLimits(), 1); (err == nil) != ok {
				t.Errorf("%s %d: %v", f.name, v, err)
			} else if err != nil && !strings.Contains(err.Error(), field) {
				t.Errorf("%s %d is not named: %v", f.name, v, err)
			} else if err != nil && !strings.Contains(err.Error(), nearest) {
				t.Errorf("%s %d: the error does not say %s: %v", f.name, v, nearest, err)
			} else if err != nil && text != "" && err.Error() != text {
				t.Errorf("%v, want %s", err, text)
			}
		}
	}
}

// A completion queue is taken up to its last entry, and not beyond.
func TestBoundsOfACompletionQueue(t *testing.T) {
	for _, qp := range []ibverbx.Config{
		{QPsPerDevice: 1}, {QPsPerDevice: 4}, {QPsPerDevice: 2, Scheme: ibverbx.Spray},
	} {
		base := Config{QP: qp, AMBuffers: 5, MaxOutstanding: 9}.withDefaults(noLimits())
		each := base.completions(1)
		for _, c := range []struct {
			endpoints, cqe, want int // endpoints 0: as many as fit; want 0: refused
		}{
			{0, each, 1}, {0, each - 1, 0}, {0, 2*each - 1, 1}, {0, 2 * each, 2}, {0, 128 * each, 128},
			{0, 1000 * each, 128}, {3, 3 * each, 3}, {3, 3*each - 1, 0}, {200, 1000 * each, 200},
		} {
			cfg := base
			cfg.MaxEndpoints = c.endpoints
			depth, err := cfg.fitEndpoints(limit{c.cqe, "soft0"}, 1)
			switch {
			case (err == nil) != (c.want != 0):
				t.Errorf("%d endpoints of %d completions in a queue of %d: %v", c.endpoints, each, c.cqe, err)
			case err == nil && (cfg.MaxEndpoints != c.want || depth != c.want*each):
				t.Errorf("%d endpoints in a queue of %d: %d of depth %d, want %d", c.endpoints, c.cqe,
					cfg.MaxEndpoints, depth, c.want)
			}
		}
	}
}

// What the configuration leaves out, on NICs that allow everything.
func TestDefaults(t *testing.T) {
	got := Config{}.withDefaults(noLimits())
	want := Config{BufferSize: 8192, BounceBuffers: 256, AMBuffers: 32, MaxOutstanding: 64,
		Spin: 20 * time.Microsecond, KeepAlive: time.Second}
	want.QP = ibverbx.Config{MaxMsgCntPerQP: 67, Credits: 67, MaxInline: 128, MaxSGE: 5, MaxRecvSGE: 1,
		QPsPerDevice: 4}
	want.QP.Conn.RNRRetry, want.QP.Conn.Access = 6, needs
	if got, want := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	// Where Idle moves the network, nobody is probed unless the configuration says so.
	idle := func() {}
	for _, c := range []struct {
		given Config
		want  time.Duration
	}{
		{Config{Idle: idle}, -1}, {Config{Idle: idle, KeepAlive: time.Hour}, time.Hour},
		{Config{KeepAlive: -5}, -5},
	} {
		if got := c.given.withDefaults(noLimits()).KeepAlive; got != c.want {
			t.Errorf("probes every %v, want %v", got, c.want)
		}
	}
}

// Of several NICs the one that allows least counts; one that does not say counts for nothing.
func TestTheNICThatAllowsLeastCounts(t *testing.T) {
	l := limit{most: unlimited}
	for _, c := range []struct {
		to     int
		device string
		most   int
		named  string
	}{
		{0, "soft0", unlimited, ""}, {unlimited, "soft1", unlimited, ""}, {50, "soft2", 50, "soft2"},
		{0, "soft3", 50, "soft2"}, {-1, "soft4", 50, "soft2"}, {70, "soft5", 50, "soft2"},
		{50, "soft6", 50, "soft2"}, {1, "soft7", 1, "soft7"},
	} {
		if l.lower(c.to, c.device); l.most != c.most || l.device != c.named {
			t.Errorf("after %s with %d: %d of %q, want %d of %q", c.device, c.to, l.most, l.device, c.most,
				c.named)
		}
	}
}

// The wire format, as two processes of different builds share it. A figure of this test may change
// only together with wireVersion, or peers of the builds before misread each other.
func TestWireFormat(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want int
	}{
		{"version", wireVersion, 2},
		{"header", wireHeader, 8},
		{"active message", int(wireAM), 1}, {"credits", int(wireCredits), 2}, {"goodbye", int(wireBye), 3},
		{"abort", int(wireAbort), 4},
		{"largest id", int(MaxAMID), 63},
		{"longest header of an active message", MaxHeader, 64},
		{"most buffers for active messages", MaxAMBuffers, 4096},
		{"receives for messages of the transport", controlSlots, 3},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, the wire format has %d", c.name, c.got, c.want)
		}
	}
	for _, c := range []struct {
		h    header
		want string
	}{
		{header{kind: wireAM, id: 0x3f, length: 0x40, credits: 0x0504}, "013f400004050000"},
		{header{kind: wireCredits, credits: 0xffff}, "02000000ffff0000"},
		{header{kind: wireBye, credits: 1}, "0300000001000000"},
		{header{kind: wireAbort}, "0400000000000000"},
	} {
		var b [wireHeader]byte
		c.h.put(b[:])
		if got := hex.EncodeToString(b[:]); got != c.want {
			t.Errorf("%+v: %s, the wire format has %s", c.h, got, c.want)
		}
		var back header
		if err := back.parse(b[:]); c.h.length == 0 && (err != nil || back != c.h) {
			t.Errorf("%s: read as %+v, %v", c.want, back, err)
		}
	}
}

// A card's JSON has the names that other builds read, and its set of 64 handlers is a string: JSON
// numbers do not hold it.
func TestNamesInACard(t *testing.T) {
	text, err := json.Marshal(Card{Handlers: 1<<63 | 1})
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	want := []string{"am_buffers", "buffer_size", "flush", "handlers", "qp", "version"}
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := string(fields["handlers"]); got != `"9223372036854775809"` {
		t.Errorf("handlers %s", got)
	}
}
