package soft

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"ibverbx/verbs"
)

// gids are the GIDs of all NICs of a fabric, and their node GUIDs.
func identities(t *testing.T, f *Fabric) (all []string) {
	t.Helper()
	for _, d := range f.devices {
		attr, err := d.Query()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%016x", attr.NodeGUID))
		for i := range d.gids {
			entry, err := d.QueryGID(1, i)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, entry.GID.String())
		}
	}
	return all
}

// No two NICs have a GID or GUID in common, of whatever fabrics they are: stepped ones of one seed
// too. Each has one GID over IPv4, which comes first, and a link-local one.
func TestFabricsHaveIdentities(t *testing.T) {
	seen := map[string]bool{}
	for i := range 100 {
		f, err := New(Config{Devices: verbs.MaxDevices, Stepped: i%2 == 0, Seed: 7})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range identities(t, f) {
			if seen[id] {
				t.Fatalf("fabric %d: %s is there already", i, id)
			}
			seen[id] = true
		}
		if g := f.devices[63].gids; !g[0].IsIPv4() || g[0].IsLinkLocal() || !g[1].IsLinkLocal() {
			t.Errorf("GIDs %v", g)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What identities become: the GID over IPv4 stays in 10.0.0.0/8, and loses what there is no room
// for.
func TestWhatAnIdentityBecomes(t *testing.T) {
	for _, c := range []struct {
		identity    uint32
		nic         int
		ipv4, local string
	}{
		{0, 0, "10.0.0.1", "fe80::200:ff:fe00:1"},
		{1, 63, "10.0.0.192", "fe80::200:ff:fe00:140"},
		{1<<17 - 1, 0, "10.255.255.129", "fe80::200:1ff:feff:ff01"},
		{1 << 17, 0, "10.0.0.1", "fe80::200:2ff:fe00:1"},
		{0x12345678, 1, "10.43.60.2", "fe80::212:34ff:fe56:7802"},
		{math.MaxUint32, 63, "10.255.255.192", "fe80::2ff:ffff:feff:ff40"},
	} {
		g := gids(c.identity, c.nic)
		ipv4, local := netip.AddrFrom16(g[0]).Unmap().String(), netip.AddrFrom16(g[1]).String()
		if ipv4 != c.ipv4 || local != c.local {
			t.Errorf("identity %#x, NIC %d: %s and %s, want %s and %s", c.identity, c.nic, ipv4, local,
				c.ipv4, c.local)
		}
	}
}

// Two processes draw different identities.
func TestProcessesHaveIdentities(t *testing.T) {
	const inner = "IBVERBX_SOFT_IDENTITY"
	if os.Getenv(inner) != "" {
		f, err := New(Config{Stepped: true, Seed: 7})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("identity", identities(t, f)[0])
		return
	}
	run := func() string {
		cmd := exec.Command(os.Args[0], "-test.run=^TestProcessesHaveIdentities$")
		cmd.Env = append(os.Environ(), inner+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		_, id, found := strings.Cut(string(out), "identity ")
		if !found {
			t.Fatalf("%s", out)
		}
		return id[:16]
	}
	if a, b := run(), run(); a == b {
		t.Errorf("both are %s", a)
	}
}

func TestCheckPath(t *testing.T) {
	var fabrics [2]*Fabric
	for i := range fabrics {
		var err error
		if fabrics[i], err = New(Config{Devices: 2}); err != nil {
			t.Fatal(err)
		}
		defer fabrics[i].Close()
	}
	var from verbs.PathChecker = fabrics[0].devices[0]
	for _, d := range fabrics[0].devices {
		d.SetLink(false) // which is another matter
		for _, gid := range d.gids {
			if err := from.CheckPath(1, gid); err != nil {
				t.Errorf("%v of its own fabric: %v", gid, err)
			}
		}
	}
	for _, gid := range append(fabrics[1].devices[0].gids[:], verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 77,
		15: 1}) {
		var op *verbs.OpError
		if err := from.CheckPath(1, gid); !errors.Is(err, verbs.ErrUnreachable) || !errors.As(err, &op) ||
			op.Device != "soft0" || !strings.Contains(err.Error(), "fabric") {
			t.Errorf("%v of another fabric: %v", gid, err)
		}
	}
}
