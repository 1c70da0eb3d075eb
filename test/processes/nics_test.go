package processes_test

import (
	"flag"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/shm"
	"ibverbx/verbs/soft"
)

var (
	providerFlag = flag.String("provider", "soft,roce",
		"the NICs to test on: soft, roce, shm, rdmacore")
	devicesFlag  = flag.String("devices", "", "which of the real NICs, for example rxe0,rxe1; empty for all")
	gidIndexFlag = flag.Int("gid-index", -1, "entry of the NICs' GID tables; -1 lets each connection choose")
	limitFlag    = flag.Duration("limit", time.Minute, "how long a team may take")
)

// nicsOf returns the NICs of a member. Those of rdmacore are shared, and those of roce at the same
// addresses, each member's on ports of its own: neighbours begin at different ones.
func nicsOf(all []verbs.Device, p *task) []verbs.Device {
	nics := make([]verbs.Device, p.NICs)
	for i := range nics {
		if p.Provider == "soft" {
			nics[i] = all[p.Rank*p.NICs+i] // not shared: they are killed with the member
		} else {
			nics[i] = all[(p.Rank+i)%len(all)]
		}
	}
	return nics
}

// open opens the NICs of a member that is a process: the host's, or sockets on addresses of the
// loopback interface.
func (p *task) open() (verbs.Provider, []verbs.Device, error) {
	if p.Provider == "roce" {
		var cfg roce.Config
		for i := range p.NICs {
			cfg.Addresses = append(cfg.Addresses, netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i)}))
		}
		return opened(roce.Open(cfg))
	}
	if p.Provider == "shm" {
		return opened(shm.Open(shm.Config{Devices: p.NICs}))
	}
	return opened(rdmacore.Open(rdmacore.Config{Devices: p.Devices}))
}

// opened lists the NICs of a provider.
func opened[P verbs.Provider](p P, err error) (verbs.Provider, []verbs.Device, error) {
	if err != nil {
		return nil, nil, err
	}
	all, err := p.Devices()
	if err != nil {
		return nil, nil, fmt.Errorf("devices: %w", err)
	}
	return p, all, nil
}

// openFabric makes NICs for all members of a team, and checks that nothing is left open on them
// when the test ends.
func openFabric(tb testing.TB, nics int) *soft.Fabric {
	tb.Helper()
	f, err := soft.New(soft.Config{Devices: nics})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := f.Close(); err != nil && !tb.Failed() {
			tb.Errorf("something is left open: %v", err)
		}
	})
	return f
}

// conn is how a member connects: with long timeouts, or with short ones if a member is going to
// die. Real NICs may be rdma_rxe on an emulated machine, where a live peer can take most of a
// second to answer; so can a process, whose NICs are those of roce, on a busy machine. NICs of
// soft time out on a dead peer alone.
func (p *task) conn() ibverbx.ConnConfig {
	c := ibverbx.ConnConfig{GIDIndex: p.GIDIndex}
	switch {
	case p.Provider == "soft" && p.Hasty:
		c.Timeout, c.RetryCount = 8, 2 // a millisecond, three times
	case p.Provider == "soft":
	case (p.Provider == "roce" || p.Provider == "shm") && p.Hasty:
		c.Timeout, c.RetryCount = 16, 7 // 268 ms, eight times
	case p.Provider == "roce" || p.Provider == "shm":
		c.Timeout, c.RetryCount = 18, 7 // 1.07 s, eight times
	case p.Hasty:
		c.Timeout, c.RetryCount = 16, 4 // 268 ms, five times
	default:
		c.Timeout = 18 // 1.07 s
	}
	return c
}

// gidIndex is what the flag means in a ConnConfig, where 0 chooses and -1 is entry 0.
func gidIndex() int {
	switch *gidIndexFlag {
	case -1:
		return 0
	case 0:
		return -1
	}
	return *gidIndexFlag
}
