package transport

import "slices"

// endpointTable is the endpoints of a worker by id, which is part of every work-request id. The
// place of an endpoint that is released goes to the next one that is made. Worker.mu guards it.
//
// Invariant: open counts the places that are not nil, and the endpoint in place i has id i.
type endpointTable struct {
	places []*peerState
	open   int
}

// free returns the lowest id that no endpoint has.
func (t *endpointTable) free() int {
	if i := slices.Index(t.places, nil); i >= 0 {
		return i
	}
	return len(t.places)
}

// add puts an endpoint into its place, which must be free.
func (t *endpointTable) add(p *peerState) {
	if int(p.id) == len(t.places) {
		t.places = append(t.places, nil)
	}
	t.places[p.id] = p
	t.open++
}

// remove takes an endpoint out.
func (t *endpointTable) remove(p *peerState) {
	t.places[p.id] = nil
	t.open--
}

// at returns the endpoint with an id; nil if there is none.
func (t *endpointTable) at(id uint32) *peerState {
	if int(id) >= len(t.places) {
		return nil
	}
	return t.places[id]
}

// all yields the endpoints by id. They may be removed on the way.
func (t *endpointTable) all(yield func(*peerState) bool) {
	for _, p := range t.places {
		if p != nil && !yield(p) {
			return
		}
	}
}
