package shmem

// SetRegisterFrom changes Config.RegisterFrom.
func SetRegisterFrom(pe *PE, n int) { pe.cfg.RegisterFrom = n }

// Asked is how many PEs some PE has asked, at least once, whether they are in step.
func Asked(pes ...*PE) (n int) {
	for _, pe := range pes {
		for i := range pe.peers {
			if pe.peers[i].asked != 0 {
				n++
			}
		}
	}
	return n
}
