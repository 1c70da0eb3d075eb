package soft_test

import (
	"context"
	"fmt"
	"log"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// side is one end of the example's connection.
type side struct {
	dev verbs.Device
	pd  verbs.PD
	mr  verbs.MR
	cq  verbs.CQ
	qp  verbs.QP
	ch  *verbs.CompChannel
	buf []byte
}

// Two NICs, one RDMA write from the first to the second.
func Example() {
	fabric, err := soft.New(soft.Config{Devices: 2})
	check(err)
	a, b := open(fabric.Device(0)), open(fabric.Device(1))
	connect(a, b)
	connect(b, a)

	copy(a.buf, "hello, peer")
	_, err = a.qp.PostSend([]verbs.SendWR{{
		ID:         1,
		Opcode:     verbs.OpRDMAWrite,
		Flags:      verbs.SendSignaled,
		SGL:        []verbs.SGE{{Addr: a.mr.Addr(), Length: 11, LKey: a.mr.LKey()}},
		RemoteAddr: b.mr.Addr(), // in two processes, the peer sends these two
		RKey:       b.mr.RKey(),
	}})
	check(err)

	wc := wait(a)
	fmt.Println(wc.ID, wc.Status.Name(), wc.Opcode)
	fmt.Printf("%s\n", b.buf[:11])

	a.close()
	b.close()
	check(fabric.Close())
	// Output:
	// 1 SUCCESS RDMA_WRITE
	// hello, peer
}

func open(dev verbs.Device) *side {
	s := &side{dev: dev, ch: verbs.NewCompChannel(), buf: make([]byte, 4096)}
	var err error
	s.pd, err = dev.AllocPD()
	check(err)
	s.mr, err = s.pd.RegisterMR(s.buf, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	check(err)
	s.cq, err = dev.CreateCQ(verbs.CQConfig{Depth: 16, Channel: s.ch})
	check(err)
	s.qp, err = s.pd.CreateQP(verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq})
	check(err)
	return s
}

// connect takes s's queue pair to RTS, with peer's as its partner.
func connect(s, peer *side) {
	gid, err := peer.dev.QueryGID(1, 0)
	check(err)
	check(s.qp.Modify(&verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessRemoteWrite},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	check(s.qp.Modify(&verbs.QPAttr{
		State: verbs.StateRTR, PathMTU: verbs.MTU4096, DestQPNum: peer.qp.Num(), MinRNRTimer: 12,
		AH: verbs.AH{DGID: gid.GID, Port: 1, Global: true},
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPNum|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer))
	check(s.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS, Timeout: 14, RetryCount: 7,
		RNRRetry: verbs.RNRRetryForever},
		verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|
			verbs.QPAttrMaxRDAtomic))
}

// wait sleeps until a completion comes: arm, poll once more, sleep.
func wait(s *side) verbs.WC {
	var wcs [1]verbs.WC
	for {
		check(s.cq.Arm(false))
		n, err := s.cq.Poll(wcs[:])
		check(err)
		if n == 1 {
			return wcs[0]
		}
		check(s.ch.Wait(context.Background()))
	}
}

func (s *side) close() {
	check(s.qp.Close())
	check(s.cq.Close())
	check(s.mr.Close())
	check(s.pd.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
