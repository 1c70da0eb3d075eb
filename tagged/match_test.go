package tagged

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestMatchingAgainstAList compares the hash tables with the rule itself: a message takes the first
// receive that takes it, a receive the first message.
func TestMatchingAgainstAList(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var p posted
		var u unexpected
		p.exact.init()
		u.byTag.init()
		var receives, messages []*entry
		tags := 1 + rng.Uint64N(300)
		for step := range 2000 {
			tag, mask := rng.Uint64N(tags), Exact
			if rng.IntN(3) == 0 {
				mask = rng.Uint64() & rng.Uint64()
			}
			switch rng.IntN(5) {
			case 0, 1: // a message
				i := slices.IndexFunc(receives, func(e *entry) bool { return e.takes(tag) })
				got := p.take(tag)
				switch {
				case i < 0 && got == nil:
					e := &entry{tag: tag, mask: Exact, in: &inbound{}}
					messages = append(messages, e)
					u.push(e)
				case i < 0 || got != receives[i].req:
					t.Fatalf("seed %d, step %d: tag %d takes %v, not receive %d", seed, step, tag, got, i)
				default:
					receives = slices.Delete(receives, i, i+1)
				}
			case 2, 3: // a receive
				i := slices.IndexFunc(messages, func(e *entry) bool { return (e.tag^tag)&mask == 0 })
				got := u.find(tag, mask)
				switch {
				case i < 0 && got == nil:
					e := &entry{tag: tag, mask: mask, req: &Request{}}
					receives = append(receives, e)
					p.push(e)
				case i < 0 || got != messages[i].in:
					t.Fatalf("seed %d, step %d: %#x under %#x takes %v, not message %d", seed, step, tag,
						mask, got, i)
				default:
					u.remove(messages[i])
					messages = slices.Delete(messages, i, i+1)
				}
			default: // a cancelled receive
				if len(receives) != 0 {
					i := rng.IntN(len(receives))
					p.remove(receives[i])
					receives = slices.Delete(receives, i, i+1)
				}
			}
			if p.count != len(receives) || u.byTag.count != len(messages) {
				t.Fatalf("seed %d, step %d: %d receives, %d messages: want %d, %d", seed, step, p.count,
					u.byTag.count, len(receives), len(messages))
			}
		}
	}
}
