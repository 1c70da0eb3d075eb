package tagged

import "ibverbx/internal/list"

// spares are what a worker keeps for use again. Worker.mu guards them.
//
// Invariant: nothing in them is in use or refers to the program's memory.
type spares struct {
	requests requestPool
	inbounds inboundPool
	blocks   blockPool
	readings list.List[reading]
	chunks   *chunk
}

// init sets how much is kept.
func (s *spares) init(c *Config) {
	s.requests.most = c.MaxRequests
	s.inbounds.most = c.MaxUnexpected
	s.blocks.most, s.blocks.largest = c.MaxUnexpected*c.Transport.BufferSize, c.Transport.BufferSize
}
