package guard

import (
	"reflect"
	"testing"
)

// A build that checks panics with the caller's message when a second goroutine enters, and lets the
// next one in after the first has left. A build that does not check has no state at all.
func TestOwner(t *testing.T) {
	const message = "somebody: concurrent use"
	var o Owner
	if !Checked && reflect.TypeFor[Owner]().Size() != 0 {
		t.Errorf("an owner takes %d bytes in a build that does not check", reflect.TypeFor[Owner]().Size())
	}
	second := func() (got any) {
		defer func() { got = recover() }()
		o.Enter(message)
		return nil
	}
	for range 2 {
		o.Enter(message)
		if o.Inside() != Checked {
			t.Errorf("inside %v in a build that checks: %v", o.Inside(), Checked)
		}
		if got := second(); (got == message) != Checked {
			t.Errorf("a second goroutine enters: panic %v, in a build that checks: %v", got, Checked)
		}
		if o.Exit(); o.Inside() {
			t.Error("still inside after Exit")
		}
	}
}
