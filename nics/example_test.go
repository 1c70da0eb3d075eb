package nics_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"sync"

	"ibverbx"
	"ibverbx/nics"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// Two ends meet at an address and connect over the NICs that reach the other one. Here both are in
// one process and share software NICs; with the zero Config each process has NICs of its own.
func ExampleHost_Connect() {
	ctx := context.Background()
	host, err := nics.Open(nics.Config{Provider: nics.Soft, Logger: slog.New(slog.DiscardHandler)})
	check(err)
	l, err := rendezvous.Listen(ctx, "127.0.0.1:0", rendezvous.Config{})
	check(err)

	var dialing sync.WaitGroup
	dialing.Go(func() {
		c, err := rendezvous.Dial(ctx, l.Addr().String(), rendezvous.Config{})
		check(err)
		qp, err := host.Connect(ctx, c, ibverbx.Config{})
		check(err)
		check(c.Barrier(ctx)) // the other end has posted a receive
		_, err = qp.PostSend(ibverbx.SendWR{Opcode: verbs.OpSend, Inline: []byte("hello"),
			Flags: verbs.SendSignaled | verbs.SendInline})
		check(err)
		check(c.Barrier(ctx))
		check(errors.Join(qp.Close(), c.Close()))
	})

	c, err := l.Accept(ctx)
	check(err)
	qp, err := host.Connect(ctx, c, ibverbx.Config{})
	check(err)
	mr, err := qp.Domain().Register(make([]byte, 64), verbs.AccessLocalWrite)
	check(err)
	_, err = qp.PostRecv(ibverbx.RecvWR{Local: mr.All()})
	check(err)
	check(c.Barrier(ctx))
	check(qp.CQ().Wait(ctx))
	wc, _, err := qp.CQ().PollOne()
	check(err)
	fmt.Printf("%s, over %s\n", mr.Bytes()[:wc.ByteLen], host.Name())
	check(c.Barrier(ctx))
	dialing.Wait()
	check(errors.Join(mr.Close(), qp.Close(), c.Close(), l.Close(), host.Close()))
	// Output: hello, over soft
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
