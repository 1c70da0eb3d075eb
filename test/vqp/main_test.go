package vqp_test

import (
	"testing"

	"go.uber.org/goleak"
)

// No goroutine may be left after the tests.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
