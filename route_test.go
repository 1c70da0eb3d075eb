package ibverbx

import (
	"math/rand/v2"
	"testing"
)

func TestRouteTable(t *testing.T) {
	table := &routeTable{}
	ref := map[uint32]*rail{}
	rng := rand.New(rand.NewPCG(4, 4))
	nums := []uint32{0, 1, 17, 1<<12 - 1, 1 << 12, 1<<24 - 1, 1<<24 - 2, 1 << 23}
	for range 100 {
		nums = append(nums, rng.Uint32N(1<<24))
	}
	for range 20_000 {
		num := nums[rng.IntN(len(nums))]
		switch {
		case ref[num] == nil:
			ref[num] = &rail{}
			table.add(num, ref[num])
		case rng.IntN(2) == 0:
			table.remove(num, &rail{}) // another owner: no effect
		default:
			table.remove(num, ref[num])
			table.remove(num, ref[num]) // removed already
			delete(ref, num)
		}
		for _, n := range []uint32{num, nums[rng.IntN(len(nums))], num ^ 1, num ^ 1<<12} {
			if n &= 1<<24 - 1; table.find(n) != ref[n] {
				t.Fatalf("number %d leads to %p, want %p", n, table.find(n), ref[n])
			}
		}
	}
	for num, r := range ref {
		table.remove(num, r)
	}
	for i, page := range table.pages {
		if page != nil {
			t.Fatalf("page %d is left behind", i)
		}
	}
}
