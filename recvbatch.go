package ibverbx

import "ibverbx/verbs"

// recvBatch serves to translate receives, and to post them in batches. A virtual CQ has one for all
// of its virtual queue pairs: nothing stays in it between calls.
//
// Invariant: list i lies in sges[i*width:(i+1)*width].
type recvBatch struct {
	wrs   []verbs.RecvWR
	sges  []verbs.SGE
	width int
}

// fit makes room for lists of so many elements.
func (b *recvBatch) fit(width int) {
	if b.width < width || b.wrs == nil {
		b.wrs, b.sges, b.width = make([]verbs.RecvWR, postBatch), make([]verbs.SGE, postBatch*width), width
	}
}

// list is the empty list of receive i, to be appended to.
func (b *recvBatch) list(i int) []verbs.SGE {
	return b.sges[i*b.width : i*b.width : (i+1)*b.width]
}
