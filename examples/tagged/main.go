// Tagged messages: a coordinator sends 8 MiB of numbers to each of three workers, and receives
// their sums in the order in which they arrive.
//
// A tag has the kind of a message in its upper 32 bits and the worker in the lower ones. The
// coordinator receives sums from any worker with one tag and a mask. The numbers are long messages,
// which each worker's NIC reads from the coordinator's memory; the sums are short messages, which
// are copied.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"time"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/verbs/soft"
)

const (
	workers = 3
	numbers = 1 << 20 // of 8 bytes, for each worker
)

// The kinds of messages.
const (
	kindNumbers = uint64(1) << 32
	kindSum     = uint64(2) << 32
	kindMask    = uint64(0xffffffff) << 32
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	fabric, err := soft.New(soft.Config{Devices: 1 + workers}) // one NIC each
	if err != nil {
		return err
	}
	var domains []*ibverbx.Domain
	var all []*tagged.Worker // the coordinator's is the first
	for i := range 1 + workers {
		dom, err := ibverbx.NewDomain(fabric.Device(i))
		if err != nil {
			return err
		}
		worker, err := tagged.NewWorker(dom, tagged.Config{})
		if err != nil {
			return err
		}
		if err := worker.Start(); err != nil { // a goroutine makes progress
			return err
		}
		domains, all = append(domains, dom), append(all, worker)
	}
	var ends [workers]*tagged.Endpoint // the coordinator's, one for each worker
	ended := make(chan error, workers)
	for i := range ends {
		ends[i], err = all[0].NewEndpoint(tagged.EndpointConfig{Name: fmt.Sprint("worker ", i)})
		if err != nil {
			return err
		}
		toHub, err := all[1+i].NewEndpoint(tagged.EndpointConfig{Name: "coordinator"})
		if err != nil {
			return err
		}
		// Two processes would exchange ends[i].Card() and toHub.Card() as JSON, and call Connect on
		// their own endpoint.
		if err := tagged.Connect(ends[i], toHub); err != nil {
			return err
		}
		go func() { ended <- work(ctx, toHub, uint64(i)) }()
	}
	if err := coordinate(ctx, ends[:]); err != nil {
		return err
	}
	for range workers {
		if err := <-ended; err != nil {
			return err
		}
	}
	for i := range all {
		if err := errors.Join(all[i].Close(), domains[i].Close()); err != nil {
			return err
		}
	}
	return fabric.Close()
}

// coordinate sends the numbers and verifies the sums.
func coordinate(ctx context.Context, ends []*tagged.Endpoint) error {
	want := map[string]uint64{}
	var sends []*tagged.Request
	for i, end := range ends {
		buf := make([]byte, 8*numbers)
		for j := range uint64(numbers) {
			n := j * uint64(i+1)
			binary.LittleEndian.PutUint64(buf[8*j:], n)
			want[end.Name()] += n
		}
		req, err := end.Send(kindNumbers|uint64(i), buf) // buf belongs to the request until it is done
		if err != nil {
			return err
		}
		if req != nil { // nil: done already
			sends = append(sends, req)
		}
	}
	for range ends {
		var sum [8]byte
		info, err := ends[0].Worker().RecvWait(ctx, kindSum, kindMask, sum[:]) // from any worker
		if err != nil {
			return err
		}
		name := info.Source.Name()
		if got := binary.LittleEndian.Uint64(sum[:]); got != want[name] {
			return fmt.Errorf("%s: sum %d; want %d", name, got, want[name])
		}
		delete(want, name)
	}
	for _, req := range sends {
		if err := req.Wait(ctx); err != nil {
			return err
		}
		req.Free()
	}
	if len(want) != 0 {
		return fmt.Errorf("no sum of %v", want)
	}
	fmt.Printf("%d sums of %d numbers each verified\n", len(ends), numbers)
	for _, end := range ends {
		if err := end.Close(ctx); err != nil {
			return err
		}
	}
	return nil
}

// work receives numbers, adds them up and sends the sum.
func work(ctx context.Context, toHub *tagged.Endpoint, id uint64) error {
	buf := make([]byte, 8*numbers)
	info, err := toHub.Worker().RecvWait(ctx, kindNumbers|id, tagged.Exact, buf)
	if err != nil {
		return err
	}
	var sum uint64
	for b := buf[:info.Length]; len(b) > 0; b = b[8:] {
		sum += binary.LittleEndian.Uint64(b)
	}
	if err := toHub.SendWait(ctx, kindSum|id, binary.LittleEndian.AppendUint64(nil, sum)); err != nil {
		return err
	}
	return toHub.Close(ctx)
}
