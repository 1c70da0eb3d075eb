package vqp_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// No goroutine may be left after the tests. Those that run in parallel wait for timeouts and take
// little of a processor.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // unless the command line says otherwise
	flag.Parse()
	goleak.VerifyTestMain(inTurn{m})
}

// inTurn runs the tests on one provider after the other.
type inTurn struct{ m *testing.M }

func (t inTurn) Run() (code int) {
	for name := range strings.SplitSeq(*providerFlag, ",") {
		fmt.Println("provider:", name)
		*providerFlag = name
		code = max(code, t.m.Run())
	}
	return code
}
