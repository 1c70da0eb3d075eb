package api_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// portDevice is a device of many ports with a default port. It records with which ports its queue
// pairs are configured.
type portDevice struct {
	vqptest.Tap
	port  int
	gids  []verbs.GIDEntry // the GID table; nil for that of the null device
	index []uint8          // the entries of it that address handles name
	inits []uint8          // the ports of the transitions to INIT
	paths []uint8          // the ports of the address handles
	asked []int            // the ports that were queried
	// unreadable are the entries of the GID table that cannot be read.
	unreadable []int
}

// newPortDevice makes one of a null device.
func newPortDevice(dev verbs.Device, port int, gids []verbs.GIDEntry) *portDevice {
	d := &portDevice{Tap: vqptest.Tap{Device: dev}, port: port, gids: gids}
	d.Self, d.Modify = d, func(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
		if mask&verbs.QPAttrPort != 0 {
			d.inits = append(d.inits, attr.Port)
		}
		if mask&verbs.QPAttrAV != 0 {
			d.paths = append(d.paths, attr.AH.Port)
			d.index = append(d.index, attr.AH.SGIDIndex)
		}
		return nil
	}
	return d
}

var errUnreadable = errors.New("the entry cannot be read")

func (d *portDevice) DefaultPort() int { return d.port }

func (d *portDevice) QueryPort(port int) (verbs.PortAttr, error) {
	d.asked = append(d.asked, port)
	attr, err := d.Device.QueryPort(1)
	if d.gids != nil {
		attr.GIDTableLen = len(d.gids)
	}
	return attr, err
}

func (d *portDevice) QueryGID(port, index int) (verbs.GIDEntry, error) {
	d.asked = append(d.asked, port)
	if slices.Contains(d.unreadable, index) {
		return verbs.GIDEntry{}, errUnreadable
	}
	if d.gids != nil {
		return d.gids[index], nil
	}
	return d.Device.QueryGID(1, index)
}

// Each device is used through its own default port, unless the configuration names one.
func TestDefaultPort(t *testing.T) {
	for _, c := range []struct {
		name   string
		conn   uint8
		want   [2]uint8
		modify bool // connect step by step
	}{
		{name: "each device's own", want: [2]uint8{3, 1}},
		{name: "one for all", conn: 2, want: [2]uint8{2, 2}},
		{name: "step by step", want: [2]uint8{3, 1}, modify: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			null := verbstest.NewNull(2)
			devs := [2]*portDevice{newPortDevice(null.Device(0), 3, nil),
				newPortDevice(null.Device(1), 1, nil)}
			q, err := ibverbx.Open([]verbs.Device{devs[0], devs[1]},
				ibverbx.Config{QPsPerDevice: 2, Conn: ibverbx.ConnConfig{Port: c.conn}})
			if err != nil {
				t.Fatal(err)
			}
			if c.modify {
				card := cardOf(t, q)
				for _, step := range []vqptest.Step{vqptest.ToInit, vqptest.ToRTR} {
					step.Attr.Port, step.Attr.AH.Port = 0, 0 // as the configuration says
					if err := step.Take(q, &card); err != nil {
						t.Fatal(err)
					}
				}
			} else {
				connectElsewhere(t, q)
			}
			for i, d := range devs {
				if len(d.inits) < 2 || len(d.paths) != len(d.inits) || len(d.asked) == 0 {
					t.Fatalf("device %d: %d and %d queue pairs given a port, %d ports asked", i, len(d.inits),
						len(d.paths), len(d.asked))
				}
				for _, port := range append(d.inits, d.paths...) {
					if port != c.want[i] {
						t.Errorf("device %d: a queue pair uses port %d, want %d", i, port, c.want[i])
					}
				}
				for _, port := range d.asked {
					if port != int(c.want[i]) {
						t.Errorf("device %d: asked about port %d, want %d", i, port, c.want[i])
					}
				}
			}
			if got := q.Config().Conn.Port; got != c.conn {
				t.Errorf("the configuration says port %d, want %d", got, c.conn)
			}
		})
	}
}

// The default GID is the one that users would choose: RoCE v2, routable, IPv4 first.
func TestGIDChoice(t *testing.T) {
	entry := func(kind verbs.GIDType, address string) verbs.GIDEntry {
		gid, err := verbs.ParseGID(address)
		if err != nil {
			t.Fatal(err)
		}
		return verbs.GIDEntry{GID: gid, Type: kind}
	}
	const v1, v2 = verbs.GIDTypeRoCEv1, verbs.GIDTypeRoCEv2
	// From the worst to the best.
	ranks := []verbs.GIDEntry{
		{Type: v2}, entry(v1, "::ffff:10.0.0.1"), entry(v2, "fe80::1"), entry(v2, "::ffff:169.254.0.1"),
		entry(v2, "2001:db8::1"), entry(v2, "::ffff:10.0.0.1"),
	}
	for best := 1; best < len(ranks); best++ {
		for _, reversed := range []bool{false, true} {
			table := slices.Clone(ranks[:best+1])
			if reversed {
				slices.Reverse(table)
			}
			for i := range table {
				table[i].Index = i
			}
			d := newPortDevice(verbstest.NewNull(1).Device(0), 1, table)
			q, err := ibverbx.Open([]verbs.Device{d}, ibverbx.Config{})
			if err != nil {
				t.Fatal(err)
			}
			connectElsewhere(t, q)
			for _, i := range d.index {
				if table[i].GID != ranks[best].GID || table[i].Type != ranks[best].Type {
					t.Fatalf("of %v chosen %v, want %v", table, table[i], ranks[best])
				}
			}
			if len(d.index) == 0 {
				t.Fatal("no queue pair was given a GID")
			}
		}
	}
}

// A configured GID index whose entry is empty is refused with its index, before a card without an
// address goes to the peer.
func TestEmptyGID(t *testing.T) {
	d := newPortDevice(verbstest.NewNull(1).Device(0), 1, make([]verbs.GIDEntry, 4))
	q, err := ibverbx.Open([]verbs.Device{d}, ibverbx.Config{Conn: ibverbx.ConnConfig{GIDIndex: 3}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Card(); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "entry 3 of the GID table of null0 port 1 is empty") {
		t.Errorf("a card with an empty GID: %v", err)
	}
}

// Entries of the GID table that cannot be read are passed over, unless no other is found.
func TestUnreadableGIDs(t *testing.T) {
	gid, err := verbs.ParseGID("::ffff:10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	const noError = "<nil>"
	full := verbs.GIDEntry{GID: gid, Type: verbs.GIDTypeRoCEv2}
	for _, c := range []struct {
		name       string
		gids       []verbs.GIDEntry
		unreadable []int
		index      int // that the configuration names; 0 for none, -1 for the first
		want       uint8
		err        string
	}{
		{name: "one before", gids: []verbs.GIDEntry{{}, full}, unreadable: []int{0}, want: 1, err: noError},
		{name: "one behind", gids: []verbs.GIDEntry{full, {}}, unreadable: []int{1}, want: 0, err: noError},
		{name: "all", gids: []verbs.GIDEntry{full, full}, unreadable: []int{0, 1},
			err: errUnreadable.Error()},
		{name: "all but empty ones", gids: make([]verbs.GIDEntry, 2), unreadable: []int{0},
			err: errUnreadable.Error()},
		{name: "none, and no address", gids: make([]verbs.GIDEntry, 2),
			err: "null0 port 1 has no GID: give the interface behind it an address"},
		{name: "the one that is configured", gids: []verbs.GIDEntry{full, full}, unreadable: []int{1},
			index: 1, err: errUnreadable.Error()},
		{name: "another than the one that is configured", gids: []verbs.GIDEntry{full, full},
			unreadable: []int{1}, index: -1, err: noError},
	} {
		gids := slices.Clone(c.gids)
		for i := range gids {
			gids[i].Index = i
		}
		d := newPortDevice(verbstest.NewNull(1).Device(0), 1, gids)
		d.unreadable = c.unreadable
		cfg := ibverbx.Config{Conn: ibverbx.ConnConfig{GIDIndex: c.index}}
		q, err := ibverbx.Open([]verbs.Device{d}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := q.Card(); !strings.Contains(fmt.Sprint(err), c.err) {
			t.Errorf("%s: a card: %v, want %s", c.name, err, c.err)
		} else if err == nil {
			connectElsewhere(t, q)
			if len(d.index) == 0 || d.index[0] != c.want {
				t.Errorf("%s: connected with entries %v, want %d", c.name, d.index, c.want)
			}
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A port that the device does not have is refused, and the error has its number.
func TestPortThatDoesNotExist(t *testing.T) {
	_, err := ibverbx.Open([]verbs.Device{verbstest.NewNull(1).Device(0)},
		ibverbx.Config{Conn: ibverbx.ConnConfig{Port: 2}})
	if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "port 2") {
		t.Errorf("%v", err)
	}
}
