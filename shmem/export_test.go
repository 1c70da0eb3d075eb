package shmem

// SetRegisterFrom changes Config.RegisterFrom.
func SetRegisterFrom(pe *PE, n int) { pe.cfg.RegisterFrom = n }

// Asked is how many pairs of PEs there are of which one has asked the other, at least once, in
// which call it is.
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
