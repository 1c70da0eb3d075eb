package lab

import (
	"fmt"

	"ibverbx/test/internal/hunt"
)

// Rule is a promise, or something else that must hold. Kits have more of them.
type Rule string

// Rules of every kit.
const (
	Content   Rule = "what was sent is what arrives"
	Isolation Rule = "nothing fails without a cause"
	Leak      Rule = "everything can be closed, and nothing is left"
	Liveness  Rule = "nothing is lost or stuck"
	Ownership Rule = "memory is the library's until its completion is reported, and only until then"
	NICs      Rule = "the NICs themselves are sound"
	Panic     Rule = "no panic"
	Refusal   Rule = "wrong calls are refused with the right error"
)

// Violation is a broken promise, at the event under way.
func (t *Testbed) Violation(r Rule, detail string) *hunt.Violation {
	return &hunt.Violation{Seed: t.Plan.Seed, Event: t.At, Rule: string(r), Detail: detail}
}

// Broken ends the run.
func (t *Testbed) Broken(r Rule, format string, args ...any) {
	panic(t.Violation(r, fmt.Sprintf(format, args...)))
}

// Must ends the run when something fails that must not.
func (t *Testbed) Must(what string, err error) {
	if err != nil {
		t.Broken(Leak, "%s: %v", what, err)
	}
}
