package main

import (
	"cmp"
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/posener/complete"
	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/perftest"
	"ibverbx/internal/collperf"
)

// helpFiles have the help texts of a command: its help, and behind a line "Flags:" the texts of its
// flags and arguments, each name on a line of its own and its text indented below. Defaults are in
// brackets.
//
//go:embed help
var helpFiles embed.FS

// helpText reads the file of a command. A command without one has its texts in its tags.
func helpText(command string) (help string, flags map[string]string) {
	text, _ := helpFiles.ReadFile("help/" + command + ".txt")
	help, list, _ := strings.Cut(string(text), "\nFlags:\n")
	flags = map[string]string{}
	name := ""
	for line := range strings.Lines(list) {
		if words, indented := strings.CutPrefix(line, "\t"); indented {
			flags[name] = strings.TrimSpace(flags[name] + " " + strings.TrimSpace(words))
		} else {
			name = strings.TrimSpace(line)
		}
	}
	return strings.NewReplacer("{layers}", layerHelp(), "{faults}\n", bench.FaultHelp()).Replace(help), flags
}

// describeFlags gives each command its help, and each flag and argument its text: the command's
// own, or that of perf.
func describeFlags(k *kong.Kong) error {
	_, perf := helpText("perf")
	for _, command := range k.Model.Children {
		var own map[string]string
		command.Detail, own = helpText(command.Name)
		for _, flag := range command.Flags {
			flag.Help = cmp.Or(own[flag.Name], flag.Help, perf[flag.Name])
			if spelled := strings.ReplaceAll(flag.Name, "-", "_"); spelled != flag.Name {
				flag.Aliases = append(flag.Aliases, spelled) // as perftest spells some
			}
		}
		for _, arg := range command.Positional {
			arg.Help = cmp.Or(own[arg.Name], arg.Help)
		}
	}
	return nil
}

// layerHelp lists the operations of the layers.
func layerHelp() string {
	var b strings.Builder
	for _, s := range layers.Shapes() {
		fmt.Fprintf(&b, "  %-10s %-10s %s\n", s.Layer, s.Op, s.Name)
	}
	return b.String()
}

// predictors are the words that flags take, by the name in the flag's tag.
func predictors() map[string]complete.Predictor {
	names := []string{softNICs, realNICs, roceNICs, shmNICs}
	for _, p := range providers {
		names = append(names, p.Name)
	}
	var all, ops []string
	for _, s := range layers.Shapes() {
		all, ops = append(all, string(s.Layer)), append(ops, string(s.Op))
	}
	for _, op := range collperf.Ops() {
		ops = append(ops, string(op))
	}
	return map[string]complete.Predictor{
		"provider": words(names), "layer": words(all), "op": words(ops), "mode": words(bench.Modes()),
		"scheme":   words(bench.Schemes()),
		"balance":  words([]string{ibverbx.RoundRobin.String(), ibverbx.ByAbility.String()}),
		"perftest": words(perftest.Kinds()), "fault": words(bench.FaultNames()),
		"file": complete.PredictFiles("*"),
	}
}

// words predicts the words of a list, each once.
func words[T ~string](list []T) complete.Predictor {
	set := map[string]bool{}
	for _, w := range list {
		set[string(w)] = true
	}
	return complete.PredictSet(slices.Sorted(maps.Keys(set))...)
}
