package shmem_test

import (
	"context"
	"fmt"
	"log"

	"ibverbx"
	"ibverbx/shmem"
	"ibverbx/verbs/soft"
)

// Four PEs greet each other around a ring, and then count letters together.
func Example() {
	ctx := context.Background()
	fabric, err := soft.New(soft.Config{Devices: 4}) // software NICs; rdmacore has real ones
	if err != nil {
		log.Fatal(err)
	}
	defer fabric.Close()
	var doms []*ibverbx.Domain
	for i := range 4 {
		dom, err := ibverbx.NewDomain(fabric.Device(i))
		if err != nil {
			log.Fatal(err)
		}
		defer dom.Close()
		doms = append(doms, dom)
	}
	world, err := shmem.NewLocal(ctx, shmem.Config{HeapSize: 1 << 20}, doms...)
	if err != nil {
		log.Fatal(err)
	}
	if err := world.Run(ctx, program); err != nil {
		log.Fatal(err)
	}
	if err := world.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// PE 3 says: hello, PE 0
	// letters: a 3, b 2, c 1, d 2
}

// program is what every PE runs.
func program(ctx context.Context, pe *shmem.PE) error {
	text, err := shmem.Alloc[byte](ctx, pe, 64)
	if err != nil {
		return err
	}
	counts, err := shmem.Alloc[uint64](ctx, pe, 5) // four letters, and the signal of the ring
	if err != nil {
		return err
	}
	next := (pe.Rank() + 1) % pe.Size()
	hello := fmt.Sprintf("PE %d says: hello, PE %d", pe.Rank(), next)
	if err := shmem.PutSignal(ctx, pe, text, []byte(hello), counts.At(4), uint64(len(hello)), shmem.SignalSet,
		next); err != nil {
		return err
	}
	// the text is there when the signal is
	if err := shmem.WaitUntil(ctx, pe, counts.At(4), shmem.NE, 0); err != nil {
		return err
	}
	for _, letter := range []string{"ad", "bad", "ca", "b"}[pe.Rank()] {
		if err := shmem.Inc(ctx, pe, counts.At(int(letter-'a')), 0); err != nil {
			return err
		}
	}
	if err := pe.Barrier(ctx); err != nil {
		return err
	}
	if pe.Rank() == 0 {
		c := counts.Local(pe)
		fmt.Printf("%s\nletters: a %d, b %d, c %d, d %d\n", text.Local(pe)[:c[4]], c[0], c[1], c[2], c[3])
	}
	return nil
}
