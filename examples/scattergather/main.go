// Scatter-gather: one request moves many pieces of memory.
//
// A tile of a picture is not contiguous: each of its rows is a separate piece. One write gathers a
// tile into contiguous memory of the peer, one read scatters it into another picture, and one SEND
// gathers a message whose header and body the receiver gets in two buffers.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

const (
	width = 1024 // a picture has width rows of width bytes
	tile  = 256  // a tile has tile rows of tile bytes

	// rights are what the second end lets the first one do: write and read.
	rights = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
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
	a, b, err := connect(nics[:2], nics[2:])
	if err != nil {
		return err
	}
	picture, err := a.Domain().Register(make([]byte, width*width), verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	store, err := b.Domain().Register(make([]byte, tile*tile), rights)
	if err != nil {
		return err
	}
	for i := range picture.Bytes() {
		picture.Bytes()[i] = byte(i*5 + i/width)
	}

	// Gather: the tile at (100, 200) goes into the store.
	if err := do(ctx, a, ibverbx.SendWR{
		ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		SGL: rows(picture, 100, 200), Remote: store.Remote().At(0),
	}); err != nil {
		return err
	}
	if !bytes.Equal(store.Bytes(), contents(picture, 100, 200)) {
		return errors.New("the store does not hold the tile")
	}
	fmt.Printf("write: %d rows gathered into %d bytes\n", tile, len(store.Bytes()))

	// Scatter: the store becomes the tile at (700, 50).
	if err := do(ctx, a, ibverbx.SendWR{
		ID: 2, Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled,
		SGL: rows(picture, 700, 50), Remote: store.Remote().At(0),
	}); err != nil {
		return err
	}
	if !bytes.Equal(contents(picture, 700, 50), contents(picture, 100, 200)) {
		return errors.New("the picture does not hold the tile twice")
	}
	fmt.Printf("read: %d bytes scattered over %d rows\n", len(store.Bytes()), tile)

	// Both: header and body lie apart on both sides, and the lengths of the pieces differ.
	header := []byte("tile 256x256 ...") // 16 bytes
	copy(picture.Bytes(), header)
	if _, err := b.PostRecv(ibverbx.RecvWR{
		ID: 3, SGL: []ibverbx.Segment{store.Slice(0, 16), store.Slice(4096, 2*tile)},
	}); err != nil {
		return err
	}
	if err := do(ctx, a, ibverbx.SendWR{
		ID: 4, Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
		SGL: append([]ibverbx.Segment{picture.Slice(0, 16)}, rows(picture, 700, 50)[:2]...),
	}); err != nil {
		return err
	}
	wc, err := completion(ctx, b)
	if err != nil {
		return err
	}
	body := contents(picture, 700, 50)[:2*tile]
	if !bytes.Equal(store.Bytes()[:16], header) || !bytes.Equal(store.Bytes()[4096:][:2*tile], body) {
		return errors.New("the message has other bytes")
	}
	fmt.Printf("send: %d bytes received in two pieces\n", wc.ByteLen)
	return errors.Join(a.Close(), b.Close(), picture.Close(), store.Close(), fabric.Close())
}

// rows names the rows of the tile whose first byte is at row y and column x.
func rows(picture *ibverbx.MR, y, x uint64) []ibverbx.Segment {
	var list []ibverbx.Segment
	for i := range uint64(tile) {
		list = append(list, picture.Slice((y+i)*width+x, tile))
	}
	return list
}

// contents copies the same tile by hand.
func contents(picture *ibverbx.MR, y, x int) []byte {
	var b []byte
	for i := range tile {
		b = append(b, picture.Bytes()[(y+i)*width+x:][:tile]...)
	}
	return b
}

// do posts a request and waits for its completion.
func do(ctx context.Context, vqp *ibverbx.VirtualQP, wr ibverbx.SendWR) error {
	if _, err := vqp.PostSend(wr); err != nil {
		return err
	}
	wc, err := completion(ctx, vqp)
	if err == nil && wc.ID != wr.ID {
		err = fmt.Errorf("completion of request %d; want %d", wc.ID, wr.ID)
	}
	return err
}

// completion waits for the next completion.
func completion(ctx context.Context, vqp *ibverbx.VirtualQP) (ibverbx.WC, error) {
	for {
		wc, ok, err := vqp.CQ().PollOne()
		if err != nil || ok {
			return wc, errors.Join(err, wc.Err())
		}
		if err := vqp.CQ().Wait(ctx); err != nil {
			return wc, err
		}
	}
}

// connect makes two virtual queue pairs, one over each list of NICs, and connects them.
func connect(left, right []verbs.Device) (a, b *ibverbx.VirtualQP, err error) {
	if a, err = ibverbx.Open(left, ibverbx.Config{}); err != nil {
		return nil, nil, err
	}
	cfg := ibverbx.Config{Conn: ibverbx.ConnConfig{Access: rights}}
	if b, err = ibverbx.Open(right, cfg); err != nil {
		return nil, nil, err
	}
	cardA, err := a.Card()
	if err != nil {
		return nil, nil, err
	}
	cardB, err := b.Card()
	if err != nil {
		return nil, nil, err
	}
	return a, b, errors.Join(a.Connect(cardB), b.Connect(cardA))
}
