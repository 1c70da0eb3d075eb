package verbstest

import (
	"strings"
	"testing"
	"time"

	"ibverbx/verbs"
)

// Env is the environment of the suite.
type Env struct {
	// Open returns the two devices to connect; they may be the same one. It is called once for each
	// top-level subtest and registers its own cleanup with t, which runs when everything made from
	// the devices is closed.
	Open func(t *testing.T) (a, b verbs.Device)
	// Port is the port used on both devices; 0 means 1.
	Port int
	// GIDIndex is the entry of the GID tables to use.
	GIDIndex int
	// GIDIndexOf returns the entry for a device, if the tables of the two differ, as with two
	// providers; nil means GIDIndex on both.
	GIDIndexOf func(d verbs.Device) int
	// Timeout is how long to wait for a completion; 0 means 10 s. Emulated machines need more.
	Timeout time.Duration
	// Skip names subtests that the provider cannot pass, with the reason: "ops" or
	// "events/solicited".
	Skip map[string]string
	// Strict requires the one outcome that the specification and the contract name, even if real
	// NICs may have several. It is for software providers.
	Strict bool
	// Idle is called repeatedly while the suite waits. A stepped provider makes its steps in it.
	Idle func()
	// Allocate makes the memory of the tests with verbs.MemoryAllocator, which the devices' domains
	// must implement.
	Allocate bool
	// SetLink takes the link of the device's port down, or up again. It need not wait for the
	// device to notice. Without it the subtests that need a link to fail are skipped.
	SetLink func(t *testing.T, d verbs.Device, up bool)
}

// usualTimeout is the default of Env.Timeout.
const usualTimeout = 10 * time.Second

func (e *Env) withDefaults() Env {
	d := *e
	if d.Port == 0 {
		d.Port = 1
	}
	if d.Timeout == 0 {
		d.Timeout = usualTimeout
	}
	return d
}

// gidIndex returns which entry of a device's GID table to use.
func (e *Env) gidIndex(d verbs.Device) int {
	if e.GIDIndexOf != nil {
		return e.GIDIndexOf(d)
	}
	return e.GIDIndex
}

// Run checks a provider against the contract of package verbs.
func Run(t *testing.T, env Env) {
	for _, group := range []struct {
		name string
		fn   func(*testing.T, *suite)
	}{
		{"device", testDevice},
		{"objects", testObjects},
		{"states", testStates},
		{"ops", testOps},
		{"atomics", testAtomics},
		{"sgl", testSGL},
		{"inline", testInline},
		{"signaling", testSignaling},
		{"ordering", testOrdering},
		{"protection", testProtection},
		{"errors", testErrors},
		{"limits", testLimits},
		{"flush", testFlush},
		{"events", testEvents},
		{"async", testAsync},
		{"concurrency", testConcurrency},
		{"allocs", testAllocs},
	} {
		s := &suite{env: env.withDefaults(), root: t.Name() + "/"}
		s.run(t, group.name, func(t *testing.T) {
			s.a, s.b = env.Open(t)
			group.fn(t, s)
		})
	}
}

// suite is one top-level subtest: the environment and its two devices.
type suite struct {
	env  Env
	root string // the name of the test that called Run, with a slash
	a, b verbs.Device
}

// run runs a subtest unless the environment says to skip it.
func (s *suite) run(t *testing.T, name string, fn func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		if reason, ok := s.env.Skip[strings.TrimPrefix(t.Name(), s.root)]; ok {
			t.Skip(reason)
		}
		fn(t)
	})
}

// pair connects two new queue pairs on new nodes.
func (s *suite) pair(t *testing.T, cfg PairConfig) *Pair {
	t.Helper()
	return NewPair(NewNode(t, s.env, s.a), NewNode(t, s.env, s.b), cfg)
}

// node makes a node on the first device.
func (s *suite) node(t *testing.T) *Node {
	t.Helper()
	return NewNode(t, s.env, s.a)
}

// allowed returns the statuses with which a request may end: that of the specification, and unless
// the environment is strict those that some NICs report instead.
func (s *suite) allowed(spec verbs.Status, others ...verbs.Status) []verbs.Status {
	if s.env.Strict {
		return []verbs.Status{spec}
	}
	return append([]verbs.Status{spec}, others...)
}
