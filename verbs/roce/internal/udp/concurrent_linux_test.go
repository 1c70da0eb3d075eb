package udp

import (
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"ibverbx/verbs"
)

// Several goroutines send over one Conn to their own destinations at once, while others receive,
// and read the counters: every receiver gets all of its packets in their order.
func TestConcurrentSends(t *testing.T) {
	const peers, rounds, burst = 4, 40, 8
	local := loopbacks()["IPv4"]
	near := open(t, Config{Local: local})
	var senders, receivers sync.WaitGroup
	for range peers {
		far := open(t, Config{Local: local})
		dest, batch := to(t, near, far), far.NewBatch(0, 0)
		turn := make(chan struct{}, 8) // rounds on the way
		senders.Go(func() {
			for round := range rounds {
				turn <- struct{}{}
				packets := make([]Packet, burst)
				for i := range packets {
					header := binary.BigEndian.AppendUint32(nil, uint32(round*burst+i))
					packets[i] = Packet{Header: header, Payload: make([]byte, 1000)}
				}
				if n, err := dest.Send(packets, round%2 == 0); n != burst || err != nil {
					t.Errorf("sent %d: %v", n, err)
				}
				_ = near.Stats()
			}
		})
		receivers.Go(func() {
			for next := uint32(0); next < rounds*burst; {
				_, err := batch.Recv()
				if errors.Is(err, ErrAgain) {
					err = far.WaitReadable(time.Now().Add(20 * time.Second))
				}
				if err != nil {
					t.Errorf("packet %d: %v", next, err)
					return
				}
				for _, d := range batch.Datagrams {
					if got := binary.BigEndian.Uint32(d.Data); got != next || d.From != near.LocalAddr() {
						t.Errorf("packet %d from %v, not %d", got, d.From, next)
						return
					}
					if next++; next%burst == 0 {
						<-turn
					}
				}
			}
		})
	}
	senders.Wait()
	receivers.Wait()
}

// Close ends whatever goes on, and nothing after it reaches another descriptor.
func TestCloseWhileBusy(t *testing.T) {
	for range 20 {
		a, b := openPair(t)
		var all sync.WaitGroup
		until := func(end func() error) {
			all.Go(func() {
				for {
					switch err := end(); {
					case errors.Is(err, verbs.ErrClosed):
						return
					case err != nil && !errors.Is(err, ErrAgain):
						t.Error(err)
						return
					}
				}
			})
		}
		batch, there, back := b.NewBatch(0, 0), to(t, a, b), to(t, b, a)
		packets, _ := packetsOf(many(10, 100)...)
		until(func() error { _, err := there.Send(packets, true); return err })
		until(func() error { _, err := back.Send(packets, true); return err })
		until(func() error { _, err := batch.Recv(); return err })
		until(func() error { return b.WaitReadable(time.Time{}) })
		until(func() error { return a.WaitWritable(time.Time{}) })
		a.Close()
		b.Close()
		all.Wait()
	}
}
