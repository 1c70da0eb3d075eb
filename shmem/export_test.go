package shmem

// SetRegisterFrom changes Config.RegisterFrom.
func SetRegisterFrom(pe *PE, n int) { pe.cfg.RegisterFrom = n }
