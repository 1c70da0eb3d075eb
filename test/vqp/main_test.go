package vqp_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Whatever the tests did, no goroutine outlives them.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
