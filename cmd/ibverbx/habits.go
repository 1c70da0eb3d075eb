package main

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"ibverbx/cmd/ibverbx/internal/bench"
)

// noValue is what kong says of a flag at the end of the line, or before another flag.
var noValue = regexp.MustCompile(`^(--[^:]+): (?:missing value,|expected \S+ value but got) `)

var unknownFlag = regexp.MustCompile(`^unknown flag (--?[^\s,]+)(, did you mean .*)?$`)

// hint words the error of a flag without its value, and that of an unknown short flag, for which
// the parser suggests all others.
func hint(err error, command string) error {
	if m := noValue.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("%s needs a value", m[1])
	}
	m := unknownFlag.FindStringSubmatch(err.Error())
	if m == nil || strings.HasPrefix(m[1], "--") {
		return err
	}
	flag, _, _ := strings.Cut(m[1], "=")
	return fmt.Errorf("unknown flag %s: see %s --help", flag, command)
}

// readNumber reads a whole number in the range of its flag's tag in, such as in:"0..15".
func readNumber(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("number", &text); err != nil {
		return err
	}
	least, most, _ := strings.Cut(ctx.Value.Tag.Get("in"), "..")
	low, errLow := strconv.Atoi(least)
	high, errHigh := strconv.Atoi(most)
	if err := errors.Join(errLow, errHigh); err != nil {
		panic(err) // the tag is wrong
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return fmt.Errorf("%.20q: must be %d to %d", text, low, high)
	}
	target.Set(reflect.ValueOf(n).Convert(target.Type()))
	return nil
}

var negative = regexp.MustCompile(`^-[0-9.]`)

// joinNegatives attaches negative numbers to the flags before them, so that they are read as values
// and refused for what they are.
func joinNegatives(args []string) (joined []string) {
	for i, a := range args {
		before := ""
		if i > 0 {
			before = joined[len(joined)-1]
		}
		switch {
		case !negative.MatchString(a) || !strings.HasPrefix(before, "-") || strings.Contains(before, "="):
			joined = append(joined, a)
		case strings.HasPrefix(before, "--"):
			joined[len(joined)-1] += "=" + a
		default:
			joined[len(joined)-1] += a
		}
	}
	return joined
}

// habits are flags that perftest's users type and that change nothing here.
type habits struct {
	CPUFreq    bool   `name:"CPU-freq" short:"F" hidden:""` // perftest warns of a clock that changes
	NoPeak     bool   `name:"noPeak" short:"N" hidden:""`   // there is no peak figure
	Connection string `name:"connection" short:"c" hidden:""`
}

func (h *habits) checkConnection() error {
	if c := h.Connection; c != "" && c != "RC" {
		return &bench.UsageError{Reason: fmt.Sprintf("--connection %.20q: queue pairs are RC: drop it", c)}
	}
	return nil
}
