// Two ends in one process: one writes 16 blocks of 1 MiB into the other's memory and notifies it
// of each.
//
// Each end runs on a goroutine of its own, has two software NICs, and shares nothing with the other
// but a connection that carries JSON. To make two processes of it, give each function a TCP
// connection in place of a net.Pipe, and devices of package rdmacore in place of software NICs.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"time"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

const (
	blocks    = 16
	blockSize = 1 << 20
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	fabric, err := soft.New(soft.Config{Devices: 4})
	if err != nil {
		return err
	}
	nics, err := fabric.Devices()
	if err != nil {
		return err
	}
	left, right := net.Pipe()
	ended := make(chan error, 2)
	go func() { ended <- send(ctx, nics[:2], left) }()
	go func() { ended <- receive(ctx, nics[2:], right) }()
	for range 2 {
		if err := <-ended; err != nil {
			return err
		}
	}
	return fabric.Close()
}

// hello is what the ends exchange before they connect: where the queue pairs are, and where the
// memory is that the peer may use.
type hello struct {
	Card   ibverbx.BusinessCard
	Memory ibverbx.RemoteMR
}

// send writes the blocks, and ends when the receiver has confirmed them.
func send(ctx context.Context, nics []verbs.Device, conn net.Conn) error {
	vqp, mr, mine, err := open(nics)
	if err != nil {
		return err
	}
	var peer hello
	var ready, verified bool
	out, in := json.NewEncoder(conn), json.NewDecoder(conn)
	if err := errors.Join(out.Encode(mine), in.Decode(&peer)); err != nil {
		return err
	}
	if err := vqp.Connect(peer.Card); err != nil {
		return err
	}
	if err := in.Decode(&ready); err != nil { // the receiver is connected and has posted its receives
		return err
	}

	for i := range uint64(blocks) {
		copy(mr.Bytes()[i*blockSize:], block(i))
		if _, err := vqp.PostSend(ibverbx.SendWR{
			ID: i, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(i),
			Local:  mr.Slice(i*blockSize, blockSize),
			Remote: peer.Memory.Slice(i*blockSize, blockSize),
		}); err != nil {
			return err
		}
	}
	// Until its completion a block belongs to the NICs: it must not be changed.
	if err := completions(ctx, vqp, func(wc ibverbx.WC) error { return nil }); err != nil {
		return err
	}
	if err := in.Decode(&verified); err != nil {
		return err
	}
	fmt.Printf("sent %d blocks, verified by the receiver: %v\n", blocks, verified)
	return errors.Join(vqp.Close(), mr.Close(), conn.Close())
}

// receive verifies each block when its notification comes.
func receive(ctx context.Context, nics []verbs.Device, conn net.Conn) error {
	vqp, mr, mine, err := open(nics)
	if err != nil {
		return err
	}
	var peer hello
	out, in := json.NewEncoder(conn), json.NewDecoder(conn)
	if err := errors.Join(in.Decode(&peer), out.Encode(mine)); err != nil {
		return err
	}
	if err := vqp.Connect(peer.Card); err != nil {
		return err
	}
	for i := range uint64(blocks) { // a receive for each notification
		if _, err := vqp.PostRecv(ibverbx.RecvWR{ID: i}); err != nil {
			return err
		}
	}
	if err := out.Encode(true); err != nil {
		return err
	}

	if err := completions(ctx, vqp, func(wc ibverbx.WC) error {
		i := uint64(wc.Imm)
		if got := mr.Bytes()[i*blockSize:][:blockSize]; i != wc.ID || !bytes.Equal(got, block(i)) {
			return fmt.Errorf("receive %d has the immediate of block %d, or other bytes", wc.ID, i)
		}
		return nil
	}); err != nil {
		return err
	}
	fmt.Printf("received %d blocks of %d bytes in order, every byte verified\n", blocks, blockSize)
	return errors.Join(out.Encode(true), vqp.Close(), mr.Close(), conn.Close())
}

// open makes an end: a virtual queue pair over all NICs, with memory that the peer may write to.
func open(nics []verbs.Device) (*ibverbx.VirtualQP, *ibverbx.MR, hello, error) {
	vqp, err := ibverbx.Open(nics, ibverbx.Config{})
	if err != nil {
		return nil, nil, hello{}, err
	}
	mr, err := vqp.Domain().Register(make([]byte, blocks*blockSize), verbs.AccessAll)
	if err != nil {
		return nil, nil, hello{}, err
	}
	card, err := vqp.Card()
	return vqp, mr, hello{card, mr.Remote()}, err
}

// completions waits for one completion of each block and hands it to check.
func completions(ctx context.Context, vqp *ibverbx.VirtualQP, check func(ibverbx.WC) error) error {
	for n := 0; n < blocks; {
		if err := vqp.CQ().Wait(ctx); err != nil {
			return err
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
