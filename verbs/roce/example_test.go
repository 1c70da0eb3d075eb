package roce_test

import (
	"fmt"
	"log"
	"net/netip"

	"ibverbx/verbs"
	"ibverbx/verbs/roce"
)

// Two NICs of one process, and one RDMA write from the first to the second. Between two processes
// each opens one, and they tell each other the GID, the queue pair's number, and the address and
// key of the region.
func Example() {
	provider, err := roce.Open(roce.Config{Addresses: []netip.Addr{
		netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}})
	ok(err)
	a, b := newEnd(provider.Device(0)), newEnd(provider.Device(1))
	a.connect(b)
	b.connect(a)

	copy(a.buf, "hello, peer")
	_, err = a.qp.PostSend([]verbs.SendWR{{
		ID:         1,
		Opcode:     verbs.OpRDMAWrite,
		Flags:      verbs.SendSignaled,
		SGL:        []verbs.SGE{{Addr: a.mr.Addr(), Length: 11, LKey: a.mr.LKey()}},
		RemoteAddr: b.mr.Addr(),
		RKey:       b.mr.RKey(),
	}})
	ok(err)
	wcs := make([]verbs.WC, 1)
	for n := 0; n == 0; {
		n, err = a.cq.Poll(wcs)
		ok(err)
	}
	fmt.Println(wcs[0].ID, wcs[0].Status.Name(), wcs[0].Opcode)
	fmt.Printf("%s\n", b.buf[:11])

	a.close()
	b.close()
	ok(provider.Close())
	// Output:
	// 1 SUCCESS RDMA_WRITE
	// hello, peer
}

// Which addresses of this host can be NICs, and what became of them.
func ExampleLocalAddresses() {
	addrs, err := roce.LocalAddresses()
	ok(err)
	for _, addr := range addrs {
		fmt.Println(addr)
	}
}

// What a NIC has dropped tells what is the matter with a connection that never hears an answer.
func ExampleDevice_Counters() {
	provider, err := roce.Open(roce.Config{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	ok(err)
	defer provider.Close()
	switch c := provider.Device(0).Counters(); {
	case c.BadICRC != 0:
		fmt.Println("something on the way rewrites packets: NAT, or a tunnel")
	case c.Strangers != 0:
		fmt.Println("packets come from another address than the peer's GID says")
	default:
		fmt.Println("nothing was dropped")
	}
	// Output: nothing was dropped
}

// end is one end of the example's connection.
type end struct {
	dev verbs.Device
	pd  verbs.PD
	mr  verbs.MR
	cq  verbs.CQ
	qp  verbs.QP
	buf []byte
}

func newEnd(dev verbs.Device) *end {
	e := &end{dev: dev, buf: make([]byte, 4096)}
	var err error
	e.pd, err = dev.AllocPD()
	ok(err)
	e.mr, err = e.pd.RegisterMR(e.buf, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	ok(err)
	e.cq, err = dev.CreateCQ(verbs.CQConfig{Depth: 16})
	ok(err)
	e.qp, err = e.pd.CreateQP(verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq})
	ok(err)
	return e
}

// connect takes the queue pair from RESET to RTS, with the other end as its peer.
func (e *end) connect(peer *end) {
	gid, err := peer.dev.QueryGID(1, 0)
	ok(err)
	ok(e.qp.Modify(&verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessRemoteWrite},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	ok(e.qp.Modify(&verbs.QPAttr{State: verbs.StateRTR, PathMTU: verbs.MTU4096, DestQPNum: peer.qp.Num(),
		MaxDestRDAtomic: 1, MinRNRTimer: 12,
		AH: verbs.AH{Global: true, DGID: gid.GID, HopLimit: 64, Port: 1}},
		verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPNum|verbs.QPAttrRQPSN|
			verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer))
	ok(e.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS, Timeout: 14, RetryCount: 7, RNRRetry: 7,
		MaxRDAtomic: 1},
		verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|
			verbs.QPAttrSQPSN|verbs.QPAttrMaxRDAtomic))
}

func (e *end) close() {
	ok(e.qp.Close())
	ok(e.cq.Close())
	ok(e.mr.Close())
	ok(e.pd.Close())
}

func ok(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
