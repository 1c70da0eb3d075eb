//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
	"ibverbx/verbs/verbstest"
)

// The conformance suite on real NICs. A flag names the NICs: tests send no traffic through others.
var (
	devicesFlag = flag.String("devices", "", "`filter` of the real NICs to test on, such as rxe0,rxe1; "+
		"the first two are connected over the wire")
	gidIndexFlag = flag.Int("gid-index", 1, "`index` in the GID tables of their ports")
	waitFlag     = flag.Duration("wait", 10*time.Second,
		"how long to wait for a completion; emulated machines need more")
	linkFlag = flag.String("link", "", "`command` that sets a link, for a device and \"up\" or "+
		"\"down\" as its arguments; empty leaves links alone")
)

// knownDifferences are subtests that some NIC cannot pass, by vendor and part id.
func knownDifferences(attr verbs.DeviceAttr) map[string]string {
	return nil
}

func TestConformance(t *testing.T) {
	if *devicesFlag == "" {
		t.Skip("no real NIC: name some with -args -devices rxe0,rxe1")
	}
	names := strings.Split(*devicesFlag, ",")
	t.Run("one NIC", func(t *testing.T) { conform(t, names[0]) })
	t.Run("two NICs", func(t *testing.T) {
		if len(names) < 2 {
			t.Skip("-devices names one NIC")
		}
		conform(t, strings.Join(names[:2], ","))
	})
}

// conform runs the suite on the NICs of a filter: the first against the last.
func conform(t *testing.T, filter string) {
	env := verbstest.Env{GIDIndex: *gidIndexFlag, Timeout: *waitFlag,
		Open: func(t *testing.T) (a, b verbs.Device) {
			devices := open(t, filter)
			if attr, err := devices[0].Query(); err != nil ||
				attr.Software != strings.HasPrefix(devices[0].Name(), "rxe") {
				t.Errorf("%s: software %v, %v", devices[0].Name(), attr.Software, err)
			}
			return devices[0], devices[len(devices)-1]
		}}
	if *linkFlag != "" {
		env.SetLink = func(t *testing.T, d verbs.Device, up bool) {
			to := map[bool]string{true: "up", false: "down"}[up]
			cmd := exec.Command(*linkFlag, d.Name(), to)
			cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v: %v", cmd, err)
			}
		}
	}
	attr, err := open(t, filter)[0].Query()
	if err != nil {
		t.Fatal(err)
	}
	env.Skip = knownDifferences(attr)
	verbstest.Run(t, env)
}

// open opens NICs, which have to be idle when the test ends.
func open(t *testing.T, filter string) []verbs.Device {
	t.Helper()
	p, err := rdmacore.Open(rdmacore.Config{Devices: filter})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	devices, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	return devices
}
