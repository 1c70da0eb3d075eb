package main

import (
	"maps"
	"slices"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/perftest"
)

// completeShell answers a shell that asks, in the environment, for the completions of a command
// line, and then ends the command.
func completeShell(parser *kong.Kong) {
	kongcompletion.Register(parser, kongcompletion.WithPredictors(predictors()))
}

// predictors are the words that flags take, by the name in the flag's tag.
func predictors() map[string]complete.Predictor {
	names := []string{softNICs, realNICs, roceNICs}
	for _, p := range providers {
		names = append(names, p.Name)
	}
	all, ops := map[string]bool{}, map[string]bool{}
	for _, s := range layers.Shapes() {
		all[string(s.Layer)], ops[string(s.Op)] = true, true
	}
	words := func(set map[string]bool) complete.Predictor {
		return complete.PredictSet(slices.Sorted(maps.Keys(set))...)
	}
	var modes, schemes, tests []string
	for _, m := range bench.Modes() {
		modes = append(modes, string(m))
	}
	for _, k := range perftest.Kinds() {
		tests = append(tests, string(k))
	}
	for _, s := range bench.Schemes() {
		schemes = append(schemes, string(s))
	}
	return map[string]complete.Predictor{
		"provider": complete.PredictSet(names...), "layer": words(all), "op": words(ops),
		"mode":     complete.PredictSet(modes...),
		"scheme":   complete.PredictSet(append(schemes, "all")...),
		"balance":  complete.PredictSet(ibverbx.RoundRobin.String(), ibverbx.ByAbility.String()),
		"perftest": complete.PredictSet(tests...),
		"fault":    complete.PredictSet(bench.FaultNames()...),
		"file":     complete.PredictFiles("*"),
	}
}
