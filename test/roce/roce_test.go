package roce

import (
	"flag"
	"net/netip"
	"strings"
	"testing"
	"time"

	"ibverbx/test/internal/hunt"
	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/verbstest"
)

// Tests of an end in user space against a NIC of the kernel. The two belong to one process: the
// kernel's NIC is found wherever it is, the sockets are those of the process's network namespace.
var (
	foreignFlag = flag.String("foreign", "", "`filter` of the NICs that libibverbs knows, such as rxe2, to "+
		"connect to "+
		"those of -local")
	localFlag = flag.String("local", "", "local `addresses` that become NICs in user space, separated by "+
		"commas")
	gsoFlag  = flag.Bool("gso", false, "send bursts over IPv4 too")
	waitFlag = flag.Duration("wait", 30*time.Second, "how long to wait for a completion")
)

// sides is who is the first device of a test, and who the second.
var sides = map[string]func(ours, foreign verbs.Device) (a, b verbs.Device){
	"ours to foreign": func(ours, foreign verbs.Device) (a, b verbs.Device) { return ours, foreign },
	"foreign to ours": func(ours, foreign verbs.Device) (a, b verbs.Device) { return foreign, ours },
}

// eachSide runs a test with each of the two as the first device, at each local address.
func eachSide(t *testing.T, test func(t *testing.T, env verbstest.Env)) {
	t.Helper()
	if *foreignFlag == "" || *localFlag == "" {
		t.Skip("no foreign NIC: name one with -foreign, and with -local an address from which it is reached")
	}
	for _, local := range strings.Split(*localFlag, ",") {
		t.Run(local, func(t *testing.T) {
			for name, order := range sides {
				t.Run(name, func(t *testing.T) {
					test(t, verbstest.Env{Timeout: *waitFlag, GIDIndexOf: gidIndexOf,
						Open: func(t *testing.T) (a, b verbs.Device) {
							return order(openOurs(t, local), openForeign(t))
						}})
				})
			}
		})
	}
}

// openOurs makes a NIC in user space, which has to be idle when the test ends.
func openOurs(t *testing.T, local string) *roce.Device {
	t.Helper()
	addr, err := netip.ParseAddr(local)
	check(t, err)
	p, err := roce.Open(roce.Config{Addresses: []netip.Addr{addr}, ForeignGSO: *gsoFlag})
	check(t, err)
	t.Cleanup(func() { check(t, p.Close()) })
	return p.Device(0)
}

// openForeign opens the kernel's NIC, which has to be idle when the test ends.
func openForeign(t *testing.T) verbs.Device {
	t.Helper()
	p, err := rdmacore.Open(rdmacore.Config{Devices: *foreignFlag})
	check(t, err)
	t.Cleanup(func() { check(t, p.Close()) })
	devices, err := p.Devices()
	check(t, err)
	return devices[0]
}

// gidIndexOf is the first entry of a device's GID table with an address of the family of -local
// that other hosts can reach.
func gidIndexOf(d verbs.Device) int {
	is4 := netip.MustParseAddr(strings.Split(*localFlag, ",")[0]).Is4()
	port, err := d.QueryPort(1)
	if err != nil {
		return 0
	}
	for i := range port.GIDTableLen {
		g, err := d.QueryGID(1, i)
		if err == nil && g.Type == verbs.GIDTypeRoCEv2 && !g.GID.IsZero() && !g.GID.IsLinkLocal() &&
			g.GID.IsIPv4() == is4 {
			return i
		}
	}
	return 0
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// notOfPairs are subtests that two connected queue pairs are not needed for. Each kind of device
// passes them in the tests of its own provider.
var notOfPairs = map[string]string{
	"device/identity":    "the devices are those of two providers, which count each from 0",
	"states/transitions": "of one queue pair",
}

// The conformance suite with one end of each kind, in both roles.
func TestForeignConformance(t *testing.T) {
	eachSide(t, func(t *testing.T, env verbstest.Env) {
		env.Skip = notOfPairs
		verbstest.Run(t, env)
	})
}

var flags = hunt.NewFlags()

// engine is the game of the engine, which its own package plays.
var engine = hunt.Game{Test: "TestSimulation", Dir: "./verbs/roce/internal/rc"}

// nics is the game of the NICs: virtual queue pairs on a network in virtual time.
var nics = hunt.Game{Test: "TestSimulation", Dir: "./verbs/roce"}

// TestMutations checks that each bug has its place. With -mutate it plants them one at a time and
// demands that the simulation finds each.
func TestMutations(t *testing.T) {
	flags.Hunt(t, &engine, hunt.Bugs{Package: "verbs/roce/internal/rc", File: "testdata/rc.bugs"}, 8000)
}

// TestNICMutations does the same with bugs of the NICs.
func TestNICMutations(t *testing.T) {
	flags.Hunt(t, &nics, hunt.Bugs{Package: "verbs/roce", File: "testdata/roce.bugs"}, 2000)
}

// TestTimerMutations does the same with bugs of the timers that NICs of software share.
func TestTimerMutations(t *testing.T) {
	flags.Hunt(t, &nics, hunt.Bugs{Package: "verbs/internal/nic", File: "testdata/timers.bugs"}, 2000)
}
