package guard_test

import (
	"reflect"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/internal/guard"
	"ibverbx/shmem"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// The second of two that enter panics with the caller's message, and after the first has left the
// next one enters.
func TestOwner(t *testing.T) {
	const message = "somebody: concurrent use"
	var o guard.Owner
	second := func() (got any) {
		defer func() { got = recover() }()
		o.Enter(message)
		return nil
	}
	for range 2 {
		o.Enter(message)
		if !o.Inside() {
			t.Error("not inside after Enter")
		}
		if got := second(); got != message {
			t.Errorf("a second goroutine enters: panic %v", got)
		}
		if o.Exit(); o.Inside() {
			t.Error("still inside after Exit")
		}
	}
}

// A copy of an object with an owner would be a second one with half of the state: go vet refuses to
// copy them.
func TestOwnedTypesRefuseCopies(t *testing.T) {
	for _, typ := range []reflect.Type{
		reflect.TypeFor[ibverbx.VirtualQP](), reflect.TypeFor[ibverbx.VirtualCQ](),
		reflect.TypeFor[ibverbx.Domain](), reflect.TypeFor[ibverbx.MR](),
		reflect.TypeFor[transport.Worker](), reflect.TypeFor[transport.Endpoint](),
		reflect.TypeFor[transport.Message](), reflect.TypeFor[transport.Pending](),
		reflect.TypeFor[tagged.Worker](), reflect.TypeFor[tagged.Endpoint](),
		reflect.TypeFor[tagged.Request](), reflect.TypeFor[tagged.Region](),
		reflect.TypeFor[shmem.PE](), reflect.TypeFor[shmem.World](),
		reflect.TypeFor[verbs.CompChannel](), reflect.TypeFor[verbs.Watchers](),
		reflect.TypeFor[soft.Fabric](), reflect.TypeFor[soft.Device](), reflect.TypeFor[soft.PD](),
		reflect.TypeFor[soft.MR](), reflect.TypeFor[soft.CQ](), reflect.TypeFor[soft.QP](),
		reflect.TypeFor[soft.Injection](),
	} {
		if !refusesCopies(typ) {
			t.Errorf("%v may be copied: it has no field of type guard.NoCopy", typ)
		}
	}
}

// refusesCopies is the rule of go vet's copylocks: a type is not copied when a pointer to it, or to
// a field of it, has Lock and Unlock.
func refusesCopies(typ reflect.Type) bool {
	if reflect.PointerTo(typ).Implements(reflect.TypeFor[sync.Locker]()) {
		return true
	}
	if typ.Kind() == reflect.Struct {
		for i := range typ.NumField() {
			if refusesCopies(typ.Field(i).Type) {
				return true
			}
		}
	}
	return false
}
