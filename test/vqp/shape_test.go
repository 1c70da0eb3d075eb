package vqp_test

import (
	"errors"
	"flag"
	"net/netip"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
	"ibverbx/verbs/roce"
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

var localFlag = flag.String("local", "", "local `addresses` that become NICs of roce, for -provider "+
	"roce-rdmacore "+
	"and rdmacore-roce: each in turn reaches one of -devices")

// NICs of UDP sockets at one end and the kernel's at the other. Their links stay up.
var (
	_ = offer("roce-rdmacore", crossedProvider(false))
	_ = offer("rdmacore-roce", crossedProvider(true))
)

// crossedProvider has roce at the first end, or at the second.
func crossedProvider(second bool) provider {
	return provider{
		open:    func(devices int) (verbs.Provider, error) { return openCrossed(devices, second) },
		crossed: true,
		slow:    4,
		patient: patientNIC,
		hasty:   hastyNIC,
		setLink: func(tb testing.TB, _ verbs.Device, _ bool) {
			tb.Helper()
			tb.Skip("links of two kinds of NICs")
		},
	}
}

// crossed is two providers as one. The first half of its devices is of the first.
type crossed struct {
	first, second verbs.Provider
	devices       []verbs.Device
}

func openCrossed(devices int, second bool) (verbs.Provider, error) {
	if *devicesFlag == "" || *localFlag == "" {
		return nil, errors.New("-devices and -local name the NICs of both kinds")
	}
	cfg := roce.Config{}
	for _, s := range strings.Split(*localFlag, ",") {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			return nil, err
		}
		cfg.Addresses = append(cfg.Addresses, addr)
	}
	ours, err := roce.Open(cfg)
	if err != nil {
		return nil, err
	}
	foreign, err := rdmacore.Open(rdmacore.Config{Devices: *devicesFlag})
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	c := &crossed{first: ours, second: foreign}
	if second {
		c.first, c.second = foreign, ours
	}
	for _, p := range []verbs.Provider{c.first, c.second} {
		list, err := p.Devices()
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.devices = append(c.devices, list[:min(len(list), (devices+1)/2)]...)
	}
	return c, nil
}

func (c *crossed) Name() string { return c.first.Name() + "-" + c.second.Name() }

func (c *crossed) Devices() ([]verbs.Device, error) { return c.devices, nil }

func (c *crossed) Close() error { return errors.Join(c.first.Close(), c.second.Close()) }
