//go:build race || invariants

package guard

import "sync/atomic"

// Checked reports whether this build checks invariants after each call.
const Checked = true

type flag struct{ atomic.Bool }
