package nic

import "ibverbx/verbs"

// LocalSlice is the n bytes at addr under a local key; ok is false if no region of the queue pair's
// domain covers them and grants the access. It is valid while the lock is held, or until the region
// is closed.
func (q *QP) LocalSlice(lkey uint32, addr, n uint64, access verbs.AccessFlags) (b []byte, ok bool) {
	m := q.dev.Keys.find(lkey)
	if m == nil {
		return nil, false
	}
	return m.slice(q.PD, addr, n, access)
}

// RemoteSlice is LocalSlice for a remote key.
func (q *QP) RemoteSlice(rkey uint32, addr, n uint64, access verbs.AccessFlags) (b []byte, ok bool) {
	m := q.dev.Keys.findRemote(rkey)
	if m == nil {
		return nil, false
	}
	return m.slice(q.PD, addr, n, access)
}
