// Package vqp_test tests the promises of a virtual queue pair through the public API, on any
// provider of NICs: by default on software NICs in memory and on those of UDP sockets, and
// unchanged on real ones with the flag -provider.
package vqp_test

import (
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
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
	providerFlag = flag.String("provider", usualProviders(),
		"the NICs to test on, in turn: soft, roce, shm, rdmacore; or one kind at each "+
			"end: roce-rdmacore, rdmacore-roce")
	gidIndexFlag = flag.Int("gid-index", -1, "entry of the NICs' GID tables; -1 lets each connection choose")
	waitFlag     = flag.Duration("wait", 20*time.Second, "how long to wait for a completion")
	soakFlag     = flag.Int("soak", 0, "requests of TestSoak; 0 for a modest number")
	seedFlag     = flag.Uint64("seed", 0, "seed of TestSoak; 0 for a new one each time")
)

// usualProviders need nothing but the operating system. So does shm, which CI runs by itself.
func usualProviders() string {
	if runtime.GOOS == "linux" {
		return "soft,roce"
	}
	return "soft"
}

// provider is a kind of NICs, and what tests must know about it.
type provider struct {
	// open opens it, with so many NICs if they are software. Real ones are those of the machine.
	open func(devices int) (verbs.Provider, error)
	// strict allows only the status that the specification names. Real NICs may report others.
	strict bool
	// slow divides counts of requests and amounts of data.
	slow int
	// patient has long timeouts, for connections that must not fail. hasty has short ones, for
	// those that a test makes fail.
	patient, hasty ibverbx.ConnConfig
	// crossed: the NICs are of two kinds, in turn by host, so that a rail joins one of each. A
	// shape that joins a NIC to itself has no place there.
	crossed bool
	// setLink takes a NIC's link down or up, or skips the test when that cannot be done.
	setLink func(tb testing.TB, dev verbs.Device, up bool)
}

var providers = map[string]provider{
	"soft": {
		open: func(devices int) (verbs.Provider, error) {
			return soft.New(soft.Config{Devices: devices})
		},
		strict: true,
		slow:   1,
		// a millisecond to answer, one retry
		hasty: ibverbx.ConnConfig{Timeout: 8, RetryCount: 1, RNRRetry: 2},
		setLink: func(_ testing.TB, dev verbs.Device, up bool) {
			dev.(*soft.Device).SetLink(up)
		},
	},
}

// chosen is the provider that the flags name.
func chosen(tb testing.TB) provider {
	tb.Helper()
	p, ok := providers[*providerFlag]
	if !ok {
		tb.Fatalf("-provider %q: have %v", *providerFlag, slices.Sorted(maps.Keys(providers)))
	}
	return p
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

// scaled is a number of requests or bytes, reduced for a slow provider.
func (p *provider) scaled(n int) int { return max(1, n/p.slow) }

// NICs of UDP sockets, on loopback addresses of one process. A peer answers when it gets a
// processor, so even a hasty connection repeats a request for almost a second: a process that was
// not run in the meantime takes one of the timeouts, and not all.
var _ = offer("roce", provider{
	open: func(devices int) (verbs.Provider, error) {
		cfg := roce.Config{}
		for i := range devices {
			cfg.Addresses = append(cfg.Addresses, netip.MustParseAddr(fmt.Sprintf("127.0.0.%d", i+1)))
		}
		p, err := roce.Open(cfg)
		if err != nil {
			return nil, err
		}
		return p, nil
	},
	strict: true,
	slow:   4,
	hasty:  ibverbx.ConnConfig{Timeout: 15, RetryCount: 6, RNRRetry: 2}, // 7 times 134 ms
	setLink: func(_ testing.TB, dev verbs.Device, up bool) {
		dev.(*roce.Device).SetLink(up)
	},
})

// NICs of shared memory, which one process maps twice. A peer answers when it gets a processor, as
// over sockets.
var _ = offer("shm", provider{
	open: func(devices int) (verbs.Provider, error) {
		p, err := shm.Open(shm.Config{Devices: devices})
		if err != nil {
			return nil, err
		}
		return p, nil
	},
	strict: true,
	slow:   8,
	hasty:  ibverbx.ConnConfig{Timeout: 15, RetryCount: 6, RNRRetry: 2}, // 7 times 134 ms
	setLink: func(_ testing.TB, dev verbs.Device, up bool) {
		dev.(*shm.Device).SetLink(up)
	},
})

// Flags for real NICs.
var (
	devicesFlag = flag.String("devices", "", "which of the real NICs, for example rxe0,rxe1; empty for all")
	linkFlag    = flag.String("link", "", "`command` that sets a link, for a device and \"up\" or \"down\" "+
		"as its arguments; empty leaves links alone")
)

// Real NICs may be rdma_rxe on an emulated machine, a hundred times slower than hardware. There a
// live peer may take most of a second to answer.
var (
	patientNIC = ibverbx.ConnConfig{Timeout: 18} // 1.07 s to answer
	hastyNIC   = ibverbx.ConnConfig{Timeout: 16, RetryCount: 2, RNRRetry: 2}
)

var _ = offer("rdmacore", provider{
	open: func(int) (verbs.Provider, error) {
		p, err := rdmacore.Open(rdmacore.Config{Devices: *devicesFlag})
		if err != nil {
			return nil, err
		}
		return p, nil
	},
	slow:    4,
	patient: patientNIC,
	hasty:   hastyNIC,
	setLink: setLinkByCommand,
})

// offer adds a provider to the table.
func offer(name string, p provider) string {
	providers[name] = p
	return name
}

// setLinkByCommand sets the link of a NIC with the command that a flag gives.
func setLinkByCommand(tb testing.TB, dev verbs.Device, up bool) {
	tb.Helper()
	if *linkFlag == "" {
		tb.Skip("-link says how to take a link down")
	}
	to := map[bool]string{true: "up", false: "down"}[up]
	if out, err := exec.Command(*linkFlag, dev.Name(), to).CombinedOutput(); err != nil {
		tb.Fatalf("%s %s %s: %v\n%s", *linkFlag, dev.Name(), to, err, out)
	}
}
