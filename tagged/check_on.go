//go:build race || invariants

package tagged

// checked has the invariants checked after each operation on an endpoint.
const checked = true
