package job

// ProtocolOf is the protocol of a job's conversations by its name.
func ProtocolOf(name string) string { return protocol(&Place{Job: name}) }

// ProtocolAt is that of a place.
func ProtocolAt(p *Place) string { return protocol(p) }

// ProofOf is what a process says to prove that it knows the name.
func ProofOf(name string) string { return (&Place{Job: name}).digest("join") }
