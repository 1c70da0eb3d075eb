package transport

import (
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// The operation that failed is named, not one that is outstanding before it. What was never posted
// is named by its opcode.
func TestNameOfOneOfSeveral(t *testing.T) {
	p := checkedPeer()
	kinds := []opKind{opPut, opGet, opFetchAdd}
	next := p.sending.ops.Tail
	for _, k := range kinds {
		p.sending.ops.Push().kind = k
	}
	for n, k := range kinds {
		f := &ibverbx.FailedError{HasID: true, ID: next + uint64(n), Opcode: verbs.WCCompSwap}
		if got := p.nameOf(f); got != opNames[k] {
			t.Errorf("operation %d: %q, want %q", n, got, opNames[k])
		}
	}
	refused := &ibverbx.FailedError{HasID: true, ID: p.sendID(), Opcode: verbs.WCCompSwap}
	if got := p.nameOf(refused); got != opNames[opCompareSwap] {
		t.Errorf("a compare swap whose post was refused: %q", got)
	}
}
