package ibverbx_test

import (
	"reflect"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/shmem"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

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
			t.Errorf("%v may be copied: it has no field of type noCopy", typ)
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
