// Command runpe is one PE of the programs, in a process of its own on the host's NICs. Start one with each number:
//
//	runpe -pe 0 -pes 2 -root :7471 -devices rxe0 &
//	runpe -pe 1 -pes 2 -root host:7471 -devices rxe1
//
// Each prints one line when all results are right, and ends with status 1 otherwise.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"ibverbx"
	"ibverbx/shmem"
	"ibverbx/shmem/internal/gather"
	"ibverbx/shmem/internal/programs"
	"ibverbx/verbs/rdmacore"
)

func main() {
	pe := flag.Int("pe", 0, "number of this PE")
	pes := flag.Int("pes", 1, "how many PEs there are")
	root := flag.String("root", ":7471", "address at which PE 0 listens")
	devices := flag.String("devices", "", "names of the NICs, with commas; all by default")
	qps := flag.Int("qps", 4, "queue pairs on each NIC")
	timeout := flag.Duration("timeout", time.Minute, "give up after this time")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	cfg := shmem.Config{PE: *pe, PEs: *pes, HeapSize: 1 << 20}
	cfg.Transport.QP.QPsPerDevice = *qps
	start := time.Now()
	if err := run(ctx, cfg, *root, *devices); err != nil {
		fmt.Fprintf(os.Stderr, "PE %d: %v\n", *pe, err)
		os.Exit(1)
	}
	fmt.Printf("PE %d of %d: histogram and jacobi are right, in %v\n", *pe, *pes, time.Since(start).Round(time.Millisecond))
}

func run(ctx context.Context, cfg shmem.Config, root, devices string) (err error) {
	provider, err := rdmacore.Open(rdmacore.Config{Devices: devices})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	nics, err := provider.Devices()
	if err != nil {
		return err
	}
	dom, err := ibverbx.NewDomain(nics...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dom.Close()) }()
	group, err := join(ctx, cfg, root)
	if err != nil {
		return err
	}
	defer group.Close()
	cfg.Exchange = group.Exchange
	pe, err := shmem.Join(ctx, dom, cfg)
	if err != nil {
		return err
	}
	world := shmem.NewWorld(pe)
	return errors.Join(world.Run(ctx, programs.Check), world.Close(ctx))
}

func join(ctx context.Context, cfg shmem.Config, root string) (*gather.Group, error) {
	if cfg.PE != 0 {
		return gather.Dial(ctx, root, cfg.PE)
	}
	l, err := net.Listen("tcp", root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	return gather.Listen(ctx, l, cfg.PEs)
}
