package sendside

import (
	"errors"
	"slices"
)

// chain is a word that is compared and swapped. No two operations swap the same value in, so each
// value is swapped out at most once.
type chain struct {
	values []uint64 // the first value, and those that operations want to swap in
	next   int
	lost   []uint64 // those of refused operations: they must not appear
	done   []*op
}

func (c *chain) refused(v uint64) { c.lost = append(c.lost, v) }

// newChains makes the words of a site that are compared and swapped.
func newChains() (list [swapsSlots]*chain) {
	for i := range list {
		list[i] = &chain{values: []uint64{0}}
	}
	return list
}

// chain is the word that an operation compares and swaps.
func (s *site) chain(o *op) *chain { return s.chains[(o.word-swapsAt)/8] }

// endAtomic notes an atomic that has ended.
func (o *op) endAtomic(err error) {
	if err != nil && !errors.Is(err, errPerhaps) && o.old != nil && *o.old != 1 {
		o.e.w.Broken(ruleAtomic, "%v has failed, and says that there was %d", o, *o.old)
	}
	s := o.e.peer.site
	if o.kind == fetchAdd {
		s.adds = append(s.adds, o)
		return
	}
	c := s.chain(o)
	c.done = append(c.done, o)
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
	for i, c := range s.chains {
		s.checkChain(i, c)
	}
}

func (s *site) checkChain(i int, c *chain) {
	word := s.Memory.Word(swapsAt + 8*i)
	if !slices.Contains(c.values, word) || slices.Contains(c.lost, word) {
		s.Broken(ruleAtomic, "word %d of %s holds %#x, which no operation swapped in", i, s.Name, word)
	}
	left := map[uint64]*op{} // by value: the operation that has swapped it out
	for _, o := range c.done {
		if o.err != nil || o.old == nil {
			continue
		}
		if !slices.Contains(c.values, *o.old) || slices.Contains(c.lost, *o.old) {
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
