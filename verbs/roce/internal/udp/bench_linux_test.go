package udp

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// message is 1 MiB as a provider sends it: packets of 4096 bytes with a header of 12 and a trailer
// of 4, each trailer beside the header after it.
func message() []Packet {
	const count, mtu = 256, 4096
	frames, payload := make([]byte, count*16+12), make([]byte, count*mtu)
	packets := make([]Packet, count)
	for i := range packets {
		packets[i] = Packet{Header: frames[i*16:][:12], Payload: payload[i*mtu:][:mtu],
			Trailer: frames[i*16+12:][:4]}
	}
	return packets
}

// drain receives so many datagrams, asking again and again, and gives up after some seconds. It
// returns how many more it has taken.
func drain(t testing.TB, batch *Batch, count int) (more int) {
	var since time.Time
	for count > 0 {
		n, err := batch.Recv()
		count -= n
		switch {
		case errors.Is(err, ErrAgain) && since.IsZero():
			since = time.Now()
			runtime.Gosched()
		case errors.Is(err, ErrAgain) && time.Since(since) < 5*time.Second:
			runtime.Gosched()
		case err != nil:
			t.Errorf("%d datagrams are missing: %v", count, err)
			return 0
		default:
			since = time.Time{}
		}
	}
	return -count
}

// modes are what the two ends can use.
var modes = []struct {
	name             string
	segment, collect bool
}{{"GSO+GRO", true, true}, {"GSO", true, false}, {"GRO", false, true}, {"plain", false, false}}

// Once warm, neither sending nor receiving allocates, bursts or not.
func TestAllocations(t *testing.T) {
	for name, local := range loopbacks() {
		for _, mode := range modes {
			a, err := Listen(Config{Local: local, DisableGSO: !mode.segment})
			if err != nil && name == "IPv6" {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			b := open(t, Config{Local: local, DisableGRO: !mode.collect})
			dest, batch, packets := to(t, a, b), b.NewBatch(0, 0), message()
			exchange := func() {
				for part := range slices.Chunk(packets, 32) { // fits the smallest usual buffer
					send(t, dest, part, true)
					drain(t, batch, len(part))
				}
				if _, err := batch.Recv(); !errors.Is(err, ErrAgain) {
					t.Error(err)
				}
			}
			exchange()
			if allocs := testing.AllocsPerRun(20, exchange); allocs != 0 {
				t.Errorf("%s, %s: %v allocations", name, mode.name, allocs)
			}
			a.Close()
		}
	}
}

// Waiting for a datagram that is there allocates nothing.
func TestWaitAllocations(t *testing.T) {
	a, b := openPair(t)
	dest, batch := to(t, a, b), b.NewBatch(0, 0)
	packets, _ := packetsOf(24)
	exchange := func() {
		send(t, dest, packets, true)
		if a.WaitWritable(time.Time{}) != nil || b.WaitReadable(time.Time{}) != nil {
			t.Error("cannot wait")
		}
		drain(t, batch, 1)
	}
	exchange()
	if allocs := testing.AllocsPerRun(100, exchange); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// BenchmarkTransfer moves messages of 1 MiB through a pair of sockets: "turns" on one goroutine,
// which sends and then receives each; "together" on two, with up to two messages on the way.
func BenchmarkTransfer(b *testing.B) {
	for _, mode := range modes {
		for name, transfer := range map[string]func(*testing.B, *Destination, *Batch, []Packet){
			"turns": transferInTurns, "together": transferTogether} {
			b.Run(mode.name+"/"+name, func(b *testing.B) {
				local := loopbacks()["IPv4"]
				sender := open(b, Config{Local: local, DisableGSO: !mode.segment})
				receiver := open(b, Config{Local: local, DisableGRO: !mode.collect})
				dest, batch, packets := to(b, sender, receiver), receiver.NewBatch(0, 0), message()
				if granted := receiver.Stats().RecvBuffer; granted < bufferSize {
					b.Skipf("net.core.rmem_max leaves a receive buffer of %d bytes", granted)
				}
				b.SetBytes(1 << 20)
				b.ReportAllocs()
				before := cpu()
				transfer(b, dest, batch, packets)
				b.ReportMetric((cpu()-before).Seconds()*1e3*1024/float64(b.N), "CPU-ms/GiB")
				if s := receiver.Stats(); s.RecvDropped != 0 {
					b.Errorf("lost %d", s.RecvDropped)
				}
			})
		}
	}
}

func transferInTurns(b *testing.B, dest *Destination, batch *Batch, packets []Packet) {
	for b.Loop() {
		send(b, dest, packets, true)
		drain(b, batch, len(packets))
	}
}

func transferTogether(b *testing.B, dest *Destination, batch *Batch, packets []Packet) {
	window := make(chan struct{}, 2)
	messages := make(chan struct{}, 2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ahead := 0
		for range messages {
			ahead = drain(b, batch, len(packets)-ahead)
			<-window
		}
	}()
	for b.Loop() {
		window <- struct{}{}
		messages <- struct{}{}
		send(b, dest, packets, true)
	}
	close(messages)
	<-done
}

// cpu is the processor time that this process has used.
func cpu() time.Duration {
	var usage unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
