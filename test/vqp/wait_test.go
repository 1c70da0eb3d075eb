package vqp_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// VirtualCQ.Wait returns when there is something to poll. Requests make progress while it waits.
func TestWaitReturnsWhenThereAreCompletions(t *testing.T) {
	cfg := shallow
	cfg.Credits = 64 // the ends wait one after the other, so neither may depend on the other
	eachShape(t, cfg, func(t *testing.T, a, b *end) {
		ctx, cancel := context.WithTimeout(t.Context(), *waitFlag)
		defer cancel()
		for _, r := range []request{a.write(8), a.write(10 * 512), a.read(10 * 512), a.fetchAdd(5),
			a.writeImm(10 * 512), a.message(100)} {
			a.deliver(r)
			for _, e := range []*end{a, b} {
				for !e.settled() {
					if err := e.CQ().Wait(ctx); err != nil {
						t.Fatalf("%v: %v\n%s", r.Opcode, err, a.host.rig.describe())
					}
					if e.host.pump() == 0 {
						t.Fatalf("%v: woken for nothing", r.Opcode)
					}
				}
			}
		}
		settle(a, b)
	})
}

// Wait returns when its context ends. What was posted stays outstanding.
func TestWaitEndsWithItsContext(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(t *testing.T, a, b *end) {
		r := a.writeImm(5 * fragment)
		b.expect(&r)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.CQ().Wait(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("a context that has ended: %v", err)
		}
		short, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		if err := b.CQ().Wait(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a deadline: %v", err)
		}
		a.send(r)
		settle(a, b)
	})
}

// Two goroutines with an end each wait for each other. If a completion that comes between the last
// poll and the sleep raised no event, both would sleep.
func TestWaitMissesNoCompletion(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(t *testing.T, a, b *end) {
		ctx, cancel := context.WithTimeout(t.Context(), *waitFlag)
		defer cancel()
		rounds := a.host.rig.kind.scaled(200)
		// A ball is a number that one end writes to the memory of the other.
		court := [2]plot{a.mem.land(8), b.mem.land(8)}
		play := func(me, peer int, e *end) error {
			mine, theirs := e.mem.bytes(court[me]), court[peer]
			serve := func(ball uint64) error {
				_, err := e.PostSend(ibverbx.SendWR{
					ID: ball, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled | verbs.SendInline,
					Inline: wordBytes(ball), Remote: e.peer.Slice(theirs.at, 8), Imm: uint32(ball),
				})
				return err
			}
			var err error
			if me == 0 {
				err = serve(1)
			}
			ball := uint64(0) // the last that has arrived
			var wcs [4]ibverbx.WC
			for returned := uint64(0); err == nil &&
				(ball < uint64(2*rounds-1) || returned < uint64(rounds)); {
				if err = e.CQ().Wait(ctx); err != nil {
					return fmt.Errorf("after ball %d: %w, %w", ball, err, e.Err())
				}
				var n int
				n, err = e.CQ().Poll(wcs[:])
				for _, wc := range wcs[:n] {
					switch {
					case wc.Status != verbs.StatusSuccess:
						return fmt.Errorf("%+v: %w", wc, e.Err())
					case !wc.Opcode.IsRecv():
						returned++
						continue
					}
					ball = wordAt(mine)
					if uint64(wc.Imm) != ball || ball%2 != uint64(me) || wc.ID != recvBit|ball {
						return fmt.Errorf("ball %d came with %+v", ball, wc)
					}
					if _, perr := e.PostRecv(ibverbx.RecvWR{ID: recvBit | (ball + 2)}); perr != nil {
						return perr
					}
					if ball < uint64(2*rounds) {
						err = errors.Join(err, serve(ball+1))
					}
				}
			}
			return err
		}
		for me, e := range []*end{a, b} {
			if _, err := e.PostRecv(ibverbx.RecvWR{ID: recvBit | uint64(2-me)}); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error)
		player := func(me, peer int, e *end) error {
			err := play(me, peer, e)
			if err != nil {
				cancel() // the other one waits for another ball
			}
			return err
		}
		go func() { done <- player(1, 0, b) }()
		if err := errors.Join(player(0, 1, a), <-done); err != nil {
			t.Fatal(err)
		}
		// Each end has one receive left that the record does not have.
		for me, e := range []*end{a, b} {
			e.recvs.open = append(e.recvs.open, &posted{id: recvBit | uint64(2*rounds+2-me), recv: true})
		}
	})
}
