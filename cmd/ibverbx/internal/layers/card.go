package layers

import (
	"fmt"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
)

// Card is what two ends exchange to connect: of the cards those of one layer. It travels as JSON.
type Card struct {
	QP        ibverbx.BusinessCard `json:"card,omitzero"`
	Transport []transport.Card     `json:"transport,omitempty"` // one for each endpoint
	Tagged    []tagged.Card        `json:"tagged,omitempty"`
	Regions   Regions              `json:"regions"`
}

// Regions are an end's memory as the other one names it.
type Regions struct {
	Src ibverbx.RemoteMR `json:"src"`
	Dst ibverbx.RemoteMR `json:"dst"`
}

func regionsOf(src, dst *ibverbx.MR) (r Regions) {
	if src != nil {
		r.Src = src.Remote()
	}
	r.Dst = dst.Remote()
	return r
}

// Check says whether the memory is as large as what a round will name.
func (r *Regions) Check(src, dst int) error {
	for _, m := range []struct {
		name string
		have uint64
		want int
	}{{"source", r.Src.Len(), src}, {"target", r.Dst.Len(), dst}} {
		if m.have < uint64(m.want) {
			return fmt.Errorf("the peer's %s has %d bytes, and %d will be named", m.name, m.have, m.want)
		}
	}
	return nil
}
