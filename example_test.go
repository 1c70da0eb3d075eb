package ibverbx_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Two ends over software NICs, two NICs each: a write with a notification. In a real program each
// end runs in a process of its own, and the cards and memory descriptions travel between them as
// JSON.
func Example() {
	fabric, err := soft.New(soft.Config{Devices: 4})
	if err != nil {
		log.Fatal(err)
	}
	open := func(nics ...verbs.Device) (*ibverbx.VirtualQP, *ibverbx.MR, ibverbx.BusinessCard) {
		vqp, err := ibverbx.Open(nics, ibverbx.Config{})
		if err != nil {
			log.Fatal(err)
		}
		mr, err := vqp.Domain().Register(make([]byte, 4<<20), verbs.AccessAll)
		if err != nil {
			log.Fatal(err)
		}
		card, err := vqp.Card()
		if err != nil {
			log.Fatal(err)
		}
		return vqp, mr, card
	}
	a, aMR, aCard := open(fabric.Device(0), fabric.Device(1))
	b, bMR, bCard := open(fabric.Device(2), fabric.Device(3))
	if err := errors.Join(a.Connect(bCard), b.Connect(aCard)); err != nil {
		log.Fatal(err)
	}

	// The receiver says that it expects a notification; the sender writes 4 MiB, striped over both
	// NICs, and notifies.
	copy(aMR.Bytes(), "hello, peer")
	if _, err := b.PostRecv(ibverbx.RecvWR{ID: 1}); err != nil {
		log.Fatal(err)
	}
	if _, err := a.PostSend(ibverbx.SendWR{
		ID: 2, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled,
		Local: aMR.All(), Remote: bMR.Remote().At(0), Imm: 7,
	}); err != nil {
		log.Fatal(err)
	}

	// Each end sleeps until it has something to poll.
	for _, end := range []*ibverbx.VirtualQP{b, a} {
		if err := end.CQ().Wait(context.Background()); err != nil {
			log.Fatal(err)
		}
		for wc, err := range end.CQ().Completions() {
			if err := errors.Join(err, wc.Err()); err != nil {
				log.Fatal(err)
			}
			fmt.Println("id", wc.ID, wc.Opcode, wc.ByteLen, "bytes, immediate", wc.Imm)
		}
	}
	fmt.Printf("%s\n", bMR.Bytes()[:11])

	if err := errors.Join(a.Close(), b.Close(), aMR.Close(), bMR.Close(), fabric.Close()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// id 1 RECV_RDMA_WITH_IMM 4194304 bytes, immediate 7
	// id 2 RDMA_WRITE 4194304 bytes, immediate 0
	// hello, peer
}

// Pieces of memory that lie apart go out as one request, and arrive as one. The list is the
// caller's again at once, the memory when the completion has been polled.
func ExampleVirtualQP_PostSend() {
	a, b, done := examplePair()
	defer done()
	copy(a.mr.Bytes()[0:], "scatter, ")
	copy(a.mr.Bytes()[4096:], "gather")

	n, err := a.vqp.PostSend(ibverbx.SendWR{
		ID:     1,
		Opcode: verbs.OpRDMAWrite,
		Flags:  verbs.SendSignaled,
		SGL:    []ibverbx.Segment{a.mr.Slice(0, 9), a.mr.Slice(4096, 6)},
		Remote: b.mr.Remote().At(100),
	})
	if err != nil {
		log.Fatal(n, err) // of the requests given, n were accepted
	}
	if err := a.vqp.CQ().Wait(context.Background()); err != nil {
		log.Fatal(err)
	}
	wc, _, err := a.vqp.CQ().PollOne()
	if err := errors.Join(err, wc.Err()); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("id %d: %d bytes: %s\n", wc.ID, wc.ByteLen, b.mr.Bytes()[100:115])
	// Output: id 1: 15 bytes: scatter, gather
}

// The loop takes the completions there are. It may post, and may end early: what it did not take
// stays.
func ExampleVirtualCQ_Completions() {
	a, b, done := examplePair()
	defer done()
	write := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Local: a.mr.Slice(0, 8),
		Remote: b.mr.Remote().At(0)}
	post := func(id uint64) {
		write.ID = id
		if _, err := a.vqp.PostSend(write); err != nil {
			log.Fatal(err)
		}
	}
	post(1)
	for last := uint64(0); last != 3; {
		for wc, err := range a.vqp.CQ().Completions() {
			if err := errors.Join(err, wc.Err()); err != nil {
				log.Fatal(err)
			}
			fmt.Println(wc.ID, wc.Status.Name())
			if last = wc.ID; last < 3 {
				post(last + 1)
			}
		}
	}
	// Output:
	// 1 SUCCESS
	// 2 SUCCESS
	// 3 SUCCESS
}

// A context bounds the wait. It never takes a request back: what is outstanding stays so, and its
// memory with the NICs.
func ExampleVirtualCQ_Wait() {
	a, b, done := examplePair()
	defer done()
	if _, err := b.vqp.PostRecv(ibverbx.RecvWR{ID: 1}); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // nobody has the patience to wait
	fmt.Println(b.vqp.CQ().Wait(ctx))

	if _, err := a.vqp.PostSend(ibverbx.SendWR{
		ID: 2, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled,
		Local: a.mr.Slice(0, 8), Remote: b.mr.Remote().At(0),
	}); err != nil {
		log.Fatal(err)
	}
	if err := b.vqp.CQ().Wait(context.Background()); err != nil {
		log.Fatal(err)
	}
	wc, ok, err := b.vqp.CQ().PollOne()
	fmt.Println(wc.ID, wc.Opcode, ok, err)
	// Output:
	// context canceled
	// 1 RECV_RDMA_WITH_IMM true <nil>
}

// A virtual queue pair ends its service in order: what was accepted completes, posts are refused,
// and the receive for which nothing was sent comes back flushed.
func ExampleVirtualQP_Drain() {
	a, b, done := examplePair()
	defer done()
	write := ibverbx.SendWR{
		ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Local: a.mr.All(),
		Remote: b.mr.Remote().At(0),
	}
	if _, err := a.vqp.PostSend(write); err != nil {
		log.Fatal(err)
	}
	if _, err := a.vqp.PostRecv(ibverbx.RecvWR{ID: 2}); err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println("drained:", a.vqp.Drain(ctx))
	_, err := a.vqp.PostSend(write)
	fmt.Println("refused:", errors.Is(err, ibverbx.ErrDraining))
	for wc, err := range a.vqp.CQ().Completions() {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("id", wc.ID, wc.Status.Name())
	}
	// Output:
	// drained: <nil>
	// refused: true
	// id 1 SUCCESS
	// id 2 WR_FLUSH_ERR
}

// What the peer needs to know of a region travels as JSON: where it is, how long, and a key for
// each NIC.
func ExampleMR_Remote() {
	_, b, done := examplePair()
	defer done()
	data, err := json.Marshal(b.mr.Remote())
	if err != nil {
		log.Fatal(err)
	}

	// ... and at the peer:
	var remote ibverbx.RemoteMR
	if err := json.Unmarshal(data, &remote); err != nil {
		log.Fatal(err)
	}
	fmt.Println(remote.Len(), "bytes, of which", remote.At(1000).Length, "lie behind the first 1000")
	// Output: 8192 bytes, of which 7192 lie behind the first 1000
}

// Memory of Alloc is of the kind that the NICs access at the least cost: between two processes of a
// host (package verbs/shm) the peer's processor does, and bytes are copied once.
func ExampleDomain_Alloc() {
	fabric, err := soft.New(soft.Config{})
	if err != nil {
		log.Fatal(err)
	}
	dom, err := ibverbx.NewDomain(fabric.Device(0))
	if err != nil {
		log.Fatal(err)
	}
	mr, err := dom.Alloc(10_000, verbs.AccessAll)
	if err != nil {
		log.Fatal(err)
	}
	window := mr.Bytes()
	copy(window, "for the peer")

	// ... and when no peer is to access it any more:
	if err := errors.Join(mr.Close(), dom.Close(), fabric.Close()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(window), "bytes, which are still ours:", string(window[:12]))
	// Output: 10000 bytes, which are still ours: for the peer
}

// exampleEnd is an end with memory. The examples above need two.
type exampleEnd struct {
	vqp *ibverbx.VirtualQP
	mr  *ibverbx.MR
}

// examplePair connects two ends over software NICs, two NICs each; done closes it all.
func examplePair() (a, b *exampleEnd, done func()) {
	fabric, err := soft.New(soft.Config{Devices: 4})
	if err != nil {
		log.Fatal(err)
	}
	ends := [2]*exampleEnd{{}, {}}
	for i, e := range ends {
		if e.vqp, err = ibverbx.Open([]verbs.Device{fabric.Device(2 * i), fabric.Device(2*i + 1)},
			ibverbx.Config{QPsPerDevice: 2}); err != nil {
			log.Fatal(err)
		}
		if e.mr, err = e.vqp.Domain().Register(make([]byte, 8192), verbs.AccessAll); err != nil {
			log.Fatal(err)
		}
	}
	for i, e := range ends {
		card, err := ends[1-i].vqp.Card()
		if err != nil {
			log.Fatal(err)
		}
		if err := e.vqp.Connect(card); err != nil {
			log.Fatal(err)
		}
	}
	done = func() {
		for _, e := range ends {
			if err := errors.Join(e.vqp.Close(), e.mr.Close()); err != nil {
				log.Fatal(err)
			}
		}
		if err := fabric.Close(); err != nil {
			log.Fatal(err)
		}
	}
	return ends[0], ends[1], done
}
