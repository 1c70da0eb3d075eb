package ibverbx

import (
	"fmt"
	"reflect"
	"sync"
	"weak"

	"ibverbx/verbs"
)

// cqOwners knows which virtual CQ owns a physical CQ: two that polled the same one would take each
// other's completions. It is keyed by the address of the physical CQ and keeps neither alive: while
// the owner lives, so does its physical CQ, and nothing else has that address; an entry of an owner
// that was abandoned without Close is void.
//
//nolint:gochecknoglobals // virtual CQs know nothing of each other
var cqOwners = struct {
	sync.Mutex
	of map[uintptr]weak.Pointer[VirtualCQ]
}{of: map[uintptr]weak.Pointer[VirtualCQ]{}}

// claim makes c the owner of its physical CQs: of all of them, or of none where one has another
// owner.
func (c *VirtualCQ) claim() error {
	cqOwners.Lock()
	defer cqOwners.Unlock()
	for i := range c.cqs {
		if other := cqOwners.of[cqAddr(c.cqs[i].cq)].Value(); other != nil {
			return fmt.Errorf("%w: the CQ of %s belongs to virtual CQ %d already: close that first, or "+
				"create "+
				"another CQ", verbs.ErrBusy, c.cqs[i].cq.Device().Name(), other.num)
		}
	}
	for i := range c.cqs {
		if addr := cqAddr(c.cqs[i].cq); addr != 0 {
			cqOwners.of[addr] = weak.Make(c)
		}
	}
	return nil
}

// disclaim ends c's ownership of its physical CQs.
func (c *VirtualCQ) disclaim() {
	cqOwners.Lock()
	defer cqOwners.Unlock()
	for i := range c.cqs {
		delete(cqOwners.of, cqAddr(c.cqs[i].cq))
	}
}

// cqAddr is the address of a physical CQ; 0 for one of a type without, such as a struct that wraps
// another CQ, which nothing is known of.
func cqAddr(cq verbs.CQ) uintptr {
	v := reflect.ValueOf(cq)
	if v.Kind() != reflect.Pointer || v.Type().Elem().Size() == 0 {
		return 0
	}
	return v.Pointer()
}
