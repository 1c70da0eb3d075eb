package ibverbx

// flowLabel is the flow label of the i-th queue pair that a virtual one has on a device, where they
// are spread over the paths of the network; first is the number of the first one. It is never 0,
// which would leave the path to the kernel.
//
// On RoCE v2 the UDP source port is 0xc000 plus the low 14 bits of the label, with the high 6
// folded in by exclusive or (rdma_flow_label_to_udp_sport of rdma-core). Switches hash the port;
// some look at a few bits of it only. A step that is odd and near the golden section of 2^14 makes
// ports that differ in their low bits and lie all over the range.
func flowLabel(first uint32, i int) uint32 {
	const step = 10125
	port := (first*2654435761>>18 + uint32(i)*step) & 0x3fff // Knuth's multiplicative hash, 14 bits
	if port == 0 {
		return 1<<14 | 1 // folds to 0
	}
	return port
}

// flowLabelOf is a rail's flow label: its place among the rails of its device decides.
func (s *railSet) flowLabelOf(r *rail) uint32 {
	i, first := 0, r.num
	for _, other := range s.all[:r.index()] {
		if other.device == r.device {
			if i == 0 {
				first = other.num
			}
			i++
		}
	}
	return flowLabel(first, i)
}
