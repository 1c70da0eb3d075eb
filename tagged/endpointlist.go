package tagged

// endpointList is the endpoints that the program has not closed or aborted. Worker.mu guards it.
//
// Invariant: alive counts the endpoints that serve, whose err is not set. made counts those made so
// far, which number their default names. last is why the one that ended last did; nil before.
type endpointList struct {
	list  []*Endpoint
	alive int
	made  int
	last  error
}

// add adds an endpoint that was made.
func (l *endpointList) add(e *Endpoint) {
	l.made++
	l.alive++
	l.list = append(l.list, e)
}

// ended counts an endpoint that serves no more, for err.
func (l *endpointList) ended(err error) {
	l.alive--
	l.last = err
}

// remove removes an endpoint, if it is in the list.
func (l *endpointList) remove(e *Endpoint) {
	for i := range l.list {
		if l.list[i] == e {
			l.list = append(l.list[:i], l.list[i+1:]...)
			return
		}
	}
}

// allEnded reports whether there were endpoints, and none serves any more.
func (l *endpointList) allEnded() bool { return l.alive == 0 && l.made != 0 }
