package ibverbx_test

import (
	"testing"

	"ibverbx/internal/vqptest"
)

// Small steps of each post and each completion are inlined: a call costs some ten instructions, of
// the 800 that a write over four queue pairs takes.
func TestHotPathInlines(t *testing.T) {
	vqptest.MustInline(t, "ibverbx.(*sender).report",
		"ibverbx.(*VirtualQP).enter",
		"ibverbx.(*VirtualCQ).enter",
		"ibverbx.(*VirtualCQ).sink",
		"ibverbx.(*VirtualCQ).touch",
		"ibverbx.(*line).canSend",
		"ibverbx.(*line).flushes",
		"ibverbx.(*railSet).pick",
		"ibverbx.(*railSet).takeData",
		"ibverbx.(*railSet).giveData",
		"ibverbx.(*rail).hasRoom",
		"ibverbx.(*rail).onNIC",
		"ibverbx.(*sender).busy",
		"ibverbx.(*sender).resolve",
		"ibverbx.(*sender).advanceDataDone",
		"ibverbx.(*receiver).busy",
		"ibverbx.(*sendReq).complete",
		"ibverbx.(*sendReq).dataComplete",
		"ibverbx.(*sendBatch).add",
		"ibverbx.(*sendBatch).setSGL",
		"ibverbx.(*sendBatch).setInline",
		"ibverbx.(*sendBatch).posted",
		"ibverbx.(*batchPool).giveBack",
		"ibverbx.(*holder).take",
		"ibverbx.(*holder).settle",
		"ibverbx.(*sink).slot",
		"ibverbx.(*sink).releaseOne",
		"ibverbx.(*sink).settle",
		"ibverbx.(*Keys).at",
		"ibverbx.(*Keys).covers",
	)
}
