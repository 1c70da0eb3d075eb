package sendside

import (
	"errors"
	"slices"
)

// chain is a word for compare-and-swap, with all its operations. No two swap the same value in, so
// each value is swapped out at most once.
type chain []*op

// value returns the value of the word after so many swaps; 0 at first.
func (chain) value(swaps int) uint64 {
	if swaps == 0 {
		return 0
	}
	return uint64(swaps)<<8 | 0xee
}

// mayHold reports whether the word may hold a value. The value of a refused operation must not
// appear.
func (c chain) mayHold(v uint64) bool {
	return v == 0 || slices.ContainsFunc(c, func(o *op) bool { return o.swap == v && !o.forgotten })
}

// endAtomic records an atomic that has ended.
func (o *op) endAtomic(err error) {
	if err != nil && !errors.Is(err, errPerhaps) && o.old != nil && *o.old != 1 {
		o.e.w.Broken(ruleAtomic, "%v has failed, and says that there was %d", o, *o.old)
	}
	if s := o.e.peer.site; o.kind == fetchAdd {
		s.adds = append(s.adds, o)
	}
}

// checkAtomics checks that some order of the atomics explains the words of a site. A failed one may
// have happened or not.
func (s *site) checkAtomics() {
	for i := range counters {
		var seen []uint64
		sure, perhaps := uint64(0), uint64(0)
		for _, o := range s.adds {
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
		sum := s.Memory.Word(8 * i)
		if sum%step != 0 || sum/step < sure || sum/step > sure+perhaps {
			s.Broken(ruleAtomic, "counter %d of %s is %d times %d: %d additions succeeded, %d perhaps", i,
				s.Name, sum/step, step, sure, perhaps)
		}
		slices.Sort(seen)
		for j, v := range seen {
			if v%step != 0 || v >= sum || j > 0 && v == seen[j-1] {
				s.Broken(ruleAtomic, "counter %d of %s: additions found %d", i, s.Name, seen)
			}
		}
	}
	for i := range s.chains {
		s.checkChain(i, s.chains[i])
	}
}

func (s *site) checkChain(i int, c chain) {
	word := s.Memory.Word(swapsAt + 8*i)
	if !c.mayHold(word) {
		s.Broken(ruleAtomic, "word %d of %s holds %#x, which no operation swapped in", i, s.Name, word)
	}
	left := map[uint64]*op{} // by value: the operation that has swapped it out
	for _, o := range c {
		if !o.ended || o.err != nil || o.old == nil {
			continue
		}
		if !c.mayHold(*o.old) {
			s.Broken(ruleAtomic, "%v found %#x, which no operation swapped in", o, *o.old)
		}
		if *o.old != o.compare {
			continue
		}
		if other := left[*o.old]; other != nil || word == *o.old {
			s.Broken(ruleAtomic, "%v has swapped %#x out, and so has %v, or it is there still", o, *o.old,
				other)
		}
		left[*o.old] = o
	}
}
