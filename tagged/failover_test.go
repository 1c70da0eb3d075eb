package tagged_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/verbs/soft"
)

// losses are the ways to lose a NIC, its link, or a queue pair of it.
var losses = []struct {
	name string
	lose func(f *soft.Fabric, nic *soft.Device)
}{
	{"kill", func(_ *soft.Fabric, nic *soft.Device) { nic.Kill() }},
	{"link", func(_ *soft.Fabric, nic *soft.Device) { nic.SetLink(false) }},
	{"queue pair", func(f *soft.Fabric, nic *soft.Device) {
		f.Inject(soft.Fault{Kind: soft.FailQP, Device: nic})
	}},
}

// Two ends of two NICs pass messages back and forth, copied ones and long ones, and one of the NICs
// is lost at one end while a message is on its way. Neither notices.
func TestAPingPongOutlivesANIC(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for _, l := range losses {
			for nic, where := range []string{"a's first", "a's second", "b's first", "b's second"} {
				if testing.Short() && (nic == 1 || nic == 2) {
					continue
				}
				t.Run(fmt.Sprintf("%v/%s/%s", scheme, l.name, where), func(t *testing.T) {
					cfg := tagged.Config{EagerLimit: 4096, Chunk: 32 << 10}
					cfg.Transport.QP = ibverbx.Config{Scheme: scheme, QPsPerDevice: 2, FragmentSize: 4096,
						Failover: true, Conn: ibverbx.ConnConfig{Timeout: 8, RetryCount: 2}}
					r, a, b := pair(t, 2, cfg)
					pingPong(t, r, a, b, func() { l.lose(r.fabric, r.fabric.Device(nic)) })
				})
			}
		}
	}
}

func pingPong(t *testing.T, r *rig, a, b *tagged.Endpoint, lose func()) {
	t.Helper()
	ctx := background(r)
	const rounds = 30
	lengths := []int{0, 100, 4096, 4097, 60_000, 200_000}
	echoed := make(chan error, 1)
	go func() { echoed <- echo(ctx, b, rounds) }()
	for i := range rounds {
		sent := pattern(lengths[i%len(lengths)], i)
		req := r.send(a, uint64(i), sent)
		if i == 17 { // with a long one on its way
			lose()
		}
		got := make([]byte, len(sent))
		info, err := a.RecvWait(ctx, uint64(i), tagged.Exact, got)
		if err != nil || info.Length != len(sent) || !bytes.Equal(got, sent) {
			t.Fatalf("round %d: %d bytes of %d, %v", i, info.Length, len(sent), err)
		}
		if req != nil {
			if err := req.Wait(ctx); err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
		}
	}
	if err := <-echoed; err != nil {
		t.Fatal(err)
	}
	lost := uint64(0)
	for _, w := range r.workers {
		s := w.Stats()
		lost += s.Transport.RailsLost
		if s.Failures != 0 {
			t.Errorf("%d endpoints have failed", s.Failures)
		}
	}
	if lost == 0 {
		t.Error("no rail was lost")
	}
}

// echo returns what comes.
func echo(ctx context.Context, b *tagged.Endpoint, rounds int) error {
	buf := make([]byte, 1<<20)
	for i := range rounds {
		info, err := b.RecvWait(ctx, uint64(i), tagged.Exact, buf)
		if err != nil {
			return fmt.Errorf("echo, round %d: %w", i, err)
		}
		if err := b.SendWait(ctx, uint64(i), buf[:info.Length]); err != nil {
			return fmt.Errorf("echo, round %d: %w", i, err)
		}
	}
	return nil
}
