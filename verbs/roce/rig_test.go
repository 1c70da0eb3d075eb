package roce

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"ibverbx/test/sim"
	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/verbstest"
)

// openNICs makes NICs on addresses. They have to be without objects when the test ends.
func openNICs(t testing.TB, cfg Config, addrs ...string) *Provider {
	t.Helper()
	for _, a := range addrs {
		cfg.Addresses = append(cfg.Addresses, netip.MustParseAddr(a))
	}
	p, err := Open(cfg)
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

// deafNIC makes a NIC on 127.0.0.1 whose goroutine does not run: it receives when somebody polls.
// wrap may put something before its socket. It has to be without objects when the test ends.
func deafNIC(t testing.TB, wrap func(*Device, link) link) *Device {
	t.Helper()
	conn, err := listen(netip.MustParseAddr("127.0.0.1"), &Config{})
	must(t, err)
	start := time.Now()
	d := &Device{id: 9, local: conn.LocalAddr(), mtu: verbs.MTU4096,
		clock: func() int64 { return int64(time.Since(start)) }}
	d.link = wrap(d, socket{conn})
	d.init(draw)
	close(d.recv.ended)
	t.Cleanup(func() { must(t, d.close()) })
	return d
}

// openVirtual makes two NICs on a network in virtual time that does no harm.
func openVirtual(t testing.TB, cfg Config) *network {
	t.Helper()
	return openVirtualNICs(t, cfg, 2)
}

// openVirtualNICs makes so many.
func openVirtualNICs(t testing.TB, cfg Config, nics int) *network {
	t.Helper()
	n := newNetwork(&sim.NetworkPlan{NICs: nics, Latency: 5 * time.Microsecond, Bursts: true}).(*network)
	for _, x := range n.nics {
		x.cfg, x.mtu, x.buffer = cfg, verbs.MTU4096, 1<<20
	}
	t.Cleanup(func() { must(t, n.Close()) })
	return n
}

// await lets things happen until an end has a completion.
func (n *network) await(t testing.TB, x *node) verbs.WC {
	t.Helper()
	var wcs [1]verbs.WC
	for {
		k, err := x.cq.Poll(wcs[:])
		must(t, err)
		if k == 1 {
			return wcs[0]
		}
		if n.Movable() == 0 {
			t.Fatal("no completion, and nothing happens any more")
		}
		n.step()
	}
}

// lossy puts a network between a NIC and its socket that loses a share of what the NIC sends.
func lossy(d *Device, share float64, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, uint64(d.id)))
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.sender.put
	d.sender.put = func(to destination, packets []udp.Packet, segment bool) (int, error) {
		done := 0
		for i := range packets {
			if rng.Float64() >= share {
				continue
			}
			if n, err := next(to, packets[done:i], segment && done == 0); err != nil {
				return done + n, err
			}
			done = i + 1
		}
		n, err := next(to, packets[done:], segment && done == 0)
		return done + n, err
	}
}

// ownAddr is a loopback address that no other process's test is likely to use, and so has port 4791
// free.
func ownAddr(i int) string {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(100 + i), byte(pid >> 8), byte(pid)}).String()
}

// node is one end of a connection.
type node struct {
	dev *Device
	pd  verbs.PD
	mr  verbs.MR
	buf []byte
	cq  verbs.CQ
	qp  *QP
}

// newNode makes a queue pair and what it needs, which are closed when the test ends.
func newNode(t testing.TB, d *Device, size int) *node {
	t.Helper()
	n := &node{dev: d, buf: make([]byte, size)}
	var err error
	n.pd, err = d.AllocPD()
	must(t, err)
	n.mr, err = n.pd.RegisterMR(n.buf, verbs.AccessAll)
	must(t, err)
	n.cq, err = d.CreateCQ(verbs.CQConfig{Depth: 1024})
	must(t, err)
	n.qp = n.newQP(t)
	t.Cleanup(func() {
		must(t, n.qp.Close())
		must(t, n.cq.Close())
		must(t, n.mr.Close())
		must(t, n.pd.Close())
	})
	return n
}

// newQP makes a queue pair that the caller closes.
func (n *node) newQP(t testing.TB) *QP {
	t.Helper()
	qp, err := n.pd.CreateQP(verbs.QPConfig{SendCQ: n.cq, RecvCQ: n.cq})
	must(t, err)
	return qp.(*QP)
}

// newNodes are two connected ends on two NICs.
func newNodes(t testing.TB, a, b *Device, size int) [2]*node {
	t.Helper()
	pair := [2]*node{newNode(t, a, size), newNode(t, b, size)}
	must(t, verbstest.Connect(pair[0].qp, pair[1].qp, verbstest.ConnectConfig{Port: 1}))
	return pair
}

// overWire makes ends believe that a network is between them: their packets have ICRCs.
func overWire(ends ...*node) {
	for _, n := range ends {
		n.dev.mu.Lock()
		n.qp.path.sameHost = false
		n.dev.mu.Unlock()
	}
}

// write is a signaled write of the first n bytes to the same place of the other end.
func (n *node) write(to *node, id uint64, size int) verbs.SendWR {
	return verbs.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		SGL:        []verbs.SGE{{Addr: n.mr.Addr(), Length: uint32(size), LKey: n.mr.LKey()}},
		RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey()}
}

func (n *node) post(t testing.TB, wr verbs.SendWR) {
	t.Helper()
	_, err := n.qp.PostSend([]verbs.SendWR{wr})
	must(t, err)
}

// poll polls until there is a completion.
func (n *node) poll(t testing.TB) verbs.WC {
	t.Helper()
	var wcs [1]verbs.WC
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		k, err := n.cq.Poll(wcs[:])
		must(t, err)
		if k == 1 {
			return wcs[0]
		}
	}
	t.Fatal("no completion in 20 seconds")
	return verbs.WC{}
}

// succeed polls a completion, which has to be successful.
func (n *node) succeed(t testing.TB) verbs.WC {
	t.Helper()
	wc := n.poll(t)
	if wc.Status != verbs.StatusSuccess {
		t.Fatalf("completion of %d: %v", wc.ID, wc.Status)
	}
	return wc
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper() // here, since it takes a microsecond
		t.Fatal(err)
	}
}
