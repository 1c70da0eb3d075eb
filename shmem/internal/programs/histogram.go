package programs

import (
	"context"
	"math/rand/v2"

	"ibverbx/shmem"
)

// Keys returns the n keys that PE pe counts. They are less than bins, and a few are frequent.
func Keys(pe, n, bins int) []uint32 {
	r := rand.New(rand.NewPCG(uint64(pe), 1))
	keys := make([]uint32, n)
	for i := range keys {
		keys[i] = uint32(min(r.IntN(bins), r.IntN(bins)))
	}
	return keys
}

// Histogram counts the keys of all PEs and returns the counts on every PE. Bin b is counted on PE b
// modulo their number, by atomics.
func Histogram(ctx context.Context, pe *shmem.PE, keys []uint32, bins int) (counts []uint64, err error) {
	pes := pe.Size()
	each := (bins + pes - 1) / pes
	mine, err := shmem.Alloc[uint64](ctx, pe, each)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if err := shmem.Inc(ctx, pe, mine.At(int(k)/pes), int(k)%pes); err != nil {
			return nil, err
		}
	}
	if err := pe.Barrier(ctx); err != nil {
		return nil, err
	}
	all := make([]uint64, each*pes)
	if err := shmem.AllGather(ctx, pe, all, mine.Local(pe)); err != nil {
		return nil, err
	}
	counts = make([]uint64, bins)
	for b := range counts {
		counts[b] = all[b%pes*each+b/pes]
	}
	return counts, shmem.Free(ctx, pe, mine)
}

// SerialHistogram returns what Histogram returns when each of pes PEs counts its n Keys.
func SerialHistogram(pes, n, bins int) []uint64 {
	counts := make([]uint64, bins)
	for pe := range pes {
		for _, k := range Keys(pe, n, bins) {
			counts[k]++
		}
	}
	return counts
}
