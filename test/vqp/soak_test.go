package vqp_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"ibverbx"
)

// Mixed requests in both directions, over one random configuration after the other, with early and
// late receives. All follows from a seed, which a failure prints.
func TestSoak(t *testing.T) {
	kind := chosen(t)
	seed, total := *seedFlag, *soakFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	if total == 0 {
		total = kind.scaled(40_000)
	}
	t.Logf("-seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for round := 0; total > 0; round++ {
		s := shapes[rng.IntN(len(shapes))]
		if !s.single() {
			s.qps = 1 + rng.IntN(4)
		}
		cfg := s.config(ibverbx.Config{
			FragmentSize:   1 << (6 + rng.IntN(9)), // 64 bytes to 16 KiB
			MaxMsgCntPerQP: 1 + rng.IntN(32),
			Credits:        1 + rng.IntN(32),
			MaxBanked:      1 + rng.IntN(8),
			MaxSGE:         1 + rng.IntN(4),
		})
		n := min(total, 50+rng.IntN(kind.scaled(1000)))
		name := fmt.Sprintf("%d/%s/%dqp/%d bytes/%d deep/%d credits", round, s.name, s.qps, cfg.FragmentSize,
			cfg.MaxMsgCntPerQP, cfg.Credits)
		t.Run(name, func(t *testing.T) {
			rig := newRig(t, &s)
			a, b := rig.connect(cfg)
			soak(rng, a, b, n)
		})
		if t.Failed() {
			return
		}
		total -= n
	}
}

// soak exchanges so many requests in a random order.
func soak(rng *rand.Rand, a, b *end, total int) {
	a.tb().Helper()
	largest := min(uint64(a.Config().FragmentSize)*uint64(1+rng.IntN(12)), 32<<10)
	streams := []*stream{{from: a}, {from: b}}
	left := total
	a.host.rig.until("the next requests", func() bool {
		for _, s := range streams {
			// At most 32 requests of each end are outstanding, which the memory is enough for.
			for range rng.IntN(8) {
				if left > 0 && len(s.rs)-s.sent+len(s.from.sends.open) < 32 &&
					len(s.from.other.recvs.open) < 32 {
					s.rs = append(s.rs, s.from.any(largest))
					left--
				}
			}
			if rng.IntN(3) != 0 {
				s.stagger(rng)
			}
			s.drop()
		}
		return left == 0 && streams[0].advance() && streams[1].advance()
	})
	settle(a, b)
}

// stagger posts some receives and some requests. A request may be sent before its receive is
// posted.
func (s *stream) stagger(rng *rand.Rand) {
	for s.expected < len(s.rs) && rng.IntN(4) != 0 && s.from.other.tryExpect(&s.rs[s.expected]) {
		s.expected++
	}
	if ahead := min(len(s.rs), s.expected+rng.IntN(3)); s.sent < ahead {
		s.sent += s.from.trySend(s.rs[s.sent:ahead]...)
	}
}

// drop removes the requests that are posted, with their receives.
func (s *stream) drop() {
	done := min(s.sent, s.expected)
	s.rs, s.sent, s.expected = s.rs[done:], s.sent-done, s.expected-done
}
