package ibverbx

// railAt is the rail with the given index; the notify rail comes after the last.
func (q *VirtualQP) railAt(i int) *rail {
	if i < len(q.rails) {
		return q.rails[i]
	}
	return q.notify
}
