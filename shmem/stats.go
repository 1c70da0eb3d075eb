package shmem

import "ibverbx/transport"

// Stats is a snapshot of a PE.
type Stats struct {
	HeapSize   int             `json:"heap_size"` // bytes
	HeapUsed   int             `json:"heap_used"` // bytes in blocks
	HeapBlocks int             `json:"heap_blocks"`
	Barriers   uint64          `json:"barriers"`
	Transport  transport.Stats `json:"transport"`
}

// usage is what Stats reports of the heap.
type usage struct{ bytes, blocks int }

// updateUsage copies for Stats how full the heap is, so that Stats does not wait for a collective
// call that is under way.
func (p *PE) updateUsage() {
	p.mu.Lock()
	p.usage = usage{bytes: int(p.blocks.used), blocks: len(p.blocks.taken)}
	p.mu.Unlock()
}

// Stats takes a snapshot.
func (p *PE) Stats() Stats {
	p.mu.Lock()
	use := p.usage
	p.mu.Unlock()
	return Stats{
		HeapSize: p.cfg.HeapSize, HeapUsed: use.bytes, HeapBlocks: use.blocks, Barriers: p.syncs.Load(),
		Transport: p.worker.Stats(),
	}
}
