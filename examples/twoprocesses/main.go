// Two processes: the one that dials writes 16 blocks of 1 MiB into the memory of the one that
// listens, and notifies it after each.
//
//	go run ./examples/twoprocesses -listen :7471
//	go run ./examples/twoprocesses -dial HOST:7471     # HOST: where the first one runs
//
// They use the hosts' RDMA NICs, or UDP sockets if there are none. You may start either one first.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"ibverbx"
	"ibverbx/nics"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

const (
	blocks    = 16
	blockSize = 1 << 20
)

func main() {
	listen := flag.String("listen", "", "address to listen at")
	dial := flag.String("dial", "", "address of the process that listens")
	flag.Parse()
	if (*listen == "") == (*dial == "") {
		fmt.Fprintln(os.Stderr, "give one of -listen and -dial")
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *listen, *dial); err != nil {
		log.Fatal(err)
	}
}

// run meets the other process, connects, and does its part.
func run(ctx context.Context, listen, dial string) error {
	host, err := nics.Open(nics.Config{}) // real NICs, or else UDP sockets
	if err != nil {
		return err
	}
	conn, err := meet(ctx, listen, dial)
	if err != nil {
		return err
	}
	vqp, err := host.Connect(ctx, conn, ibverbx.Config{}) // both are connected when it returns
	if err != nil {
		return err
	}
	mr, err := vqp.Domain().Register(make([]byte, blocks*blockSize),
		verbs.AccessLocalWrite|verbs.AccessRemoteWrite) // the peer writes into it
	if err != nil {
		return err
	}
	if listen != "" {
		err = receive(ctx, conn, vqp, mr)
	} else {
		err = send(ctx, conn, vqp, mr)
	}
	return errors.Join(err, vqp.Close(), mr.Close(), conn.Close(), host.Close())
}

// meet waits for the other process, or dials it.
func meet(ctx context.Context, listen, dial string) (*rendezvous.Conn, error) {
	cfg := rendezvous.Config{Protocol: "twoprocesses/1", Retry: time.Minute}
	if listen == "" {
		log.Printf("dialling %s; if nobody listens there yet, again for %v", dial, cfg.Retry)
		return rendezvous.Dial(ctx, dial, cfg)
	}
	l, err := rendezvous.Listen(ctx, listen, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }() // accept one peer only
	log.Printf("listening at %v", l.Addr())
	return l.Accept(ctx)
}

// send writes the blocks, and ends when the receiver has verified them.
func send(ctx context.Context, conn *rendezvous.Conn, vqp *ibverbx.VirtualQP, mr *ibverbx.MR) error {
	memory, err := rendezvous.Exchange(ctx, conn, ibverbx.RemoteMR{}) // where the receiver wants the blocks
	if err != nil {
		return err
	}
	for i := range uint64(blocks) {
		copy(mr.Bytes()[i*blockSize:], block(i))
	}
	began := time.Now()
	for i := range uint64(blocks) {
		if _, err := vqp.PostSend(ibverbx.SendWR{
			ID: i, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(i),
			Local:  mr.Slice(i*blockSize, blockSize),
			Remote: memory.Slice(i*blockSize, blockSize),
		}); err != nil {
			return err
		}
	}
	// A block belongs to the NICs until its completion: do not change it.
	if err := completions(ctx, conn, vqp, func(wc ibverbx.WC) error { return nil }); err != nil {
		return err
	}
	took := time.Since(began)
	if err := conn.Barrier(ctx); err != nil {
		return err
	}
	rate := blocks * blockSize / took.Seconds() / 1e9 // from the first post to the last completion
	fmt.Printf("sent %d blocks at %.2f GB/s, verified by the receiver\n", blocks, rate)
	return nil
}

// receive verifies each block when its notification comes.
func receive(ctx context.Context, conn *rendezvous.Conn, vqp *ibverbx.VirtualQP, mr *ibverbx.MR) error {
	for i := range uint64(blocks) { // a receive for each notification, before the sender can send any
		if _, err := vqp.PostRecv(ibverbx.RecvWR{ID: i}); err != nil {
			return err
		}
	}
	if _, err := rendezvous.Exchange(ctx, conn, mr.Remote()); err != nil {
		return err
	}
	if err := completions(ctx, conn, vqp, func(wc ibverbx.WC) error {
		i := uint64(wc.Imm)
		if got := mr.Bytes()[i*blockSize:][:blockSize]; i != wc.ID || !bytes.Equal(got, block(i)) {
			return fmt.Errorf("receive %d has the immediate of block %d, or other bytes", wc.ID, i)
		}
		return nil
	}); err != nil {
		return err
	}
	fmt.Printf("received %d blocks of %d bytes in order, every byte verified\n", blocks, blockSize)
	return conn.Barrier(ctx)
}

// completions waits for one completion of each block and hands it to check. The context of the
// conversation ends the wait if the other process dies.
func completions(ctx context.Context, conn *rendezvous.Conn, vqp *ibverbx.VirtualQP,
	check func(ibverbx.WC) error) error {
	ctx, done := conn.Context(ctx)
	defer done()
	for n := 0; n < blocks; {
		if err := vqp.CQ().Wait(ctx); err != nil {
			return cmp.Or(context.Cause(ctx), err) // the cause, if the conversation has ended
		}
		for wc, err := range vqp.CQ().Completions() {
			if err := errors.Join(err, wc.Err()); err != nil {
				return errors.Join(err, vqp.Err()) // Err says which NIC failed, and why
			}
			if err := check(wc); err != nil {
				return err
			}
			n++
		}
	}
	return nil
}

// block is the content of block i.
func block(i uint64) []byte {
	b := make([]byte, blockSize)
	for j := range b {
		b[j] = byte(uint64(j)*7 + i)
	}
	return b
}
