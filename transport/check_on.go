//go:build race || invariants

package transport

// checking has every public call check the invariants of what it has touched before it returns.
const checking = true
