package roce

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/verbstest"
)

// A peer that cannot be reached from a NIC is refused when the queue pair is connected, and before
// by CheckPath, each in a sentence of its own. A refused Modify changes nothing.
func TestUnreachable(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
	a, b := newNode(t, p.Device(0), 64), newNode(t, p.Device(1), 64)
	var checker verbs.PathChecker = a.dev
	if err := checker.CheckPath(1, b.dev.gid); err != nil {
		t.Errorf("another NIC of this host: %v", err)
	}
	for name, x := range map[string]struct {
		gid  verbs.GID
		says string
	}{
		"another family":  {verbs.GID(netip.MustParseAddr("2001:db8::1").As16()), "IPv6"},
		"no route":        {verbs.GID(netip.MustParseAddr("192.0.2.1").As16()), "192.0.2.1"},
		"multicast":       {verbs.GID(netip.MustParseAddr("224.0.0.1").As16()), "concrete address"},
		"port 0 of a GID": {verbs.GID{0xfd, 'i', 'b', 'v', 'r', 'x', 10: 0xff, 0xff, 127, 0, 0, 1}, "port"},
	} {
		t.Run(name, func(t *testing.T) {
			wants := func(what string, err error) {
				if !errors.Is(err, verbs.ErrUnreachable) || !strings.Contains(err.Error(), x.says) ||
					!strings.Contains(err.Error(), "roce0") {
					t.Errorf("%s: %v", what, err)
				}
			}
			wants("CheckPath", checker.CheckPath(1, x.gid))
			qp := a.newQP(t)
			defer qp.Close()
			wants("Modify", verbstest.Connect(qp, b.qp, verbstest.ConnectConfig{Port: 1,
				Adjust: func(local verbs.QP, attr *verbs.QPAttr) {
					if local == qp {
						attr.AH.DGID = x.gid
					}
				}}))
			must(t, b.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState))
			if s := qp.State(); s != verbs.StateInit {
				t.Errorf("the queue pair is in %v", s)
			}
			if qp.path.to != nil {
				t.Error("the queue pair has a way to the peer")
			}
		})
	}
	if err := checker.CheckPath(2, b.dev.gid); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("port 2: %v", err)
	}
}

// watchedLink calls a function whenever it is asked for a way.
type watchedLink struct {
	link
	asked func()
}

func (l watchedLink) NewDestination(to netip.AddrPort, way udp.Way) (destination, error) {
	l.asked()
	return l.link.NewDestination(to, way)
}

func (l watchedLink) MTU(to netip.AddrPort) (udp.PathMTU, error) {
	l.asked()
	return l.link.MTU(to)
}

// The kernel is asked for a way, which takes several calls, while nobody waits for the NIC's lock.
func TestWayIsAskedForWithoutLock(t *testing.T) {
	asked, locked := 0, 0
	d := deafNIC(t, func(d *Device, conn link) link {
		return watchedLink{conn, func() {
			asked++
			if !d.mu.TryLock() {
				locked++
				return
			}
			d.mu.Unlock()
		}}
	})
	newNodes(t, d, d, 64)
	must(t, d.CheckPath(1, d.gid))
	if asked != 6 || locked != 0 {
		t.Errorf("asked %d times, %d of them with the lock", asked, locked)
	}
}

// A queue pair gets another way to its peer while its send queue is drained. What comes from where
// the peer was is a stranger's from then on.
func TestPathChanges(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2", "127.0.0.3")
	pair := newNodes(t, p.Device(0), p.Device(1), 64)
	a, b := pair[0], pair[1]
	a.post(t, a.write(b, 1, 64))
	a.succeed(t)
	drain := func() {
		must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateSQD}, verbs.QPAttrState))
	}
	resume := func(to *Device) {
		attr, err := a.qp.Query()
		must(t, err)
		attr.AH.DGID = to.gid
		must(t, a.qp.Modify(&attr, verbs.QPAttrAV))
		attr.State = verbs.StateRTS
		must(t, a.qp.Modify(&attr, verbs.QPAttrState))
	}
	drain()
	bad, err := a.qp.Query()
	must(t, err)
	bad.AH.DGID = verbs.GID(netip.MustParseAddr("2001:db8::1").As16())
	if err := a.qp.Modify(&bad, verbs.QPAttrAV); !errors.Is(err, verbs.ErrUnreachable) {
		t.Errorf("a way that there is not: %v", err)
	}
	resume(p.Device(2)) // where nobody is
	a.post(t, a.write(b, 2, 64))
	strangers := a.dev.Counters().Strangers
	b.post(t, b.write(a, 3, 64))
	for a.dev.Counters().Strangers == strangers || p.Device(2).Counters().NoQP == 0 {
		var none [1]verbs.WC
		if n, err := a.cq.Poll(none[:]); n != 0 || err != nil {
			t.Fatalf("a completion over a way that leads nowhere: %v, %v", none[0], err)
		}
	}
	drain()
	resume(b.dev)
	if wc := a.succeed(t); wc.ID != 2 {
		t.Errorf("completion of %d", wc.ID)
	}
	b.succeed(t)
}

// A NIC of another port than RoCEv2's reaches one that has that, and is reached by it: the GID of
// each says where it is.
func TestPortsDiffer(t *testing.T) {
	usual := openNICs(t, Config{Port: Port}, ownAddr(7)).Device(0)
	for _, port := range []uint16{0, 45123} {
		other := openNICs(t, Config{Port: port}, ownAddr(8)).Device(0)
		pair := newNodes(t, other, usual, 64)
		for i, n := range pair {
			n.post(t, n.write(pair[1-i], 1, 8))
			n.succeed(t)
		}
	}
}

// Two providers have one address: the second takes another port, says so in its GID, and both talk.
func TestTwoProvidersOneAddress(t *testing.T) {
	at := ownAddr(1)
	first, second := openNICs(t, Config{}, at), openNICs(t, Config{}, at)
	a, b := first.Device(0), second.Device(0)
	if a.local.Port() != Port || b.local.Port() == Port || b.gid[0] != 0xfd {
		t.Fatalf("ports %d and %d, GID %v", a.local.Port(), b.local.Port(), b.gid)
	}
	third := openNICs(t, Config{}, at).Device(0)
	for _, ends := range [][2]*Device{{a, b}, {third, b}} {
		pair := newNodes(t, ends[0], ends[1], 64)
		for i, n := range pair {
			n.post(t, n.write(pair[1-i], 1, 64))
			n.succeed(t)
		}
	}
}

// A peer that vanishes is noticed when the timeout has passed as often as there are retries, and
// once more; and the next connection works. Time is virtual.
func TestPeerVanishes(t *testing.T) {
	const timeout, retries = 13, 3 // 34 ms
	adjust := func(_ verbs.QP, attr *verbs.QPAttr) { attr.Timeout, attr.RetryCount = timeout, retries }
	n := openVirtual(t, Config{})
	a, b := newNode(t, n.nics[0].Device, 64), newNode(t, n.nics[1].Device, 64)
	for _, met := range []bool{false, true} {
		must(t, verbstest.Connect(a.qp, b.qp, verbstest.ConnectConfig{Port: 1, Adjust: adjust}))
		if met {
			a.post(t, a.write(b, 1, 64))
			if wc := n.await(t, a); wc.Status != verbs.StatusSuccess {
				t.Errorf("the one before: %v", wc.Status)
			}
		}
		b.dev.SetLink(false)
		began := n.now
		a.post(t, a.write(b, 2, 64))
		a.post(t, a.write(b, 3, 64))
		wc := n.await(t, a)
		took, least := time.Duration(n.now-began), verbs.AckTimeout(timeout)*(retries+1)
		if wc.Status != verbs.StatusRetryExcErr || wc.ID != 2 {
			t.Errorf("completion of %d: %v", wc.ID, wc.Status)
		}
		if took < least || took > least+least/4 {
			t.Errorf("after %v, want %v", took, least)
		}
		if wc := n.await(t, a); wc.Status != verbs.StatusWRFlushErr {
			t.Errorf("the one behind it: %v", wc.Status)
		}
		b.dev.SetLink(true)
		for _, n := range []*node{a, b} {
			must(t, n.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState))
		}
	}
	if c := b.dev.Counters(); c.LinkDown == 0 || c.Malformed != 0 {
		t.Errorf("counted %+v", c)
	}
}

// A NIC whose provider is closed has no paths.
func TestPathOfAClosedNIC(t *testing.T) {
	p, err := Open(Config{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	must(t, err)
	must(t, p.Close())
	if err := p.Device(0).CheckPath(1, p.Device(0).gid); !errors.Is(err, verbs.ErrClosed) {
		t.Error(err)
	}
}

// Nonsense in Config is refused by name.
func TestConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]Config{
		"Window": {Window: -1},
		"Rate":   {Rate: -1}, "Rate NaN": {Rate: math.NaN()}, "Rate +Inf": {Rate: math.Inf(1)},
		"Rate 1e-10": {Rate: 1e-10}, "Rate 0.99": {Rate: 0.99},
	} {
		if _, err := Open(cfg); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, openNICs(t, Config{Rate: 1}, "127.0.0.1").Unopened())
}

// Of a Close and of calls that make objects meanwhile, one side wins: the provider is closed and
// has no objects, or it is open and has them all.
func TestCloseBesideAllocPD(t *testing.T) {
	for range 100 {
		p, err := Open(Config{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
		must(t, err)
		made := make(chan verbs.PD)
		go func() {
			pd, _ := p.Device(0).AllocPD()
			made <- pd
		}()
		err = p.Close()
		pd := <-made
		switch {
		case err == nil && pd != nil:
			t.Error("closed, with a protection domain")
		case err != nil && (pd == nil || !errors.Is(err, verbs.ErrBusy)):
			t.Errorf("%v, and %v", err, pd)
		}
		if pd != nil {
			must(t, pd.Close())
			must(t, p.Close())
		}
	}
}

// Loopback addresses come last, and IPv6 after IPv4, in whatever order the host has them.
// Interfaces that are down and link-local addresses are left out.
func TestReachableFirst(t *testing.T) {
	var all []udp.LocalAddress
	for _, a := range []string{"::1 lo", "127.0.0.1 lo", "10.0.0.9 lo", "fe80::1 up", "2001:db8::1 up",
		"192.0.2.1 up", "192.0.2.2 down", "198.51.100.1 up"} {
		addr, on, _ := strings.Cut(a, " ")
		all = append(all, udp.LocalAddress{Addr: netip.MustParseAddr(addr), Up: on != "down",
			Loopback: on == "lo"})
	}
	got := fmt.Sprint(reachableFirst(all))
	if want := "[192.0.2.1 198.51.100.1 2001:db8::1 127.0.0.1 10.0.0.9 ::1]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
