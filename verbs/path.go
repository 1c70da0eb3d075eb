package verbs

// PathChecker is a [Device] that knows by itself which ports it reaches, as software NICs do, whose
// network is their process. Ask with a type assertion; of real NICs the fabric alone knows.
type PathChecker interface {
	// CheckPath says why packets from a local port cannot come to the port with a GID: an error
	// that is [ErrUnreachable], or nil. It says nothing of links that are down.
	CheckPath(port int, to GID) error
}
