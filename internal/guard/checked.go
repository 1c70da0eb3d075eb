//go:build race || invariants

package guard

import "sync/atomic"

// Checked reports whether this build detects concurrent use and checks invariants after each call.
const Checked = true

type flag struct{ atomic.Bool }
