package gather_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/shmem"
	"ibverbx/shmem/internal/gather"
	"ibverbx/shmem/internal/programs"
	"ibverbx/verbs/soft"
)

// PEs that know of each other by TCP alone, each a world of its own as in a process of its own, run the programs.
func TestPEsJoinOverTCP(t *testing.T) {
	const pes = 4
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	f, err := soft.New(soft.Config{Devices: pes})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Skip(err)
	}
	defer l.Close()
	errs := make([]error, pes)
	var wg sync.WaitGroup
	for id := range pes {
		wg.Go(func() { errs[id] = process(ctx, f, l, id, pes) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if left := f.Objects(); left != (soft.Objects{}) {
		t.Fatalf("left open: %v", left)
	}
}

// process is what one process does.
func process(ctx context.Context, f *soft.Fabric, l net.Listener, id, pes int) error {
	var g *gather.Group
	var err error
	if id == 0 {
		g, err = gather.Listen(ctx, l, pes)
	} else {
		g, err = gather.Dial(ctx, l.Addr().String(), id)
	}
	if err != nil {
		return err
	}
	defer g.Close()
	dom, err := ibverbx.NewDomain(f.Device(id))
	if err != nil {
		return err
	}
	pe, err := shmem.Join(ctx, dom, shmem.Config{PE: id, PEs: pes, HeapSize: 1 << 20, Exchange: g.Exchange})
	if err != nil {
		return errors.Join(err, dom.Close())
	}
	world := shmem.NewWorld(pe)
	return errors.Join(world.Run(ctx, programs.Check), world.Close(ctx), dom.Close())
}

// Who is missing is told when ctx ends.
func TestListenEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := gather.Listen(ctx, l, 2); err == nil {
		t.Fatal("nobody came, and Listen ended well")
	}
}
