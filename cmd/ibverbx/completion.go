package main

import (
	"maps"
	"slices"

	"github.com/posener/complete"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/perftest"
)

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
