package vqp_test

import (
	"testing"

	"ibverbx"
)

// shape is how virtual queue pairs are made: the NICs of each end, the queue pairs on each NIC, and
// the scheme. Both ends are in this process.
type shape struct {
	name   string
	a, b   []int // numbers of the provider's NICs; rail i of a connects to rail i of b
	qps    int   // a NIC
	scheme ibverbx.Scheme
}

// The topologies. On the shared ones a rail connects a NIC to itself. On the others it connects two
// NICs.
var (
	oneShared  = []int{0}
	twoShared  = []int{0, 1}
	near, far  = []int{0}, []int{1}       // crossed: one NIC an end
	west, east = []int{0, 1}, []int{2, 3} // wire: two NICs an end
)

var shapes = []shape{
	{"single/shared", oneShared, oneShared, 1, ibverbx.DQPLB},
	{"single/crossed", near, far, 1, ibverbx.DQPLB},
	{"spray/shared/4qp", oneShared, oneShared, 4, ibverbx.Spray},
	{"spray/shared2/2x2qp", twoShared, twoShared, 2, ibverbx.Spray},
	{"spray/crossed/4qp", near, far, 4, ibverbx.Spray},
	{"spray/wire/2x2qp", west, east, 2, ibverbx.Spray},
	{"dqplb/shared/4qp", oneShared, oneShared, 4, ibverbx.DQPLB},
	{"dqplb/shared2/2x1qp", twoShared, twoShared, 1, ibverbx.DQPLB},
	{"dqplb/shared2/2x2qp", twoShared, twoShared, 2, ibverbx.DQPLB},
	{"dqplb/crossed/4qp", near, far, 4, ibverbx.DQPLB},
	{"dqplb/wire/2x2qp", west, east, 2, ibverbx.DQPLB},
}

// single says whether there is one queue pair, which is given all requests as they are.
func (s *shape) single() bool { return s.qps*len(s.a) == 1 }

// wired says whether every packet leaves its NIC, so that no packet passes while links are down.
func (s *shape) wired() bool { return s.a[0] != s.b[0] }

// nics is how many NICs the shape needs.
func (s *shape) nics() int { return max(s.a[len(s.a)-1], s.b[len(s.b)-1]) + 1 }

// config is cfg with the scheme and number of queue pairs of the shape.
func (s *shape) config(cfg ibverbx.Config) ibverbx.Config {
	cfg.Scheme, cfg.QPsPerDevice = s.scheme, s.qps
	return cfg
}

// fragment is the usual size of fragments, in bytes: small, so that there are many.
const fragment = 4096

// eachShape runs a test with two ends of every shape, connected with long timeouts.
func eachShape(t *testing.T, cfg ibverbx.Config, test func(t *testing.T, a, b *end)) {
	t.Helper()
	if cfg.FragmentSize == 0 {
		cfg.FragmentSize = fragment
	}
	for i := range shapes {
		s := &shapes[i]
		t.Run(s.name, func(t *testing.T) {
			a, b := newRig(t, s).connect(s.config(cfg))
			test(t, a, b)
		})
	}
}

// bothWays runs a test from a to b and from b to a.
func bothWays(a, b *end, test func(from, to *end)) {
	test(a, b)
	test(b, a)
}
