package roce

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16") // they mostly wait
	m.Run()
}

func TestConformance(t *testing.T) { testConformance(t, "127.0.0.1", "127.0.0.2") }

// testConformance runs the suite over NICs at the first and the last of the addresses.
func testConformance(t *testing.T, addrs ...string) {
	verbstest.Run(t, verbstest.Env{
		Strict:  true,
		SetLink: func(_ *testing.T, d verbs.Device, up bool) { d.(*Device).SetLink(up) },
		Open: func(t *testing.T) (a, b verbs.Device) {
			p := openNICs(t, Config{}, addrs...)
			return p.Device(0), p.Device(len(addrs) - 1)
		},
	})
}

// Where no address was named, one that cannot be opened does not hide the others: of those of IPv6
// the second process of a host can have none, since their GIDs cannot tell another port.
func TestUnopened(t *testing.T) {
	first, second := openNICs(t, Config{}), openNICs(t, Config{})
	devices, _ := first.Devices()
	left := map[netip.Addr]bool{}
	for i := range devices {
		if a := first.Device(i).Addr(); a.Port() == Port { // unless a third process has it
			left[a.Addr()] = true
		}
	}
	devices, _ = second.Devices()
	for i := range devices {
		if a := second.Device(i).Addr(); left[a.Addr()] && (!a.Addr().Is4() || a.Port() == Port) {
			t.Errorf("a second NIC at %v", a)
		}
	}
	for addr := range left {
		if addr.Is6() && !strings.Contains(fmt.Sprint(second.Unopened()), addr.String()) {
			t.Errorf("nothing is said of %v: %v", addr, second.Unopened())
		}
	}
	if _, err := Open(
		Config{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.77")}}); err == nil ||
		!strings.Contains(err.Error(), "192.0.2.77") {
		t.Errorf("an address that is not of this host: %v", err)
	}
}

// When a provider is closed, no goroutine and no file of it is left, whatever its queue pairs were
// doing when they were closed: packets under way, in the backlog, timers running, a queue armed.
func TestNothingIsLeft(t *testing.T) {
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(list)
	}
	once := func() {
		t.Run("", func(t *testing.T) {
			p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
			pair := newNodes(t, p.Device(0), p.Device(1), 1<<16)
			a, b := pair[0], pair[1]
			g := newGate(a.dev, 8, 0)
			a.post(t, a.write(b, 1, 1<<16)) // stays in the backlog
			b.post(t, b.write(a, 2, 1<<16)) // is not acknowledged
			for b.dev.Counters().Received == 0 {
				time.Sleep(100 * time.Microsecond)
			}
			g.open(0)
			if err := p.Close(); err == nil {
				t.Error("a provider with open objects was closed")
			}
		})
	}
	once()
	goroutines, open := runtime.NumGoroutine(), files()
	for range 5 {
		once()
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines; {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), goroutines,
				stacks[:runtime.Stack(stacks, true)])
		}
		time.Sleep(time.Millisecond)
	}
	if n := files(); n > open { // those of the tests before this one may still have been closing
		t.Errorf("%d files are open, %d before", n, open)
	}
}

// Objects may be closed while others post, poll and arm, and packets arrive for them.
func TestCloseDuringTraffic(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(t, p.Device(0), p.Device(1), 1<<16)
	a, b := pair[0], pair[1]
	for range 20 {
		mine, theirs := a.newQP(t), b.newQP(t)
		must(t, verbstest.Connect(mine, theirs, verbstest.ConnectConfig{Port: 1}))
		_, err := mine.PostSend([]verbs.SendWR{a.write(b, 7, 1<<16), a.write(b, 8, 1<<16)})
		must(t, err)
		a.post(t, a.write(b, 1, 1<<12))
		ended := make(chan error, 2)
		go func() { ended <- theirs.Close() }()
		go func() { ended <- mine.Close() }()
		for seen := false; !seen; {
			wc := a.poll(t)
			if wc.ID == 1 {
				seen = true
				if wc.Status != verbs.StatusSuccess {
					t.Fatalf("the queue pair that stays: %v", wc.Status)
				}
			}
		}
		must(t, <-ended)
		must(t, <-ended)
		if _, err := mine.PostSend([]verbs.SendWR{a.write(b, 9, 8)}); err == nil {
			t.Fatal("posted to a closed queue pair")
		}
		if c := a.dev.Counters(); c.Sent == 0 {
			t.Fatalf("what a closed queue pair did is not counted: %+v", c)
		}
	}
}
