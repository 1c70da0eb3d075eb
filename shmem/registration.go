package shmem

import "ibverbx"

// closeLater ends the registration of memory for one call, and returns the call's error. If NICs
// still use the memory, because the call's ctx has ended, closeOrphans ends it in Quiet or Close.
func (p *PE) closeLater(mr *ibverbx.MR, err error) error {
	if mr.Close() != nil {
		p.mu.Lock()
		p.unclosedMRs = append(p.unclosedMRs, mr)
		p.mu.Unlock()
	}
	return err
}

// closeOrphans ends the registrations of calls that ended before the NICs were done.
func (p *PE) closeOrphans() {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.unclosedMRs[:0]
	for _, mr := range p.unclosedMRs {
		if mr.Close() != nil {
			left = append(left, mr)
		}
	}
	clear(p.unclosedMRs[len(left):])
	p.unclosedMRs = left
}

// hasUnclosedMRs reports whether closeOrphans has anything to do.
func (p *PE) hasUnclosedMRs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.unclosedMRs) != 0
}
