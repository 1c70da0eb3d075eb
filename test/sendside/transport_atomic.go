package sendside

import (
	"errors"
	"slices"
)

// chain is a word that is compared and swapped: every value is swapped in by one operation, so each
// can be left once.
type chain struct {
	values []uint64 // that operations want to swap in, from the first value on
	next   int
	lost   []uint64 // of operations that were refused, and so are never seen
	done   []*op
}

func (c *chain) refused(v uint64) { c.lost = append(c.lost, v) }

// chains are the words of a site that are compared and swapped.
func (s *site) chains() *[swapsSlots]chain {
	if s.chain == nil {
		s.chain = new([swapsSlots]chain)
		for i := range s.chain {
			s.chain[i].values = []uint64{0}
		}
	}
	return s.chain
}

// endAtomic notes an atomic that has ended.
func (o *op) endAtomic(err error) {
	if err != nil && !errors.Is(err, errPerhaps) && o.old != nil && *o.old != 1 {
		o.e.w.broken(ruleAtomic, "%v has failed, and says that there was %d", o, *o.old)
	}
	s := o.e.peer.site
	if o.kind == fetchAdd {
		s.adds = append(s.adds, o)
		return
	}
	c := &s.chains()[(o.word-swapsAt)/8]
	c.done = append(c.done, o)
}

// checkAtomics checks that the words of a host can have come about one operation after another.
// Operations whose old value is not known count as failed ones do: they may have happened.
func (h *host) checkAtomics() {
	for i := range counters {
		var seen []uint64
		sure, perhaps := uint64(0), uint64(0)
		for _, o := range h.adds {
			switch {
			case o.word != 8*i:
			case o.err != nil:
				perhaps++
			default:
				sure++
				if o.old != nil {
					seen = append(seen, *o.old)
				}
			}
		}
		sum := h.memory.word(8 * i)
		if sum%step != 0 || sum/step < sure || sum/step > sure+perhaps {
			h.broken(ruleAtomic, "counter %d of %s is %d times %d: %d additions ended well, %d perhaps", i,
				h.name, sum/step, step, sure, perhaps)
		}
		slices.Sort(seen)
		for j, v := range seen {
			if v%step != 0 || v >= sum || j > 0 && v == seen[j-1] {
				h.broken(ruleAtomic, "counter %d of %s: additions found %d", i, h.name, seen)
			}
		}
	}
	if h.chain == nil {
		return
	}
	for i := range h.chain {
		h.checkChain(i, &h.chain[i])
	}
}

func (h *host) checkChain(i int, c *chain) {
	word := h.memory.word(swapsAt + 8*i)
	if !slices.Contains(c.values, word) || slices.Contains(c.lost, word) {
		h.broken(ruleAtomic, "word %d of %s holds %#x, which nobody swapped in", i, h.name, word)
	}
	left := map[uint64]*op{} // which operation has swapped a value out
	for _, o := range c.done {
		if o.err != nil || o.old == nil {
			continue
		}
		if !slices.Contains(c.values, *o.old) || slices.Contains(c.lost, *o.old) {
			h.broken(ruleAtomic, "%v found %#x, which nobody swapped in", o, *o.old)
		}
		if *o.old != o.compare {
			continue
		}
		if other := left[*o.old]; other != nil || word == *o.old {
			h.broken(ruleAtomic, "%v has swapped %#x out, and so has %v, or it is there still", o, *o.old,
				other)
		}
		left[*o.old] = o
	}
}
