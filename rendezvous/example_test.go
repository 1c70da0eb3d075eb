package rendezvous_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"ibverbx"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Two ends meet over TCP, connect a virtual queue pair each, and one writes into the memory of the
// other. They are goroutines here, on software NICs; in two processes nothing else changes but the
// NICs (package ibverbx/nics).
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fabric := must(soft.New(soft.Config{Devices: 2}))
	l := must(rendezvous.Listen(ctx, "127.0.0.1:0", rendezvous.Config{Protocol: "example/1"}))
	defer l.Close()

	var other sync.WaitGroup
	other.Go(func() { // the end that dials writes
		c := must(rendezvous.Dial(ctx, l.Addr().String(), rendezvous.Config{Protocol: "example/1"}))
		defer c.Close()
		qp := must(ibverbx.Open([]verbs.Device{fabric.Device(0)}, ibverbx.Config{}))
		check(rendezvous.Connect(ctx, c, qp))
		memory := must(rendezvous.Exchange(ctx, c, ibverbx.RemoteMR{}))
		must(qp.PostSend(ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm,
			Flags: verbs.SendSignaled | verbs.SendInline, Inline: []byte("hello"), Remote: memory.At(0),
			Imm: 5}))
		check(qp.CQ().Wait(ctx))
		check(c.Barrier(ctx)) // the other end has seen it
	})

	c := must(l.Accept(ctx))
	defer c.Close()
	qp := must(ibverbx.Open([]verbs.Device{fabric.Device(1)}, ibverbx.Config{}))
	mr := must(qp.Domain().Register(make([]byte, 64), verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	check(rendezvous.Connect(ctx, c, qp))
	must(qp.PostRecv(ibverbx.RecvWR{})) // before the peer knows where to write
	must(rendezvous.Exchange(ctx, c, mr.Remote()))
	check(qp.CQ().Wait(ctx))
	wc, _, err := qp.CQ().PollOne()
	check(err)
	fmt.Printf("%s\n", mr.Bytes()[:wc.Imm])
	check(c.Barrier(ctx))
	other.Wait()
	// Output: hello
}

// A listener serves many: each conversation has a goroutine, and what came of a connection that
// brought none is logged.
func ExampleListener_Accept() {
	ctx, cancel := context.WithCancel(context.Background())
	l := must(rendezvous.Listen(ctx, "127.0.0.1:0", rendezvous.Config{}))
	served := make(chan bool)
	go func() {
		for {
			c, err := l.Accept(ctx)
			if errors.Is(err, context.Canceled) || errors.Is(err, rendezvous.ErrClosed) {
				return
			}
			check(err)
			go func() {
				defer c.Close()
				var who string
				check(c.Receive(ctx, "hello", &who))
				fmt.Println("hello from", who)
				served <- true
			}()
		}
	}()
	c := must(rendezvous.Dial(ctx, l.Addr().String(), rendezvous.Config{}))
	check(c.Send(ctx, "hello", "rank 7"))
	<-served
	cancel()
	check(errors.Join(c.Close(), l.Close()))
	// Output: hello from rank 7
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
