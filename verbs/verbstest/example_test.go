package verbstest_test

import (
	"fmt"
	"log"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

// queuePair makes a queue pair with a completion queue.
func queuePair(dev verbs.Device) (verbs.PD, verbs.QP, verbs.CQ) {
	pd, err := dev.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	cq, err := dev.CreateCQ(verbs.CQConfig{})
	if err != nil {
		log.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		log.Fatal(err)
	}
	return pd, qp, cq
}

// Two queue pairs of software NICs are connected, and a message goes from one to the other.
func ExampleConnect() {
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		log.Fatal(err)
	}
	pdA, a, sent := queuePair(fabric.Device(0))
	pdB, b, received := queuePair(fabric.Device(1))
	if err := verbstest.Connect(a, b, verbstest.ConnectConfig{}); err != nil {
		log.Fatal(err)
	}
	mr, err := pdB.RegisterMR(make([]byte, 64), verbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	room := verbs.SGE{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}
	if _, err := b.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{room}}}); err != nil {
		log.Fatal(err)
	}
	if _, err := a.PostSend([]verbs.SendWR{{ID: 2, Opcode: verbs.OpSend,
		Flags: verbs.SendInline | verbs.SendSignaled, Inline: []byte("hello")}}); err != nil {
		log.Fatal(err)
	}
	for _, cq := range []verbs.CQ{received, sent} {
		wcs := make([]verbs.WC, 1)
		for n := 0; n == 0; {
			if n, err = cq.Poll(wcs); err != nil {
				log.Fatal(err)
			}
		}
		fmt.Println(wcs[0].ID, wcs[0].Opcode, wcs[0].Status.Name())
	}
	for _, object := range []interface{ Close() error }{a, b, sent, received, mr, pdA, pdB, fabric} {
		if err := object.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 1 RECV SUCCESS
	// 2 SEND SUCCESS
}

// A program is measured over NICs that do nothing: what it posts completes at once, and a message
// comes when the benchmark says so.
func ExampleNewNull() {
	null := verbstest.NewNull(2)
	_, a, cq := queuePair(null.Device(0))
	_, b, _ := queuePair(null.Device(1))
	if err := verbstest.Connect(a, b, verbstest.ConnectConfig{}); err != nil {
		log.Fatal(err)
	}
	n, err := a.PostSend([]verbs.SendWR{{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}})
	fmt.Println("posted", n, err)
	n, err = a.PostRecv([]verbs.RecvWR{{ID: 2}})
	fmt.Println("posted", n, err)
	fmt.Println("a message came:", verbstest.CompleteRecv(a, 7, 100, verbs.WCRecvRDMAWithImm))
	wcs := make([]verbs.WC, 4)
	n, _ = cq.Poll(wcs)
	for _, wc := range wcs[:n] {
		fmt.Println(wc.ID, wc.Opcode, wc.Status.Name())
	}
	// Output:
	// posted 1 <nil>
	// posted 1 <nil>
	// a message came: true
	// 1 RDMA_WRITE SUCCESS
	// 2 RECV_RDMA_WITH_IMM SUCCESS
}
